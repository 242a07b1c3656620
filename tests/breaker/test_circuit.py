"""The circuit as a transition table: SPEC 12 and 17.4, D-45 to D-48 and D-90 to D-93, B23 to B25."""

from dataclasses import dataclass, field
from itertools import pairwise, takewhile

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from headgate.breaker.circuit import CLOSED, HALF_OPEN, OPEN, Circuit, CircuitSettings, Probe, Recent

SECOND = 1_000_000_000


def circuit(**changes):
    """Three in a row open it for thirty seconds; one probe at a time, which has thirty seconds."""
    options = {
        "threshold": 3,
        "recovery": 30 * SECOND,
        "max_recovery": 30 * SECOND,
        "jitter": 0.0,
        "probes": 1,
        "lease": 30 * SECOND,
        "failure_rate": None,
        "slow_rate": None,
        "window": 60 * SECOND,
        "minimum": 10,
    }
    if "recovery" in changes:
        options["max_recovery"] = changes["recovery"]
    return Circuit(CircuitSettings(**(options | changes)))


def fail(circuit, now, *, times=1, slow=False, draw=0.0):
    """So many calls come and fail, all at that moment."""
    return [circuit.failed(circuit.enter(now), slow, now, draw) for _ in range(times)]


def succeed(circuit, now, *, times=1, slow=False, draw=0.0):
    return [circuit.succeeded(circuit.enter(now), slow, now, draw) for _ in range(times)]


def opened_at(now, **changes):
    circuit_ = circuit(**changes)
    fail(circuit_, now, times=3)
    assert circuit_.state == OPEN
    return circuit_


def everything(thing):
    """All that a circuit remembers, to see whether anything changed."""
    if isinstance(thing, (Circuit, Recent)):
        return {name: everything(getattr(thing, name)) for name in thing.__slots__}
    return dict(thing) if isinstance(thing, dict) else list(thing) if isinstance(thing, list) else thing


# -- closed


def test_failures_in_a_row_open_it_and_the_last_of_them_says_so():
    """
    TC-02, TC-03, CB-02.
    """
    it = circuit()
    assert fail(it, 0, times=2) == [False, False]
    assert it.state == CLOSED

    assert fail(it, 5) == [True]
    assert (it.state, it.opens_in(5)) == (OPEN, 30 * SECOND)
    assert it.reason == "3 calls in a row failed"


def test_one_success_begins_the_row_anew():
    """
    TC-02, CB-02: two, a success, two: still closed.
    """
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


def test_what_is_ignored_neither_counts_nor_forgives():
    """
    CB-06, D-95.
    """
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


def test_an_open_circuit_lets_in_at_the_very_nanosecond_its_time_is_up():
    """
    R-6, CB-03: at the timeout itself, not after it.
    """
    it = opened_at(7)
    last = 7 + 30 * SECOND - 1
    assert it.enter(last) is None
    assert (it.would_admit(last), it.opens_in(last), it.state_at(last)) == (False, 1, OPEN)

    assert it.would_admit(last + 1)
    assert (it.opens_in(last + 1), it.state_at(last + 1)) == (0, HALF_OPEN)
    assert isinstance(it.enter(last + 1), Probe)


def test_looking_changes_nothing():
    """
    CB-08.
    """
    it = opened_at(0)
    for now in (0, 29 * SECOND, 30 * SECOND, 10**18):
        before = everything(it)
        it.would_admit(now), it.opens_in(now), it.state_at(now)
        assert everything(it) == before


def test_a_stragglers_failure_does_not_lengthen_the_open_time():
    """
    CB-07, D-92: opened at 0, a straggler fails at 29; probed at 30 all the same.
    """
    it = circuit()
    straggler = it.enter(0)
    fail(it, 0, times=3)
    before = everything(it)
    assert not it.failed(straggler, slow=False, now=29 * SECOND, draw=0.0)

    assert everything(it) == before
    assert isinstance(it.enter(30 * SECOND), Probe)


