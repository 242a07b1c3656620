"""Recent and Circuit held against plain models: a list of all calls, and a history of everything."""

from dataclasses import dataclass, field
from itertools import takewhile

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from breaker.circuits import SECOND, circuit, everything, fail
from headgate.breaker.circuit import CLOSED, HALF_OPEN, OPEN, Circuit, CircuitSettings, Probe, Recent

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
    """Adding and looking at any moments, also earlier ones."""
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
    """The promise, whatever the slots are: within a tenth of what was asked for."""
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
def test_after_two_idle_windows_recent_counts_nothing(window, idle, moments):
    """Every slot that passed is emptied, also if many passed."""
    recent = Recent(window)
    for now in moments:
        recent.add(True, True, now)
    slots = 10 * -(-window // 10)
    recent.move_to(max(moments, default=0) + 2 * slots + idle)
    assert (recent.calls, recent.failed, recent.slow) == (0, 0, 0)
    assert set(recent._slots) == {(0, 0, 0)}


def test_time_that_runs_backwards_forgets_nothing_and_brings_nothing_back():
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
                assert everything(self.it) == before  # who is refused leaves no trace

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
            assert everything(self.it) == before  # the law of generations

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
def test_calls_that_all_hang_are_limited_per_lease_and_the_circuit_never_stays_shut(
    probes, lease, recovery, gaps
):
    """
    Any stretch of a lease sees at most `probes` calls, and after a lease without one the next call is let
    in.
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
