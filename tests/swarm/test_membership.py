"""Members on bad networks, against the one law that counts: together they never have more than the whole."""

from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arguments import SECOND
from headgate.swarm import membership
from headgate.swarm.leadership import Settings
from headgate.swarm.membership import Membership
from headgate.swarm.messages import (
    ALL,
    LEADERS,
    NO_TERM,
    Bye,
    Handover,
    Heartbeat,
    Hello,
    Here,
    Report,
    read_message,
)
from headgate.swarm.shares import WHOLE

LEASE = 10 * SECOND
FORGET = 120 * SECOND
SETTLE = 3 * SECOND
USUAL = SECOND // 50


class Members:
    """Members on a network that is as bad as it is told to be; shares are summed up after every event.

    Every member has a clock of its own, which began elsewhere and may run a little faster or slower.
    """

    def __init__(self, seed, *, splits, skew=0.0):
        self.dice = Random(seed)
        self.splits = splits
        self.skew = skew
        self.time = 0
        self.due = []
        self.serial = 0
        self.members = {}
        self.clocks = {}
        self.rings = {}
        self.heal()

    def heal(self):
        self.walls = set()  # pairs of a sender and a receiver that it does not reach
        self.loss = self.twice = 0.0
        self.slowest = USUAL

    def now(self, key):
        began, speed = self.clocks[key]
        return began + int(self.time * speed)

    def join(self, name):
        self.serial += 1
        key = f"{name}#{self.serial}"
        self.clocks[key] = (self.dice.randrange(10**12), 1 + self.skew * (2 * self.dice.random() - 1))
        settings = Settings(LEASE, FORGET, SETTLE, splits=self.splits, turn=self.dice.randrange(10**6))
        self.members[key] = Membership(key, settings)
        self.members[key].start(self.now(key))
        self.follow_up(key)
        return key

    def leave(self, key):
        member = self.members[key]
        member.leave(self.now(key))
        self.send(key, member)
        del self.members[key]

    def crash(self, key):
        del self.members[key]

    def follow_up(self, key):
        """Send its messages, and tick when something is due."""
        member = self.members[key]
        self.send(key, member)
        began, speed = self.clocks[key]
        at = max(self.time + 1, int((member.next_at(self.now(key)) - began) / speed) + 1)
        if not self.time < self.rings.get(key, 0) <= at:
            self.rings[key] = at
            self.push(at, lambda: self.tick(key, at))

    def tick(self, key, at):
        if key in self.members and self.rings[key] == at:
            self.members[key].tick(self.now(key))
            self.follow_up(key)

    def push(self, at, act):
        self.serial += 1
        heappush(self.due, (at, self.serial, act))

    def send(self, speaker, member):
        for where, message in member.member.take_outbox():
            for listener in [where] if "#" in where else [*self.members]:
                for _ in range(1 + (self.dice.random() < self.twice)):
                    lost = speaker != listener and self.dice.random() < self.loss
                    if not lost and (name_of(speaker), name_of(listener)) not in self.walls:
                        delay = SECOND // 1000 + int(self.slowest * self.dice.random())
                        self.push(self.time + delay, self.arrival(listener, where, message))

    def arrival(self, listener, where, message):
        def arrive():
            member = self.members.get(listener)
            if member is not None and (where != LEADERS or member.candidate):
                member.hear(message, self.now(listener))
                self.follow_up(listener)

        return arrive

    def wait(self, seconds):
        end = self.time + round(seconds * SECOND)
        while self.due and self.due[0][0] <= end:
            self.time, _, act = heappop(self.due)
            act()
            self.check()
        self.time = end
        self.check()

    def held(self):
        return {key: member.share(self.now(key)) for key, member in self.members.items()}

    def check(self):
        assert sum(self.held().values()) <= WHOLE, self.held()


def name_of(key):
    return key.partition("#")[0]


def apart(members, sides):
    """Members on different sides do not hear each other."""
    names = [name_of(key) for key in members]
    side = dict(zip(names, sides, strict=False))
    return {(one, other) for one in side for other in side if side[one] != side[other]}


def off(members, gone):
    """Some members are not on the bus at all, and do not even hear themselves."""
    names = [name_of(key) for key in members]
    absent = {name for name, away in zip(names, gone, strict=False) if away}
    return {(one, other) for one in names for other in names if one in absent or other in absent}


def take(swarm, step, given):
    """One event. Newcomers must be able to hear a member, or they cannot know of a swarm."""
    keys = list(swarm.members)
    quiet = not swarm.walls and not swarm.loss
    if step == "wait":
        swarm.wait(given)
    elif step == "join" and quiet and len(keys) < 8:
        swarm.join(f"late-{swarm.serial}")
        swarm.wait(4)
    elif step == "return" and quiet and len(keys) > 1:
        key = keys[given % len(keys)]
        swarm.crash(key)
        swarm.join(name_of(key))
        swarm.wait(4)
    elif step == "leave" and len(keys) > 1:
        swarm.leave(keys[given % len(keys)])
    elif step == "crash" and len(keys) > 1:
        swarm.crash(keys[given % len(keys)])
    elif step == "walls":
        swarm.walls = apart(keys, given) if swarm.splits else off(keys, [side == 1 for side in given])
    elif step == "one way":
        swarm.walls = {wall for wall in swarm.walls if swarm.dice.random() < 0.6 or not swarm.splits}
    elif step == "loss":
        swarm.loss = given if swarm.splits else given / 5
    elif step == "twice":
        swarm.twice = given
    elif step == "slow":
        swarm.slowest = round((given if swarm.splits else min(given, 0.1)) * SECOND)
    elif step == "heal":
        swarm.heal()
        swarm.wait(1)


