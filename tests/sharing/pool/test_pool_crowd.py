"""A crowd of members that ask, use, return, owe and expire, held against an exact model."""

from copy import deepcopy
from fractions import Fraction

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import SET_BACK, Pool
from pool_questions import copied
from sharing.pool.pools import (
    LEASE,
    SECOND,
    START,
    THOROUGH,
    grantable,
    question,
    rate_values,
    start_of,
    unstamped,
)

TTL = SECOND  # how long after its start a batch may be used


class Batch:
    """A batch that was granted to a member."""

    def __init__(self, member, stamp, start, charges):
        self.member = member
        self.stamp = stamp
        self.start = start  # in real time
        self.charges = charges  # of each rate: the charge in the model's history, or None
        self.left = [0] * len(charges)  # usable and not used yet
        self.begun = False


class Crowd(RuleBasedStateMachine):
    """Real time only goes forward; the store's clock may fall behind. The model is in fractions."""

    most_rates = 2
    returns = "with batches"  # or "alone", or None: in which questions returns are told
    owes = True
    ahead = True  # batches may start later than now

    @initialize(data=st.data())
    def begin(self, data):
        self.rates = data.draw(st.lists(rate_values, min_size=1, max_size=self.most_rates), "rates")
        self.pool = Pool()
        self.now = START  # real time
        self.behind = 0  # how far the clock of the store is behind
        self.based = 0  # by how much a restart of the store's machine moved its clock
        self.time = 0  # of the store at the last question, in real time: never goes back
        self.granted = []
        self.history = [[] for _ in self.rates]  # of each rate, in order of decision: [start, true units]
        self.used = [[] for _ in self.rates]  # of each rate: [moment, units]
        self.last = {}  # of each member: its last question and answer

    def clock(self):
        return self.now - self.behind + self.based

    def ask(self, asked):
        if self.time - (self.now - self.behind) > SET_BACK:
            # The clock has been set: the store counts on from here.
            behind = self.now - self.time
            self.based += behind - self.behind
            self.behind = behind
        self.time = max(self.time, self.now - self.behind)
        given = answer(self.pool, asked, self.clock())
        self.last[asked["member"]] = (asked, deepcopy(given), self.time)
        return given

    def batch(self, parts):
        """Return a batch of `parts` sixteenths of what may be granted of each rate, at least one unit."""
        units = [grantable(rate) * part // 16 for rate, part in zip(self.rates, parts, strict=False)]
        return units if any(units) else [1, *units[1:]]

    parts = st.lists(st.tuples(st.integers(0, 16), st.integers(0, 16)), min_size=1, max_size=4)

    @rule(
        member=st.sampled_from("abcd"),
        parts=parts,
        keep=st.integers(0, 4),
        mixed=st.booleans(),
        i=st.integers(),
    )
    def ask_for_batches(self, member, parts, keep, mixed, i):
        batches = [self.batch(each) for each in parts]
        if not self.ahead:
            batches = batches[:1] if start_of(self.pool, batches[0], self.clock(), self.rates) == 0 else []
        facts = {}
        if mixed and self.returns == "with batches":
            facts = self.some_returns(i)
        given = self.ask(question(member, rates=self.rates, batches=batches, **facts))
        for stamp, (units, start) in enumerate(
            zip(batches, given["starts"], strict=False), given["first_stamp"]
        ):
            charges = []
            for history, count in zip(self.history, units, strict=True):
                charge = [self.time + start, count] if count else None
                charges.append(charge)
                if charge:
                    history.append(charge)
            batch = Batch(member, stamp, self.now + start, charges)
            batch.keep = keep
            self.granted.append(batch)
        self.let_begin()

    def let_begin(self):
        """Use the batches that start up to now, each at its start, but for a tenth of the burst in all."""
        due = [batch for batch in self.granted if not batch.begun and batch.start <= self.now]
        for batch in sorted(due, key=lambda batch: batch.start):
            batch.begun = True
            for i, charge in enumerate(batch.charges):
                if charge is None:
                    continue
                unused = sum(
                    other.left[i]
                    for other in self.granted
                    if other.begun and other.start <= batch.start < other.start + TTL
                )
                # What was used or returned since then was unused at that moment: `left` may count too little.
                batch.left[i] = min(charge[1] * batch.keep // 4, max(0, self.rates[i][2] // 10 - unused))
                if charge[1] > batch.left[i]:
                    self.used[i].append([batch.start, charge[1] - batch.left[i], charge, batch])
        for batch in self.granted:
            if batch.start + TTL <= self.now:
                batch.left = [0] * len(batch.left)  # too late
        self.granted = [batch for batch in self.granted if not batch.begun or any(batch.left)]

    def unused(self):
        return [batch for batch in self.granted if batch.begun and any(batch.left)]

    @rule(
        gap=st.sampled_from([1, 999, 20_000, 99_999, SECOND - 1, SECOND, 5 * SECOND]) | st.integers(1, SECOND)
    )
    def time_passes(self, gap):
        # In steps, so that unused units are counted at each start.
        end = self.now + gap
        for at in sorted({batch.start for batch in self.granted if self.now < batch.start < end}):
            self.now = at
            self.let_begin()
        self.now = end
        self.let_begin()

    @rule(i=st.integers(), part=st.integers(1, 9))
    def what_was_taken_is_nearly_earned_back(self, i, part):
        """Let `part` eighths of the time pass after which a rate is full: returns lose their value there."""
        column = i % len(self.rates)
        left = self.earned(column) - max(self.time, self.now - self.behind)
        if left > 0:
            self.time_passes(max(1, int(left * part / 8)))

    @rule(by=st.integers(1, 50_000) | st.sampled_from([SECOND, 3_600 * SECOND]))
    def the_clock_of_the_store_goes_back(self, by):
        self.behind += by

    @precondition(lambda self: self.unused())
    @rule(i=st.integers())
    def use_what_is_left_of_a_batch(self, i):
        batch = self.unused()[i % len(self.unused())]
        for column, units in enumerate(batch.left):
            if units:
                self.used[column].append([self.now, units, batch.charges[column], batch])
        batch.left = [0] * len(batch.left)

    def some_returns(self, i):
        """Return the unused rest of a batch, and half of what a call used, as if it had cost less."""
        back = [[] for _ in self.rates]
        if self.unused():
            batch = self.unused()[i % len(self.unused())]
            for column, units in enumerate(batch.left):
                if units:
                    back[column].append([units, batch.stamp])
                    batch.charges[column][1] -= units
            batch.left = [0] * len(batch.left)
        for column, used in enumerate(self.used):
            if used:
                entry = used[i % len(used)]
                units = entry[1] // 2
                if units:
                    back[column].append([units, entry[3].stamp])
                    entry[1] -= units
                    entry[2][1] -= units
        return {"returned": back}

    @precondition(lambda self: self.returns)
    @rule(member=st.sampled_from("abcd"), i=st.integers())
    def return_what_was_not_needed(self, member, i):
        self.ask(question(member, rates=self.rates, **self.some_returns(i)))

    @precondition(lambda self: self.owes)
    @rule(member=st.sampled_from("abcd"), units=st.integers(1, 60))
    def owe_what_was_used_beyond(self, member, units):
        self.ask(question(member, rates=self.rates, owed=[units] * len(self.rates)))
        for history in self.history:
            history.append([self.time, units])

    @rule(member=st.sampled_from("abcd"), leaves=st.booleans())
    def end(self, member, leaves):
        if leaves:
            self.ask(question(member, rates=self.rates, leaves=True))
        self.granted = [batch for batch in self.granted if batch.member != member]

    @precondition(lambda self: self.last)
    @rule(i=st.integers())
    def a_reply_is_lost_and_the_question_asked_again(self, i):
        """The same question gets the same answer, and changes nothing."""
        asked, first, at = list(self.last.values())[i % len(self.last)]
        if max(self.time, self.now - self.behind) - at >= LEASE:
            return  # the member may have expired
        before = copied(self.pool)
        assert answer(self.pool, asked, self.clock()) == first
        assert self.pool == before

    @rule()
    def the_store_is_read_back_from_its_file(self):
        self.pool = copied(self.pool)

    @rule(by=st.integers(-(10**15), 10**15))
    def the_machine_of_the_store_is_started_anew(self, by):
        """All times are counted from another moment, and all durations are as before."""
        by = max(by, START // 10 - self.clock())  # no clock counts from a moment in the future
        asked = question("e", rates=self.rates, batches=[[1] * len(self.rates)] * 3, wants=[3, 3])
        expected = answer(copied(self.pool), asked, self.clock())
        self.pool.ahead -= by
        self.based += by
        assert unstamped(answer(copied(self.pool), asked, self.clock())) == unstamped(expected)

    # -- what must hold

    def earned(self, column):
        """Return when all that was used is earned back, had its true cost been known from the beginning."""
        interval = Fraction(self.rates[column][1], self.rates[column][0])
        earned = Fraction(0)
        for start, units in self.history[column]:
            if units:
                earned = max(earned, Fraction(start)) + units * interval
        return earned

    @invariant()
    def the_pool_never_holds_more_than_the_model(self):
        """Also after returns. Rounding may make a difference of one microsecond."""
        now = max(self.time, self.now - self.behind)
        for i, rate in enumerate(self.rates):
            interval = Fraction(rate[1], rate[0])
            soonest = max(Fraction(now), self.earned(i) + interval - grantable(rate) * interval)
            batch = [int(i == column) for column in range(len(self.rates))]
            given = start_of(self.pool, batch, self.clock(), self.rates)
            assert given is None or now + given >= soonest - 1  # None: later than any batch is granted

    @invariant()
    def the_pool_is_small(self):
        for rate in self.pool.rates:
            assert len(rate.stamps) == len(rate.lows) <= 32
        assert len(self.pool.members) <= 5

    def teardown(self):
        """In any time w no more was used than burst + rate × w, to the microsecond."""
        for (amount, period, burst), used in zip(self.rates, self.used, strict=True):
            level = lowest = burst * period  # in parts of a unit
            moment = None
            for at, units, *_ in sorted(used, key=lambda each: each[0]):
                if moment is not None:
                    level = min(burst * period, level + amount * (at - moment))
                moment = at
                level -= units * period
                lowest = min(lowest, level)
            assert lowest >= -amount


Crowd.rates = ()  # for `teardown` of a machine that has not begun
Crowd.used = ()


class WithoutReturns(Crowd):
    returns = None


class ReturnsAlone(Crowd):
    """One rate; returns are told by themselves, and no batch is granted ahead of its start."""

    most_rates = 1
    returns = "alone"
    owes = False
    ahead = False


def test_members_that_ask_owe_expire_and_repeat_themselves_never_use_more_than_the_limit():
    """Two rates, several members, no returns."""
    run_state_machine_as_test(WithoutReturns, settings=THOROUGH)


def test_returns_to_one_rate_create_no_units():
    """Returns are told by themselves, and no member owes anything."""
    run_state_machine_as_test(ReturnsAlone, settings=THOROUGH)


def test_returns_told_together_with_new_demands_and_debts_create_no_units():
    """Several rates, debts, batches granted ahead of their start."""
    run_state_machine_as_test(Crowd, settings=THOROUGH)
