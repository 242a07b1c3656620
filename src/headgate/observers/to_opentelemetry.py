"""Metrics and spans for OpenTelemetry, in the shape of its stable metrics of ASP.NET Core rate limiting."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import time_ns
from typing import Any, ClassVar, TypeAlias

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import Tracer

from ..arguments import yes_or_no
from ..errors import InvalidConfig
from .tally import BUCKETS, STORE_BUCKETS, Level, Tally

# A caller that waited less than this many nanoseconds gets no span.
SHORTEST_SPAN = 10_000_000

_Samples: TypeAlias = Iterable[tuple[tuple[str, ...], float]]
_Read: TypeAlias = Callable[[], _Samples]


class OpenTelemetryObserver(Tally):
    """An observer with instruments of a meter. Counters and gauges are read when metrics are collected."""

    keeps_durations: ClassVar[bool] = False

    def __init__(self, meter: Meter | None, tracer: Tracer | None, *, tenants: bool) -> None:
        if meter is not None and not isinstance(meter, Meter):
            raise InvalidConfig(f'meter={meter!r} is not a meter; write e.g. metrics.get_meter("my service")')
        if tracer is not None and not isinstance(tracer, Tracer):
            raise InvalidConfig(
                f'tracer={tracer!r} is not a tracer; write e.g. trace.get_tracer("my service")'
            )
        super().__init__(tenants=yes_or_no(tenants, "tenants"))
        self._tracer = trace.get_tracer("headgate") if tracer is None else tracer
        meter = metrics.get_meter("headgate") if meter is None else meter

        def seconds(name: str, text: str, buckets: tuple[float, ...] = BUCKETS) -> Any:
            bounds = list(buckets)
            return meter.create_histogram(
                f"headgate.{name}", "s", text, explicit_bucket_boundaries_advisory=bounds
            )

        self._waits = seconds("request.time_in_queue", "How long calls waited that had to wait.")
        self._holds = seconds("lease.duration", "How long calls took from admission to their end.")
        self._asks = seconds("store.duration", "How long the store took to answer.", STORE_BUCKETS)
        counter, gauge = meter.create_observable_counter, meter.create_observable_gauge
        level = meter.create_observable_up_down_counter

        def observe(make: Any, name: str, unit: str, text: str, labels: Iterable[str], read: _Read) -> None:
            make(f"headgate.{name}", [_observing(tuple(labels), read)], unit, text)

        gate, rule, store = ("gate",), ("gate", "rule", "unit"), ("gate", "store")
        observe(counter, "requests", "{request}", "Calls, by result.", self.label_names, self.requests)
        observe(level, "request.queued", "{request}", "Callers that wait.", (*gate, "priority"), self._queued)
        observe(level, "lease.active", "{request}", "Calls under way.", gate, self._active)
        observe(gauge, "limit", "1", "What a rule allows in its period, or at once.", rule, self._limits)
        observe(gauge, "utilization", "1", "The used part of what a rule allows.", rule, self._utilization)
        observe(
            counter, "window.set", "{window}", "Backoff windows that started.", (*gate, "reason"), self._set
        )
        observe(gauge, "window.remaining", "s", "How long the active window lasts.", gate, self._remaining)
        observe(counter, "units", "1", "Units that calls took.", (*gate, "unit", "state"), self.units)
        observe(
            counter,
            "upstream.responses",
            "{response}",
            "Responses of the API, by what they say about limits.",
            (*gate, "status", "reason"),
            lambda: list(self.responses.items()),
        )
        observe(gauge, "store.members", "{process}", "Processes that share a limit.", store, self._members)
        observe(counter, "store.lost", "{loss}", "How often the store was lost.", store, self._lost)

    # -- what is read when metrics are collected

    def _queued(self) -> _Samples:
        for name, state in self.states().items():
            for priority, waiting in (state.waiting or {0: 0}).items():
                yield (name, str(priority)), waiting

    def _active(self) -> _Samples:
        return [((name,), state.in_flight) for name, state in self.states().items()]

    def _remaining(self) -> _Samples:
        return [((name,), state.window) for name, state in self.states().items()]

    def _limits(self) -> _Samples:
        return [((name, level.rule, level.unit), level.limit) for name, level in self._levels()]

    def _utilization(self) -> _Samples:
        for name, level in self._levels():
            yield (name, level.rule, level.unit), 1 - level.available / level.limit if level.limit else 1.0

    def _levels(self) -> Iterator[tuple[str, Level]]:
        for name, state in self.states().items():
            for level in state.levels.values():
                yield name, level

    def _set(self) -> _Samples:
        return list(self.windows.items())

    def _members(self) -> _Samples:
        return list(self.members.items())

    def _lost(self) -> _Samples:
        return list(self.lost.items())

    # -- what is recorded when it happens

    def has_waited(self, gate: str, result: str, rule: str, waited: int) -> None:
        attributes = {"headgate.gate": gate, "headgate.result": result, "headgate.rule": rule}
        self._waits.record(waited / 1e9, attributes)
        if waited >= SHORTEST_SPAN:
            now = time_ns()
            span = self._tracer.start_span("headgate.wait", attributes=attributes, start_time=now - waited)
            span.end(now)

    def was_held(self, gate: str, held: int) -> None:
        self._holds.record(held / 1e9, {"headgate.gate": gate})

    def was_asked(self, gate: str, store: str, seconds: float) -> None:
        self._asks.record(seconds, {"headgate.gate": gate, "headgate.store": store})


def _observing(labels: tuple[str, ...], read: _Read) -> Callable[[CallbackOptions], Iterable[Observation]]:
    names = [f"headgate.{label}" for label in labels]

    def observe(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(value, dict(zip(names, values, strict=True))) for values, value in read()]

    return observe
