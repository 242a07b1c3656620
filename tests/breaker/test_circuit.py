"""The circuit as a transition table."""

from itertools import pairwise

import pytest

from breaker.circuits import SECOND, circuit, everything, fail, opened_at, succeed
from headgate import events
from headgate.breaker.circuit import CLOSED, HALF_OPEN, OPEN, Counter, Probe

# -- closed


def test_failures_in_a_row_open_the_circuit_and_the_last_of_them_says_so():
    it = circuit()
    assert fail(it, 0, times=2) == [False, False]
    assert it.state == CLOSED

    assert fail(it, 5) == [True]
    assert (it.state, it.opens_in(5)) == (OPEN, 30 * SECOND)
    assert it.reason == "3 calls in a row failed"


def test_one_success_starts_the_row_of_failures_anew():
    """Two failures, a success, two failures: the circuit is still closed."""
    it = circuit()
    fail(it, 0, times=2)
    assert succeed(it, 0) == [False]
    assert fail(it, 0, times=2) == [False, False]
    assert it.state == CLOSED
    assert fail(it, 0) == [True]


def test_a_threshold_of_one_opens_at_the_first_failure():
    it = circuit(threshold=1)
    assert fail(it, 0) == [True]
    assert it.reason == "1 call failed"


def test_an_ignored_outcome_neither_counts_nor_ends_a_row_of_failures():
    it = circuit()
    fail(it, 0, times=2)
    for _ in range(10):
        it.ignored(it.enter(0))
    assert (it.state, it.failures) == (CLOSED, 2)
    assert fail(it, 0) == [True]


def test_without_a_threshold_no_row_of_failures_opens_it():
    it = circuit(threshold=None, failure_rate=(1, 1), minimum=1000)
    assert not any(fail(it, 0, times=999))


def test_a_closed_circuit_lets_any_number_in_by_its_generation():
    it = circuit()
    assert {it.enter(now) for now in range(100)} == {it.generation}


# -- open


def test_an_open_circuit_lets_a_probe_in_at_the_nanosecond_its_time_is_up():
    """The moment at which the time is up counts as up."""
    it = opened_at(7)
    last = 7 + 30 * SECOND - 1
    assert it.enter(last) is None
    assert (it.would_admit(last), it.opens_in(last), it.state_at(last)) == (False, 1, OPEN)

    assert it.would_admit(last + 1)
    assert (it.opens_in(last + 1), it.state_at(last + 1)) == (0, HALF_OPEN)
    assert isinstance(it.enter(last + 1), Probe)


def test_asking_an_open_circuit_changes_nothing():
    it = opened_at(0)
    for now in (0, 29 * SECOND, 30 * SECOND, 10**18):
        before = everything(it)
        it.would_admit(now), it.opens_in(now), it.state_at(now)
        assert everything(it) == before


def test_a_late_failure_of_an_earlier_call_does_not_lengthen_the_open_time():
    """The circuit opens at 0, an earlier call fails at 29, and a probe goes at 30."""
    it = circuit()
    straggler = it.enter(0)
    fail(it, 0, times=3)
    before = everything(it)
    assert not it.failed(straggler, slow=False, now=29 * SECOND, draw=0.0)

    assert everything(it) == before
    assert isinstance(it.enter(30 * SECOND), Probe)


def test_a_late_success_of_an_earlier_call_changes_nothing_while_open():
    """A probe that fails after it opens the circuit again."""
    it = circuit()
    straggler = it.enter(0)
    fail(it, 0, times=3)
    before = everything(it)
    assert not it.succeeded(straggler, slow=False, now=SECOND, draw=0.0)
    assert everything(it) == before

    assert fail(it, 30 * SECOND) == [True]
    assert it.state == OPEN
    assert it.opens_in(30 * SECOND) == 30 * SECOND


# -- half-open


@pytest.mark.parametrize("probes", [1, 2, 5])
def test_as_many_probes_as_configured_go_at_a_time_and_no_more(probes):
    it = opened_at(0, probes=probes)
    entries = [it.enter(30 * SECOND) for _ in range(100)]
    assert [entry is not None for entry in entries] == [True] * probes + [False] * (100 - probes)
    assert it.opens_in(31 * SECOND) == 29 * SECOND  # when the first of them has had long enough


def test_the_first_probe_to_succeed_closes_it_and_the_others_decide_nothing():
    it = opened_at(0, probes=3)
    first, second, third = (it.enter(30 * SECOND) for _ in range(3))
    assert it.succeeded(second, slow=False, now=31 * SECOND, draw=0.0)
    assert (it.state, it.failures, it.reason) == (CLOSED, 0, "")

    before = everything(it)
    assert not it.failed(first, slow=False, now=32 * SECOND, draw=0.0)
    assert not it.succeeded(third, slow=False, now=32 * SECOND, draw=0.0)
    assert everything(it) == before


