"""The order of waiting callers, compared with plain lists and with the bound of fair queueing."""

from __future__ import annotations

import random
from collections import Counter, deque
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate.gate.line import CLAIMED, DONE, GRANTED, WAITING, Line, Ticket, correct

COST = (1, 0, 0)


def join(line, **ticket):
    ticket = Ticket(COST, **ticket)
    line.join(ticket)
    return ticket


def leave(line, ticket):
    ticket.state = DONE
    line.leave(ticket)


def admit(line):
    ticket = line.first()
    if ticket is not None:
        after = line.admit(ticket)
        ticket.state = GRANTED
        assert after is line.first()
    return ticket


def drain(line):
    order = []
    while (ticket := admit(line)) is not None:
        order.append(ticket)
    return order


def reachable(thing, seen=None):
    """The number of objects that the line keeps."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        return sum(1 + reachable(value, seen) for value in thing.values())
    if isinstance(thing, (list, tuple, deque)):
        return sum(1 + reachable(value, seen) for value in thing)
    if hasattr(type(thing), "__slots__") and type(thing).__module__ == Line.__module__:
        return 1 + sum(reachable(getattr(thing, name), seen) for name in type(thing).__slots__)
    return 0


def numbers(thing, seen):
    """Every number that the line keeps."""
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        thing = [*thing.keys(), *thing.values()]
    if isinstance(thing, (list, tuple, deque)):
        for item in thing:
            yield from numbers(item, seen)
    elif hasattr(type(thing), "__slots__") and type(thing).__module__ == Line.__module__:
        for name in type(thing).__slots__:
            yield from numbers(getattr(thing, name), seen)
    elif isinstance(thing, (int, float)):
        yield thing


# -- first come


def test_a_ticket_of_which_only_the_cost_is_said_is_one_call_of_priority_0_and_weight_1_that_waits():
    ticket = Ticket(COST)
    assert (ticket.priority, ticket.tenant, ticket.share, ticket.size) == (0, None, 1, 1)
    assert (ticket.joined_at, ticket.deadline, ticket.refusal, ticket.rule) == (0, None, None, None)
    assert (ticket.flow, ticket.generation, ticket.parker) == (None, None, None)
    assert (ticket.mode, ticket.granted_at) == (0, 0)
    assert Ticket(COST, deadline=7).deadline == 7


def test_a_caller_has_its_answer_when_its_ticket_is_claimed_or_done_unless_an_error_is_still_to_be_raised():
    ticket = Ticket(COST)
    answered = dict.fromkeys((WAITING, GRANTED, CLAIMED, DONE))
    for state in answered:
        ticket.state = state
        answered[state] = not ticket.unanswered
    assert answered == {WAITING: False, GRANTED: False, CLAIMED: True, DONE: True}
    ticket.refusal = ValueError()
    assert ticket.unanswered


def test_an_empty_line_has_no_first():
    line = Line()

    assert line.first() is None
    assert line.waiting == 0
    assert line.tickets() == []


def test_one_tenant_is_served_in_order_of_arrival_whatever_the_cost():
    line = Line()
    tickets = [join(line, size=size) for size in (1, 10**9, 5, 0, 1, 10**18)]

    assert line.waiting == 6
    assert tickets == drain(line)
    assert line.waiting == 0


def test_the_first_ticket_stays_first_until_it_is_admitted_or_leaves():
    line = Line()
    tickets = [join(line) for _ in range(4)]

    assert all(line.first() is tickets[0] for _ in range(3))
    leave(line, tickets[0])
    assert line.first() is tickets[1]
    leave(line, tickets[2])
    assert admit(line) is tickets[1]
    assert line.first() is tickets[3]
    assert line.tickets() == [tickets[3]]


@given(st.lists(st.tuples(st.sampled_from("jjjlaff"), st.integers(0, 99)), max_size=120), st.booleans())
@settings(deadline=None, max_examples=150)
def test_a_ticket_that_leaves_does_not_change_the_order_of_the_others(steps, burst_of_leaving):
    """
    Joins, leaves and admissions in any order: the line is the list of the tickets that were
    neither withdrawn nor admitted.
    """
    line, waiting = Line(), []
    if burst_of_leaving:  # enough to be swept out together
        crowd = [join(line) for _ in range(60)]
        for ticket in crowd[::3] + crowd[1::3]:
            leave(line, ticket)
        waiting = crowd[2::3]
    for what, which in steps:
        if what == "j":
            waiting.append(join(line, size=which))
        elif what == "l" and waiting:
            leave(line, waiting.pop(which % len(waiting)))
        elif what == "a":
            assert admit(line) is (waiting.pop(0) if waiting else None)
        elif what == "f":
            assert line.first() is (waiting[0] if waiting else None)
        assert line.waiting == len(waiting)
    assert sorted(map(id, line.tickets())) == sorted(map(id, waiting))
    assert waiting == drain(line)


@given(
    st.lists(
        st.tuples(st.sampled_from("jjjlaf"), st.integers(0, 99), st.integers(-2, 2), st.integers(0, 3)),
        max_size=100,
    )
)
@settings(deadline=None, max_examples=150)
def test_no_ticket_is_lost_and_none_is_admitted_twice(steps):
    """
    Any tenants, priorities and costs: the first ticket is one that waits, tickets of one tenant
    and priority keep their order, and in the end every ticket was admitted or has left.
    """
    line, waiting = Line(), []
    for what, which, priority, tenant in steps:
        if what == "j":
            waiting.append(join(line, priority=priority, tenant=tenant, size=which, share=1 + which % 4))
        elif what == "l" and waiting:
            leave(line, waiting.pop(which % len(waiting)))
        elif what == "f":
            assert (line.first() is None) == (not waiting)
        elif what == "a" and waiting:
            first = admit(line)
            before = waiting[: waiting.index(first)]
            assert not any((t.tenant, t.priority) == (first.tenant, first.priority) for t in before)
            waiting.remove(first)
        assert line.waiting == len(waiting)
        assert {id(ticket) for ticket in line.tickets()} == {id(ticket) for ticket in waiting}
    assert {id(ticket) for ticket in drain(line)} == {id(ticket) for ticket in waiting}
    assert line.first() is None


# -- priorities


def test_the_highest_priority_goes_first():
    line = Line()
    tickets = {priority: join(line, priority=priority) for priority in (0, -5, 7, 3)}

    assert drain(line) == [tickets[7], tickets[3], tickets[0], tickets[-5]]


def test_a_new_ticket_of_a_higher_priority_becomes_first():
    line = Line()
    low = join(line, priority=0)
    assert line.first() is low
    high = join(line, priority=1)

    assert drain(line) == [high, low]


def test_one_admission_in_twenty_goes_to_a_lower_priority_that_waits():
    """
    With a hundred tickets of each: nineteen of the higher, one of the lower, repeatedly.
    """
    line = Line()
    for _ in range(100):
        join(line, priority=0)
        join(line, priority=9)

    order = [ticket.priority for ticket in drain(line)]

    assert order[:100] == ([9] * 19 + [0]) * 5
    assert order.count(9) == 100


def test_a_lower_priority_counts_its_turns_from_when_it_joins():
    line = Line()
    for _ in range(60):
        join(line, priority=1)
    for _ in range(15):
        assert admit(line).priority == 1
    join(line, priority=0)

    assert [admit(line).priority for _ in range(20)] == [1] * 19 + [0]


def test_every_lower_priority_that_waits_gets_one_of_twenty_admissions():
    """
    Three priorities, all with plenty waiting: of any twenty admissions in a row at least one
    goes to each of the lower two.
    """
    line = Line()
    for _ in range(200):
        for priority in (0, 1, 2):
            join(line, priority=priority)

    order = [admit(line).priority for _ in range(200)]

    for i in range(len(order) - 20):
        assert {0, 1, 2} == set(order[i : i + 20]), i


@pytest.mark.parametrize("lower", [11, 12, 15, 20, 30])
def test_more_than_ten_lower_priorities_take_turns_and_the_highest_gets_half(lower):
    """Each of the lower ones waits for about two admissions for each of them."""
    line = Line()
    for _ in range(400):
        for priority in range(lower + 1):
            join(line, priority=priority)

    order = [admit(line).priority for _ in range(400)]

    assert order.count(lower) >= 200
    for priority in range(lower):
        served = [i for i, each in enumerate(order) if each == priority]
        gaps = [after - before for before, after in pairwise([-1, *served])]
        assert 2 * lower <= min(gaps)
        assert max(gaps) < 4 * lower


def test_lower_priorities_that_are_due_at_once_take_turns_with_the_highest():
    line = Line()
    for _ in range(30):
        for priority in (0, 1, 2):
            join(line, priority=priority)
    line._bands[1].passed_over = line._bands[2].passed_over = 100

    assert [admit(line).priority for _ in range(5)] == [1, 2, 0, 2, 2]


@pytest.mark.parametrize("lower", range(1, 11))
def test_up_to_ten_lower_priorities_get_one_of_twenty_each(lower):
    line = Line()
    for _ in range(300):
        for priority in range(lower + 1):
            join(line, priority=priority)

    order = [admit(line).priority for _ in range(300)]

    for i in range(len(order) - 20):
        assert set(range(lower + 1)) == set(order[i : i + 20]), i


def test_a_ticket_of_low_priority_that_leaves_does_not_pass_its_turn_to_the_next():
    """
    A ticket of low priority waits for nineteen others and leaves. The next ticket of that
    priority has not waited yet and is not first.
    """
    line = Line()
    for _ in range(30):
        join(line, priority=1)
    gone = join(line, priority=0)
    for _ in range(19):
        assert admit(line).priority == 1
    leave(line, gone)
    join(line, priority=0)

    assert line.first().priority == 1


def test_the_turn_of_a_lower_priority_is_kept_while_it_waits():
    """
    Its turn has come but its call does not fit yet: no ticket of a higher priority passes it.
    """
    line = Line()
    low = join(line, priority=0)
    for _ in range(30):
        join(line, priority=1)
    for _ in range(19):
        admit(line)

    assert line.first() is low
    for _ in range(50):
        join(line, priority=1)
        assert line.first() is low


# -- fairness among tenants


def test_tenants_of_equal_weight_take_turns():
    line = Line()
    for tenant in "aaabbbccc":
        join(line, tenant=tenant)

    assert "".join(ticket.tenant for ticket in drain(line)) == "abcabcabc"


def test_a_tenant_of_weight_three_beside_one_of_weight_one_gets_three_of_four_admissions():
    line = Line()
    for _ in range(40):
        join(line, tenant="three", share=3)
        join(line, tenant="one", share=1)

    first = Counter(ticket.tenant for ticket in drain(line)[:40])

    assert first == {"three": 30, "one": 10}


def test_a_tenant_with_heavy_calls_gets_as_much_as_one_with_light_ones():
    line = Line()
    for _ in range(100):
        join(line, tenant="heavy", size=10)
    for _ in range(1000):
        join(line, tenant="light", size=1)

    first = Counter(ticket.tenant for ticket in drain(line)[:550])

    assert abs(first["heavy"] * 10 - first["light"]) <= 10


def test_a_thousand_tickets_of_one_tenant_delay_the_first_of_another_by_one_at_most():
    for served in (0, 1, 7, 500):
        line = Line()
        for _ in range(1000):
            join(line, tenant="crowd", size=3)
        for _ in range(served):
            admit(line)
        newcomer = join(line, tenant="newcomer", size=3)

        assert newcomer in [admit(line), admit(line)]


def test_a_tenant_without_tickets_saves_up_no_service():
    """
    While b is away a is served a hundred times; then they take turns.
    """
    line = Line()
    for _ in range(200):
        join(line, tenant="a")
    join(line, tenant="b")
    for _ in range(101):
        admit(line)
    for _ in range(50):
        join(line, tenant="b")

    order = [admit(line).tenant for _ in range(40)]

    assert all(abs(order[:n].count("a") - order[:n].count("b")) <= 1 for n in range(41))


def test_a_tenant_that_comes_with_one_call_at_a_time_gets_no_more_than_its_share():
    """
    a has a backlog of calls of size 1; b comes with one of size 10, and again whenever it has
    gone in. What b was served is paid for before it is next.
    """
    line = Line()
    for _ in range(1000):
        join(line, tenant="a", size=1)
    join(line, tenant="b", size=10)
    service = Counter()
    for _ in range(500):
        ticket = admit(line)
        service[ticket.tenant] += ticket.size
        if ticket.tenant == "b":
            join(line, tenant="b", size=10)

    assert abs(service["a"] - service["b"]) <= 11


def test_the_first_ticket_is_never_overtaken_by_a_later_one():
    """
    Whatever tenants are in line and have been served, b joins behind the first.
    """
    for others in ("a", "ac", "acd"):
        line = Line()
        for _ in range(3):
            for tenant in others:
                join(line, tenant=tenant, size=10)
        for served in range(2 * len(others)):
            first = line.first()
            join(line, tenant=f"b{served}", size=1)
            assert line.first() is first, (others, served)
            admit(line)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("jjjjlac"),
            st.integers(0, 99),
            st.integers(0, 4),
            st.integers(1, 30),
            st.integers(1, 9),
        ),
        max_size=60,
    )
)
@settings(deadline=None, max_examples=400)
def test_the_first_ticket_stays_first_while_others_join_or_leave_behind_it(steps):
    """
    Tenants of any weight and cost are served, corrected and leave: the first ticket stays first
    until it is admitted or leaves itself.
    """
    line, waiting, served, first = Line(), [], [], None
    for what, which, tenant, size, share in steps:
        if what == "j":
            waiting.append(join(line, tenant=tenant, size=size, share=share))
        elif what == "l" and waiting:
            leave(line, waiting.pop(which % len(waiting)))
        elif what == "a" and waiting:
            served.append(admit(line))
            waiting.remove(served[-1])
        elif what == "c" and served:
            correct(served.pop(which % len(served)), size)
        if first is not None and first.state == WAITING:
            assert line.first() is first
        first = line.first()


def test_the_first_ticket_is_not_overtaken_because_others_have_left():
    """
    a, b and a are in line; a is served, b leaves, a is first. c joins behind it.
    """
    line = Line()
    join(line, tenant="a", size=30)
    gone = join(line, tenant="b", share=9)
    first = join(line, tenant="a", size=30)
    admit(line)
    leave(line, gone)
    assert line.first() is first

    join(line, tenant="c")

    assert line.first() is first


def test_a_stream_of_new_tenants_does_not_starve_the_second_call_of_an_old_one():
    """
    One new tenant joins before each admission. After a thousand of them the second tickets
    of the first two tenants must have had their turn.
    """
    line = Line()
    patient = [join(line, tenant=tenant, size=10) for tenant in "acac"]
    admit(line)
    admit(line)
    for k in range(1000):
        join(line, tenant=k, size=1)
        admit(line)

    assert [ticket.state for ticket in patient] == [GRANTED] * 4


def test_a_ticket_that_left_keeps_no_place_for_the_next_of_its_tenant():
    """
    a, b, c are in line; a leaves and joins again. It is behind c now.
    """
    line = Line()
    gone = join(line, tenant="a")
    join(line, tenant="b")
    join(line, tenant="c")
    leave(line, gone)
    join(line, tenant="a")

    assert "".join(ticket.tenant for ticket in drain(line)) == "bca"


backlogs = st.lists(
    st.tuples(
        st.integers(1, 7),  # share
        st.lists(st.integers(1, 1000), min_size=1, max_size=60),  # sizes of its tickets
        st.integers(0, 40),  # admissions before it joins
    ),
    min_size=2,
    max_size=6,
)


@given(backlogs)
@example(
    [
        (1, [1], 0),
        (5, [8, 778], 9),
        (6, [1, 2], 6),
        (1, [7, 1] * 3 + [1, 1, 112, 778, 447], 8),
        (7, [9, 170], 13),
    ]
)
@settings(deadline=None, max_examples=150)
def test_no_two_tenants_with_tickets_in_line_drift_apart(tenants):
    """
    |service_i/w_i - service_j/w_j| <= c_max/w_i + c_max/w_j over every stretch in which both
    have tickets waiting, for tenants that were there from the start and for later ones.
    """
    line = Line()
    c_max = max(size for _, sizes, _ in tenants for size in sizes)
    left = {}
    served = dict.fromkeys(range(len(tenants)), Fraction(0))  # service by share
    drifts = {}  # for each pair of tenants that both wait: the least and the most difference since then
    late = sorted(range(len(tenants)), key=lambda i: tenants[i][2])
    admitted = 0
    while late or left:
        while late and (tenants[late[0]][2] <= admitted or not left):
            tenant = late.pop(0)
            share, sizes, _ = tenants[tenant]
            left[tenant] = len(sizes)
            for size in sizes:
                join(line, tenant=tenant, share=share, size=size)
        for i in left:
            for j in left:
                if i < j:
                    drift = served[i] - served[j]
                    least, most = drifts.get((i, j), (drift, drift))
                    drifts[i, j] = least, most = min(least, drift), max(most, drift)
                    bound = Fraction(c_max, tenants[i][0]) + Fraction(c_max, tenants[j][0])
                    assert most - least <= bound + Fraction(1, 1000)  # virtual time is rounded
        ticket = admit(line)
        admitted += 1
        served[ticket.tenant] += Fraction(ticket.size, ticket.share)
        left[ticket.tenant] -= 1
        if not left[ticket.tenant]:
            del left[ticket.tenant]
            drifts = {pair: drift for pair, drift in drifts.items() if ticket.tenant not in pair}


def test_a_hundred_tenants_with_calls_of_all_sizes_share_evenly():
    """
    Jain's index of the service by weight is at least 0.99.
    """
    dice = random.Random(11)
    shares = {tenant: dice.choice([1, 2, 3, 5]) for tenant in range(100)}
    for weigh in (False, True):
        line = Line()
        for tenant, share in shares.items():
            for _ in range(200):
                join(line, tenant=tenant, size=dice.randrange(1, 100), share=share if weigh else 1)
        served = Counter()
        for _ in range(6000):
            ticket = admit(line)
            served[ticket.tenant] += Fraction(ticket.size, ticket.share)
        each = [float(served[tenant]) for tenant in shares]

        assert sum(each) ** 2 / (len(each) * sum(x * x for x in each)) >= 0.99


def test_a_call_that_cost_more_than_estimated_is_charged_to_its_tenant():
    """
    Both estimate 2; a's calls turn out to cost 6, b's 2. Each is corrected when it ends: in the
    long run a is admitted once for every three times of b.
    """
    line = Line()
    for _ in range(400):
        for tenant in "ab":
            join(line, tenant=tenant, size=2)
    service = Counter()
    for _ in range(400):
        ticket = admit(line)
        truth = 6 if ticket.tenant == "a" else 2
        service[ticket.tenant] += truth
        correct(ticket, truth)

    assert abs(service["a"] - service["b"]) <= 12


def test_a_call_that_cost_less_than_estimated_is_refunded_to_its_tenant():
    """
    Both estimate 8; a's calls turn out to cost 2: a is admitted four times as often.
    """
    line = Line()
    for _ in range(800):
        for tenant in "ab":
            join(line, tenant=tenant, size=8)
    service = Counter()
    for _ in range(800):
        ticket = admit(line)
        truth = 2 if ticket.tenant == "a" else 8
        service[ticket.tenant] += truth
        correct(ticket, truth)

    assert abs(service["a"] - service["b"]) <= 16


@pytest.mark.parametrize(("estimate", "truth"), [(2, 6), (6, 2)])
def test_corrections_while_a_tenant_is_alone_in_line_have_no_effect_later(estimate, truth):
    """
    a is alone for a thousand calls, each corrected. Then b joins, and both get the same service
    from there on.
    """
    line = Line()
    for _ in range(3000):
        join(line, tenant="a", size=estimate)
    for _ in range(1000):
        correct(admit(line), truth)
    for _ in range(1000):
        join(line, tenant="b", size=truth)
    service = Counter()
    for _ in range(400):
        ticket = admit(line)
        service[ticket.tenant] += truth
        correct(ticket, truth)

    assert abs(service["a"] - service["b"]) <= 24


def test_corrections_of_several_calls_add_up():
    """Two calls of a end before its next one goes: together they cost six more, which b is served first."""
    line = Line()
    for _ in range(12):
        for tenant in "ab":
            join(line, tenant=tenant)
    first = [admit(line) for _ in range(4)]
    assert [ticket.tenant for ticket in first] == ["a", "b", "a", "b"]
    for ticket in first[::2]:
        correct(ticket, 4)

    assert "".join(admit(line).tenant for _ in range(11)) == "abbbbbbbaba"


def test_the_correction_of_a_ticket_that_never_joined_a_line_does_nothing():
    correct(Ticket(COST, tenant="a"), 99)


# -- the tickets in order, and the repair of a line


def test_waiting_tickets_are_listed_in_the_order_they_joined():
    line = Line()
    tickets = [
        join(line, joined_at=k, tenant=tenant, priority=priority)
        for k, (tenant, priority) in enumerate([("a", 0), ("b", 5), ("a", 5), ("c", 0), ("b", -1), ("a", 0)])
    ]
    leave(line, tickets[3])
    gone = admit(line)

    assert line.tickets() == [ticket for ticket in tickets if ticket not in (gone, tickets[3])]


def test_a_repaired_line_has_the_same_tickets_in_the_same_order():
    line = Line()
    tickets = [join(line, joined_at=k, priority=k % 2) for k in range(50)]
    for ticket in tickets[::7]:
        leave(line, ticket)
    for _ in range(5):
        admit(line)
    mended = line.mended()

    assert mended.waiting == line.waiting
    assert mended.tickets() == line.tickets()
    assert (
        drain(mended)
        == [ticket for ticket in tickets if ticket.state == WAITING and ticket.priority]
        + [ticket for ticket in tickets if ticket.state == WAITING and not ticket.priority]
        or line.waiting > 19
    )


def test_leaving_a_line_that_was_never_joined_changes_nothing():
    line = Line()
    join(line)
    leave(line, Ticket(COST))

    assert line.waiting == 1


# -- memory


def test_a_hundred_thousand_tickets_that_join_and_leave_behind_a_stuck_first_are_forgotten():
    line = Line()
    stuck = join(line)
    for _ in range(1000):
        crowd = [join(line) for _ in range(100)]
        for ticket in crowd:
            leave(line, ticket)

    assert line.first() is stuck
    assert line.waiting == 1
    assert reachable(line) < 1000


def test_a_hundred_thousand_tickets_that_leave_in_any_order_are_forgotten_while_others_wait():
    line = Line()
    dice = random.Random(5)
    waiting = [join(line) for _ in range(100)]
    stuck = waiting[0]
    for _ in range(100_000):
        waiting.append(join(line))
        leave(line, waiting.pop(dice.randrange(1, len(waiting))))

    assert line.first() is stuck
    assert line.waiting == 100
    assert reachable(line) < 2000
    assert waiting == drain(line)


def test_ten_thousand_tenants_that_join_and_leave_behind_a_stuck_first_are_forgotten():
    line = Line()
    stuck = join(line, tenant="stuck")
    for tenant in range(10_000):
        leave(line, join(line, tenant=tenant))

    assert line.first() is stuck
    assert reachable(line) < 1000


def test_three_thousand_priorities_that_come_and_go_behind_a_stuck_first_are_forgotten():
    line = Line()
    stuck = join(line, priority=1)
    for priority in range(3000):
        leave(line, join(line, priority=-priority))

    assert line.first() is stuck
    assert reachable(line) < 1000


def test_tenants_that_have_been_served_are_forgotten_though_the_line_is_never_empty():
    """
    A gate that is always busy, ten waiting at any time, each call of a new tenant: memory, and
    with it the time an admission takes, must not grow with the tenants there ever were.
    """
    line = Line()
    for tenant in range(10):
        join(line, tenant=tenant)
    for tenant in range(10, 4000):
        join(line, tenant=tenant)
        admit(line)

    assert line.waiting == 10
    assert reachable(line) < 3000


def test_tenants_that_have_waited_out_their_service_are_forgotten_while_others_are_in_line():
    """
    Two tenants have a backlog throughout; a thousand others come with one call each.
    """
    line = Line()
    for _ in range(3000):
        for tenant in "ab":
            join(line, tenant=tenant)
    for tenant in range(1000):
        join(line, tenant=tenant)
        for _ in range(3):
            admit(line)

    assert len(line._bands[0].flows) <= 300


def test_an_empty_line_remembers_nothing():
    line = Line()
    for k in range(300):
        join(line, tenant=k, priority=k % 3, size=k)
    drain(line)
    assert reachable(line) <= 2

    for k in range(300):
        leave(line, join(line, tenant=k, priority=k % 3))
    assert reachable(line) <= 2


@pytest.mark.parametrize("stuck", [True, False])
def test_finding_the_first_ticket_does_not_search_all_waiting_tickets(stuck):
    """
    With five thousand waiting, each admission and each question looks at a handful of tickets.
    """
    looks = 0

    class Counted(Ticket):
        __slots__ = ()

        def __getattribute__(self, name):
            nonlocal looks
            looks += name == "state"
            return super().__getattribute__(name)

    line = Line()
    for k in range(5000):
        line.join(Counted(COST, tenant=k % 50, priority=k % 2))
    looks = 0
    if stuck:
        for _ in range(5000):
            line.first()
    else:
        while (ticket := line.first()) is not None:
            line.admit(ticket)

    assert looks <= 5000 * 4


def test_calls_that_each_have_their_own_priority_are_admitted_in_that_order():
    """
    Thirty calls, each with a priority of its own (a deadline, say).
    """
    line = Line()
    for priority in range(30):
        join(line, priority=priority)

    assert [ticket.priority for ticket in drain(line)] == list(range(29, -1, -1))


def test_a_tenant_that_leaves_before_it_was_served_is_forgotten_at_once():
    line = Line()
    join(line, tenant="stuck")
    for tenant in range(5):
        leave(line, join(line, tenant=tenant))

    assert [*line._bands[0].flows] == ["stuck"]


def test_a_crowd_that_leaves_is_swept_out_in_time_in_proportion_to_it():
    looks = 0

    class Counted(Ticket):
        __slots__ = ()

        def __getattribute__(self, name):
            nonlocal looks
            looks += name == "state"
            return super().__getattribute__(name)

    line = Line()
    crowd = [Counted(COST) for _ in range(5000)]
    for ticket in crowd:
        line.join(ticket)
    looks = 0
    for ticket in crowd[:0:-1]:
        leave(line, ticket)

    assert looks <= 4 * 5000


def test_sizes_of_any_magnitude_are_compared_as_whole_numbers():
    line = Line()
    line.count((0, 1))
    for k in range(40):
        ticket = Ticket((1, 10**18 + k, 0), tenant=k % 3, share=1 + k % 3, size=10**18 + k)
        line.join(ticket)
        if k % 4 == 3:
            correct(admit(line), 10**18 - k)
            line.likely_ahead(ticket)

    assert not [number for number in numbers(line, set()) if isinstance(number, float)]
    ahead = line.likely_ahead(Ticket((1, 10**18, 0), tenant=1, share=3))
    assert all(type(units) is int for units in ahead.values())


# -- what the line says of itself


@given(
    st.lists(
        st.tuples(st.sampled_from("jjjjjlaa"), st.integers(0, 99), st.integers(-1, 1), st.integers(0, 3)),
        max_size=60,
    ),
    st.sampled_from([(), (0,), (1, 0)]),
    st.integers(0, 59),
)
@settings(deadline=None, max_examples=300)
def test_what_is_ahead_of_a_ticket_follows_from_the_list_of_those_that_wait(steps, columns, counted_from):
    """
    Units of all higher priorities; of its own, until it is the turn of its tenant by the weights of all
    tenants that wait, but never more than wait there.
    """
    line, waiting = Line(), []
    for step, (what, which, priority, tenant) in enumerate(steps):
        if step == counted_from:
            line.count(columns)
        if what == "j":
            ticket = Ticket((1 + which % 3, which, 0), priority, tenant, 1 + tenant, joined_at=step)
            line.join(ticket)
            waiting.append(ticket)
            check_position(line, ticket, waiting)
        elif what == "l" and waiting:
            leave(line, waiting.pop(which % len(waiting)))
        elif what == "a" and waiting:
            waiting.remove(admit(line))
        assert line.tickets() == waiting
    by_priority = Counter(ticket.priority for ticket in waiting)
    assert line.waiting_by_priority() == tuple(sorted(by_priority.items(), reverse=True))
    for most in (0, 1, 3, 99):
        assert len(line.costs(most)) == sum(min(most, many) for many in by_priority.values())
    assert sorted(line.costs(99)) == sorted(ticket.cost for ticket in waiting)
    if counted_from >= len(steps):
        columns = ()
    for priority in (-2, -1, 0, 1, 2):
        for tenant in range(5):
            check_ahead(line, Ticket((2, 5, 0), priority, tenant, 1 + tenant), waiting, columns)


def check_position(line, last, waiting):
    beside = [ticket for ticket in waiting if ticket.priority == last.priority]
    own = sum(ticket.tenant == last.tenant for ticket in beside)
    shares = sum({ticket.tenant: ticket.share for ticket in beside}.values())
    turn = min(len(beside), -(-own * shares // last.share))
    assert line.position(last) == turn + sum(ticket.priority > last.priority for ticket in waiting)


def check_ahead(line, new, waiting, columns):
    beside = [ticket for ticket in waiting if ticket.priority == new.priority]
    own = [ticket for ticket in beside if ticket.tenant == new.tenant]
    shares = sum({ticket.tenant: ticket.share for ticket in [*beside, new]}.values())
    ahead = {}
    for column in columns:
        mine, theirs = (sum(ticket.cost[column] for ticket in which) for which in (own, beside))
        turn = (mine + new.cost[column]) * shares // new.share - new.cost[column]
        higher = sum(ticket.cost[column] for ticket in waiting if ticket.priority > new.priority)
        ahead[column] = higher + min(theirs, turn)
    assert line.likely_ahead(new) == ahead
    flow = line.flow_of(new)
    assert own == [] if flow is None else [ticket for ticket in flow.tickets if ticket in waiting] == own
    if flow is not None:
        assert flow.load == {column: sum(ticket.cost[column] for ticket in own) for column in columns}
        assert len(flow.tickets) - flow.gone == len(own)


def test_a_ticket_that_stands_in_line_itself_is_not_ahead_of_itself():
    line = Line()
    line.count((0,))
    last = [join(line), join(line), join(line)][-1]

    assert line.likely_ahead(last) == {0: 2}
    assert line.likely_ahead(Ticket(COST)) == {0: 3}
    free = Ticket((0, 0, 0), tenant="free")
    line.join(free)
    assert line.likely_ahead(free) == {0: 0}


def test_a_priority_at_which_none_waits_comes_after_all_higher_ones():
    line = Line()
    for priority in (3, 3, 1):
        join(line, priority=priority)

    assert line.position(Ticket(COST, priority=0)) == 4