def test_a_stragglers_success_while_open_forgives_nothing():
    """
    CB-07, D-91: the probe that fails after it re-opens the circuit.
    """
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
def test_so_many_probes_at_a_time_and_no_more(probes):
    """
    CB-04, D-90.
    """
    it = opened_at(0, probes=probes)
    entries = [it.enter(30 * SECOND) for _ in range(100)]
    assert [entry is not None for entry in entries] == [True] * probes + [False] * (100 - probes)
    assert it.opens_in(31 * SECOND) == 29 * SECOND  # when the first of them has had long enough


def test_the_first_probe_to_succeed_closes_it_and_the_others_decide_nothing():
    """
    CB-05, TC-05, D-46.
    """
    it = opened_at(0, probes=3)
    first, second, third = (it.enter(30 * SECOND) for _ in range(3))
    assert it.succeeded(second, slow=False, now=31 * SECOND, draw=0.0)
    assert (it.state, it.failures, it.reason) == (CLOSED, 0, "")

    before = everything(it)
    assert not it.failed(first, slow=False, now=32 * SECOND, draw=0.0)
    assert not it.succeeded(third, slow=False, now=32 * SECOND, draw=0.0)
    assert everything(it) == before


def test_the_first_probe_to_fail_opens_it_again_from_then_on():
    """
    CB-05, TC-05: a new stamp.
    """
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
    """
    CB-06, D-93: the state stays, and so does the limit.
    """
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
    """
    D-45, B23: at the nanosecond, and for one other.
    """
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
    """
    D-45: its lease was over, another probe is under way; it knows that the far side is well.
    """
    it = opened_at(0, lease=10 * SECOND)
    late = it.enter(30 * SECOND)
    other = it.enter(40 * SECOND)
    assert it.succeeded(late, slow=False, now=41 * SECOND, draw=0.0)
    assert it.state == CLOSED
    assert not it.failed(other, slow=False, now=42 * SECOND, draw=0.0)
    assert it.state == CLOSED


def test_a_late_result_of_an_earlier_half_open_period_decides_nothing():
    """
    D-46.
    """
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
    """
    D-46: neither a late success nor a late failure.
    """
    it = circuit()
    straggler = it.enter(0)
    fail(it, 0, times=3)
    assert it.enter(30 * SECOND) is not None
    before = everything(it)
    end = it.succeeded if well else it.failed
    assert not end(straggler, False, 31 * SECOND, 0.0)
    assert everything(it) == before


def test_a_call_let_in_before_the_circuit_opened_does_not_count_after_it_closed():
    """
    D-46: its failure is of another time.
    """
    it = circuit()
    stragglers = [it.enter(0) for _ in range(5)]
    fail(it, 0, times=3)
    succeed(it, 30 * SECOND)
    assert it.state == CLOSED
    before = everything(it)
    for straggler in stragglers:
        assert not it.failed(straggler, slow=False, now=31 * SECOND, draw=0.0)
    assert everything(it) == before


def test_those_who_held_the_probes_are_gone():
    """
    B29: in a forked child.
    """
    it = opened_at(0, probes=2)
    assert it.enter(30 * SECOND) is not None
    assert it.enter(30 * SECOND) is not None
    assert it.enter(30 * SECOND) is None
    it.release_probes()
    assert it.state == HALF_OPEN
    assert [it.enter(30 * SECOND) is None for _ in range(3)] == [False, False, True]


def test_closing_by_hand_forgets_everything():
    """
    CB-08.
    """
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


def test_it_stays_open_twice_as_long_after_each_probe_that_failed():
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


def test_it_may_fail_for_a_year_without_overflowing():
    it = opened_at(0, recovery=1, max_recovery=10**15)
    now = 0
    for _ in range(500):
        now += it.opens_in(now)
        fail(it, now)
    assert it.opens_in(now) == 10**15


@pytest.mark.parametrize(("draw", "expected"), [(0.0, 30.0), (0.5, 33.0), (0.999, 35.994)])
def test_jitter_only_ever_lengthens_by_its_part(draw, expected):
    """
    M11: never earlier than the recovery time.
    """
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


def test_half_of_the_calls_failing_opens_it_though_never_three_in_a_row():
    """
    D-48: in turns. The tenth call is the first that could open it.
    """
    it = circuit(failure_rate=(1, 2), minimum=10)
    changed = []
    for k in range(10):
        changed += (fail if k % 2 else succeed)(it, k * SECOND)
    assert changed == [False] * 9 + [True]
    assert it.reason == "5 of 10 calls within 60 s failed"