def test_the_first_probe_to_fail_opens_it_again_from_then_on():
    """The open time runs from the failure of the probe."""
    it = opened_at(0, probes=3)
    first, second, third = (it.enter(30 * SECOND) for _ in range(3))
    assert it.failed(third, slow=False, now=40 * SECOND, draw=0.0)
    assert (it.state, it.reason) == (OPEN, "a probe failed")
    assert it.opens_in(40 * SECOND) == 30 * SECOND

    before = everything(it)
    assert not it.succeeded(first, slow=False, now=41 * SECOND, draw=0.0)
    assert not it.failed(second, slow=False, now=41 * SECOND, draw=0.0)
    assert everything(it) == before


def test_a_probe_that_is_ignored_makes_room_for_one_other():
    """The circuit stays half-open, with one probe at a time."""
    it = opened_at(0)
    for _ in range(5):
        probe = it.enter(30 * SECOND)
        assert isinstance(probe, Probe)
        assert it.enter(30 * SECOND) is None
        it.ignored(probe)
        assert it.state == HALF_OPEN


def test_giving_a_probe_back_twice_makes_room_once():
    it = opened_at(0, probes=2)
    first = it.enter(30 * SECOND)
    assert it.enter(30 * SECOND) is not None
    it.ignored(first)
    it.ignored(first)
    assert it.enter(30 * SECOND) is not None
    assert it.enter(30 * SECOND) is None


def test_a_probe_that_is_never_heard_of_again_makes_room_when_its_lease_is_over():
    """At exactly that nanosecond, one other probe may go."""
    it = opened_at(0, lease=10 * SECOND)
    assert it.enter(30 * SECOND) is not None
    assert it.enter(40 * SECOND - 1) is None
    assert it.opens_in(40 * SECOND - 1) == 1
    assert it.opens_in(40 * SECOND) == 0
    assert it.enter(40 * SECOND) is not None
    assert it.enter(40 * SECOND) is None


def test_a_hundred_probes_that_hang_are_not_all_remembered():
    it = opened_at(0, lease=SECOND)
    for k in range(100):
        assert it.enter((30 + k) * SECOND) is not None
    assert len(it._probes) == 1


def test_a_late_success_of_the_same_half_open_period_closes_it():
    """Its lease was over, another probe is under way; it knows that the far side is well."""
    it = opened_at(0, lease=10 * SECOND)
    late = it.enter(30 * SECOND)
    other = it.enter(40 * SECOND)
    assert it.succeeded(late, slow=False, now=41 * SECOND, draw=0.0)
    assert it.state == CLOSED
    assert not it.failed(other, slow=False, now=42 * SECOND, draw=0.0)
    assert it.state == CLOSED


def test_a_late_result_of_an_earlier_half_open_period_decides_nothing():
    it = opened_at(0, lease=10 * SECOND)
    late = [it.enter(30 * SECOND), it.enter(40 * SECOND)]
    fail(it, 50 * SECOND)
    assert it.enter(80 * SECOND) is not None
    before = everything(it)

    assert not it.succeeded(late[0], slow=False, now=81 * SECOND, draw=0.0)
    assert not it.failed(late[1], slow=False, now=81 * SECOND, draw=0.0)
    assert everything(it) == before


@pytest.mark.parametrize("well", [True, False])
def test_a_call_let_in_while_closed_decides_nothing_while_half_open(well):
    """Neither a late success nor a late failure."""
    it = circuit()
    straggler = it.enter(0)
    fail(it, 0, times=3)
    assert it.enter(30 * SECOND) is not None
    before = everything(it)
    end = it.succeeded if well else it.failed
    assert not end(straggler, False, 31 * SECOND, 0.0)
    assert everything(it) == before


def test_a_call_let_in_before_the_circuit_opened_does_not_count_after_it_closed():
    """The failure belongs to an earlier generation."""
    it = circuit()
    stragglers = [it.enter(0) for _ in range(5)]
    fail(it, 0, times=3)
    succeed(it, 30 * SECOND)
    assert it.state == CLOSED
    before = everything(it)
    for straggler in stragglers:
        assert not it.failed(straggler, slow=False, now=31 * SECOND, draw=0.0)
    assert everything(it) == before


