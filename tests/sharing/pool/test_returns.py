"""What a return to a rate is worth. A unit is earned in a millisecond here, and the burst is a hundred."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from sharing.pool.pools import MILLI, RATE, START, at_once, pool_asked, pool_level, question, start_of


def test_returned_units_are_granted_to_other_members():
    taken = (0, {"batches": [[60]]})
    assert at_once(pool_asked(taken), START + 10 * MILLI, RATE) == 40
    returned = (10, {"returned": [[[50, 10 * MILLI]]]})
    assert at_once(pool_asked(taken, returned), START + 10 * MILLI, RATE) == 90


def test_a_return_of_units_that_have_been_earned_back_is_worth_nothing():
    """Taken at 0 ms and earned back by 30 ms. Then another member takes 60, and the return comes."""
    late = (40, {"returned": [[[30, 40 * MILLI]]]})
    pool = pool_asked((0, {"batches": [[30]]}), (35, {"member": "b", "batches": [[60]]}), late)
    assert at_once(pool, START + 40 * MILLI, RATE) == 90 - 60 + 5


def test_a_return_is_worth_no_more_than_the_least_that_was_missing_since():
    """At 25 ms only 5 were missing, so at most 5 of what A returns count."""
    pool = pool_asked(
        (0, {"batches": [[30]]}),
        (25, {"member": "b", "batches": [[60]]}),
        (30, {"returned": [[[30, 30 * MILLI]]]}),
    )
    assert at_once(pool, START + 30 * MILLI, RATE) == 90 - 60 + 5


def test_a_return_is_worth_no_more_than_was_missing_when_another_member_told_of_a_debt():
    """At 25 ms only 5 were missing."""
    pool = pool_asked(
        (0, {"batches": [[30]]}),
        (25, {"member": "b", "owed": [60]}),
        (30, {"returned": [[[30, 30 * MILLI]]]}),
    )
    assert at_once(pool, START + 30 * MILLI, RATE) == 90 - 60 + 5


def test_a_return_is_worth_no_more_than_was_missing_after_another_return():
    """A's return leaves nothing missing at 5 ms, and A takes 20: B's return then is worth nothing."""
    pool = pool_asked(
        (0, {"member": "b", "batches": [[5]]}),
        (0, {"batches": [[5]]}),
        (5, {"returned": [[[5, 5 * MILLI]]], "batches": [[20]]}),
        (6, {"member": "b", "returned": [[[5, 6 * MILLI]]]}),
    )
    assert at_once(pool, START + 6 * MILLI, RATE) == 90 - 19


def test_a_return_is_worth_no_more_than_will_be_missing_at_the_start_of_a_later_batch():
    """When the 90 granted for 10 ms later start, the 10 of now are earned back."""
    pool = pool_asked((0, {"batches": [[10], [90]]}), (1, {"returned": [[[10, 1 * MILLI]]]}))
    assert start_of(pool, [1], START + 10 * MILLI, RATE) == 1 * MILLI


def test_a_return_is_worth_no_more_than_the_least_missing_although_marks_were_merged():
    """B's return left nothing missing at 17 ms that A's could add to. A's comes 31 marks later."""
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


def test_two_returns_do_not_both_count_the_same_missing_units():
    """At 15 ms only 5 were missing: A's return takes them up, and B's is worth nothing."""
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
def test_whole_returns_in_any_order_leave_no_more_than_if_nothing_had_been_taken(story):
    """Each return is told by itself and is all that was taken; no batch is granted ahead of its start."""
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


def test_a_return_after_more_than_32_marks_is_worth_less_and_never_more():
    """Marks are merged to the lower of two, which makes a return smaller."""
    taken = [(at, {"member": "b", "batches": [[2]]}) for at in range(1, 60)]
    pool = pool_asked((0, {"batches": [[10]]}), *taken)
    assert len(pool.rates[0].stamps) == 32
    before = at_once(pool, START + 60 * MILLI, RATE)
    pool = pool_asked((0, {"batches": [[10]]}), *taken, (60, {"returned": [[[10, 60 * MILLI]]]}))
    assert before <= at_once(pool, START + 60 * MILLI, RATE) <= before + 10


def test_a_return_of_more_than_was_ever_taken_makes_the_rate_full_and_no_more():
    pool = pool_asked((0, {"batches": [[30]]}), (1, {"returned": [[[10**12, 1 * MILLI]]]}))
    assert at_once(pool, START + MILLI, RATE) == 90
    assert start_of(pool, [100], START + MILLI, RATE) == 10 * MILLI  # the tenth that is kept back, too
