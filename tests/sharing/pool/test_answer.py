"""The shared pool, held against exact models: what may be used, what comes back, and who holds what."""

import json
from copy import deepcopy
from fractions import Fraction
from functools import partial
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import pool_questions
from headgate.sharing.pool.answer import HORIZON, SET_BACK, answer
from headgate.sharing.pool.state import Pool
from pool_questions import copied

SECOND = 1_000_000
START = 10_000_000 * SECOND
LEASE = 3 * SECOND
KEEPS = SECOND  # how long after its start a batch may still be used
NO_LIMITS = [0, 0, 0, 0]

numbers = count(1)


question = partial(pool_questions.question, lease=LEASE)


def unstamped(given):
    """An answer without the numbers that only have to grow."""
    numbers = ("first_stamp", "version", "window_generation")
    return {what: value for what, value in given.items() if what not in numbers}


def window_of(given):
    """What an answer says of the window: how long it still lasts, and its generation."""
    return given["window_left"], given["window_generation"]


def start_of(pool, batch, now, rates, member="somebody new"):
    """When one batch would start, in microseconds from now. Changes nothing."""
    given = answer(copied(pool), question(member, rates=rates, batches=[batch]), now)
    assert given["starts"] or given["ask_again_in"]
    return given["starts"][0] if given["starts"] else None


def at_once(pool, now, rates, column=0):
    """How many units of one rate somebody new could have at once, up to all that may be booked."""
    low, high = 0, bookable(rates[column])
    while low < high:
        middle = (low + high + 1) // 2
        batch = [middle if i == column else 0 for i in range(len(rates))]
        if start_of(pool, batch, now, rates) == 0:
            low = middle
        else:
            high = middle - 1
    return low


def bookable(rate):
    """All but a tenth of the burst: that much is kept for what lies about unused."""
    return rate[2] - rate[2] // 10


# -- a crowd that asks, uses, returns, owes, dies, and a store whose clock goes back


class Batch:
    """What one member was given: a batch, decided at one moment and to be used from another on."""

    def __init__(self, member, stamp, start, charges):
        self.member = member
        self.stamp = stamp
        self.start = start  # in real time
        self.charges = charges  # of each rate: the charge in the model's history, or None
        self.left = [0] * len(charges)  # lies about, unused
        self.begun = False