def test_released_probes_make_room_for_others():
    """In a forked child."""
    it = opened_at(0, probes=2)
    assert it.enter(30 * SECOND) is not None
    assert it.enter(30 * SECOND) is not None
    assert it.enter(30 * SECOND) is None
    it.release_probes()
    assert it.state == HALF_OPEN
    assert [it.enter(30 * SECOND) is None for _ in range(3)] == [False, False, True]


def test_closing_by_hand_forgets_everything():
    for now in (0, 30 * SECOND):
        it = opened_at(0)
        probe = it.enter(now)
        it.close()
        assert (it.state, it.failures, it.reason) == (CLOSED, 0, "")
        assert it.pristine(now)
        if probe is not None:
            assert not it.failed(probe, slow=False, now=now, draw=0.0)
        assert fail(it, now, times=3) == [False, False, True]


# -- how long it stays open


def test_a_circuit_stays_open_twice_as_long_after_each_probe_that_failed():
    it = opened_at(0, recovery=5 * SECOND, max_recovery=60 * SECOND)
    now, lasted = 0, [it.opens_in(0)]
    for _ in range(6):
        now += lasted[-1]
        fail(it, now)
        lasted.append(it.opens_in(now))
    assert [ns / SECOND for ns in lasted] == [5, 10, 20, 40, 60, 60, 60]

    now += lasted[-1]
    succeed(it, now)
    fail(it, now, times=3)
    assert it.opens_in(now) == 5 * SECOND  # it was well in between


def test_a_circuit_may_fail_for_a_year_without_overflowing():
    it = opened_at(0, recovery=1, max_recovery=10**15)
    now = 0
    for _ in range(500):
        now += it.opens_in(now)
        fail(it, now)
    assert it.opens_in(now) == 10**15


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 30.0), (0.5, 33.0), (0.999, 35.994)])
def test_jitter_only_ever_lengthens_by_its_part(draw, expected):
    """Never earlier than the recovery time."""
    it = circuit(jitter=0.2)
    fail(it, 0, times=3, draw=draw)
    assert it.opens_in(0) / SECOND == pytest.approx(expected, abs=1e-6)


def test_each_opening_draws_anew():
    it = circuit(jitter=0.2)
    fail(it, 0, times=3, draw=0.9)
    now = it.opens_in(0)
    fail(it, now, draw=0.0)
    assert it.opens_in(now) == 30 * SECOND


# -- generations


def test_openings_and_closings_count_as_generations_and_half_opening_does_not():
    it = circuit()
    seen = [it.generation]
    fail(it, 0, times=3)  # opens
    seen.append(it.generation)
    probe = it.enter(30 * SECOND)  # half-opens
    assert it.generation == seen[-1] == probe.generation
    it.failed(probe, slow=False, now=30 * SECOND, draw=0.0)  # opens
    seen.append(it.generation)
    succeed(it, 60 * SECOND)  # closes
    seen.append(it.generation)
    it.close()  # by hand
    seen.append(it.generation)
    assert all(a < b for a, b in pairwise(seen))


# -- of all calls in a window


def test_half_of_the_calls_failing_opens_the_circuit_though_never_three_in_a_row():
    """Calls fail and succeed in turn. The tenth call is the first that can open the circuit."""
    it = circuit(failure_rate=(1, 2), minimum=10)
    changed = []
    for k in range(10):
        changed += (fail if k % 2 else succeed)(it, k * SECOND)
    assert changed == [False] * 9 + [True]
    assert it.reason == "5 of 10 calls within 60 s failed"


def test_just_under_the_failure_rate_does_not_open_the_circuit():
    """499 of 1,000 are less than half, exactly."""
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=1000)
    assert not any(succeed(it, 0, times=501) + fail(it, 0, times=499))
    assert fail(it, 0) == [False]  # 500 of 1,001
    assert fail(it, 0) == [True]  # 501 of 1,002


def test_a_success_that_completes_the_minimum_of_calls_opens_nothing():
    """Four failures, and the fifth call succeeds; the sixth fails, and five of six are too many."""
    it = circuit(threshold=None, failure_rate=(1, 10), minimum=5)
    assert not any(fail(it, 0, times=4) + succeed(it, 0))
    assert fail(it, 0) == [True]
    assert it.reason == "5 of 6 calls within 60 s failed"


def test_too_few_calls_say_nothing_about_a_rate():
    """Nine failures of nine are below the minimum of ten calls."""
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=10)
    assert not any(fail(it, 0, times=9))
    assert fail(it, 0) == [True]


def test_failures_spread_over_a_week_do_not_make_a_failure_rate():
    """One failure an hour, and never ten calls within a minute."""
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=2)
    assert not any(changed for hour in range(168) for changed in fail(it, hour * 3600 * SECOND))


