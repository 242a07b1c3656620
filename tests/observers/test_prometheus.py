"""The metrics in a real Prometheus registry, against what the callers counted themselves."""

import shutil
import subprocess
from threading import Thread

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import headgate
from forks import in_a_child, needs_fork
from headgate import Dispatch, MemoryLimiter
from headgate.testing import ManualClock
from observers.eventful import eventful_run, losing_a_store


def samples(registry, name):
    """The samples of that name by their labels, sorted by the names of the labels."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        for sample in family.samples:
            if sample.name == name:
                found[tuple(sample.labels[label] for label in sorted(sample.labels))] = sample.value
    return found


def total(registry, name, *labels):
    """The sum of the samples that have these values among their labels."""
    return sum(value for key, value in samples(registry, name).items() if set(labels) <= set(key))


def happened(counts):
    """Without those that are still 0."""
    return {labels: count for labels, count in counts.items() if count}


def test_usual_counts_begin_with_zero_so_that_prometheus_sees_the_first_one_as_a_change():
    registry = CollectorRegistry()
    api = Dispatch("api", observer=headgate.observers.prometheus(registry), clock=ManualClock())
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 0}
    assert samples(registry, "headgate_windows_total")["api", "rate_limited"] == 0
    assert samples(registry, "headgate_upstream_responses_total")["api", "rate_limited", "4xx"] == 0
    assert api.waiting == 0


@pytest.fixture(scope="module")
def eventful():
    registry, scraped = CollectorRegistry(), {}
    observer = headgate.observers.prometheus(registry)
    referee, api = eventful_run(observer, lambda: scraped.update(text=generate_latest(registry).decode()))
    return registry, referee, scraped["text"], api


def test_calls_are_counted_by_result(eventful):
    registry, referee, *_ = eventful
    for result in ("admitted", "refused", "cancelled"):
        assert referee.results[result] > 0
        assert total(registry, "headgate_requests_total", "api", result) == referee.results[result]


def test_the_time_in_line_is_that_of_the_calls_that_waited(eventful):
    registry, referee, *_ = eventful
    admitted = total(registry, "headgate_queue_wait_seconds_sum", "api", "admitted")
    assert admitted == pytest.approx(referee.waited)
    assert total(registry, "headgate_queue_wait_seconds_count", "api") == referee.waits


def test_a_call_that_waited_is_counted_with_the_rule_that_it_waited_for(eventful):
    registry, *_ = eventful
    rules = {rule for _, _, rule in samples(registry, "headgate_queue_wait_seconds_count")}
    assert rules >= {"requests/second", "window"}
    assert total(registry, "headgate_requests_total", "refused", "tokens/second") == 1  # it was too large


def test_buckets_are_cumulative_and_end_with_the_count(eventful):
    registry, referee, *_ = eventful
    by_bound = samples(registry, "headgate_hold_seconds_bucket")
    values = list(by_bound.values())
    assert values == sorted(values)
    assert values[-1] == referee.results["admitted"]
    assert by_bound["api", "0.01"] == 0  # every call took 20 ms
    assert by_bound["api", "0.025"] == referee.results["admitted"]
    assert total(registry, "headgate_hold_seconds_sum", "api") == pytest.approx(referee.held)


def test_units_are_counted_as_estimated_and_as_settled(eventful):
    registry, referee, *_ = eventful
    for state in ("estimated", "actual"):
        assert total(registry, "headgate_units_total", "tokens", state) == referee.tokens[state]
    assert total(registry, "headgate_units_total", "requests", "actual") == referee.results["admitted"]


def test_windows_and_responses_are_counted_by_reason(eventful):
    registry, *_ = eventful
    assert happened(samples(registry, "headgate_windows_total")) == {("api", "rate_limited"): 1}
    assert happened(samples(registry, "headgate_upstream_responses_total")) == {
        ("api", "ok", "2xx"): 1,
        ("api", "rate_limited", "4xx"): 1,
        ("api", "server_error", "5xx"): 1,
    }


def test_gauges_show_the_gate_at_the_moment_of_the_scrape(eventful):
    registry, referee, text, _api = eventful
    assert 'headgate_queue_length{gate="api",priority="0"} 2.0' in text
    assert f'headgate_in_flight{{gate="api"}} {float(referee.inside_by_scrape[0])}' in text
    assert 'headgate_limit{gate="api",rule="requests/second",unit="requests"} 10.0' in text
    assert 'headgate_available{gate="api",rule="tokens/second",unit="tokens"} 960.0' in text  # 10 came back
    assert 'headgate_limit{gate="api",rule="concurrency",unit="calls"} 400.0' in text
    assert 'headgate_window_remaining_seconds{gate="api"} 0.0' in text
    assert samples(registry, "headgate_queue_length") == {("api", "0"): 0}  # all of them have gone since


def test_the_remaining_time_of_a_window_is_shown_while_it_is_active():
    registry, clock = CollectorRegistry(), ManualClock()
    api = Dispatch("api", observer=headgate.observers.prometheus(registry), clock=clock)
    api.set_backoff(30)
    clock.advance(10)
    assert samples(registry, "headgate_window_remaining_seconds") == {("api",): 20}


def test_a_lost_store_is_counted_and_shown_until_it_is_back():
    registry = CollectorRegistry()
    store = losing_a_store(
        headgate.observers.prometheus(registry),
        lambda: samples(registry, "headgate_store_up") == {("shared", "losable"): 0},
        lambda: samples(registry, "headgate_store_up") == {("shared", "losable"): 1},
    )
    assert samples(registry, "headgate_store_lost_total") == {("shared", "losable"): 1}
    assert samples(registry, "headgate_store_members") == {("shared", "losable"): 1}
    asked = samples(registry, "headgate_store_duration_seconds_count")["shared", "losable"]
    assert 0 < asked <= store.asked  # the last question may be on its way


def test_tenants_are_not_told_apart_unless_asked_for():
    registry, other = CollectorRegistry(), CollectorRegistry()
    plain, by_tenant = (
        headgate.observers.prometheus(registry),
        headgate.observers.prometheus(other, tenants=True),
    )
    api = Dispatch("api", observer=headgate.observers.together(plain, by_tenant), clock=ManualClock())
    for number in range(150):
        with api.admit(tenant=f"tenant {number}"):
            pass
    with api.admit():
        pass
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 151}
    counts = samples(other, "headgate_requests_total")
    assert len(counts) == 102  # a hundred tenants, `other`, and calls of no tenant
    assert counts["api", "admitted", "none", "other"] == 50
    assert counts["api", "admitted", "none", "none"] == 1


def test_names_of_gates_are_bounded():
    registry = CollectorRegistry()
    limiter = MemoryLimiter(rates="10/s", observer=headgate.observers.prometheus(registry))
    for number in range(1_010):
        limiter.acquire(f"user {number}")
    counts = samples(registry, "headgate_requests_total")
    assert len(counts) == 1_001
    assert counts["other", "admitted", "none"] == 10


@needs_fork
def test_a_forked_child_begins_with_zero():
    registry = CollectorRegistry()
    api = Dispatch("api", observer=headgate.observers.prometheus(registry))
    for _ in range(3):
        with api.admit():
            pass

    def look():
        with api.admit():
            pass
        assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 1}
        assert samples(registry, "headgate_hold_seconds_count") == {("api",): 1}

    assert in_a_child(look) == 0
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 3}


def test_a_finalizer_that_makes_a_call_while_a_call_is_counted_does_no_harm():
    registry = CollectorRegistry()
    observer = headgate.observers.prometheus(registry)
    api = Dispatch("api", observer=observer, clock=ManualClock())
    tally = observer.of_gate("api")
    with tally.lock, api.admit():  # as if the collector had come while the lock was held
        pass
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 1}


def test_counts_of_many_threads_add_up():
    registry = CollectorRegistry()
    api = Dispatch("api", concurrency=None, observer=headgate.observers.prometheus(registry))

    def calls():
        for _ in range(500):
            with api.admit(tokens=2) as permit:
                permit.settle(tokens=3)

    threads = [Thread(target=calls) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 4_000}
    assert samples(registry, "headgate_hold_seconds_count") == {("api",): 4_000}
    assert total(registry, "headgate_units_total", "tokens", "actual") == 12_000
    assert api.snapshot().totals.admitted == 4_000


def test_a_second_observer_of_a_registry_is_the_first_one():
    registry = CollectorRegistry()
    assert headgate.observers.prometheus(registry) is headgate.observers.prometheus(registry)


def test_gates_of_one_key_are_counted_together():
    registry = CollectorRegistry()
    observer = headgate.observers.prometheus(registry)
    gates = [Dispatch("api", concurrency=4, observer=observer, clock=ManualClock()) for _ in range(2)]
    with gates[0].admit(), gates[1].admit(), gates[1].admit():
        assert samples(registry, "headgate_in_flight") == {("api",): 3}
        assert samples(registry, "headgate_available")["api", "concurrency", "calls"] == 2
    assert samples(registry, "headgate_requests_total") == {("api", "admitted", "none"): 3}


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: install Debian's prometheus"
)
def test_promtool_finds_no_fault_in_the_names(eventful):
    registry, *_ = eventful
    losing_a_store(headgate.observers.prometheus(registry), lambda: True, lambda: True)
    text = generate_latest(registry)
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_tenants_cannot_be_told_apart_at_a_registry_whose_observer_was_made_without_them():
    registry = CollectorRegistry()
    first = headgate.observers.prometheus(registry)

    with pytest.raises(headgate.InvalidConfig, match="write tenants=True in the first call"):
        headgate.observers.prometheus(registry, tenants=True)

    assert headgate.observers.prometheus(registry) is first
