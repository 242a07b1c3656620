"""Reserving from a budget, and settling what was reserved."""

import asyncio
import gc

import pytest

from budgets.asking import HOUR, in_threads
from headgate import BudgetExceeded, InvalidCapacity, InvalidConfig, Reservation, TokenBudget


def test_exactly_two_of_ten_threads_get_4_000_of_10_000(budget):
    def ask(_k):
        try:
            return budget.reserve(4_000)
        except BudgetExceeded:
            return None

    got = in_threads(10, ask)

    assert sum(reservation is not None for reservation in got) == 2
    assert budget.remaining_budget == 2_000


def test_exactly_two_of_ten_tasks_get_4_000_of_10_000(budget):
    async def ask():
        try:
            with budget.reserve(4_000) as reservation:
                await asyncio.sleep(0)
                reservation.settle(3_000)
                return True
        except BudgetExceeded:
            return False

    async def main():
        return await asyncio.gather(*(ask() for _ in range(10)))

    assert asyncio.run(main()).count(True) == 2
    assert budget.remaining_budget == 4_000


def test_usage_recorded_by_fifty_threads_is_not_lost(clock):
    parent = TokenBudget(10**9, clock=clock)
    budget = TokenBudget(10**9, key="all", parent=parent, clock=clock)

    def record(k):
        for _ in range(200):
            budget.record_usage(k)

    in_threads(50, record)

    assert budget.remaining_budget == 10**9 - 200 * sum(range(50))
    assert parent.remaining_budget == budget.remaining_budget


def test_memory_is_bounded_when_only_recording(clock, budget):
    for _ in range(20_000):
        budget.record_usage(1)
        clock.advance(0.05)

    (rule,) = budget.account.level._rules
    assert len(rule._groups) <= 131
    assert len(rule._moments) <= 256


def test_settling_replaces_the_estimate(budget):
    with budget.reserve(4_000) as reservation:
        assert isinstance(reservation, Reservation)
        assert budget.remaining_budget == 6_000
        reservation.settle(1_500)
        assert budget.remaining_budget == 8_500
        reservation.settle(4_000)
        reservation.refund()
    assert budget.remaining_budget == 8_500


def test_a_call_that_failed_may_have_been_billed_and_stays_charged(budget):
    with pytest.raises(OSError, match="broken pipe"), budget.reserve(4_000):
        raise OSError("broken pipe")

    assert budget.remaining_budget == 6_000


def test_a_call_that_was_surely_not_billed_is_refunded_even_after_the_block(budget):
    with pytest.raises(OSError, match="refused"), budget.reserve(4_000) as reservation:
        raise OSError("connection refused")
    reservation.refund()

    assert budget.remaining_budget == 10_000


def test_a_reservation_that_is_lost_stays_charged(budget):
    budget.reserve(4_000)
    gc.collect()

    assert budget.remaining_budget == 6_000


def test_more_than_was_estimated_is_charged_even_beyond_the_limit(clock, budget):
    organization = TokenBudget(12_000, key="acme", clock=clock)
    user = TokenBudget(10_000, parent=organization, clock=clock)
    user.reserve(4_000).settle(15_000)

    assert (user.remaining_budget, organization.remaining_budget) == (0, 0)
    assert not user.check_budget(0)
    clock.advance(HOUR)
    assert (user.remaining_budget, organization.remaining_budget) == (10_000, 12_000)


def test_tokens_that_have_left_the_window_do_not_come_back(clock):
    """The tokens have left the window of a minute, and count in that of an hour."""
    budget = TokenBudget(windows={60: 1_000, 3600: 5_000}, clock=clock)
    reservation = budget.reserve(900)
    clock.advance(60)
    budget.record_usage(1_000)
    reservation.settle(100)

    assert budget.remaining_budget == 0
    clock.advance(60)
    assert budget.remaining_budget == 1_000
    budget.record_usage(3_800)
    clock.advance(60)
    assert budget.remaining_budget == 100


def test_settling_without_a_number_leaves_the_estimate(budget):
    reservation = budget.reserve(4_000)
    assert repr(reservation) == "<Reservation of 4000 tokens, open>"
    reservation.settle()
    reservation.settle(0)

    assert budget.remaining_budget == 6_000
    assert repr(reservation) == "<Reservation of 4000 tokens, settled>"


def test_tokens_and_money_may_be_settled_separately(clock):
    budget = TokenBudget(1_000, money={3600: 1_000}, clock=clock)
    budget.reserve(500, money=500).settle(100)
    assert (budget.remaining_budget, budget.remaining_money) == (900, 500)
    budget.reserve(500, money=500).settle(money=100)
    assert (budget.remaining_budget, budget.remaining_money) == (400, 400)


def test_fifty_threads_settle_one_reservation_once(budget):
    reservation = budget.reserve(5_000)
    in_threads(50, lambda k: reservation.settle(1_000 + k))

    assert 9_000 - 50 <= budget.remaining_budget <= 9_000


@pytest.mark.parametrize(
    "give",
    [
        lambda: TokenBudget(1_000).reserve(10, money=0.05),
        lambda: TokenBudget(1_000).check_budget(10, money=0.05),
        lambda: TokenBudget(1_000).record_usage(10, money=0.05),
        lambda: TokenBudget(1_000).reserve(10).settle(money=0.05),
        lambda: TokenBudget(None, money={3600: 0.05}),
        lambda: TokenBudget(None, max_money_per_request=0.05),
    ],
    ids=["reserve", "check_budget", "record_usage", "settle", "money", "max_money_per_request"],
)
def test_money_in_dollars_and_cents_is_an_error_that_says_it_in_millionths(give):
    with pytest.raises(InvalidCapacity, match=r"=0\.05 is not a whole number: .*=50000 for 0\.05"):
        give()


@pytest.mark.parametrize("money", [float("nan"), float("inf"), 1e30, "0.05", True])
def test_money_that_no_factor_makes_whole_is_still_an_error(money):
    with pytest.raises(InvalidCapacity, match="is not a whole number"):
        TokenBudget(1_000).reserve(10, money=money)


@pytest.mark.parametrize(
    "ask",
    [
        lambda budget, **money: budget.check_budget(100, **money),
        lambda budget, **money: budget.reserve(100, **money),
        lambda budget, **money: asyncio.run(budget.reserve_async(100, **money)),
    ],
    ids=["check_budget", "reserve", "reserve_async"],
)
def test_tokens_alone_are_an_error_where_only_money_is_limited(ask):
    budget = TokenBudget(limits="$5/day")
    with pytest.raises(InvalidConfig, match=r"limits money and no tokens; write .* money=50_000 for 0\.05"):
        ask(budget)
    assert budget.remaining_money == 5_000_000
    assert ask(budget, money=0)  # a model without a price
    assert ask(TokenBudget(parent=budget))  # its tokens are limited
    assert ask(TokenBudget(None))  # nothing is
    assert budget.reserve(0)
