"""TokenBudget: limits, amounts, what a refusal says, clocks, interrupts and forks."""

import pickle
import sys
from contextlib import suppress
from datetime import timedelta

import pytest

from budgets.asking import HOUR, refusal, state
from forks import in_a_child, needs_fork
from headgate import (
    BudgetBook,
    Closed,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    TokenBudget,
)
from headgate.testing import ManualClock
from stress.interrupts import Interrupted, interrupt_everywhere

# -- one budget


def test_the_defaults_are_100_000_an_hour_and_10_000_a_request():
    budget = TokenBudget()

    assert budget.remaining_budget == 100_000
    assert budget.check_budget(10_000)
    assert not budget.check_budget(10_001)


def test_a_request_must_fit_its_own_maximum_and_the_hour(clock):
    budget = TokenBudget(15_000, 10_000, clock=clock)
    budget.record_usage(9_000)

    assert budget.check_budget(6_000)
    assert not budget.check_budget(6_001)


def test_usage_that_is_exactly_an_hour_old_no_longer_counts(clock, budget):
    budget.record_usage(10_000)
    clock.advance(HOUR - 1e-9)
    assert not budget.check_budget(1)

    clock.advance(1e-9)
    assert budget.check_budget(10_000)
    assert budget.remaining_budget == 10_000


def test_usage_is_recorded_without_any_check(budget):
    budget.record_usage(25_000)
    budget.record_usage(0)

    assert budget.remaining_budget == 0


def test_remaining_budget_is_the_maximum_less_the_usage_and_never_below_zero(clock, budget):
    budget.record_usage(4_000)
    clock.advance(HOUR / 2)
    budget.record_usage(5_000)
    assert budget.remaining_budget == 1_000
    budget.record_usage(5_000)
    assert budget.remaining_budget == 0
    clock.advance(HOUR / 2)
    assert budget.remaining_budget == 0
    clock.advance(HOUR / 2)
    assert budget.remaining_budget == 10_000


def test_a_request_of_zero_tokens_fits_exactly_while_usage_is_not_above_the_maximum(budget):
    budget.record_usage(10_000)
    assert budget.check_budget(0)
    budget.reserve(0).settle()

    budget.record_usage(1)
    assert not budget.check_budget(0)
    assert refusal(budget, 0).retry_after == HOUR


def test_a_budget_may_have_several_windows(clock):
    """1 000 a minute and 2 500 an hour."""
    budget = TokenBudget(windows={60: 1_000, timedelta(hours=1): 2_500}, clock=clock)
    for expected in (1_000, 1_000, 500, 0):
        assert budget.remaining_budget == expected
        budget.record_usage(expected)
        clock.advance(60)
    clock.advance(HOUR - 4 * 60)
    assert budget.remaining_budget == 1_000


def test_a_budget_without_limits_allows_everything():
    budget = TokenBudget(None, None)
    budget.reserve(10**30)

    assert budget.remaining_budget == sys.maxsize
    assert budget.remaining_money is None
    assert budget.check_budget(10**40, money=10**40)


def test_money_is_limited_like_tokens(clock):
    """Five dollars a day, one dollar a request, in millionths."""
    budget = TokenBudget(None, money={86_400: 5_000_000}, max_money_per_request=1_000_000, clock=clock)
    with budget.reserve(100, money=900_000) as reservation:
        reservation.settle(100, money=250_000)

    assert budget.remaining_money == 4_750_000
    assert not budget.check_budget(100, money=1_000_001)
    assert refusal(budget, 0, money=1_000_001).rule == "money/request"
    budget.record_usage(0, money=4_000_000)
    assert refusal(budget, 0, money=800_000).rule == "money/day"
    clock.advance(86_400)
    assert budget.remaining_money == 5_000_000


# -- amounts


