"""What a swarm computes: ways back, merging, dividing, and who has which part.

Against exact models of our own, in fractions; and, for the last, against the one law that counts: whatever a
network does to them, the members never have more than the whole.
"""

from fractions import Fraction
from heapq import heappop, heappush
from math import floor
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.arguments import SECOND
from headgate.swarm.member import Settings
from headgate.swarm.membership import Membership
from headgate.swarm.messages import LEADERS, read_message
from headgate.swarm.recovery import Cubic, Level, Stepwise, merged, read_level
from headgate.swarm.shares import WHOLE, divide

HALF = (1, 2)
TENTH_MORE = (11, 10)
INTERVAL = 30 * SECOND
EVERY_CAPACITY = range(1, 1001)


def seeds_steps(capacity, factor=HALF, growth=TENTH_MORE):
    """What the seed's rules mean without their stall: cut, then by the growth, by one at least."""
    steps = [max(1, floor(capacity * Fraction(*factor)))]
    while steps[-1] < capacity:
        steps.append(min(capacity, max(steps[-1] + 1, floor(steps[-1] * Fraction(*growth)))))
    return steps


def steps_of(way, capacity, many, step=INTERVAL):
    level = way.cut(capacity, None, capacity)
    return [way.total(level._replace(grown=level.grown + k * step)) for k in range(many)]


# -- recovery="stepwise"


def test_dl19_a_hundred_comes_back_by_the_steps_that_the_seed_names():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    assert steps_of(way, 100, 10) == [50, 55, 60, 66, 72, 79, 86, 94, 100, 100]


@pytest.mark.parametrize("factor", [HALF, (7, 10), (999, 1000)])
def test_d68_every_capacity_comes_back_exactly_and_in_the_steps_of_the_model(factor):
    way = Stepwise(factor, TENTH_MORE, INTERVAL, beyond=False)
    for capacity in EVERY_CAPACITY:
        model = seeds_steps(capacity, factor)
        assert steps_of(way, capacity, len(model) + 1) == [*model, capacity]


def test_d68_five_of_ten_is_ten_again_within_eight_steps():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    steps = steps_of(way, 10, 9)
    assert (steps[0], steps[8]) == (5, 10)


def test_dl19_nothing_comes_back_before_a_whole_interval():
    way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
    level = way.cut(100, None, 100)
    for grown, total in ((1, 50), (INTERVAL - 1, 50), (INTERVAL, 55), (2 * INTERVAL - 1, 55)):
        assert way.total(level._replace(grown=grown)) == total


def test_d69_and_dl20_only_who_asks_for_it_ends_above_what_it_was():
    capped = Stepwise(HALF, (3, 1), INTERVAL, beyond=False)
    beyond = Stepwise(HALF, (3, 1), INTERVAL, beyond=True)
    assert steps_of(capped, 10, 4) == [5, 10, 10, 10]
    assert steps_of(beyond, 10, 4) == [5, 15, 15, 15]
    for capacity in EVERY_CAPACITY:
        way = Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False)
        assert max(steps_of(way, capacity, 12)) <= capacity


# -- recovery="cubic"


def back_at_goal(way):
    """How long the way back to what was refused takes, found by looking."""
    level = way.cut(10**9, None, 10**9)
    low, high = 0, 3600 * SECOND
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if way.total(level._replace(grown=middle)) >= 10**9 else (middle, high)
    return high


