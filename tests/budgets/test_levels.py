"""A budget above a budget: every level is charged, or none."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets.asking import in_threads, refusal, state
from headgate import BudgetExceeded, InvalidConfig, TokenBudget
from headgate.testing import ManualClock


def test_a_request_is_charged_to_every_level_or_to_none(clock):
    """Two users of 6 000 under an organisation of 10 000 in a company of 11 000."""
    company = TokenBudget(11_000, key="company", clock=clock)
    organization = TokenBudget(10_000, key="acme", parent=company, clock=clock)
    ann = TokenBudget(6_000, key="ann", parent=organization, clock=clock)
    bob = TokenBudget(6_000, key="bob", parent=organization, clock=clock)
    ann.reserve(6_000)
    before = state(company, organization, ann, bob)
    assert bob.remaining_budget == 4_000
    assert not bob.check_budget(5_000)

    error = refusal(bob, 5_000)
    assert (error.budget, error.rule, error.remaining) == ("acme", "tokens/hour", 4_000)
    assert state(company, organization, ann, bob) == before

    bob.reserve(4_000).settle(3_000)
    assert [b.remaining_budget for b in (company, organization, ann, bob)] == [2_000, 1_000, 0, 1_000]


def test_fifty_threads_of_ten_users_never_exceed_any_level(clock):
    organization = TokenBudget(10_000, 1_000, key="acme", clock=clock)
    users = [TokenBudget(1_500, key=str(k), parent=organization, clock=clock) for k in range(10)]

    def ask(k):
        dice, used = random.Random(k), 0
        for _ in range(100):
            estimate = dice.randrange(1, 400)
            try:
                reservation = users[k % 10].reserve(estimate)
            except BudgetExceeded:
                continue
            actual = dice.randrange(estimate + 1)
            reservation.settle(actual)
            used += actual
        return used

    used = sum(in_threads(50, ask))

    assert organization.remaining_budget == 10_000 - used
    assert used <= 10_000
    left = [user.account.level.left(0, clock.now()) for user in users]
    assert all(each >= 0 for each in left)
    assert 10 * 1_500 - sum(left) == used


def test_two_budgets_with_different_clocks_cannot_be_one_tree(clock):
    with pytest.raises(InvalidConfig, match="same clock="):
        TokenBudget(parent=TokenBudget(clock=clock))


steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "record", "settle", "refund"]),
        st.sampled_from([0, 0, 1, 30, 60, 1800, 3599, 3600]),
        st.integers(0, 1),
        st.integers(0, 60),
        st.integers(0, 99),
    ),
    max_size=40,
)


@given(steps)
@settings(deadline=None, max_examples=200)
def test_a_tree_answers_as_plain_lists_would(steps):
    """Two users under one organisation, against (time, tokens) of each."""
    clock = ManualClock()
    organization = TokenBudget(None, 50, windows={60: 80, 3600: 100}, key="acme", clock=clock)
    users = [TokenBudget(70, 40, key=str(k), parent=organization, clock=clock) for k in range(2)]
    logs, open_ones = [[], []], []

    def used(which, seconds):
        return sum(n for k in which for at, n in logs[k] if clock.seconds() < at + seconds)

    def left(k):
        return min(70 - used([k], 3600), 80 - used([0, 1], 60), 100 - used([0, 1], 3600))

    for kind, gap, k, tokens, which in steps:
        clock.advance(gap)
        if kind == "reserve":
            could = tokens <= 40 and tokens <= left(k)
            before = state(organization, *users)
            assert users[k].check_budget(tokens) == could
            assert before == state(organization, *users)
            if could:
                logs[k].append([clock.seconds(), tokens])
                open_ones.append((users[k].reserve(tokens), logs[k][-1], k))
            else:
                error = refusal(users[k], tokens)
                assert before == state(organization, *users)
                assert (error.retry_after is None) == (tokens > 40)
        elif kind == "record":
            users[k].record_usage(tokens)
            logs[k].append([clock.seconds(), tokens])
        elif open_ones:
            reservation, entry, k = open_ones.pop(which % len(open_ones))
            actual = tokens if kind == "settle" else 0
            if kind == "settle":
                reservation.settle(tokens)
            else:
                reservation.refund()
            if actual > entry[1]:
                logs[k].append([clock.seconds(), actual - entry[1]])
            else:
                entry[1] = actual
        for user in (0, 1):
            assert users[user].remaining_budget == max(0, left(user))
