"""Metrics and spans of a real OpenTelemetry SDK, against what the callers counted themselves."""

import asyncio

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import headgate
from headgate import Dispatch
from headgate.testing import ManualClock, run
from observers.eventful import eventful_run, losing_a_store


class Collected:
    """An observer with a meter and a tracer of its own, and what they have."""

    def __init__(self):
        self._reader, self._spans = InMemoryMetricReader(), InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._spans))
        self.tracer = provider.get_tracer("test")
        meter = MeterProvider([self._reader]).get_meter("test")
        self.observer = headgate.observers.opentelemetry(meter, self.tracer)

    def points(self, name):
        """The data points of a metric by the values of their attributes, sorted by the names of these."""
        data = self._reader.get_metrics_data()
        metrics = [] if data is None else data.resource_metrics[0].scope_metrics[0].metrics
        return {
            tuple(point.attributes[attribute] for attribute in sorted(point.attributes)): point
            for metric in metrics
            if metric.name == f"headgate.{name}"
            for point in metric.data.data_points
        }

    def values(self, name):
        return {labels: point.value for labels, point in self.points(name).items()}

    def spans(self):
        return self._spans.get_finished_spans()


@pytest.fixture(scope="module")
def eventful():
    collected, scraped = Collected(), {}

    def scrape():
        for name in ("request.queued", "lease.active", "limit", "utilization", "window.remaining"):
            scraped[name] = collected.values(name)

    referee, api = eventful_run(collected.observer, scrape)
    return collected, referee, scraped, api


def test_calls_are_counted_by_result(eventful):
    collected, referee, *_ = eventful
    counts = collected.values("requests")
    for result in ("admitted", "refused", "cancelled"):
        counted = sum(count for (_, named, _), count in counts.items() if named == result)
        assert counted == referee.results[result] > 0


def test_histograms_have_the_times_in_line_and_under_way(eventful):
    collected, referee, *_ = eventful
    waits = collected.points("request.time_in_queue")
    assert sum(point.count for point in waits.values()) == referee.waits
    admitted = sum(point.sum for (_, result, _), point in waits.items() if result == "admitted")
    assert admitted == pytest.approx(referee.waited)
    held = collected.points("lease.duration")[("api",)]
    assert (held.count, held.sum) == (referee.results["admitted"], pytest.approx(referee.held))
    assert held.explicit_bounds[-1] == 600


def test_units_windows_and_responses_are_counted(eventful):
    collected, referee, *_ = eventful
    units = collected.values("units")
    for state in ("estimated", "actual"):
        assert units["api", state, "tokens"] == referee.tokens[state]
    windows = collected.values("window.set")
    assert windows.pop(("api", "rate_limited")) == 1
    assert set(windows.values()) == {0}  # other reasons, which begin with zero
    assert sum(collected.values("upstream.responses").values()) == 3


def test_gauges_show_the_gate_when_metrics_are_collected(eventful):
    _, referee, scraped, _ = eventful
    assert scraped["request.queued"] == {("api", "0"): 2}
    assert scraped["lease.active"] == {("api",): referee.inside_by_scrape[0]}
    assert scraped["limit"]["api", "requests/second", "requests"] == 10
    assert scraped["utilization"]["api", "tokens/second", "tokens"] == pytest.approx(0.04)
    assert scraped["window.remaining"] == {("api",): 0}


def test_a_lost_store_is_counted():
    collected = Collected()
    store = losing_a_store(
        collected.observer,
        lambda: collected.values("store.lost") == {("shared", "losable"): 1},
        lambda: collected.observer.up == {("shared", "losable"): 1},
    )
    assert collected.values("store.members") == {("shared", "losable"): 1}
    assert 0 < collected.points("store.duration")["shared", "losable"].count <= store.asked


def test_a_caller_that_waits_long_enough_has_a_span_below_its_own():
    collected = Collected()

    async def main(clock):
        api = Dispatch("api", rates="100/s burst 1", observer=collected.observer, clock=clock)

        async def call(name, after):
            await asyncio.sleep(after)
            with collected.tracer.start_as_current_span(name):
                async with api.admit():
                    pass

        await asyncio.gather(call("at once", 0), call("too short", 0.001), call("waits", 0.005))

    run(main)
    spans = {span.name: span for span in collected.spans()}
    assert len(spans) == 4  # one wait was 9 ms long
    waited, caller = spans["headgate.wait"], spans["waits"]
    assert waited.parent.span_id == caller.context.span_id
    assert waited.end_time - waited.start_time == 15_000_000
    assert waited.attributes == {
        "headgate.gate": "api",
        "headgate.result": "admitted",
        "headgate.rule": "requests/second",
    }


def test_a_caller_that_is_cancelled_has_a_span_below_its_own():
    collected = Collected()

    async def main(clock):
        api = Dispatch("api", concurrency=1, observer=collected.observer, clock=clock)

        async def call():
            with collected.tracer.start_as_current_span("caller"):
                async with api.admit():
                    pass

        async with api.admit():
            task = asyncio.create_task(call())
            await asyncio.sleep(3)
            task.cancel()
            await asyncio.wait([task])

    run(main)
    waited, caller = collected.spans()
    assert waited.parent.span_id == caller.context.span_id
    assert waited.attributes["headgate.result"] == "cancelled"
    assert waited.end_time - waited.start_time == 3_000_000_000


def test_without_a_provider_nothing_is_exported_and_nothing_fails():
    api = Dispatch("api", observer=headgate.observers.opentelemetry(), clock=ManualClock())
    with api.admit():
        assert api.snapshot().in_flight == 1