def test_slow_calls_open_the_circuit_though_all_of_them_succeed():
    it = circuit(threshold=None, slow_rate=(4, 5), minimum=5)
    assert succeed(it, 0, times=1) == [False]
    assert succeed(it, 0, times=3, slow=True) == [False] * 3
    assert succeed(it, 0, slow=True) == [True]  # four of five
    assert it.reason == "4 of 5 calls within 60 s were slow"


def test_a_slow_failure_counts_as_slow_and_as_failed():
    it = circuit(threshold=None, failure_rate=(1, 1), slow_rate=(1, 2), minimum=2)
    assert succeed(it, 0) == [False]
    assert fail(it, 0, slow=True) == [True]
    assert it.reason == "1 of 2 calls within 60 s were slow"


def test_a_probe_that_succeeds_too_slowly_opens_the_circuit_again():
    it = circuit(slow_rate=(4, 5))
    fail(it, 0, times=3)
    assert succeed(it, 30 * SECOND, slow=True) == [True]
    assert (it.state, it.reason) == (OPEN, "a probe succeeded, but too slowly")

    it = opened_at(0)  # without a limit for slow calls
    assert succeed(it, 30 * SECOND, slow=True) == [True]
    assert it.state == CLOSED


def test_calls_counted_before_the_circuit_opened_are_forgotten_when_it_closes():
    """One success sets everything to zero, the window too."""
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=10, recovery=SECOND)
    fail(it, 0, times=10)
    succeed(it, SECOND)
    assert it.state == CLOSED
    assert not any(fail(it, SECOND, times=9))
    assert fail(it, SECOND) == [True]


def test_a_circuit_is_pristine_when_nothing_is_counted_any_longer():
    it = circuit(failure_rate=(1, 2))
    assert it.pristine(0)
    succeed(it, 0)
    assert not it.pristine(59 * SECOND)
    assert it.pristine(66 * SECOND)
    fail(it, 66 * SECOND)
    assert not it.pristine(66 * SECOND + 600 * SECOND)
    assert it.pristine(66 * SECOND + 600 * SECOND + 1)  # no call came for ten minutes


# -- the failure that opened it, and what the observer is to be told


def told(counter):
    events_, counter.events = [*counter.events], type(counter.events)()
    return events_


def count(counter, what, error=None, now=0):
    counter.count([counter.enter(now), what, error, False, now, 0.0], now)


def test_a_counter_tells_of_each_change_and_of_the_failure_that_opened_the_circuit():
    counter, error = Counter(circuit(), "api"), OSError("down")
    for _ in range(2):
        count(counter, "failed", OSError("before"))
    count(counter, "ignored", OSError("not counted"))
    assert told(counter) == []
    assert counter.cause is None
    count(counter, "failed", error, SECOND)
    assert counter.cause is error
    (opened,) = told(counter)
    assert opened == events.CircuitOpened(
        key="api", at=1.0, generation=1, duration=30.0, reason="3 calls in a row failed", error=error
    )
    assert counter.enter(30 * SECOND) is None
    assert told(counter) == []
    probe = counter.enter(31 * SECOND)
    assert told(counter) == [events.CircuitProbing(key="api", at=31.0, generation=1)]
    assert counter.enter(31 * SECOND) is None
    counter.count([probe, "ignored", None, False, 31 * SECOND, 0.0], 0)
    count(counter, "succeeded", None, 32 * SECOND)
    assert counter.cause is None
    assert told(counter) == [events.CircuitClosed(key="api", at=32.0, generation=2)]
    counter.count([], 33 * SECOND)  # it was counted before an interrupt
    assert told(counter) == []


def test_a_counter_that_is_reset_tells_of_it_if_the_circuit_was_open():
    counter = Counter(circuit(), "api")
    counter.reset(SECOND)
    assert told(counter) == []
    for _ in range(3):
        count(counter, "failed", OSError())
    told(counter)
    counter.reset(2 * SECOND)
    assert counter.cause is None
    assert told(counter) == [events.CircuitClosed(key="api", at=2.0, generation=3)]


def test_a_counter_tells_of_what_a_store_changed_and_not_of_what_it_left():
    counter = Counter(circuit(), "api")
    counter.cause = OSError()
    counter.follow(lambda known, now: known is not counter.circuit or now != SECOND, SECOND)
    assert told(counter) == []
    assert counter.cause is not None
    counter.follow(lambda known, now: known is counter.circuit and now == SECOND, SECOND)
    assert counter.cause is None
    assert told(counter) == [events.CircuitClosed(key="api", at=1.0, generation=0)]