def test_just_under_the_rate_does_not_open_it():
    """
    D-48: 499 of 1,000 are less than half, exactly.
    """
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=1000)
    assert not any(succeed(it, 0, times=501) + fail(it, 0, times=499))
    assert fail(it, 0) == [False]  # 500 of 1,001
    assert fail(it, 0) == [True]  # 501 of 1,002


def test_what_goes_well_opens_nothing_though_it_completes_the_minimum():
    """
    D-48: four failures, and the fifth call succeeds; the sixth fails, and five of six are too many.
    """
    it = circuit(threshold=None, failure_rate=(1, 10), minimum=5)
    assert not any(fail(it, 0, times=4) + succeed(it, 0))
    assert fail(it, 0) == [True]
    assert it.reason == "5 of 6 calls within 60 s failed"


def test_too_few_calls_say_nothing_about_a_rate():
    """
    D-48: nine failures of nine are no rate yet.
    """
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=10)
    assert not any(fail(it, 0, times=9))
    assert fail(it, 0) == [True]


def test_failures_spread_over_a_week_are_no_rate():
    """
    D-48: one an hour, forever, and never ten within a minute.
    """
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=2)
    assert not any(changed for hour in range(168) for changed in fail(it, hour * 3600 * SECOND))


def test_slow_calls_open_it_though_all_of_them_succeed():
    it = circuit(threshold=None, slow_rate=(4, 5), minimum=5)
    assert succeed(it, 0, times=1) == [False]
    assert succeed(it, 0, times=3, slow=True) == [False] * 3
    assert succeed(it, 0, slow=True) == [True]  # four of five
    assert it.reason == "4 of 5 calls within 60 s were slow"


def test_a_slow_failure_is_both():
    it = circuit(threshold=None, failure_rate=(1, 1), slow_rate=(1, 2), minimum=2)
    assert succeed(it, 0) == [False]
    assert fail(it, 0, slow=True) == [True]
    assert it.reason == "1 of 2 calls within 60 s were slow"


def test_a_probe_that_succeeds_too_slowly_opens_it_again():
    it = circuit(slow_rate=(4, 5))
    fail(it, 0, times=3)
    assert succeed(it, 30 * SECOND, slow=True) == [True]
    assert (it.state, it.reason) == (OPEN, "a probe succeeded, but too slowly")

    it = opened_at(0)  # nobody asked how long it takes
    assert succeed(it, 30 * SECOND, slow=True) == [True]
    assert it.state == CLOSED


def test_what_was_counted_before_it_opened_is_forgotten_when_it_closes():
    """
    CB-05: one success zeroes everything, the window too.
    """
    it = circuit(threshold=None, failure_rate=(1, 2), minimum=10, recovery=SECOND)
    fail(it, 0, times=10)
    succeed(it, SECOND)
    assert it.state == CLOSED
    assert not any(fail(it, SECOND, times=9))
    assert fail(it, SECOND) == [True]


def test_it_is_as_new_when_nothing_is_counted_any_longer():
    it = circuit(failure_rate=(1, 2))
    assert it.pristine(0)
    succeed(it, 0)
    assert not it.pristine(59 * SECOND)
    assert it.pristine(66 * SECOND)
    fail(it, 66 * SECOND)
    assert not it.pristine(66 * SECOND + 600 * SECOND)
    assert it.pristine(66 * SECOND + 600 * SECOND + 1)  # nobody has come for ten minutes


# -- Recent against a plain list


