"""Observers that are ready to use: metrics for Prometheus and OpenTelemetry, and logs.

Give one to a gate as `observer=`, or to all gates by `headgate.observe_all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import telling
from ..arguments import read_observer
from ..hints import Observer, Seconds, later

if TYPE_CHECKING:
    from logging import Logger

    from .to_logs import LogObserver
    from .to_opentelemetry import OpenTelemetryObserver
    from .to_prometheus import PrometheusObserver
else:
    Logger = later("logging", "Logger")
    LogObserver = later("headgate.observers.to_logs", "LogObserver")
    OpenTelemetryObserver = later("headgate.observers.to_opentelemetry", "OpenTelemetryObserver")
    PrometheusObserver = later("headgate.observers.to_prometheus", "PrometheusObserver")

__all__ = ["logs", "opentelemetry", "prometheus", "together"]


def prometheus(registry: Any = None, *, tenants: bool = False) -> PrometheusObserver:
    """An observer that writes metrics into a `registry` of prometheus_client, or into its default one.

    >>> import headgate
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry()
    >>> api = headgate.Dispatch("api", observer=headgate.observers.prometheus(registry))
    >>> with api.admit():
    ...     pass
    >>> registry.get_sample_value(
    ...     "headgate_requests_total", {"gate": "api", "result": "admitted", "rule": "none"})
    1

    A second call for the same registry returns the same observer. With `tenants`, requests have the label
    `tenant`: the first 100 tenants by name, all later ones as `other`. Raises InvalidConfig for what is not a
    registry, and for `tenants` if the observer of the registry was made without.
    """
    from .to_prometheus import observer_of  # noqa: PLC0415 - it needs prometheus_client

    return observer_of(registry, tenants=tenants)


def opentelemetry(meter: Any = None, tracer: Any = None, *, tenants: bool = False) -> OpenTelemetryObserver:
    """An observer that writes metrics by a `meter` of OpenTelemetry, and spans by a `tracer`.

    There is a span for every caller that waited 10 ms or longer. Without a meter or a tracer, those of the
    global providers are used, by the name `headgate`. A span is a child of the span in which the caller
    waited. With `tenants`, requests have the label `tenant`, as for `prometheus`. Raises InvalidConfig for
    what is not a meter or tracer.

    >>> import headgate
    >>> api = headgate.Dispatch("api", observer=headgate.observers.opentelemetry())
    """
    from .to_opentelemetry import OpenTelemetryObserver  # noqa: PLC0415 - it needs opentelemetry

    return OpenTelemetryObserver(meter, tracer, tenants=tenants)


def logs(logger: Logger | None = None, *, slow_after: Seconds | None = 30.0) -> LogObserver:
    """An observer that logs every call at DEBUG, and a WARNING while callers wait for long.

    That is longer than `slow_after` seconds; with None no caller waits too long. The `logger` is `headgate`
    unless another one is given. Without this observer headgate writes windows, lost stores and other limits
    at INFO there. A line has its facts as fields too, in `extra`: `headgate_event`, `headgate_key`,
    `headgate_rule` and so on. Raises InvalidConfig if `logger` is not a logger, and InvalidWindow if
    `slow_after` is not a time.

    >>> import headgate
    >>> api = headgate.Dispatch("api", observer=headgate.observers.logs(slow_after=5))
    """
    from .to_logs import LogObserver  # noqa: PLC0415 - it loads logging

    return LogObserver(logger, slow_after)


def together(*observers: Observer | None) -> Observer | None:
    """One observer that tells each of these `observers` once; None if there is none.

    Raises InvalidConfig for what is not an observer.

    >>> from headgate import Dispatch
    >>> from headgate.testing import Recorder
    >>> mine, yours = Recorder(), Recorder()
    >>> with Dispatch("api", observer=together(mine, yours)).admit():
    ...     len(mine.events), len(yours.events)
    (1, 1)
    """
    return telling.together(*map(read_observer, observers))