@pytest.mark.parametrize("wrong", [-1, 1.0, 1.5, True, "1", None, float("nan")])
def test_an_amount_that_is_not_a_whole_number_is_refused_and_changes_nothing(budget, wrong):
    reservation = budget.reserve(1_000)
    before = state(budget)
    for act in (
        lambda: budget.check_budget(wrong),
        lambda: budget.record_usage(wrong),
        lambda: budget.reserve(wrong),
        lambda: budget.check_budget(1, money=wrong),
        lambda: budget.record_usage(1, money=wrong),
        lambda: budget.reserve(1, money=wrong),
        lambda: reservation.settle(wrong) if wrong is not None else budget.reserve(wrong),
        lambda: reservation.settle(1, money=wrong) if wrong is not None else budget.reserve(wrong),
    ):
        with pytest.raises(InvalidCapacity):
            act()
    assert before == state(budget)
    assert issubclass(InvalidCapacity, ValueError)

    reservation.settle(0)
    assert budget.remaining_budget == 10_000


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_tokens_per_hour": 0}, InvalidCapacity),
        ({"max_tokens_per_hour": 1.5}, InvalidCapacity),
        ({"max_tokens_per_request": -1}, InvalidCapacity),
        ({"max_money_per_request": True}, InvalidCapacity),
        ({"windows": {}}, InvalidConfig),
        ({"windows": [60]}, InvalidConfig),
        ({"windows": {0: 5}}, InvalidWindow),
        ({"windows": {-5: 5}}, InvalidWindow),
        ({"windows": {"hour": 5}}, InvalidWindow),
        ({"windows": {60: 0}}, InvalidCapacity),
        ({"windows": {60: 5, timedelta(minutes=1): 6}}, InvalidConfig),
        ({"windows": {60: 5}, "max_tokens_per_hour": 7}, InvalidConfig),
        ({"money": {60: "5"}}, InvalidCapacity),
        ({"money": 5}, InvalidConfig),
        ({"key": 5}, InvalidConfig),
        ({"parent": "acme"}, InvalidConfig),
    ],
)
def test_limits_that_cannot_work_say_so(options, error):
    with pytest.raises(error) as caught:
        TokenBudget(**options)
    assert isinstance(caught.value, InvalidLimit)
    assert "write" in str(caught.value)


def test_a_budget_is_a_context_manager_and_reserves_nothing_after_it(clock):
    with TokenBudget(10_000, clock=clock) as budget:
        budget.reserve(1_000)
    budget.close()
    with pytest.raises(Closed):
        budget.reserve(1)
    assert budget.remaining_budget == 9_000


def test_windows_may_be_given_together_with_no_hour():
    assert TokenBudget(None, windows={60: 5}).remaining_budget == 5


# -- what a refusal says


def test_a_refusal_names_the_budget_the_limit_what_is_left_and_when(clock, budget):
    budget.record_usage(8_800)
    clock.advance(600)
    error = refusal(budget, 4_000)

    assert str(error) == (
        "4000 tokens do not fit the budget of 'ann': 1200 of 10000 tokens left (tokens/hour); "
        "worth another try in 3000.0 s"
    )
    assert (error.budget, error.rule, error.remaining, error.retry_after) == (
        "ann",
        "tokens/hour",
        1_200,
        3_000,
    )
    clock.advance(error.retry_after - 1e-9)
    assert not budget.check_budget(4_000)
    clock.advance(1e-9)
    assert budget.check_budget(4_000)


def test_the_maximum_of_a_request_is_not_confused_with_the_hour(budget):
    error = refusal(budget, 12_000)

    assert str(error) == (
        "12000 tokens can never fit the budget of 'ann': one request may take 10000 (tokens/request)"
    )
    assert (error.rule, error.remaining, error.retry_after) == ("tokens/request", 10_000, None)


def test_a_refusal_says_when_a_request_can_never_fit(clock):
    error = refusal(TokenBudget(100, clock=clock), 101)
    assert str(error) == "101 tokens can never fit the budget: it has 100 tokens in all (tokens/hour)"
    assert error.retry_after is None


def test_retry_after_is_when_the_request_would_fit_every_level(clock):
    organization = TokenBudget(None, windows={60: 100, 86_400: 1_000}, key="acme", clock=clock)
    user = TokenBudget(50, key="ann", parent=organization, clock=clock)
    user.record_usage(50)
    assert (refusal(user, 1).budget, refusal(user, 1).retry_after) == ("ann", HOUR)
    organization.record_usage(950)
    assert (refusal(user, 1).budget, refusal(user, 1).rule) == ("acme", "tokens/day")
    assert refusal(user, 1).retry_after == 86_400
    clock.advance(86_400)
    user.reserve(1)


def test_one_token_and_money_are_told_in_words(clock):
    budget = TokenBudget(1, money={90: 10}, clock=clock)
    budget.record_usage(1, money=4)
    assert "1 token does not fit the budget: 0 of 1 tokens left (tokens/hour)" in str(refusal(budget, 1))
    assert "money=7 does not fit the budget: 6 of 10 left (money/90s)" in str(
        refusal(TokenBudget(None, money={90: 10}, parent=budget, clock=clock), 0, money=7)
    )


def test_a_refusal_survives_pickling(budget):
    error = pickle.loads(pickle.dumps(refusal(budget, 12_000)))
    assert (error.budget, error.remaining, error.rule) == ("ann", 10_000, "tokens/request")


def test_a_budget_prints_its_key(budget):
    assert repr(budget) == "<TokenBudget 'ann', 10000 tokens remaining>"
    assert repr(TokenBudget(5)) == "<TokenBudget, 5 tokens remaining>"
    assert budget.key == "ann"