rate_values = st.tuples(
    st.integers(1, 40) | st.just(1_000),
    st.sampled_from([SECOND // 10, SECOND, 7 * SECOND, 999_983]),
    st.integers(1, 40) | st.integers(41, 300),
).map(list)


class Crowd(RuleBasedStateMachine):
    """Real time only goes forward; the store's clock may fall behind. The model is in fractions."""

    most_rates = 2
    returns = "with more"  # or "alone", or None
    owes = True
    ahead = True  # batches may start later than now

    @initialize(data=st.data())
    def begin(self, data):
        self.rates = data.draw(st.lists(rate_values, min_size=1, max_size=self.most_rates), "rates")
        self.pool = Pool()
        self.now = START  # real time
        self.behind = 0  # by how much the store's clock is
        self.based = 0  # from where the store counts, since its machine was started anew
        self.time = 0  # the store's at the last question, as the model counts it: never goes back
        self.granted = []
        self.history = [[] for _ in self.rates]  # of each rate, in order of decision: [start, true units]
        self.used = [[] for _ in self.rates]  # of each rate: [moment, units]
        self.last = {}  # of each member: its last question and answer

    def clock(self):
        return self.now - self.behind + self.based

    def ask(self, asked):
        if self.time - (self.now - self.behind) > SET_BACK:
            # So much is no jitter: the store counts on from here.
            behind = self.now - self.time
            self.based += behind - self.behind
            self.behind = behind
        self.time = max(self.time, self.now - self.behind)
        given = answer(self.pool, asked, self.clock())
        self.last[asked["member"]] = (asked, deepcopy(given), self.time)
        return given

    def batch(self, parts):
        """So many sixteenths of what may be booked of each rate, at least one unit of the first."""
        units = [bookable(rate) * part // 16 for rate, part in zip(self.rates, parts, strict=False)]
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
        if mixed and self.returns == "with more":
            facts = self.going_back(i)
        given = self.ask(question(member, rates=self.rates, batches=batches, **facts))
        for stamp, (batch, start) in enumerate(
            zip(batches, given["starts"], strict=False), given["first_stamp"]
        ):
            charges = []
            for history, units in zip(self.history, batch, strict=True):
                charge = [self.time + start, units] if units else None
                charges.append(charge)
                if charge:
                    history.append(charge)
            one = Batch(member, stamp, self.now + start, charges)
            one.keep = keep
            self.granted.append(one)
        self.let_begin()

    def let_begin(self):
        """Whatever starts up to now is used at its start, but for a tenth of the burst in all."""
        due = [one for one in self.granted if not one.begun and one.start <= self.now]
        for one in sorted(due, key=lambda one: one.start):
            one.begun = True
            for i, charge in enumerate(one.charges):
                if charge is None:
                    continue
                lying = sum(
                    other.left[i]
                    for other in self.granted
                    if other.begun and other.start <= one.start < other.start + KEEPS
                )
                # What was used or went back before now no longer lies about, but did: count it as if it had.
                one.left[i] = min(charge[1] * one.keep // 4, max(0, self.rates[i][2] // 10 - lying))
                if charge[1] > one.left[i]:
                    self.used[i].append([one.start, charge[1] - one.left[i], charge, one])
        for one in self.granted:
            if one.start + KEEPS <= self.now:
                one.left = [0] * len(one.left)  # too late
        self.granted = [one for one in self.granted if not one.begun or any(one.left)]

    def lying(self):
        return [one for one in self.granted if one.begun and any(one.left)]

    @rule(
        gap=st.sampled_from([1, 999, 20_000, 99_999, SECOND - 1, SECOND, 5 * SECOND]) | st.integers(1, SECOND)
    )
    def time_passes(self, gap):
        # In steps, so that what lies about is counted when it does.
        end = self.now + gap
        for at in sorted({one.start for one in self.granted if self.now < one.start < end}):
            self.now = at
            self.let_begin()
        self.now = end
        self.let_begin()

    @rule(i=st.integers(), part=st.integers(1, 9))
    def what_was_taken_is_nearly_earned_back(self, i, part):
        """So many eighths of the time after which nothing would be missing: where returns are decided."""
        column = i % len(self.rates)
        left = self.earned(column) - max(self.time, self.now - self.behind)
        if left > 0:
            self.time_passes(max(1, int(left * part / 8)))

    @rule(by=st.integers(1, 50_000) | st.sampled_from([SECOND, 3_600 * SECOND]))
    def the_store_s_clock_goes_back(self, by):
        self.behind += by

    @precondition(lambda self: self.lying())
    @rule(i=st.integers())
    def use_what_lies_about(self, i):
        one = self.lying()[i % len(self.lying())]
        for column, units in enumerate(one.left):
            if units:
                self.used[column].append([self.now, units, one.charges[column], one])
        one.left = [0] * len(one.left)

    def going_back(self, i):
        """Some of what lies about was not needed, and some of what was used cost less than it might have."""
        back = [[] for _ in self.rates]
        if self.lying():
            one = self.lying()[i % len(self.lying())]
            for column, units in enumerate(one.left):
                if units:
                    back[column].append([units, one.stamp])
                    one.charges[column][1] -= units
            one.left = [0] * len(one.left)
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
        self.ask(question(member, rates=self.rates, **self.going_back(i)))

    @precondition(lambda self: self.owes)
    @rule(member=st.sampled_from("abcd"), units=st.integers(1, 60))
    def owe_what_was_used_beyond(self, member, units):
        self.ask(question(member, rates=self.rates, owed=[units] * len(self.rates)))
        for history in self.history:
            history.append([self.time, units])

    @rule(member=st.sampled_from("abcd"), goodbye=st.booleans())
    def die(self, member, goodbye):
        if goodbye:
            self.ask(question(member, rates=self.rates, leaves=True))
        self.granted = [one for one in self.granted if one.member != member]

    @precondition(lambda self: self.last)
    @rule(i=st.integers())
    def a_reply_is_lost_and_the_question_asked_again(self, i):
        """B14: the identical answer, and the state is what it was, to the byte."""
        asked, first, at = list(self.last.values())[i % len(self.last)]
        if max(self.time, self.now - self.behind) - at >= LEASE:
            return  # it may have been forgotten
        before = copied(self.pool)
        assert answer(self.pool, asked, self.clock()) == first
        assert self.pool == before

    @rule()
    def the_store_is_read_back_from_its_file(self):
        self.pool = copied(self.pool)

    @rule(by=st.integers(-(10**15), 10**15))
    def the_machine_of_the_store_is_started_anew(self, by):
        """Counted from another beginning, everything is as it was."""
        by = max(by, START // 10 - self.clock())  # no machine counts from after today
        asked = question("e", rates=self.rates, batches=[[1] * len(self.rates)] * 3, wants=[3, 3])
        expected = answer(copied(self.pool), asked, self.clock())
        self.pool.shift(by)
        self.based += by
        assert unstamped(answer(copied(self.pool), asked, self.clock())) == unstamped(expected)

    # -- the laws

    def earned(self, column):
        """When everything truly used would be earned back, had the truth been known from the beginning."""
        interval = Fraction(self.rates[column][1], self.rates[column][0])
        earned = Fraction(0)
        for start, units in self.history[column]:
            if units:
                earned = max(earned, Fraction(start)) + units * interval
        return earned

    @invariant()
    def the_pool_never_holds_more_than_one_that_knew_the_truth(self):
        """P4, B19: after returns too; one microsecond is what rounding may do."""
        now = max(self.time, self.now - self.behind)
        for i, rate in enumerate(self.rates):
            interval = Fraction(rate[1], rate[0])
            soonest = max(Fraction(now), self.earned(i) + interval - bookable(rate) * interval)
            batch = [int(i == column) for column in range(len(self.rates))]
            given = start_of(self.pool, batch, self.clock(), self.rates)
            assert given is None or now + given >= soonest - 1  # None: further off than anything is booked

    @invariant()
    def what_is_remembered_is_little(self):
        for rate in self.pool.rates:
            assert len(rate.stamps) == len(rate.lows) <= 32
        assert len(self.pool.members) <= 5

    def teardown(self):
        """M1, M2: in any stretch w no more is used than burst + rate × w, to the microsecond."""
        for (amount, period, burst), used in zip(self.rates, self.used, strict=True):
            level = lowest = burst * period  # in parts of a unit; free to fall from full at any time
            moment = None
            for at, units, *_ in sorted(used, key=lambda each: each[0]):
                if moment is not None:
                    level = min(burst * period, level + amount * (at - moment))
                moment = at
                level -= units * period
                lowest = min(lowest, level)
            assert lowest >= -amount


Crowd.rates = ()
Crowd.used = ()


class WithoutReturns(Crowd):
    returns = None


class ReturnsAlone(Crowd):
    """One rate, what goes back is told by itself, and nothing is booked ahead."""

    most_rates = 1
    returns = "alone"
    owes = False
    ahead = False


THOROUGH = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_never_more_is_used_than_the_limit_whoever_asks_owes_dies_or_repeats_itself():
    """M1, M2, M14, B2, B14: two rates, several members, no returns."""
    run_state_machine_as_test(WithoutReturns, settings=THOROUGH)


def test_returns_of_one_rate_create_nothing():
    """P4, B19: told by themselves, while nobody owes anything."""
    run_state_machine_as_test(ReturnsAlone, settings=THOROUGH)


def test_returns_create_nothing_whatever_else_happens():
    """P4, B19: several rates, debts, batches booked ahead, returns told together with new demands."""
    run_state_machine_as_test(Crowd, settings=THOROUGH)


# -- returns, one law at a time: a unit is a millisecond here, and a bucket holds a hundred

MILLI = 1_000
RATE = [[1_000, SECOND, 100]]


def pool_asked(*questions):
    """A pool after those questions: (milliseconds since the start, facts)."""
    pool, stamps = Pool(), {}
    for at, facts in questions:
        now = START + at * MILLI
        asked = question(**{"rates": RATE, **facts, "returned": returned(facts, stamps, now)})
        given = answer(pool, asked, now)
        if given["starts"]:
            stamps[asked["member"], now] = given["first_stamp"]
    return pool


def returned(facts, stamps, now):
    """What goes back, by the stamp it was given under; the stories say how long ago that was."""
    who, backs = facts.get("member", "a"), facts.get("returned", [[] for _ in facts.get("rates", RATE)])
    return [[[units, stamps[who, now - ago]] for units, ago in back] for back in backs]


def test_what_was_not_needed_is_there_for_others():
    taken = (0, {"batches": [[60]]})
    assert at_once(pool_asked(taken), START + 10 * MILLI, RATE) == 40
    returned = (10, {"returned": [[[50, 10 * MILLI]]]})
    assert at_once(pool_asked(taken, returned), START + 10 * MILLI, RATE) == 90


def test_what_had_been_earned_back_anyway_is_not_returned():
    """P4: taken at 0, all of it earned back by 30; then others took 60, and a return comes."""
    late = (40, {"returned": [[[30, 40 * MILLI]]]})
    pool = pool_asked((0, {"batches": [[30]]}), (35, {"member": "b", "batches": [[60]]}), late)
    assert at_once(pool, START + 40 * MILLI, RATE) == 90 - 60 + 5


def test_a_return_is_no_more_than_was_missing_at_the_least_since():
    """P4: at 25 only 5 were missing; whatever A did not use, at most 5 of it matter."""
    pool = pool_asked(
        (0, {"batches": [[30]]}),
        (25, {"member": "b", "batches": [[60]]}),
        (30, {"returned": [[[30, 30 * MILLI]]]}),
    )
    assert at_once(pool, START + 30 * MILLI, RATE) == 90 - 60 + 5


def test_nor_than_was_missing_when_somebody_told_of_a_debt():
    """P4: as above, with a debt in place of a batch."""
    pool = pool_asked(
        (0, {"batches": [[30]]}),
        (25, {"member": "b", "owed": [60]}),
        (30, {"returned": [[[30, 30 * MILLI]]]}),
    )
    assert at_once(pool, START + 30 * MILLI, RATE) == 90 - 60 + 5


def test_nor_than_was_missing_after_another_return():
    """P4: A's return leaves nothing missing at 5, and it takes 20; B's return then is worth nothing."""
    pool = pool_asked(
        (0, {"member": "b", "batches": [[5]]}),
        (0, {"batches": [[5]]}),
        (5, {"returned": [[[5, 5 * MILLI]]], "batches": [[20]]}),
        (6, {"member": "b", "returned": [[[5, 6 * MILLI]]]}),
    )
    assert at_once(pool, START + 6 * MILLI, RATE) == 90 - 19


def test_nor_than_will_be_missing_when_what_is_booked_starts():
    """P4: 90 booked for 10 ms later will find all but them; the 10 of now are earned back by then."""
    pool = pool_asked((0, {"batches": [[10], [90]]}), (1, {"returned": [[[10, 1 * MILLI]]]}))
    assert start_of(pool, [1], START + 10 * MILLI, RATE) == 1 * MILLI


def test_nor_than_was_missing_at_the_least_of_more_moments_than_are_remembered():
    """P4: B's return left nothing missing at 17 that A's could add to. Thirty-one marks later A's comes."""
    pool = pool_asked(
        (0, {"batches": [[10]]}),
        (5, {"member": "b", "batches": [[20]]}),
        (17, {"member": "c", "batches": [[3]]}),
        (17, {"member": "b", "returned": [[[20, 12 * MILLI]]]}),
        (17, {"member": "d", "batches": [[40]]}),
        *((at, {"member": "d", "batches": [[2]]}) for at in range(18, 49)),
        (48, {"returned": [[[10, 48 * MILLI]]]}),
    )
    assert at_once(pool, START + 48 * MILLI, RATE) == 90 - (17 + 3 + 40 + 31 * 2 - 48)


def test_two_returns_do_not_both_count_what_was_missing_once():
    """P4: at 15 only 5 were missing; A's return takes that up, and B's is worth nothing."""
    pool = pool_asked(
        (0, {"batches": [[10]]}),
        (0, {"member": "b", "batches": [[10]]}),
        (15, {"member": "c", "batches": [[50]]}),
        (20, {"returned": [[[10, 20 * MILLI]]]}),
        (20, {"member": "b", "returned": [[[10, 20 * MILLI]]]}),
    )
    assert at_once(pool, START + 20 * MILLI, RATE) == 90 - 45


takes_and_returns = st.lists(
    st.tuples(st.booleans(), st.integers(0, 30), st.integers(1, 45), st.integers(0, 9)), max_size=30
)


@settings(max_examples=300)
@given(story=takes_and_returns)
def test_whole_returns_in_any_order_leave_no_more_than_if_it_had_not_been_taken(story):
    """P4, B19: each return by itself, of all that was taken; nothing is booked ahead."""
    pool, now, taken, history = Pool(), START, [], []
    for take, gap, units, i in story:
        now += gap * MILLI
        if take and units <= at_once(pool, now, RATE):
            given = answer(pool, question(rates=RATE, batches=[[units]]), now)
            history.append([now, units, given["first_stamp"]])
            taken.append(history[-1])
        elif taken:
            charge = taken.pop(i % len(taken))
            answer(pool, question("b", rates=RATE, returned=[[[charge[1], charge[2]]]]), now)
            charge[1] = 0
        earned = 0
        for at, used, _stamp in history:
            earned = max(earned, at) + used * MILLI if used else earned
        if pool.rates:
            assert pool_level(pool, now) <= 100 - Fraction(max(0, earned - now), MILLI)


def test_a_return_later_than_thirty_two_marks_is_worth_less_and_never_more():
    """M17: the marks are few, and what they forget is forgotten on the safe side."""
    taken = [(at, {"member": "b", "batches": [[2]]}) for at in range(1, 60)]
    pool = pool_asked((0, {"batches": [[10]]}), *taken)
    assert len(pool.rates[0].stamps) == 32
    before = at_once(pool, START + 60 * MILLI, RATE)
    pool = pool_asked((0, {"batches": [[10]]}), *taken, (60, {"returned": [[[10, 60 * MILLI]]]}))
    assert before <= at_once(pool, START + 60 * MILLI, RATE) <= before + 10


def test_a_return_of_more_than_was_ever_taken_fills_the_bucket_and_no_more():
    pool = pool_asked((0, {"batches": [[30]]}), (1, {"returned": [[[10**12, 1 * MILLI]]]}))
    assert at_once(pool, START + MILLI, RATE) == 90
    assert start_of(pool, [100], START + MILLI, RATE) == 10 * MILLI  # the tenth that is kept back, too


# -- batches


def test_each_batch_starts_when_it_fits_and_a_tenth_is_kept_for_what_lies_about():
    """2f: 100 in a millisecond each, 10 kept: 90 go at once, the next as they are earned."""
    pool = Pool()
    given = answer(pool, question(rates=RATE, batches=[[30], [60], [5], [10]]), START)
    assert given["starts"] == [0, 0, 5 * MILLI, 15 * MILLI]


def test_a_batch_as_large_as_the_burst_leaves_room_for_what_lies_about():
    """M2: 10 start at 0 and are used at 10 ms; all 100 of another may not start at 10 ms too."""
    pool = Pool()
    assert answer(pool, question(rates=RATE, batches=[[10]]), START)["starts"] == [0]
    start = answer(pool, question("b", rates=RATE, batches=[[100]]), START)["starts"][0]
    assert start >= 20 * MILLI  # 10 + 100 used since 10 ms: 100 and the 10 earned until 20 ms


def test_a_batch_above_the_burst_waits_for_all_of_it_and_leaves_debt():
    """2a: slow, never impossible, and one at a time; it waits for the tenth that is kept back as well."""
    pool = Pool()
    given = answer(pool, question(rates=RATE, batches=[[10], [250], [1]]), START)
    assert given["starts"][:2] == [0, 20 * MILLI]
    assert given["starts"][2:] in ([], [(270 + 1 - 90) * MILLI])


def test_a_batch_that_waits_for_one_rate_starts_then_for_all():
    """2b: all or nothing; the other rate is charged for that moment."""
    rates = [[1_000, SECOND, 100], [10, SECOND, 2]]
    pool = Pool()
    given = answer(pool, question(rates=rates, batches=[[50, 2], [50, 1]]), START)
    assert given["starts"] == [0, 100 * MILLI]
    # At 100 ms the first rate is full again but for the second 50.
    assert start_of(pool, [40, 0], START + 100 * MILLI, rates) == 0
    assert start_of(pool, [41, 0], START + 100 * MILLI, rates) == 1 * MILLI


def test_cost_nothing_is_given_at_once_and_takes_nothing():
    """2a: cost 0 is a peek."""
    pool = pool_asked((0, {"batches": [[90]]}))
    before = copied(pool).rates
    assert answer(pool, question(rates=RATE, batches=[[0], [0]]), START)["starts"] == [0, 0]
    assert pool.rates == before


def test_whoever_has_something_beyond_the_horizon_asks_no_further_until_it_is_near():
    """2f: what is told is when to ask again, to the microsecond: not before, and then indeed."""
    pool = pool_asked((0, {"batches": [[90]]}))
    given = answer(pool, question(rates=RATE, batches=[[80]] * 5), START)
    assert given["starts"] == [80 * MILLI, 160 * MILLI]
    assert given["ask_again_in"] == 160 * MILLI - HORIZON
    early = answer(copied(pool), question(rates=RATE, batches=[[1]]), START + given["ask_again_in"] - 1)
    assert (early["starts"], early["ask_again_in"]) == ([], 1)
    assert (
        len(answer(pool, question(rates=RATE, batches=[[1]]), START + given["ask_again_in"])["starts"]) == 1
    )


@given(
    rate=rate_values,
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=30),
    gap=st.integers(0, 2 * SECOND),
)
def test_asking_again_when_told_always_leads_somewhere(rate, sizes, gap):
    """P3: nobody who asks again at the moment it was told waits for ever, whatever it wants."""
    pool, now = Pool(), START
    for units in sizes:
        for _ in range(1_000):
            given = answer(pool, question(rates=[rate], batches=[[units]]), now)
            if given["starts"]:
                break
            assert given["ask_again_in"] > 0
            now += given["ask_again_in"]
        else:
            pytest.fail("asked a thousand times for nothing")
        now += gap


def test_a_question_without_batches_is_never_told_to_ask_again():
    pool = pool_asked((0, {"batches": [[90]] * 3}))
    given = answer(pool, question(rates=RATE), START)
    assert (given["starts"], given["ask_again_in"]) == ([], 0)


@pytest.mark.parametrize("members", [2, 7, 25])
def test_those_who_want_more_than_there_is_take_turns(members):
    """Max-min: everybody asks all the time for batches of one size; nobody has two more than another."""
    pool, now, end = Pool(), START, START + 10 * SECOND
    rates = [[100, SECOND, 20]]
    service = dict.fromkeys(range(members), 0)
    due = {member: (START, member) for member in service}
    while True:
        member = min(due, key=due.get)
        now = max(now, due[member][0])
        if now > end:
            break
        given = answer(pool, question(f"m{member}", rates=rates, batches=[[1]] * 3), now)
        service[member] += len(given["starts"])
        due[member] = (now + max(given["ask_again_in"], 10 * MILLI), next(numbers))
    # Each may have booked its batches up to the horizon, and one further.
    assert max(service.values()) - min(service.values()) <= 3
    assert sum(service.values()) >= 100 * 10


def test_nobody_is_sent_ahead_into_a_window():
    """DESIGN 11, 2d: with pauses nothing is given before the end, and nothing is charged."""
    pool = pool_asked((0, {"window": SECOND}))
    given = answer(pool, question(rates=RATE, batches=[[1]], waits_for_window=True), START + 400 * MILLI)
    assert (given["starts"], given["ask_again_in"]) == ([], 600 * MILLI)
    assert at_once(pool, START + 400 * MILLI, RATE) == 90
    assert answer(pool, question(rates=RATE, batches=[[1]]), START + 400 * MILLI)["starts"] == [0]
    again = answer(pool, question(rates=RATE, batches=[[1]], waits_for_window=True), START + SECOND)
    assert again["starts"] == [1 * MILLI]


def after_a_window(pool, at, rates=RATE):
    """When the next twenty batches start, asked for by one who pauses, in milliseconds from that moment."""
    given = answer(pool, question("late", rates=rates, batches=[[1]] * 20, waits_for_window=True), START + at)
    return [start // MILLI for start in given["starts"]]


@pytest.mark.parametrize("pauses", [True, False])
def test_those_who_pause_come_back_at_the_rate_whoever_signalled(pauses):
    """Rule 11, M7."""
    pool = pool_asked((0, {"window": SECOND, "waits_for_window": pauses}))
    assert after_a_window(pool, SECOND) == list(range(1, 21))


def test_those_who_do_not_pause_lose_nothing_by_a_window():
    pool = pool_asked((0, {"window": SECOND, "waits_for_window": True}))
    given = answer(pool, question("b", rates=RATE, batches=[[1]] * 20), START + 2 * SECOND)
    assert given["starts"] == [0] * 20


def test_a_window_takes_what_was_saved_up_once_and_not_again():
    pool = pool_asked((0, {"window": SECOND}))
    assert after_a_window(pool, SECOND)[0] == 1
    assert after_a_window(pool, SECOND + 60 * MILLI)[:2] == [0, 0]


def test_a_window_that_is_cleared_takes_what_was_saved_up_until_then_and_no_more():
    """D-02, and a debt stays one."""
    pool = pool_asked((0, {"window": 60 * SECOND}), (1_000, {"window": -1, "waits_for_window": True}))
    assert after_a_window(pool, SECOND)[0] == 1
    pool = pool_asked((0, {"owed": [2_090]}), (0, {"window": 60 * SECOND}), (1_000, {"window": -1}))
    assert after_a_window(pool, SECOND)[0] == 1_001


@pytest.mark.parametrize("rate", [[10_000, SECOND, 100], [100, SECOND, 100]])
def test_limits_that_change_during_a_window_bring_no_burst_and_no_wait(rate):
    pool = pool_asked((0, {"window": SECOND}), (500, {"set": [[rate], NO_LIMITS]}))
    first = after_a_window(pool, SECOND, [rate])[0]
    assert first == SECOND // rate[0] // MILLI
    assert at_once(pool, START + SECOND, [rate]) == 0


def test_a_window_moves_with_a_clock_that_was_set():
    pool = pool_asked((0, {"window": SECOND}))
    after_a_window(pool, SECOND)
    pool.shift(-3_600 * SECOND)
    assert after_a_window(pool, SECOND + 60 * MILLI - 3_600 * SECOND)[:2] == [0, 0]


# -- the store's clock


def test_a_clock_that_goes_back_grants_nothing_again():
    """P5, M14."""
    pool = pool_asked((0, {"batches": [[90]]}))
    for back in (1, 50 * MILLI, 3_600 * SECOND):
        assert start_of(pool, [1], START - back, RATE) == 1 * MILLI


def test_jitter_of_the_clock_grants_nothing_beyond_the_time_that_has_passed():
    """B1: fifty milliseconds back and forth, a hundred times."""
    pool = pool_asked((0, {"batches": [[90]]}))
    for n in range(100):
        now = START + (50 * MILLI if n % 2 else 0)
        answer(pool, question("b", rates=RATE), now)
    assert at_once(pool, START + 50 * MILLI, RATE) == 50


def test_a_clock_that_was_set_back_an_hour_holds_nobody_up_for_longer_than_a_window():
    """B1: stall ≤ one window. A server's wall clock may be set back, or have been an hour ahead."""
    pool = pool_asked((0, {"batches": [[90]]}))
    back = START - 3_600 * SECOND
    answer(pool, question(rates=RATE), back)
    assert at_once(pool, back + 2 * SECOND, RATE) == 90


def test_only_durations_go_in_and_out_so_that_nobody_s_clock_matters():
    """B2: the same story an hour later, or a year, gives the same answers to the byte."""

    def story(begin):
        pool = Pool()
        return [
            unstamped(answer(pool, asked, begin + at))
            for at, asked in (
                (0, question(rates=RATE, batches=[[50]] * 4, limits=[9, 2, 500, SECOND], wants=[4, 400])),
                (9, question("b", rates=RATE, batches=[[7]], wants=[9, 400])),
                (5_000, question("b", rates=RATE, window=SECOND, returned=[[[7, begin + 9]]])),
                (5_001, question(rates=RATE, batches=[[1]], waits_for_window=True, uses=[3, 1], owed=[5])),
                (2 * SECOND, question("c", rates=RATE, batches=[[9]], wants=[5, 5])),
            )
        ]

    # The ids differ, and are no part of the answers.
    assert story(START) == story(START + 3_600 * SECOND) == story(2**50)


@pytest.mark.parametrize("now", [0, 5 * SECOND])
def test_a_clock_that_has_just_begun_is_like_any_other(now):
    """DESIGN 6, never 0 as a sentinel: no window was ever opened, so nothing is throttled."""
    given = answer(Pool(), question(limits=[400, 10, 0, 10 * SECOND], wants=[50, 0]), now)
    assert given["places"] == 50


@pytest.mark.parametrize("by", [-(10**12), -1, 1, 10**12])
def test_counted_from_another_beginning_everything_is_as_far_off_as_before(by):
    """D-09: who has booked ahead, what may be returned, leases, the window and its tail."""
    story = [
        (0, {"batches": [[90], [60]], "limits": [9, 2, 0, SECOND], "wants": [4, 0], "window": 80 * MILLI}),
        (5, {"member": "b", "batches": [[40]] * 9, "wants": [9, 0]}),
    ]
    later = [
        (6, {"member": "b", "batches": [[1]]}),  # has something beyond the horizon
        (7, {"returned": [[[90, 7 * MILLI]]], "batches": [[1]], "waits_for_window": True}),
        (300, {"member": "c", "batches": [[5]], "wants": [9, 0]}),
        (301, {"returned": [[[5, 301 * MILLI]]]}),  # older than when the bucket was last full
        (302, {"member": "c", "batches": [[90], [1]]}),
        (3_003, {"member": "d", "wants": [9, 0]}),  # the first one's lease is over
    ]
    here, moved = pool_asked(*story), pool_asked(*story)
    moved.shift(by)
    stamps = [dict.fromkeys((("a", START),), here.rates[0].full_stamp) for _ in range(2)]
    for at, facts in later:
        now, given = START + at * MILLI, []
        for pool, known, moment in ((here, stamps[0], now), (moved, stamps[1], now + by)):
            facts = {"rates": RATE, "limits": [9, 2, 0, SECOND], **facts}
            asked = question(**{**facts, "returned": returned(facts, known, now)})
            given.append(answer(pool, asked, moment))
            known[asked["member"], now] = given[-1]["first_stamp"]
        assert unstamped(given[0]) == unstamped(given[1])


# -- members


def test_the_dead_are_forgotten_after_their_lease_and_their_places_come_back():
    """B3: a holder killed at once: outstanding returns to 0 within its lease, and not before."""
    pool = Pool()
    limits = [10, 0, 100, 0]
    assert answer(pool, question(limits=limits, wants=[10, 100]), START)["places"] == 10
    given = answer(pool, question("b", limits=limits, wants=[4, 4]), START + LEASE - 1)
    assert (given["places"], given["bytes"], given["members"]) == (0, 0, 2)
    given = answer(pool, question("b", limits=limits, wants=[4, 4]), START + LEASE)
    assert (given["places"], given["bytes"], given["members"]) == (4, 4, 1)


def test_one_that_comes_back_after_its_lease_has_what_is_left():
    """B30: paused for longer than the lease; what it held went to others."""
    pool = Pool()
    limits = [10, 0, 0, 0]
    answer(pool, question(limits=limits, wants=[10, 0]), START)
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START + LEASE)["places"] == 10
    assert answer(pool, question(limits=limits, wants=[10, 0]), START + LEASE)["places"] == 0


def test_a_goodbye_frees_everything_at_once():
    pool = Pool()
    limits = [10, 0, 100, 0]
    answer(pool, question(limits=limits, wants=[10, 100], rates=RATE, batches=[[40]]), START)
    answer(pool, question(limits=limits, rates=RATE, returned=[[[40, pool.stamp]]], leaves=True), START)
    given = answer(pool, question("b", limits=limits, rates=RATE, wants=[10, 100]), START)
    assert (given["places"], given["bytes"]) == (10, 100)
    assert at_once(pool, START, RATE) == 90


def test_a_goodbye_that_is_asked_again_changes_nothing():
    """B14: RedisStore repeats a question after a broken connection; its returns must not count twice."""
    pool = pool_asked((0, {"batches": [[50]]}), (0, {"member": "b", "batches": [[40]]}))
    goodbye = question(rates=RATE, returned=[[[20, pool.stamp - 1]]], leaves=True)
    first = deepcopy(answer(pool, goodbye, START))
    assert at_once(pool, START, RATE) == 20
    assert answer(pool, goodbye, START) == first
    assert at_once(pool, START, RATE) == 20


def test_nothing_grows_with_the_number_of_questions_or_of_those_who_came_and_went():
    """M17: ten thousand questions by a thousand processes that live for a moment."""
    pool, size = Pool(), 0
    rates = [[1_000, SECOND, 100], [10_000, 60 * SECOND, 500]]
    for n in range(10_000):
        asked = question(
            f"m{n // 10}",
            rates=rates,
            batches=[[1, 3]],
            returned=[[[1, START + n * MILLI - MILLI]], []],
            owed=[0, n % 2],
            lease=20 * MILLI,
            wants=[2, 2],
            limits=[50, 5, 50, SECOND],
            window=MILLI if n % 100 == 0 else None,
        )
        answer(pool, asked, START + n * MILLI)
        if n > 1_000:
            size = max(size, len(json.dumps(pool.packed())))
            assert len(pool.members) <= 4
    assert size < 4_000


# -- places and bytes


class House(RuleBasedStateMachine):
    """Members that hold places and bytes, run out, die; limits that are raised and lowered.

    Everybody asks in time: nobody's lease runs out unless it is dead. News of other limits reach everybody
    before anybody begins anything more.
    """

    @initialize(places=st.integers(1, 12), load=st.integers(1, 40))
    def begin(self, places, load):
        self.pool = Pool()
        self.now = START
        self.limits = [places, 0, load, 0]
        self.members = {}  # of those alive: [uses, wants, granted, asked at]
        self.names = count()

    def ask(self, name, set_to=None):
        member = self.members[name]
        given = answer(
            self.pool,
            question(name, limits=self.limits, set=set_to, uses=list(member[0]), wants=list(member[1])),
            self.now,
        )
        member[2], member[3] = [given["places"], given["bytes"]], self.now

    def in_use(self):
        return [sum(member[0][column] for member in self.members.values()) for column in (0, 1)]

    def one(self, i):
        return list(self.members)[i % len(self.members)]

    @precondition(lambda self: len(self.members) < 6)
    @rule(places=st.integers(0, 12), load=st.integers(0, 40))
    def come(self, places, load):
        name = f"m{next(self.names)}"
        self.members[name] = [[0, 0], [places, load], [0, 0], 0]
        self.ask(name)

    @precondition(lambda self: self.members)
    @rule(i=st.integers(), places=st.integers(0, 12), load=st.integers(0, 40))
    def start_calls(self, i, places, load):
        """As many as were granted; never so many that all together are more than the limit."""
        uses, _, granted, _ = self.members[self.one(i)]
        more = [
            max(0, min(most - used, wanted))
            for most, used, wanted in zip(granted, uses, (places, load), strict=True)
        ]
        for column in (0, 1):
            uses[column] += more[column]
            limit = self.limits[2 * column]
            assert not more[column] or self.in_use()[column] <= limit

    @precondition(lambda self: self.members)
    @rule(i=st.integers(), places=st.integers(0, 12), load=st.integers(0, 40))
    def calls_end(self, i, places, load):
        uses = self.members[self.one(i)][0]
        uses[:] = [max(0, uses[0] - places), max(0, uses[1] - load)]

    @precondition(lambda self: self.members)
    @rule(i=st.integers(), places=st.integers(0, 12), load=st.integers(0, 40))
    def tell(self, i, places, load):
        name = self.one(i)
        self.members[name][1] = [places, load]
        self.ask(name)

    @precondition(lambda self: self.members)
    @rule(i=st.integers(), goodbye=st.booleans())
    def die(self, i, goodbye):
        name = self.one(i)
        del self.members[name]
        if goodbye:
            answer(self.pool, question(name, limits=self.limits, leaves=True), self.now)

    @rule(gap=st.integers(1, 2 * LEASE))
    def time_passes(self, gap):
        end = self.now + gap
        while self.now < end:
            self.now = min(end, self.now + LEASE // 3)
            for name, member in self.members.items():
                if self.now - member[3] >= LEASE // 3:
                    self.ask(name)

    @precondition(lambda self: self.members)
    @rule(places=st.integers(1, 12), load=st.integers(1, 40), i=st.integers())
    def other_limits(self, places, load, i):
        self.limits = [places, 0, load, 0]
        self.ask(self.one(i), set_to=[[], self.limits])
        for name in self.members:
            self.ask(name)


def test_places_and_bytes_in_use_are_never_more_than_the_limit_in_sum():
    """B3, R-8, M9: whoever comes, goes, dies; if limits are lowered nothing starts until there is room."""
    run_state_machine_as_test(House, settings=THOROUGH)


def even_parts(limit, wants):
    """Max-min: everybody has what it wants, or as much as anybody. In fractions."""
    parts, left = [Fraction(0)] * len(wants), Fraction(limit)
    hungry = [i for i, want in enumerate(wants) if want]
    while hungry and left:
        step = min(left / len(hungry), min(wants[i] - parts[i] for i in hungry))
        for i in hungry:
            parts[i] += step
        left -= step * len(hungry)
        hungry = [i for i in hungry if parts[i] < wants[i]]
    return parts


def settled_parts(limit, wants, rounds=12, column=0):
    """What everybody has after asking so often, in turn; calls are short: none is in use by the next turn."""
    pool = Pool()
    parts = [0] * len(wants)
    limits = [limit if column == 0 else 0, 0, limit if column == 1 else 0, 0]
    for _ in range(rounds):
        for i, want in enumerate(wants):
            uses, wanting = [0, 0], [0, 0]
            uses[column] = min(parts[i], want)
            wanting[column] = want - uses[column]
            given = answer(pool, question(f"m{i}", limits=limits, uses=uses, wants=wanting), START)
            parts[i] = given["bytes" if column else "places"]
    return parts


@pytest.mark.parametrize("column", [0, 1])
@pytest.mark.parametrize(("limit", "members"), [(10, 2), (10, 3), (100, 7), (7, 7), (400, 50)])
def test_those_who_all_want_more_get_equal_parts(limit, members, column):
    """Max-min: nobody has less than an equal part, and nothing is left over."""
    parts = settled_parts(limit, [limit] * members, column=column)
    assert sum(parts) == limit
    assert min(parts) == limit // members


def test_what_fits_is_given_in_full():
    assert settled_parts(100, [20, 30, 50]) == [20, 30, 50]


@settings(max_examples=200)
@given(limit=st.integers(6, 60), wants=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_those_who_want_little_get_it_and_the_others_share_the_rest_evenly(limit, wants):
    """2f, weighted max-min of wants: nothing is left while somebody wants it."""
    parts = settled_parts(limit, wants)
    assert sum(parts) == min(limit, sum(wants))
    for part, even in zip(parts, even_parts(limit, wants), strict=True):
        assert abs(part - even) <= 1


def test_free_places_go_to_those_who_want_them():
    """Of ten places six are held by six who want no more. Two want ten each: the four left are theirs."""
    parts = settled_parts(10, [1, 1, 1, 1, 1, 1, 10, 10])
    assert parts == [1, 1, 1, 1, 1, 1, 2, 2]


def test_with_fewer_places_than_members_everybody_has_a_turn():
    """Two places, five who always want one more; calls end between the turns."""
    pool, turns = Pool(), dict.fromkeys("abcde", 0)
    granted = dict.fromkeys(turns, 0)
    for _ in range(100):
        for name in turns:
            given = answer(pool, question(name, limits=[2, 0, 0, 0], uses=[0, 0], wants=[2, 0]), START)
            granted[name] = given["places"]
            turns[name] += granted[name] > 0
            assert sum(granted.values()) <= 2
    assert max(turns.values()) - min(turns.values()) <= 2
    assert sum(turns.values()) >= 80  # a place changes hands in two rounds and a half


def test_a_member_is_told_that_others_want_what_it_holds():
    pool = Pool()
    limits = [10, 0, 0, 0]
    assert not answer(pool, question(limits=limits, wants=[10, 0]), START)["crowded"]
    answer(pool, question("b", limits=limits, wants=[10, 0]), START)
    assert answer(pool, question(limits=limits, uses=[10, 0]), START)["crowded"]


def test_what_is_in_use_counts_until_it_is_over_even_if_it_is_to_be_less():
    """R-8: one who has to give up half keeps the places of its calls until they end."""
    pool = Pool()
    limits = [10, 0, 0, 0]
    answer(pool, question(limits=limits, wants=[10, 0]), START)
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 0
    assert answer(pool, question(limits=limits, uses=[10, 0], wants=[5, 0]), START)["places"] == 5
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 0
    assert answer(pool, question(limits=limits, uses=[7, 0], wants=[5, 0]), START)["places"] == 5
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 3


def test_without_a_limit_everybody_has_what_it_wants():
    pool = Pool()
    for name in "abc":
        given = answer(pool, question(name, uses=[1_000, 7], wants=[1_000, 10**9]), START)
        assert (given["places"], given["bytes"], given["crowded"]) == (2_000, 10**9 + 7, False)


@pytest.mark.parametrize(
    ("places", "throttled", "expected"), [(400, 10, 10), (5, 10, 5), (0, 10, 10), (400, 0, 50)]
)
def test_while_a_signal_is_recent_the_tighter_limit_holds_for_all_together(places, throttled, expected):
    """2d, DP: while the window is closed and for the tail after its end, and not a microsecond longer."""
    pool = Pool()
    facts = {"limits": [places, throttled, 0, 10 * SECOND], "lease": 100 * SECOND, "wants": [50, 0]}
    assert answer(pool, question(window=SECOND, **facts), START)["places"] == expected
    last = START + SECOND + 10 * SECOND
    assert answer(pool, question(**facts), last - 1)["places"] == expected
    assert answer(pool, question(**facts), last)["places"] == min(50, places or 50)


# -- the window


signals = st.tuples(
    st.sampled_from("abc"),
    st.integers(0, 3 * SECOND),  # the gap before it
    st.just(-1) | st.integers(1, 5 * SECOND),  # how long, or cleared
    st.booleans(),  # its reply is lost, and it is told again
)


@given(story=st.lists(signals, max_size=25))
def test_the_window_only_extends_until_it_is_cleared(story):
    """2d, B8: told twice counts once; what changes nothing is no news."""
    pool, now, until, heard = Pool(), START, START, 0
    for member, gap, duration, lost in story:
        now += gap
        news = duration < 0 or now + duration > until
        if news:
            until = min(until, now) if duration < 0 else now + duration
        asked = question(member, window=duration)
        left, generation = window_of(answer(pool, asked, now))
        assert left == max(0, until - now)
        assert (generation > heard) if news else (generation == heard)
        heard = generation
        if lost:
            assert window_of(answer(pool, asked, now)) == (left, generation)
        # Whoever asks next hears the same.
        assert window_of(answer(pool, question("z"), now)) == (left, generation)


@given(told=st.lists(st.integers(1, 60 * SECOND), min_size=1, max_size=5), data=st.data())
def test_signals_of_one_burst_lead_to_one_end_in_whatever_order_they_come(told, data):
    """B8: random delivery orders converge to the same state."""
    order = data.draw(st.permutations(told)) + data.draw(st.lists(st.sampled_from(told), max_size=3))
    pool = Pool()
    for n, duration in enumerate(order):
        given = answer(pool, question(f"m{n}", window=duration), START)
    assert given["window_left"] == max(told)


def test_news_of_a_window_are_news_although_the_store_forgot_everything():
    """B12: FLUSHALL. The number of the first window of the new pool is none that anybody knows."""
    heard = [answer(Pool(), question(window=SECOND), START + at)["window_generation"] for at in (0, 1_000)]
    assert heard[0] < heard[1]


def test_a_window_outlives_those_who_opened_it_and_newcomers_hear_of_it():
    """D-09, B10: it survives the death of every member."""
    pool = Pool()
    answer(pool, question(window=60 * SECOND), START)
    given = answer(pool, question("b"), START + 10 * LEASE)
    assert (given["window_left"], given["members"]) == (60 * SECOND - 10 * LEASE, 1)


def test_a_signal_of_no_duration_moves_nothing():
    pool = Pool()
    before = window_of(answer(pool, question(window=SECOND), START))
    assert window_of(answer(pool, question(window=0), START)) == before


# -- other limits

retunes = st.tuples(rate_values, rate_values, st.integers(0, 24), st.integers(0, SECOND))


@given(case=retunes)
def test_other_limits_for_the_same_period_create_nothing(case):
    """P6: there is no more to be had at once than before, nor than the new burst. Debts may be forgotten."""
    (amount, period, burst), (new_amount, _, new_burst), part, gap = case
    old, new = [[amount, period, burst]], [[new_amount, period, new_burst]]
    pool, now = Pool(), START + gap
    answer(pool, question(rates=old, batches=[[max(1, burst * part // 24)]]), START)
    before = max(0, pool_level(pool, now))
    answer(pool, question("b", rates=new, set=[new, NO_LIMITS]), now)
    assert pool_level(pool, now) <= min(before, new_burst)


def pool_level(pool, now):
    """Units that are there in the first rate, in a fraction: its burst less what is still to be earned."""
    rate = pool.rates[0]
    return rate.burst - Fraction(max(0, rate.full_at - now) * rate.amount, rate.period)


def test_other_limits_with_another_period_create_nothing():
    """P6: 10 a second all used; called 600 a minute they are still used."""
    second, minute = [[10, SECOND, 10]], [[600, 60 * SECOND, 10]]
    pool = Pool()
    answer(pool, question(rates=second, batches=[[9]]), START)
    answer(pool, question(rates=second, set=[minute, NO_LIMITS]), START)
    assert at_once(pool, START, minute) == 0


def test_one_more_rate_in_front_creates_nothing():
    """P6: the same rate, now second in the list, has still been used."""
    one, two = [[10, SECOND, 10]], [[500, 60 * SECOND, 50], [10, SECOND, 10]]
    pool = Pool()
    answer(pool, question(rates=one, batches=[[9]]), START)
    answer(pool, question(rates=two, set=[two, NO_LIMITS]), START)
    assert at_once(pool, START, two, column=1) == 0


def test_going_back_and_forth_between_limits_creates_nothing():
    """P6: a thousand times; rounding is against those who ask."""
    a, b = [[7, SECOND, 10]], [[11, SECOND, 13]]
    pool = Pool()
    answer(pool, question(rates=a, batches=[[5]]), START)
    level = pool_level(pool, START)
    for n in range(1_000):
        limits = b if n % 2 == 0 else a
        answer(pool, question(rates=limits, set=[limits, NO_LIMITS]), START)
        assert pool_level(pool, START) <= level
        level = max(0, pool_level(pool, START))


def test_everybody_is_told_of_other_limits_until_it_knows():
    """DESIGN 2: one pool per key; limits given to a key that exists retune it for all."""
    pool = Pool()
    new = [[[5, SECOND, 5]], [3, 1, 2, 1]]
    first = answer(pool, question(rates=RATE, set=[RATE, NO_LIMITS]), START)
    version = first["version"]
    assert version > 0
    assert (first["rates"], first["limits"]) == (RATE, list(NO_LIMITS))
    assert "rates" not in answer(pool, question(rates=RATE, version=version), START)
    answer(pool, question("b", rates=RATE, set=new), START)
    for _ in range(2):  # the first reply may have been lost
        told = answer(pool, question(rates=RATE, version=version), START)
        assert told["version"] > version
        assert (told["rates"], told["limits"]) == tuple(new)
    assert "rates" not in answer(pool, question(rates=new[0], version=told["version"]), START)


def test_limits_said_by_the_way_change_nothing_and_the_same_limits_are_no_news():
    pool = Pool()
    version = answer(pool, question(rates=RATE), START)["version"]
    other = [[5, SECOND, 5]]
    assert answer(pool, question("b", rates=other), START)["rates"] == RATE
    assert answer(pool, question("b", rates=RATE, set=[RATE, NO_LIMITS]), START)["version"] == version


def test_what_was_taken_before_other_limits_came_is_not_returned_to_the_new_ones():
    pool = pool_asked((0, {"batches": [[50]]}), (10, {"set": [[[1_000, SECOND, 60]], NO_LIMITS]}))
    new = [[1_000, SECOND, 60]]
    before = at_once(pool, START + 10 * MILLI, new)
    answer(pool, question(rates=new, returned=[[[50, START]]]), START + 10 * MILLI)
    assert at_once(pool, START + 10 * MILLI, new) == before


def test_a_booking_made_under_a_small_rate_blocks_nobody_once_it_is_raised():
    """2a, DP: waiters included. An hour's rate becomes a thousand a second."""
    small, large = [[1, 3_600 * SECOND, 1]], [[3_600_000, 3_600 * SECOND, 1_000]]
    pool = Pool()
    answer(pool, question(rates=small, batches=[[1]] * 3), START)
    answer(pool, question("b", rates=large, set=[large, NO_LIMITS]), START + 1)
    given = answer(pool, question(rates=large, batches=[[1]]), START + 2 * SECOND)
    assert given["starts"] == [0]


def test_as_many_rates_as_the_others_have_or_nothing_changes():
    """DESIGN 12: the others could not follow. Whoever asks with too many or too few is answered and told."""
    two = [*RATE, [500, 60 * SECOND, 50]]
    pool = pool_asked((0, {}))
    for rates in (two, []):
        asked = question("b", rates=rates, set=[rates, NO_LIMITS], batches=[[1 for _ in rates]], wants=[3, 0])
        given = answer(pool, asked, START)
        assert (given["rates"], given["places"]) == (RATE, 3)
        assert given["starts"] == []
    assert at_once(pool, START, RATE) == 90


def test_alone_a_member_may_set_as_many_rates_as_it_likes():
    two = [*RATE, [500, 60 * SECOND, 50]]
    pool = pool_asked((0, {}), (1, {"rates": two, "set": [two, NO_LIMITS]}))
    assert [rate.terms for rate in pool.rates] == two


# -- when nothing is worth remembering


@given(
    rates=st.lists(rate_values, max_size=2),
    part=st.integers(1, 30),
    window=st.none() | st.integers(1, 60 * SECOND),
    tail=st.integers(0, 10 * SECOND),
)
def test_after_as_long_as_it_says_an_idle_pool_is_like_a_new_one(rates, part, window, tail):
    """M17, section 5: a full bucket need not exist; a pool may be forgotten after that, and not before."""
    limits = [10, 3, 100, tail]
    pool = Pool()
    batch = [max(1, rate[2] * part // 16) for rate in rates]
    asked = question(rates=rates, batches=[batch], limits=limits, window=window, wants=[9, 9])
    answer(pool, asked, START)
    later = START + pool.idle_for(START)
    again = question(
        "b", rates=rates, batches=[batch] * 3, limits=limits, wants=[8, 80], waits_for_window=True
    )
    ours, fresh = answer(pool, again, later), answer(Pool(), again, later)
    for what in ("starts", "ask_again_in", "places", "bytes", "crowded", "members"):
        assert ours[what] == fresh[what]


def test_after_the_last_goodbye_there_is_nothing_to_remember_for_longer_than_a_lease():
    """M17: so long it may have to be said again."""
    pool = Pool()
    answer(pool, question(rates=RATE, leaves=True), START)
    assert pool.idle_for(START) <= LEASE


@pytest.mark.parametrize("order", ["abc", "bca", "cab", "cba"])
def test_the_order_of_members_in_the_state_does_not_matter(order):
    """Lua's tables have none."""
    pool = Pool()
    limits = [10, 0, 50, 0]
    for name, want in (("a", 5), ("b", 4), ("c", 9)):
        answer(pool, question(name, limits=limits, wants=[want, want]), START)
    other = copied(pool)
    other.members = {name: other.members[name] for name in order}
    for name in "abc":
        asked = question(name, limits=limits, uses=[1, 1], wants=[7, 60])
        assert answer(copied(other), asked, START) == answer(copied(pool), asked, START)
