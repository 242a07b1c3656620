"""Members and their leases, and how they share places and bytes."""

import json
from copy import deepcopy
from fractions import Fraction
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from pool_questions import copied
from sharing.pool.pools import (
    LEASE,
    MILLI,
    RATE,
    SECOND,
    START,
    THOROUGH,
    at_once,
    pool_asked,
    question,
)


def test_places_of_an_expired_member_are_free_when_its_lease_ends_and_not_before():
    """A member was killed while it held everything."""
    pool = Pool()
    limits = [10, 0, 100, 0]
    assert answer(pool, question(limits=limits, wants=[10, 100]), START)["places"] == 10
    given = answer(pool, question("b", limits=limits, wants=[4, 4]), START + LEASE - 1)
    assert (given["places"], given["bytes"], given["members"]) == (0, 0, 2)
    given = answer(pool, question("b", limits=limits, wants=[4, 4]), START + LEASE)
    assert (given["places"], given["bytes"], given["members"]) == (4, 4, 1)


def test_a_member_that_comes_back_after_its_lease_has_what_is_left():
    """It was stopped, and what it held went to another member."""
    pool = Pool()
    limits = [10, 0, 0, 0]
    answer(pool, question(limits=limits, wants=[10, 0]), START)
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START + LEASE)["places"] == 10
    assert answer(pool, question(limits=limits, wants=[10, 0]), START + LEASE)["places"] == 0


def test_a_member_that_leaves_frees_everything_at_once():
    pool = Pool()
    limits = [10, 0, 100, 0]
    answer(pool, question(limits=limits, wants=[10, 100], rates=RATE, batches=[[40]]), START)
    answer(pool, question(limits=limits, rates=RATE, returned=[[[40, pool.stamp]]], leaves=True), START)
    given = answer(pool, question("b", limits=limits, rates=RATE, wants=[10, 100]), START)
    assert (given["places"], given["bytes"]) == (10, 100)
    assert at_once(pool, START, RATE) == 90


def test_a_last_question_that_is_asked_again_changes_nothing():
    """RedisStore repeats a question after a broken connection; its returns must not count twice."""
    pool = pool_asked((0, {"batches": [[50]]}), (0, {"member": "b", "batches": [[40]]}))
    last = question(rates=RATE, returned=[[[20, pool.stamp - 1]]], leaves=True)
    first = deepcopy(answer(pool, last, START))
    assert at_once(pool, START, RATE) == 20
    assert answer(pool, last, START) == first
    assert at_once(pool, START, RATE) == 20


def test_a_pool_does_not_grow_with_the_number_of_questions_and_of_former_members():
    """A thousand processes that live for a moment ask; a pool recalls those of the last minute."""
    pool, sizes = Pool(), []
    rates = [[1_000, SECOND, 100], [10_000, 60 * SECOND, 500]]
    for n in range(10_000):
        now = START + n * 20 * MILLI
        asked = question(
            f"m{n // 10}",
            rates=rates,
            batches=[[1, 3]],
            returned=[[[1, now - MILLI]], []],
            owed=[0, n % 2],
            lease=400 * MILLI,
            wants=[2, 2],
            limits=[50, 5, 50, SECOND],
            window=MILLI if n % 100 == 0 else None,
        )
        answer(pool, asked, now)
        if n > 1_000:
            assert len(pool.members) <= 4
        if n % 10 == 9:
            sizes.append(len(json.dumps(pool.packed())))
    assert max(sizes[800:]) <= 1.05 * max(sizes[400:600])
    assert max(sizes) < 15_000


class Sharing(RuleBasedStateMachine):
    """Members that hold places and bytes, leave or are killed; limits that are raised and lowered.

    Each member asks before its lease ends, unless it was killed, and hears of new limits before it starts
    another call.
    """

    @initialize(places=st.integers(1, 12), load=st.integers(1, 40))
    def begin(self, places, load):
        self.pool = Pool()
        self.now = START
        self.limits = [places, 0, load, 0]
        self.members = {}  # by name, those alive: [uses, wants, granted, asked at]
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
        """Start as many calls as were granted; all members together never use more than the limit."""
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
    @rule(i=st.integers(), leaves=st.booleans())
    def end(self, i, leaves):
        name = self.one(i)
        del self.members[name]
        if leaves:
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
    def new_limits(self, places, load, i):
        self.limits = [places, 0, load, 0]
        self.ask(self.one(i), set_to=[[], self.limits])
        for name in self.members:
            self.ask(name)