@pytest.mark.parametrize("factor", [HALF, (7, 10)])
def test_the_way_back_is_the_cubic_it_is_said_to_be(factor):
    """ALGORITHMS 2e: goal − (goal − floor)·(1 − t/K)³, never truncated on the way."""
    way = Cubic(factor, beyond=False)
    k = back_at_goal(way)
    for capacity in (1, 2, 3, 7, 10, 99, 100, 1000, 123_457):
        level = way.cut(capacity, None, capacity)
        assert (level.floor, level.goal) == (max(1, capacity * factor[0] // factor[1]), capacity)
        for parts in range(101):
            grown = k * parts // 100
            exact = level.goal - (level.goal - level.floor) * (1 - Fraction(grown, k)) ** 3
            expected = max(level.floor, floor(exact))
            assert abs(way.total(level._replace(grown=grown)) - expected) <= (capacity < 3)


@pytest.mark.parametrize("factor", [HALF, (7, 10), (1, 10), (1, 1_000_000)])
def test_d68_every_capacity_comes_back_by_the_cubic_too_and_never_goes_down_on_the_way(factor):
    way = Cubic(factor, beyond=False)
    end = back_at_goal(way)
    assert end <= 120 * SECOND
    for capacity in EVERY_CAPACITY:
        level = way.cut(capacity, None, capacity)
        totals = [way.total(level._replace(grown=end * k // 20)) for k in range(21)]
        assert totals[0] == level.floor >= 1
        assert totals == sorted(totals)
        assert totals[-1] == capacity
        assert way.total(level._replace(grown=1000 * end)) == capacity


def test_a_second_cut_comes_back_past_the_first_refusal():
    """Flat where it was refused, and on to all of it in the end."""
    way = Cubic((7, 10), beyond=False)
    first = way.cut(1000, None, 1000)
    second = way.cut(way.total(first), first, 1000)
    assert second.epoch == first.epoch + 1
    assert way.total(second) <= way.total(first)
    totals = [way.total(second._replace(grown=k * SECOND)) for k in range(600)]
    assert totals == sorted(totals)
    assert totals[-1] == 1000


# -- cuts of either kind


WAYS = [
    Stepwise(HALF, TENTH_MORE, INTERVAL, beyond=False),
    Stepwise((9, 10), (2, 1), SECOND, beyond=True),
    Cubic(HALF, beyond=False),
    Cubic((7, 10), beyond=True),
]


@pytest.mark.parametrize("way", WAYS)
@given(base=st.integers(1, 10**12), total=st.integers(1, 10**12), epochs=st.integers(1, 20))
@settings(max_examples=30)
def test_a_cut_never_raises_and_never_goes_below_one(way, base, total, epochs):
    level = None
    for number in range(1, epochs + 1):
        level = way.cut(total, level, base)
        assert level.epoch == number
        assert 1 <= way.total(level) <= min(total, base)
        assert read_level(list(level)) == level
        total = way.total(level)


# -- merging


@st.composite
def levels(draw):
    base = draw(st.integers(1, 40))
    goal = draw(st.integers(1, base))
    return Level(
        epoch=draw(st.integers(1, 3)),
        base=base,
        floor=draw(st.integers(1, goal)),
        goal=goal,
        grown=draw(st.integers(0, 100)) * SECOND,
    )


@given(one=levels(), two=levels(), three=levels())
@settings(max_examples=200)
def test_in_whatever_order_and_however_often_levels_are_heard_the_end_is_one(one, two, three):
    """Commutative, associative, idempotent: a semilattice, so that delivery does not matter."""
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert merged(one, one) == one
    assert merged(None, one) == one
    assert merged(merged(one, two), two) == merged(one, two)


@given(one=levels(), two=levels())
@settings(max_examples=150)
def test_a_later_cut_wins_and_of_one_cut_the_lowest(one, two):
    both = merged(one, two)
    assert both.epoch == max(one.epoch, two.epoch)
    if one.epoch == two.epoch:
        assert Fraction(both.floor, both.base) == min(
            Fraction(one.floor, one.base), Fraction(two.floor, two.base)
        )
        assert both.grown == max(one.grown, two.grown)
    else:
        assert both == max(one, two, key=lambda level: level.epoch)


@given(heard=st.lists(levels(), min_size=1, max_size=8), data=st.data())
def test_two_who_heard_the_same_in_other_orders_agree(heard, data):
    again = data.draw(st.permutations([*heard, *data.draw(st.lists(st.sampled_from(heard), max_size=5))]))
    one = other = None
    for level in heard:
        one = merged(one, level)
    for level in again:
        other = merged(other, level)
    assert one == other


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        [],
        {},
        "[1,1,1,1,0]",
        [1, 100, 50, 100],
        [1, 100, 50, 100, 0, 0],
        [0, 100, 50, 100, 0],
        [-1, 100, 50, 100, 0],
        [1, 100, 0, 100, 0],
        [1, 100, 101, 101, 0],
        [1, 100, 60, 50, 0],
        [1, 100, 50, 101, 0],
        [1, 0, 0, 0, 0],
        [1, 100, 50, 100, -1],
        [1, 100, 50.0, 100, 0],
        [True, 100, 50, 100, 0],
        [1, "100", 50, 100, 0],
        [1, None, 50, 100, 0],
        [10**30, 100, 50, 100, 0],
        [1, 10**30, 50, 100, 0],
    ],
    ids=str,
)
def test_what_no_cut_leaves_is_not_a_level(wrong):
    with pytest.raises(ValueError):
        read_level(wrong)


# -- dividing


def max_min(whole, wants, weights, least):
    """In fractions: a weight is worth as much as possible; nobody gets less than `least`, or more than it
    wants while another lacks. What nobody wants goes to those who have least for their weight.
    """
    asked = {key: max(least, min(want, whole)) for key, want in wants.items()}
    plenty = sum(asked.values()) <= whole

    def parts(worth):
        if plenty:
            return {key: max(Fraction(asked[key]), worth * weights[key]) for key in wants}
        return {key: max(Fraction(least), min(Fraction(asked[key]), worth * weights[key])) for key in wants}

    # The sum is piecewise linear in what a weight is worth: find the piece, and solve it.
    corners = {Fraction(0), Fraction(whole)}
    for key, weight in weights.items():
        corners |= {Fraction(asked[key], weight), Fraction(least, weight)}
    below = max(corner for corner in corners if sum(parts(corner).values()) <= whole)
    above = min((corner for corner in corners if corner > below), default=below)
    low, high = (sum(parts(corner).values()) for corner in (below, above))
    worth = below if high == low else below + (above - below) * (whole - low) / (high - low)
    return parts(worth)


@st.composite
def members(draw):
    keys = [f"agent-{n}" for n in range(draw(st.integers(1, 12)))]
    wanted = st.integers(0, WHOLE) | st.sampled_from([0, 1, WHOLE // 20, WHOLE])
    return {key: draw(wanted) for key in keys}, {key: draw(st.integers(1, 5)) for key in keys}


wholes = st.integers(0, WHOLE) | st.just(WHOLE)


@given(who=members(), whole=wholes, least=st.just(0) | st.integers(0, WHOLE))
@settings(max_examples=150)
def test_the_division_is_weighted_max_min_to_the_unit(who, whole, least):
    wants, weights = who
    parts = divide(whole, wants, weights, least)
    least = min(least, whole // len(wants))
    model = max_min(whole, wants, weights, least)
    assert parts.keys() == wants.keys()
    assert sum(parts.values()) <= whole
    for key, part in parts.items():
        assert part >= least
        assert abs(part - model[key]) <= weights[key]  # a weight is worth a whole number


@given(who=members(), whole=wholes, least=st.integers(0, WHOLE))
@settings(max_examples=100)
def test_nobody_has_more_than_it_wants_while_another_lacks(who, whole, least):
    wants, weights = who
    parts = divide(whole, wants, weights, least)
    least = min(least, whole // len(wants))
    if any(parts[key] < min(wants[key], whole) for key in wants):
        assert all(parts[key] <= max(wants[key], least) for key in wants)


@given(many=st.integers(1, 1000))
@settings(max_examples=30)
def test_equals_are_divided_equally(many):
    keys = [f"agent-{n}" for n in range(many)]
    parts = divide(WHOLE, dict.fromkeys(keys, WHOLE), dict.fromkeys(keys, 1))
    assert max(parts.values()) - min(parts.values()) <= 1
    assert WHOLE - many <= sum(parts.values()) <= WHOLE


def test_small_swarms_are_divided_without_a_remainder():
    """Up to twenty members, an equal part and half of one are whole numbers."""
    assert all(WHOLE % (2 * many) == 0 for many in range(1, 21))


def test_nobody_shares_nothing():
    assert divide(WHOLE, {}, {}) == {}


# -- who has which part


LEASE = 10 * SECOND
FORGET = 120 * SECOND
SETTLE = 3 * SECOND
USUAL = SECOND // 50


class Members:
    """Councils on a network that is as bad as it is told to be; the sum is looked at after every event.

    Every member has a clock of its own, that began elsewhere and may run a little faster or slower.
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
        self.walls = set()  # (who is not heard, by whom)
        self.loss = self.twice = 0.0
        self.slowest = USUAL

    def now(self, key):
        began, speed = self.clocks[key]
        return began + int(self.time * speed)

    def join(self, name):
        self.serial += 1
        key = f"{name}#{self.serial}"
        self.clocks[key] = (self.dice.randrange(10**12), 1 + self.skew * (2 * self.dice.random() - 1))
        settings = Settings(LEASE, SETTLE, FORGET, splits=self.splits, turn=self.dice.randrange(10**6))
        self.members[key] = Membership(key, settings)
        self.members[key].start(self.now(key))
        self.follow_up(key)
        return key

    def leave(self, key):
        member = self.members[key]
        member.leave(self.now(key))
        self.post(key, member)
        del self.members[key]

    def crash(self, key):
        del self.members[key]

    def follow_up(self, key):
        """Send what it has to say, and ring when something is due."""
        member = self.members[key]
        self.post(key, member)
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

    def post(self, speaker, member):
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
    """Nobody hears those on another side."""
    names = [name_of(key) for key in members]
    side = dict(zip(names, sides, strict=False))
    return {(one, other) for one in side for other in side if side[one] != side[other]}


def off(members, gone):
    """Some are not on the bus at all, and do not even hear themselves."""
    names = [name_of(key) for key in members]
    absent = {name for name, away in zip(names, gone, strict=False) if away}
    return {(one, other) for one in names for other in names if one in absent or other in absent}


def take(swarm, step, given):
    """One thing that happens. Newcomers must be able to hear somebody, or they cannot know of a swarm."""
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
def test_d66_whatever_happens_the_parts_in_use_are_never_more_than_the_whole(
    splits, many, gap, skew, story, seed
):
    """And all of it is used again in the end. Nobody is cut off for so long that it is forgotten."""
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
def test_d66_those_who_join_one_after_the_other_use_all_of_it_soon(splits, many, gap):
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
def test_d66_whoever_leads_may_come_and_go_while_others_do(splits, away, back):
    """Off the bus for nearly a lease, back for a moment, and then another goes: never two who reign."""
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


# -- who comes where in a round


def places(swarm):
    return sorted(member.place for member in swarm.members.values())


@pytest.mark.parametrize("many", [2, 7, 40])
def test_members_are_told_turns_that_are_evenly_spaced_whoever_comes_and_goes(many):
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
    member = Membership("one#1", Settings(LEASE, SETTLE, FORGET, splits=False))
    member.start(0)
    grant = {"kind": "grant", "term": [1, "two#1"], "to": "one#1", "seq": 1, "number": 2, "size": 2}
    member.hear(read_message({**grant, "share": WHOLE // 2, "safe": WHOLE // 4, **fields}), SECOND)
    return member


def test_a_leader_that_knows_of_no_turns_is_followed_all_the_same():
    member = granted()
    assert (member.place, member.share(SECOND)) == (None, WHOLE // 2)
    assert granted(place=500_000).place == 500_000


@pytest.mark.parametrize("turn", [-1, 1_000_000, True, "1", 0.5, []])
def test_a_turn_that_is_none_was_not_written_by_us(turn):
    with pytest.raises(ValueError, match="not a number"):
        granted(place=turn)