numbers = st.integers(0, 9)
things = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.2, 1.0, 3.0, 8.0, 12.0])),
    st.tuples(st.just("join"), numbers),
    st.tuples(st.just("return"), numbers),
    st.tuples(st.just("leave"), numbers),
    st.tuples(st.just("crash"), numbers),
    st.tuples(st.just("walls"), st.lists(st.integers(0, 2), min_size=9, max_size=9)),
    st.tuples(st.just("one way"), numbers),
    st.tuples(st.just("loss"), st.sampled_from([0.05, 0.2, 0.5])),
    st.tuples(st.just("twice"), st.sampled_from([0.0, 0.5])),
    st.tuples(st.just("slow"), st.sampled_from([0.02, 0.2, 1.0])),
    st.tuples(st.just("heal"), numbers),
)


@pytest.mark.parametrize("splits", [True, False])
@settings(max_examples=20)
@given(
    many=st.integers(1, 5),
    gap=st.sampled_from([0.0, 0.01, 0.5, 2.0]),
    skew=st.sampled_from([0.0, 0.02]),
    story=st.lists(things, max_size=25),
    seed=numbers,
)
def test_on_any_network_the_shares_in_use_are_never_more_than_the_whole(splits, many, gap, skew, story, seed):
    """In the end the whole is used again. No member is cut off until it is forgotten."""
    swarm = Members(seed, splits=splits, skew=skew)
    for n in range(many):
        swarm.join(f"member-{n}")
        swarm.wait(gap)
    swarm.wait(25)
    lost = 0
    for step, given_ in story:
        before = swarm.time
        take(swarm, step, given_)
        if swarm.walls or swarm.loss:
            lost += swarm.time - before
        if lost > FORGET // 3:
            swarm.heal()
            swarm.wait(30)
            lost = 0
    swarm.heal()
    swarm.wait((FORGET + 4 * LEASE) // SECOND)
    assert sum(swarm.held().values()) >= WHOLE * 95 // 100


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize(("many", "gap"), [(2, 0.0), (5, 1.0), (20, 0.3)])
def test_members_that_join_one_after_the_other_soon_use_the_whole(splits, many, gap):
    swarm = Members(7, splits=splits)
    for n in range(many):
        swarm.join(f"member-{n}")
        swarm.wait(gap)
    swarm.wait(4 * LEASE // SECOND)
    assert sum(swarm.held().values()) >= WHOLE * 95 // 100
    assert min(swarm.held().values()) >= WHOLE // (2 * many) - 1


@pytest.mark.parametrize("splits", [True, False])
@pytest.mark.parametrize("away", [6.0, 6.6, 8.1])
@pytest.mark.parametrize("back", [0.6, 2.0, 6.0])
def test_a_leader_that_comes_and_goes_never_leads_beside_another(splits, away, back):
    """Off the bus for nearly a lease, back for a moment, and then another member goes."""
    for gone in ([0, 1, 0, 0], [1, 0, 0, 0]):
        swarm = Members(7, splits=splits)
        for n in range(4):
            swarm.join(f"member-{n}")
        swarm.wait(20)
        keys = list(swarm.members)
        away_from_the_others = apart if splits else off
        swarm.walls = away_from_the_others(keys, [1, 0, 0, 2])
        swarm.wait(away)
        swarm.heal()
        swarm.wait(back)
        swarm.walls = away_from_the_others(keys, gone)
        swarm.wait(9)
        swarm.heal()
        swarm.wait(20)


# -- places in a round


def places(swarm):
    return sorted(member.place for member in swarm.members.values())


@pytest.mark.parametrize("many", [2, 7, 40])
def test_members_get_evenly_spaced_places_while_others_come_and_go(many):
    swarm = Members(many, splits=False)
    for n in range(many):
        swarm.join(f"member-{n}")
        swarm.wait(0.5)
    swarm.wait(20)
    assert places(swarm) == [k * 1_000_000 // many for k in range(many)]
    swarm.leave(next(key for key, member in swarm.members.items() if not member.candidate))
    swarm.wait(20)
    assert places(swarm) == [k * 1_000_000 // (many - 1) for k in range(many - 1)]
    swarm.leave(next(key for key, member in swarm.members.items() if member.candidate))
    for n in range(2):
        swarm.join(f"late-{n}")
    swarm.wait(20)
    assert places(swarm) == [k * 1_000_000 // many for k in range(many)]


def granted(**fields):
    """A member that was just granted something by the leader of another machine."""
    member = Membership("one#1", Settings(LEASE, FORGET, SETTLE, splits=False))
    member.start(0)
    grant = {"kind": "grant", "term": [1, "two#1"], "to": "one#1", "seq": 1, "number": 2, "size": 2}
    member.hear(read_message({**grant, "share": WHOLE // 2, "safe": WHOLE // 4, **fields}), SECOND)
    return member


def test_a_grant_without_a_place_is_followed():
    member = granted()
    assert (member.place, member.share(SECOND)) == (None, WHOLE // 2)
    assert granted(place=500_000).place == 500_000


@pytest.mark.parametrize("turn", [-1, 1_000_000, True, "1", 0.5, []])
def test_a_grant_with_an_impossible_place_is_malformed(turn):
    with pytest.raises(ValueError, match="not a number"):
        granted(place=turn)


# -- single messages, true or not


def alone():
    member = Membership("one#1", Settings(LEASE, FORGET, SETTLE, splits=False))
    member.start(0)
    return member


def said(member):
    return [type(message) for _, message in member.member.take_outbox()]


def heartbeat(name, epoch=1, number=1):
    return Heartbeat((epoch, name), number=number, is_leader=True, size=2, successor="")


def hello(name):
    return Hello(name, NO_TERM, 1, 0, 1, 0, 0, 0, 0)


def leading():
    """A member that founded a swarm of its own."""
    member, now = alone(), 0
    while not member.is_leader:
        now += SECOND // 10
        member.tick(now)
        for where, message in member.member.take_outbox():
            if where in (ALL, LEADERS, "one#1") or isinstance(message, Report):
                member.hear(message, now)
    return member, now


def test_a_member_that_has_left_is_not_followed_by_an_old_heartbeat_of_it():
    member = alone()
    member.hear(Bye("two#1", (1, "two#1")), SECOND)
    member.hear(heartbeat("two#1"), SECOND)
    assert not member.joined
    member.hear(heartbeat("three#1"), SECOND)
    assert member.term == (1, "three#1")


def test_a_farewell_in_the_name_of_a_member_itself_changes_nothing():
    member = granted()
    member.hear(Bye("one#1", (1, "two#1")), SECOND)
    assert member.share(SECOND) == WHOLE // 2
    assert member.term == (1, "two#1")


def test_of_too_many_members_that_left_the_first_is_forgotten(monkeypatch):
    """A stranger that invents members fills no memory."""
    monkeypatch.setattr(membership, "_MOST_LEFT", 2)
    member = alone()
    for name in ("a#1", "b#1", "c#1"):
        member.hear(Bye(name, (1, name)), SECOND)
    member.hear(heartbeat("b#1"), SECOND)
    member.hear(heartbeat("c#1"), SECOND)
    assert not member.joined
    member.hear(heartbeat("a#1"), SECOND)
    assert member.joined


def test_of_too_many_newcomers_only_so_many_are_remembered_as_a_swarm_can_have(monkeypatch):
    monkeypatch.setattr(membership, "MOST_MEMBERS", 2)
    member = alone()
    for number in range(5):
        member.hear(hello(f"a{number}#1"), SECOND)
    assert len(member._rivals) == 2


def test_a_newcomer_that_hears_of_a_swarm_founds_none_for_a_while():
    """It waits as long as members of it might be silent, and then only begins with half of the total."""
    founded = []
    for heard in (False, True):
        member, now = alone(), 0
        while not member.is_leader and now < 10 * FORGET:
            now += SECOND // 10
            if heard and now == SECOND:
                member.hear(Here("one#1"), now)
            member.tick(now)
            for where, message in member.member.take_outbox():
                if where in (ALL, LEADERS, "one#1") or isinstance(message, Report):
                    member.hear(message, now)
        founded.append(now)
    assert founded[0] < founded[1] < 10 * FORGET


@pytest.mark.parametrize(
    "wrong", [{"to": "two#1"}, {"term": (2, "two#1")}, {"at": 100 * LEASE}], ids=["member", "term", "late"]
)
def test_a_handover_to_another_of_another_term_or_without_a_lease_makes_no_leader(wrong):
    at = wrong.get("at", SECOND)
    member = granted()
    member.member.take_outbox()
    member.hear(Handover(wrong.get("to", "one#1"), wrong.get("term", (1, "two#1")), unknown=0, held={}), at)
    assert not member.candidate


def test_a_member_speaks_at_the_next_tick_when_the_bus_is_back():
    follower = granted()
    follower.member.take_outbox()
    follower.tick(SECOND + 1)
    assert said(follower) == []
    follower.hurry(SECOND + 2)
    follower.tick(SECOND + 2)
    assert Report in said(follower)
    leader, now = leading()
    leader.member.take_outbox()
    leader.tick(now + 1)
    assert said(leader) == []
    leader.hurry(now + 2)
    leader.tick(now + 2)
    assert Heartbeat in said(leader)