def test_all_members_together_never_use_more_places_or_bytes_than_the_limit():
    """After a limit is lowered, no call starts until there is room."""
    run_state_machine_as_test(Sharing, settings=THOROUGH)


def even_shares(limit, wants):
    """Return max-min fair shares as fractions: each member has what it wants, or as much as any other."""
    parts, left = [Fraction(0)] * len(wants), Fraction(limit)
    hungry = [i for i, want in enumerate(wants) if want]
    while hungry and left:
        step = min(left / len(hungry), min(wants[i] - parts[i] for i in hungry))
        for i in hungry:
            parts[i] += step
        left -= step * len(hungry)
        hungry = [i for i in hungry if parts[i] < wants[i]]
    return parts


def settled_shares(limit, wants, rounds=12, column=0):
    """Return what each member has after asking `rounds` times in turn, if calls end before the next turn."""
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
def test_members_that_want_everything_get_equal_shares(limit, members, column):
    """None has less than an equal share, and nothing is left over."""
    parts = settled_shares(limit, [limit] * members, column=column)
    assert sum(parts) == limit
    assert min(parts) == limit // members


def test_wants_that_fit_together_are_granted_in_full():
    assert settled_shares(100, [20, 30, 50]) == [20, 30, 50]


@settings(max_examples=200)
@given(limit=st.integers(6, 60), wants=st.lists(st.integers(0, 60), min_size=1, max_size=6))
def test_members_that_want_little_get_it_and_the_others_share_the_rest_evenly(limit, wants):
    """Nothing is left over while a member wants it."""
    parts = settled_shares(limit, wants)
    assert sum(parts) == min(limit, sum(wants))
    for part, even in zip(parts, even_shares(limit, wants), strict=True):
        assert abs(part - even) <= 1


def test_free_places_go_to_members_that_want_them():
    """Of ten places six are held by members that want no more. The four left go to two that want ten each."""
    parts = settled_shares(10, [1, 1, 1, 1, 1, 1, 10, 10])
    assert parts == [1, 1, 1, 1, 1, 1, 2, 2]


def test_with_fewer_places_than_members_all_have_a_turn():
    """Two places, and five members that always want both; calls end between the turns."""
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


def test_places_in_use_count_until_their_calls_end_although_the_share_is_smaller():
    """A member that has to give up half keeps the places of its calls until they end."""
    pool = Pool()
    limits = [10, 0, 0, 0]
    answer(pool, question(limits=limits, wants=[10, 0]), START)
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 0
    assert answer(pool, question(limits=limits, uses=[10, 0], wants=[5, 0]), START)["places"] == 5
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 0
    assert answer(pool, question(limits=limits, uses=[7, 0], wants=[5, 0]), START)["places"] == 5
    assert answer(pool, question("b", limits=limits, wants=[10, 0]), START)["places"] == 3


def test_without_a_limit_each_member_has_what_it_wants():
    pool = Pool()
    for name in "abc":
        given = answer(pool, question(name, uses=[1_000, 7], wants=[1_000, 10**9]), START)
        assert (given["places"], given["bytes"], given["crowded"]) == (2_000, 10**9 + 7, False)


@pytest.mark.parametrize("order", ["abc", "bca", "cab", "cba"])
def test_answers_do_not_depend_on_the_order_of_members(order):
    """Lua's tables have no order."""
    pool = Pool()
    limits = [10, 0, 50, 0]
    for name, want in (("a", 5), ("b", 4), ("c", 9)):
        answer(pool, question(name, limits=limits, wants=[want, want]), START)
    other = copied(pool)
    other.members = {name: other.members[name] for name in order}
    for name in "abc":
        asked = question(name, limits=limits, uses=[1, 1], wants=[7, 60])
        assert answer(copied(other), asked, START) == answer(copied(pool), asked, START)