class PlainRecent:
    """Every call ever, with the slot it fell in: slots of a tenth of the window, ten of them count."""

    def __init__(self, window):
        self.slot = (window + 9) // 10
        self.calls = []
        self.latest = None

    def see(self, now):
        self.latest = now if self.latest is None else max(self.latest, now)

    def add(self, failed, slow, now):
        self.see(now)
        self.calls.append((self.latest // self.slot, failed, slow))

    def counts(self):
        if self.latest is None:
            return 0, 0, 0
        alive = [call for call in self.calls if call[0] > self.latest // self.slot - 10]
        return len(alive), sum(failed for _, failed, _ in alive), sum(slow for _, _, slow in alive)


@given(
    window=st.integers(1, 200),
    start=st.integers(0, 10**6),
    steps=st.lists(
        st.tuples(st.sampled_from("afsbl"), st.one_of(st.integers(-60, 60), st.integers(0, 500))), max_size=80
    ),
)
@settings(deadline=None, max_examples=300)
@example(window=1, start=0, steps=[("a", 0), ("l", 1), ("f", 9), ("l", 1)])
@example(window=100, start=0, steps=[("f", 99), ("l", 0), ("l", 1), ("l", 90)])
def test_recent_counts_what_a_plain_list_of_all_calls_counts(window, start, steps):
    """
    Adding and looking at any moments, also earlier ones.
    """
    recent, plain, now = Recent(window), PlainRecent(window), start
    for what, step in steps:
        now = max(0, now + step)
        if what == "l":
            recent.move_to(now)
            plain.see(now)
        else:
            recent.add(what in "fb", what in "sb", now)
            plain.add(what in "fb", what in "sb", now)
        assert (recent.calls, recent.failed, recent.slow) == plain.counts()


@given(
    window=st.integers(10, 10**12),
    moments=st.lists(st.integers(0, 10**13), min_size=1, max_size=40),
    after=st.integers(0, 10**13),
)
@settings(deadline=None, max_examples=200)
def test_recent_knows_all_of_nine_tenths_of_a_window_and_nothing_older_than_a_window_and_a_slot(
    window, moments, after
):
    """
    The promise, whatever the slots are: within a tenth of what was asked for.
    """
    recent, moments = Recent(window), sorted(moments)
    for now in moments:
        recent.add(True, False, now)
    end = moments[-1] + after
    recent.move_to(end)
    slot = -(-window // 10)
    at_least = sum(end - moment < 9 * slot for moment in moments)
    at_most = sum(end - moment < 10 * slot for moment in moments)
    assert at_least <= recent.failed <= at_most


@given(window=st.integers(1, 10**12), idle=st.integers(0, 10**15), moments=st.lists(st.integers(0, 10**12)))
@settings(deadline=None, max_examples=100)
def test_after_two_idle_windows_nothing_is_left(window, idle, moments):
    """
    B24: every slot that passed is emptied, however many passed.
    """
    recent = Recent(window)
    for now in moments:
        recent.add(True, True, now)
    slots = 10 * -(-window // 10)
    recent.move_to(max(moments, default=0) + 2 * slots + idle)
    assert (recent.calls, recent.failed, recent.slow) == (0, 0, 0)
    assert set(recent._slots) == {(0, 0, 0)}


def test_time_that_runs_backwards_forgets_nothing_and_brings_nothing_back():
    """
    B1.
    """
    recent = Recent(60 * SECOND)
    recent.add(True, False, 3600 * SECOND)
    recent.add(True, False, 0)  # an hour back
    assert (recent.calls, recent.failed) == (2, 2)
    recent.move_to(3600 * SECOND)
    assert recent.calls == 2
    recent.move_to(3670 * SECOND)
    assert recent.calls == 0
    recent.move_to(3600 * SECOND)
    assert recent.calls == 0


# -- the whole circuit against its history


@dataclass
class Call:
    period: int  # the number of the period that let it in
    entered: int
    probe: bool
    mine: object  # what the circuit gave for it
    over: bool = False


@dataclass
class Period:
    kind: int
    began: int
    until: int | None = None  # of an open one
    outcomes: list = field(default_factory=list)  # (failed, slow, latest time seen) of a closed one


class History:
    """Everything that ever happened, and what follows from it; nothing is counted along the way.

    A period is a stretch in one state. The state is what the last period says, and each question is
    answered by going through the list again.
    """

    def __init__(self, options):
        self.options = options
        self.periods = [Period(CLOSED, 0)]
        self.calls = []
        self.resets = 0

    @property
    def last(self):
        return self.periods[-1]

    def outstanding(self, now):
        """When the leases end that are in the way. One that was passed over once stays passed over."""
        probes = [call for call in self.calls if call.probe and call.period == len(self.periods) - 1]
        return [
            call.entered + self.options["lease"]
            for i, call in enumerate(probes)
            if not call.over
            and all(call.entered + self.options["lease"] > moment for moment in self.moments(probes, i, now))
        ]

    @staticmethod
    def moments(probes, i, now):
        return [*(later.entered for later in probes[i + 1 :]), now]

    def may_enter(self, now):
        if self.last.kind == CLOSED:
            return True
        if self.last.kind == OPEN:
            return now >= self.last.until
        return len(self.outstanding(now)) < self.options["probes"]

    def opens_in(self, now):
        if self.may_enter(now):
            return 0
        return (self.last.until if self.last.kind == OPEN else min(self.outstanding(now))) - now

    def enter(self, now, mine):
        if self.last.kind == OPEN:
            self.periods.append(Period(HALF_OPEN, now))
        self.calls.append(Call(len(self.periods) - 1, now, self.last.kind == HALF_OPEN, mine))

    def end(self, call, what, slow, now, draw):
        """True: that changed the state."""
        call.over = True
        if what == "ignored" or call.period != len(self.periods) - 1:
            return False
        if self.last.kind == HALF_OPEN:
            if what == "failed" or (slow and self.options["slow_rate"] is not None):
                self.open(now, draw)
            else:
                self.periods.append(Period(CLOSED, now))
            return True
        outcomes = self.last.outcomes
        outcomes.append((what == "failed", slow, max([now, *(at for _, _, at in outcomes)])))
        if not (what == "failed" or slow) or not self.is_too_much(what == "failed"):
            return False  # what goes well opens nothing
        self.open(now, draw)
        return True

    def in_a_row(self):
        return len(list(takewhile(lambda outcome: outcome[0], reversed(self.last.outcomes))))

    def is_too_much(self, failed):
        options, outcomes = self.options, self.last.outcomes
        if failed and options["threshold"] is not None and self.in_a_row() >= options["threshold"]:
            return True
        slot = (options["window"] + 9) // 10
        alive = [outcome for outcome in outcomes if outcome[2] // slot > outcomes[-1][2] // slot - 10]
        if len(alive) < options["minimum"]:
            return False
        return any(
            options[rate] is not None
            and sum(outcome[i] for outcome in alive) * options[rate][1] >= options[rate][0] * len(alive)
            for i, rate in enumerate(("failure_rate", "slow_rate"))
        )

    def open(self, now, draw):
        since_closed = list(takewhile(lambda period: period.kind != CLOSED, reversed(self.periods)))
        before = sum(period.kind == OPEN for period in since_closed)
        lasting = self.options["recovery"]
        for _ in range(before):
            lasting = min(2 * lasting, self.options["max_recovery"])
        extra = int(lasting * self.options["jitter"] * draw)
        self.periods.append(Period(OPEN, now, until=now + lasting + extra))

    def close(self, now):
        self.periods.append(Period(CLOSED, now))
        self.resets += 1

    def generation(self):
        return sum(period.kind != HALF_OPEN for period in self.periods) - 1


rates = st.one_of(st.none(), st.sampled_from([(1, 2), (1, 1), (3, 10), (1, 100)]))


class CircuitAgainstItsHistory(RuleBasedStateMachine):
    """Enter, succeed, fail, ignore, late results, clock steps both ways, resets; in any order."""

    def __init__(self):
        super().__init__()
        self.it = None
        self.now = 1000

    @precondition(lambda self: self.it is None)
    @rule(
        threshold=st.one_of(st.none(), st.integers(1, 4)),
        recovery=st.integers(1, 50),
        doublings=st.integers(0, 3),
        jitter=st.sampled_from([0.0, 0.2, 1.0]),
        probes=st.integers(1, 3),
        lease=st.integers(1, 40),
        failure_rate=rates,
        slow_rate=rates,
        window=st.integers(1, 100),
        minimum=st.integers(1, 6),
    )
    def make(self, recovery, doublings, **options):
        options |= {"recovery": recovery, "max_recovery": (recovery << doublings) + doublings}
        self.it, self.model = Circuit(CircuitSettings(**options)), History(options)

    def under_way(self):
        return [] if self.it is None else [call for call in self.model.calls if not call.over]

    @precondition(lambda self: self.it is not None)
    @rule(times=st.integers(1, 5))
    def enter(self, times):
        for _ in range(times):
            may = self.model.may_enter(self.now)
            before = None if may else everything(self.it)
            entry = self.it.enter(self.now)
            assert (entry is not None) == may
            if may:
                self.model.enter(self.now, entry)
                assert isinstance(entry, Probe) == (self.model.last.kind == HALF_OPEN)
            else:
                assert everything(self.it) == before  # who is refused leaves no trace (B20)

    @precondition(lambda self: self.under_way())
    @rule(
        which=st.integers(0, 10**6),
        what=st.sampled_from(["succeeded", "failed", "failed", "ignored"]),
        slow=st.booleans(),
        draw=st.sampled_from([0.0, 0.25, 0.999]),
    )
    def end(self, which, what, slow, draw):
        calls = self.under_way()
        call = calls[which % len(calls)]
        of_now = call.period == len(self.model.periods) - 1
        before = everything(self.it)
        changed = self.model.end(call, what, slow, self.now, draw)
        if what == "ignored":
            self.it.ignored(call.mine)
        else:
            assert getattr(self.it, what)(call.mine, slow, self.now, draw) == changed
        if not of_now:
            assert everything(self.it) == before  # the law of generations (D-46)

    @precondition(lambda self: self.it is not None)
    @rule(times=st.integers(1, 4), what=st.sampled_from(["succeeded", "failed", "failed"]))
    def come_and_go(self, times, what):
        for _ in range(times):
            entered = len(self.model.calls)
            self.enter(1)
            if len(self.model.calls) == entered:
                return
            call = self.model.calls[-1]
            changed = self.model.end(call, what, False, self.now, 0.5)
            assert getattr(self.it, what)(call.mine, False, self.now, 0.5) == changed

    @precondition(lambda self: self.it is not None)
    @rule(step=st.one_of(st.integers(0, 60), st.sampled_from([1, 300, 10**6])))
    def time_passes(self, step):
        self.now += step

    @precondition(lambda self: self.it is not None)
    @rule()
    def time_passes_until_somebody_may_go(self):
        wait = self.model.opens_in(self.now)
        if wait > 1:
            self.now += wait - 1
            self.agree()
            self.now += 1

    @precondition(lambda self: self.it is not None and self.now > 200)
    @rule(step=st.integers(1, 200))
    def the_clock_is_set_back(self, step):
        self.now -= step

    @precondition(lambda self: self.it is not None)
    @rule()
    def reset(self):
        if self.model.resets < 2:
            self.it.close()
            self.model.close(self.now)

    @invariant()
    def agree(self):
        if self.it is None:
            return
        it, model, now = self.it, self.model, self.now
        assert it.state == model.last.kind
        assert it.generation == model.generation()
        assert it.would_admit(now) == model.may_enter(now)
        assert it.opens_in(now) == model.opens_in(now)
        over = model.last.kind == OPEN and now >= model.last.until
        assert it.state_at(now) == (HALF_OPEN if over else model.last.kind)
        assert (it.reason == "") == (model.last.kind == CLOSED)
        if model.last.kind == CLOSED:
            assert it.failures == model.in_a_row()


TestCircuitAgainstItsHistory = CircuitAgainstItsHistory.TestCase
TestCircuitAgainstItsHistory.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)


@given(
    probes=st.integers(1, 4),
    lease=st.integers(1, 50),
    recovery=st.integers(1, 50),
    gaps=st.lists(st.integers(0, 30), min_size=1, max_size=60),
)
@settings(deadline=None, max_examples=200)
def test_callers_that_all_hang_are_let_in_at_most_so_many_per_lease_and_never_locked_out(
    probes, lease, recovery, gaps
):
    """
    B23: whatever becomes of the probes, any stretch of a lease sees at most so many, and after a lease
    without one the next caller is let in.
    """
    it = circuit(threshold=1, recovery=recovery, lease=lease, probes=probes)
    fail(it, 0)
    now, entered = 0, []
    for gap in gaps:
        now += gap
        if it.enter(now) is not None:
            entered.append(now)
        else:
            assert now < recovery or (entered and now - entered[-1] < lease)
    assert all(moment >= recovery for moment in entered)
    assert all(sum(a <= b < a + lease for b in entered) <= probes for a in entered)
