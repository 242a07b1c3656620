"""Metrics of a command for Prometheus, at a port of this machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from ..observers import prometheus
from ..observers.everything import observe_all
from .options import CommandError


@contextmanager
def metrics_at(port: int) -> Iterator[str]:
    """Serve the metrics of all gates of this process on loopback; 0 takes a free port. Gives the URL."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server  # noqa: PLC0415 - an extra
    except ImportError:
        raise CommandError(
            "--metrics needs prometheus_client, which is not installed", 'pip install "headgate[prometheus]"'
        ) from None
    registry = CollectorRegistry()
    try:
        server, thread = start_http_server(port, "127.0.0.1", registry)
    except OSError as error:
        raise CommandError(
            f"--metrics {port}: {error.strerror or error}", "write another port, or 0 for a free one"
        ) from None
    stop = observe_all(prometheus(registry))
    try:
        yield f"http://127.0.0.1:{server.server_port}/metrics"
    finally:
        stop()
        server.shutdown()
        server.server_close()
        thread.join()
