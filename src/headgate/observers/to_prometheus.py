"""Metrics for Prometheus: a collector that is read when the registry is scraped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any
from weakref import WeakKeyDictionary

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..arguments import yes_or_no
from ..errors import InvalidConfig
from .tally import BUCKETS, STORE_BUCKETS, Tally

_observers: WeakKeyDictionary[CollectorRegistry, PrometheusObserver] = WeakKeyDictionary()


def observer_of(registry: CollectorRegistry | None, *, tenants: bool) -> PrometheusObserver:
    """The observer of that registry, made and registered on first use."""
    registry = REGISTRY if registry is None else registry
    if not isinstance(registry, CollectorRegistry):
        raise InvalidConfig(
            f"registry={registry!r} is not a registry; write e.g. prometheus(CollectorRegistry())"
        )
    yes_or_no(tenants, "tenants")
    known = _observers.get(registry)
    if known is not None and tenants and not known.tenants:
        raise InvalidConfig(
            "tenants=True: this registry has an observer already, which does not tell tenants apart; write "
            "tenants=True in the first call for the registry"
        )
    if known is None:
        known = PrometheusObserver(tenants=tenants)
        registry.register(known)
        _observers[registry] = known
    return known


class PrometheusObserver(Tally, Collector):
    """An observer, and the collector of its metrics."""

    def describe(self) -> Iterable[Metric]:
        """The names of all metrics, so that a registry refuses another collector of them."""
        return [family for family, _ in self._families()]

    def collect(self) -> Iterator[Metric]:
        """All metrics as of now."""
        for family, samples in self._families():
            for labels, value in samples:
                family.add_metric(list(labels), value)
            yield family
        yield from self._histograms()

    def _families(self) -> Iterator[tuple[Any, Iterable[tuple[Iterable[str], float]]]]:
        def counter(name: str, text: str, *labels: str) -> Any:
            return CounterMetricFamily(f"headgate_{name}", text, labels=labels)

        def gauge(name: str, text: str, *labels: str) -> Any:
            return GaugeMetricFamily(f"headgate_{name}", text, labels=labels)

        states = self.states()
        levels = [
            ((name, *key), level) for name, state in states.items() for key, level in state.levels.items()
        ]
        yield (
            counter("requests", "Calls, by result, and by the rule that they waited for.", *self.label_names),
            self.requests(),
        )
        yield (
            gauge("queue_length", "Callers that wait.", "gate", "priority"),
            [
                ((name, str(priority)), waiting)
                for name, state in states.items()
                for priority, waiting in (state.waiting or {0: 0}).items()
            ],
        )
        yield (
            gauge("in_flight", "Calls under way.", "gate"),
            [((name,), state.in_flight) for name, state in states.items()],
        )
        yield (
            gauge("limit", "What a rule allows in its period, or at once.", "gate", "rule", "unit"),
            [(labels, level.limit) for labels, level in levels],
        )
        yield (
            gauge("available", "What a rule would admit now; negative in debt.", "gate", "rule", "unit"),
            [(labels, level.available) for labels, level in levels],
        )
        yield (
            counter("windows", "Backoff windows that started.", "gate", "reason"),
            list(self.windows.items()),
        )
        yield (
            gauge("window_remaining_seconds", "How long the active backoff window lasts.", "gate"),
            [((name,), state.window) for name, state in states.items()],
        )
        yield (
            counter("units", "Units that calls took, as estimated and as settled.", "gate", "unit", "state"),
            self.units(),
        )
        yield (
            counter(
                "upstream_responses",
                "Responses of the API, by what they say about limits.",
                *("gate", "status", "reason"),
            ),
            list(self.responses.items()),
        )
        store = ("gate", "store")
        yield gauge("store_members", "Processes that share a limit.", *store), list(self.members.items())
        yield gauge("store_up", "Whether the store answers.", *store), list(self.up.items())
        yield counter("store_lost", "How often the store was lost.", *store), list(self.lost.items())

    def _histograms(self) -> Iterator[Metric]:
        def histogram(name: str, text: str, *labels: str) -> Any:
            return HistogramMetricFamily(f"headgate_{name}_seconds", text, labels=labels)

        waits = histogram("queue_wait", "How long calls waited that had to wait.", "gate", "result", "rule")
        holds = histogram("hold", "How long calls took from admission to their end.", "gate")
        for name, tally in list(self.by_name.items()):
            with tally.lock:
                waited = [(labels, list(each.counts), each.sum) for labels, each in tally.waits.items()]
                held, sum_held = list(tally.holds.counts), tally.holds.sum
            for labels, counts, total in waited:
                waits.add_metric([name, *labels], _buckets(counts), total / 1e9)
            holds.add_metric([name], _buckets(held), sum_held / 1e9)
        asked = histogram("store_duration", "How long the store took to answer.", "gate", "store")
        for labels, each in list(self.asked.items()):
            asked.add_metric(list(labels), _buckets(list(each.counts), STORE_BUCKETS), each.sum / 1e9)
        yield from (waits, holds, asked)


def _buckets(counts: list[int], of: tuple[float, ...] = BUCKETS) -> list[tuple[str, float]]:
    """The buckets of a histogram as Prometheus has them: each counts all that are smaller."""
    bounds = [*(f"{bound:g}" if bound % 1 else f"{bound:.1f}" for bound in of), "+Inf"]
    return list(zip(bounds, accumulate(counts), strict=True))
