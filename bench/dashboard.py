"""Draws docs/dashboard.png: the panels of examples/grafana.json, from a run that a real Prometheus scraped.

Callers come faster and slower at two gates. In the middle the API says "slow down", and later the store of
one gate is lost for some seconds. Prometheus (Debian has it) scrapes the process every second and answers the
queries of the dashboard; matplotlib draws the answers. It is not a picture of Grafana.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import matplotlib as mpl
from prometheus_client import CollectorRegistry, start_http_server

import headgate
from headgate import Dispatch
from headgate.errors import Refused, StoreError
from headgate.responses import read_signal
from headgate.testing import MemoryStore

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parent.parent
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: headgate
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


class Losable(MemoryStore):
    """A store that cannot be asked while `away` is set."""

    away = False

    async def ask(self, key, question):
        if self.away:
            raise StoreError("away")
        return await super().ask(key, question)


async def calls(gate: Dispatch, per_second, seconds: float, end: float) -> None:
    """Callers that come at random, `per_second(part of the time that has passed)` of them."""
    draw, tasks, began = random.Random(7), set(), time.monotonic()

    async def call() -> None:
        tokens = draw.randrange(200, 1200)
        try:
            async with gate.admit(tokens=tokens, priority=draw.choice((0, 0, 0, 1)), timeout=25) as permit:
                await asyncio.sleep(draw.expovariate(1 / seconds))
                permit.settle(tokens=round(tokens * draw.uniform(0.5, 1.1)))
                gate.observe(read_signal(200, {}), status=200)
        except Refused:
            pass

    while (now := time.monotonic()) < end:
        task = asyncio.create_task(call())
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        if draw.random() < 0.01:  # this one has better things to do
            asyncio.get_running_loop().call_later(2, task.cancel)
        await asyncio.sleep(draw.expovariate(per_second((now - began) / (end - began))))


async def events(gate: Dispatch, store: Losable, seconds: float) -> None:
    await asyncio.sleep(seconds * 0.45)
    gate.observe(read_signal(429, {"retry-after": str(round(seconds * 0.08))}), status=429)
    await asyncio.sleep(seconds * 0.25)
    store.away = True
    await asyncio.sleep(seconds * 0.12)
    store.away = False


async def run(seconds: float, store: Losable) -> None:
    end = time.monotonic() + seconds
    openai = Dispatch("api.openai.com", rates=["600/minute burst 10", "400_000 tokens/minute"], pause=True)
    search = Dispatch("search", rates="8/s burst 8", concurrency=6, store=store)
    await asyncio.gather(
        calls(openai, lambda part: 14 if 0.1 < part < 0.4 else 7, 0.6, end),
        calls(search, lambda part: 9 if part > 0.6 else 5, 0.5, end),
        events(openai, store, seconds),
    )
    search.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ask(base: str, query: str, start: float, end: float) -> list[dict]:
    values = {"query": query, "start": start, "end": end, "step": 1}
    with urlopen(f"{base}/api/v1/query_range?{urlencode(values)}") as response:
        return json.load(response)["data"]["result"]


def draw(panels: list[dict], answers: dict[str, list[dict]], start: float, path: Path) -> None:
    rows = -(-len(panels) // 2)
    figure, axes = plt.subplots(rows, 2, figsize=(13, 2.5 * rows), layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        for target in panel["targets"]:
            for series in answers[target["expr"]]:
                label = target["legendFormat"]
                for name, value in series["metric"].items():
                    label = label.replace("{{" + name + "}}", value)
                points = [(float(at) - start, float(value)) for at, value in series["values"]]
                axis.plot(*zip(*points, strict=True), label=label, linewidth=1.3)
        axis.set_title(panel["title"], fontsize=10, loc="left")
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
        if axis.lines:
            axis.legend(fontsize=7, loc="best", framealpha=0.6, ncols=2)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.savefig(path, dpi=80)


def main(seconds: float, path: Path) -> None:
    registry, store = CollectorRegistry(), Losable()
    headgate.observe_all(headgate.observers.prometheus(registry))
    server, _ = start_http_server(0, "127.0.0.1", registry)
    panels = json.loads((ROOT / "examples" / "grafana.json").read_text())["panels"]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "prometheus.yml"
        config.write_text(CONFIG.format(port=server.server_port))
        base = f"http://127.0.0.1:{free_port()}"
        prometheus = subprocess.Popen(
            [
                shutil.which("prometheus"),
                f"--config.file={config}",
                f"--storage.tsdb.path={directory}/data",
                f"--web.listen-address={base.removeprefix('http://')}",
            ],
            stderr=subprocess.DEVNULL,
        )
        try:
            start = time.time()
            asyncio.run(run(seconds, store))
            end = time.time()
            answers = {}
            for panel in panels:
                for target in panel["targets"]:
                    query = target["expr"].replace("$__rate_interval", "10s").replace("$gate", ".*")
                    try:
                        answers[target["expr"]] = ask(base, query, start, end)
                    except URLError as error:
                        raise SystemExit(f"{query}: {error}") from None
        finally:
            prometheus.terminate()
            prometheus.wait()
    draw(panels, answers, start, path)
    empty = [query for query, answer in answers.items() if not answer]
    print(f"{path}: {len(panels)} panels; queries without an answer: {empty or 'none'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=150)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "docs" / "dashboard.png")
    arguments = parser.parse_args()
    main(arguments.seconds, arguments.output)