def test_a_budget_prints_what_is_left_of_what_it_limits():
    assert repr(TokenBudget(limits="$5/day")) == "<TokenBudget, 5000000 millionths of money remaining>"
    both = TokenBudget(limits=["50 tokens/hour", "$5/day"])
    assert repr(both) == "<TokenBudget, 50 tokens and 5000000 millionths of money remaining>"
    assert repr(TokenBudget(None)) == "<TokenBudget, no limit>"


# -- what may happen in the middle


def test_a_clock_that_goes_back_grants_nothing(clock, budget):
    clock.advance(100)
    reservation = budget.reserve(10_000)
    clock.set_ns(clock.now() - 50 * 10**9)
    assert budget.remaining_budget == 0
    reservation.settle(4_000)
    assert budget.remaining_budget == 6_000
    clock.advance(50 + HOUR - 1)
    assert budget.remaining_budget == 6_000
    clock.advance(1)
    assert budget.remaining_budget == 10_000


class Interruption(BaseException):
    pass


def test_an_interrupt_half_way_leaves_a_budget_that_still_adds_up(clock, budget, monkeypatch):
    """Ctrl-C comes after the total was raised and before its group was: nothing stays charged."""
    budget.record_usage(1_000)
    (rule,) = budget.account.level._rules

    def broken_off(taken, now):
        rule._used += taken
        raise Interruption

    kind = type(rule)
    with monkeypatch.context() as patch:
        patch.setattr(kind, "charge", lambda _self, taken, now: broken_off(taken, now))
        with pytest.raises(Interruption):
            budget.record_usage(500)

    assert budget.remaining_budget == 9_000
    budget.record_usage(1)
    clock.advance(HOUR)
    assert budget.remaining_budget == 10_000


def test_a_finalizer_may_settle_while_its_thread_is_busy_with_the_same_budget():
    """Garbage may be collected under the lock: what a finalizer tells then is done when the lock is free."""

    class Collecting(ManualClock):
        act = None

        def now(self):
            act, self.act = self.act, None
            if act is not None:
                act()
            return super().now()

    clock = Collecting()
    budget = TokenBudget(10_000, clock=clock)
    first, second = budget.reserve(1_000), budget.reserve(2_000)

    def finalizers():
        first.settle(10)
        second.refund()
        budget.record_usage(5)
        with pytest.raises(RuntimeError, match="finalizer"):
            budget.check_budget(1)

    clock.act = finalizers
    assert budget.remaining_budget == 10_000 - 15
    assert budget.remaining_budget == 10_000 - 15


@needs_fork
def test_a_child_forked_while_the_lock_is_held_starts_with_a_free_one(clock, budget):
    budget.record_usage(1_000)
    reservation = budget.reserve(2_000)

    def check():
        assert budget.remaining_budget == 7_000
        budget.record_usage(1)
        reservation.settle(0)
        assert budget.remaining_budget == 8_999

    with budget.account.usage._guard.lock:
        assert in_a_child(check) == 0
    assert budget.remaining_budget == 7_000


def test_a_budget_limits_tokens_if_it_or_one_above_it_does():
    money = TokenBudget(limits="$5/day")
    assert not money.limits_tokens
    assert TokenBudget(limits=["$5/day", "900 tokens/request"]).limits_tokens
    assert TokenBudget(limits="$1/day", parent=TokenBudget(limits="50_000 tokens/hour")).limits_tokens
    assert not TokenBudget(limits="$1/day", parent=money).limits_tokens


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_budget_can_be_used_after_an_interrupt_at_any_moment():
    """An interrupt leaves no note that the thread is still busy with the budget."""

    def scenario(interrupt):
        budget = TokenBudget(10_000, clock=ManualClock())
        with suppress(Interrupted), interrupt:
            budget.reserve(1_000).settle(10)
            budget.record_usage(5)
        assert 0 <= 10_000 - budget.remaining_budget <= 1_005
        budget.reserve(1_000).refund()

    interrupt_everywhere(scenario)


def test_a_closed_budget_says_which_one_it_is_and_what_to_make_anew():
    nameless, ann = TokenBudget(), TokenBudget(key="ann")
    book = BudgetBook({"free": {}})
    bob = book.for_user("bob")
    for each in (nameless, ann, book):
        each.close()
    for act, why in (
        (lambda: nameless.reserve(1), "the budget was closed; make a new one"),
        (lambda: ann.reserve(1), "the budget of 'ann' was closed; make a new one"),
        (lambda: bob.reserve(1), "the book with the budget of 'bob' was closed; make a new book"),
        (lambda: book.for_user("eve"), "the book with the budget of 'eve' was closed; make a new book"),
    ):
        with pytest.raises(Closed) as caught:
            act()
        assert caught.value.why == why
