"""What SPEC 17.7, 17.8 and D-100 to D-108 say about budgets, case by case."""

import asyncio
import gc
import pickle
import random
import sys
import threading
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forks import in_a_child, needs_fork
from headgate.budgets.book import BudgetBook
from headgate.budgets.budget import Reservation, TokenBudget
from headgate.errors import (
    BudgetExceeded,
    Closed,
    HeadgateError,
    InvalidCapacity,
    InvalidConfig,
    InvalidLimit,
    InvalidWindow,
    UnknownName,
)
from headgate.testing import ManualClock
from patience import PATIENCE

HOUR = 3600.0
TIERS = {
    "free": {"max_tokens_per_hour": 50_000, "max_tokens_per_request": 4_000},
    "pro": {"max_tokens_per_hour": 500_000, "max_tokens_per_request": None},
}


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def budget(clock):
    """Ten thousand an hour, for ann."""
    return TokenBudget(10_000, key="ann", clock=clock)


def state(*budgets):
    """Everything these remember, as values."""
    return [
        [tuple(entry) for entry in value] if name in ("_groups", "_moments") else value
        for budget in budgets
        for rule in budget.account.level._rules
        for name in type(rule).__slots__
        for value in [getattr(rule, name)]
    ]


def in_threads(count, act):
    """That many threads at once; their results, in any order."""
    start, results = threading.Barrier(count), []

    def body(k):
        start.wait(PATIENCE)
        results.append(act(k))

    threads = [threading.Thread(target=body, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(results) == count
    return results


def refusal(budget, *args, **kwargs):
    with pytest.raises(BudgetExceeded) as caught:
        budget.reserve(*args, **kwargs)
    return caught.value


# -- TB-01 to TB-07: one budget


def test_tb01_the_defaults_are_100_000_an_hour_and_10_000_a_request():
    budget = TokenBudget()

    assert budget.remaining_budget == 100_000
    assert budget.check_budget(10_000)
    assert not budget.check_budget(10_001)


def test_tb02_a_request_must_fit_its_own_maximum_and_the_hour(clock):
    budget = TokenBudget(15_000, 10_000, clock=clock)
    budget.record_usage(9_000)

    assert budget.check_budget(6_000)
    assert not budget.check_budget(6_001)


def test_tb03_what_is_exactly_an_hour_old_no_longer_counts(clock, budget):
    budget.record_usage(10_000)
    clock.advance(HOUR - 1e-9)
    assert not budget.check_budget(1)

    clock.advance(1e-9)
    assert budget.check_budget(10_000)
    assert budget.remaining_budget == 10_000


def test_tb04_usage_is_recorded_without_any_check(budget):
    budget.record_usage(25_000)
    budget.record_usage(0)

    assert budget.remaining_budget == 0


def test_tb05_remaining_is_the_maximum_less_the_usage_and_never_below_nothing(clock, budget):
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


def test_tb06_nothing_is_allowed_exactly_while_usage_is_not_above_the_maximum(budget):
    budget.record_usage(10_000)
    assert budget.check_budget(0)
    budget.reserve(0).settle()

    budget.record_usage(1)
    assert not budget.check_budget(0)
    assert refusal(budget, 0).retry_after == HOUR


def test_tb07_several_windows_at_once(clock):
    """
    1 000 a minute and 2 500 an hour.
    """
    budget = TokenBudget(windows={60: 1_000, timedelta(hours=1): 2_500}, clock=clock)
    for expected in (1_000, 1_000, 500, 0):
        assert budget.remaining_budget == expected
        budget.record_usage(expected)
        clock.advance(60)
    clock.advance(HOUR - 4 * 60)
    assert budget.remaining_budget == 1_000


def test_no_limit_at_all_is_no_limit():
    budget = TokenBudget(None, None)
    budget.reserve(10**30)

    assert budget.remaining_budget == sys.maxsize
    assert budget.remaining_money is None
    assert budget.check_budget(10**40, money=10**40)


def test_money_is_limited_like_tokens(clock):
    """
    Five dollars a day, one dollar a request, in millionths.
    """
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


# -- D-100 to D-103: reserve, settle, refund


def test_d100_of_ten_threads_that_want_4_000_of_10_000_exactly_two_get_it(budget):
    def ask(_k):
        try:
            return budget.reserve(4_000)
        except BudgetExceeded:
            return None

    got = in_threads(10, ask)

    assert sum(reservation is not None for reservation in got) == 2
    assert budget.remaining_budget == 2_000


def test_d100_of_ten_tasks_that_want_4_000_of_10_000_exactly_two_get_it(budget):
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


def test_d101_nothing_that_fifty_threads_record_is_lost(clock):
    parent = TokenBudget(10**9, clock=clock)
    budget = TokenBudget(10**9, key="all", parent=parent, clock=clock)

    def record(k):
        for _ in range(200):
            budget.record_usage(k)

    in_threads(50, record)

    assert budget.remaining_budget == 10**9 - 200 * sum(range(50))
    assert parent.remaining_budget == budget.remaining_budget


def test_d102_memory_is_bounded_when_only_recording(clock, budget):
    for _ in range(20_000):
        budget.record_usage(1)
        clock.advance(0.05)

    (rule,) = budget.account.level._rules
    assert len(rule._groups) <= 131
    assert len(rule._moments) <= 256


def test_d103_the_estimate_becomes_the_fact(budget):
    with budget.reserve(4_000) as reservation:
        assert isinstance(reservation, Reservation)
        assert budget.remaining_budget == 6_000
        reservation.settle(1_500)
        assert budget.remaining_budget == 8_500
        reservation.settle(4_000)
        reservation.refund()
    assert budget.remaining_budget == 8_500


def test_d103_a_call_that_failed_may_have_been_billed_and_stays_charged(budget):
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


def test_d103_more_than_was_estimated_is_charged_even_beyond_the_limit(clock, budget):
    organization = TokenBudget(12_000, key="acme", clock=clock)
    user = TokenBudget(10_000, parent=organization, clock=clock)
    user.reserve(4_000).settle(15_000)

    assert (user.remaining_budget, organization.remaining_budget) == (0, 0)
    assert not user.check_budget(0)
    clock.advance(HOUR)
    assert (user.remaining_budget, organization.remaining_budget) == (10_000, 12_000)


def test_what_has_left_the_window_does_not_come_back(clock):
    """
    Out of the minute, still in the hour.
    """
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


def test_of_tokens_and_money_each_may_be_settled_alone(clock):
    budget = TokenBudget(1_000, money={3600: 1_000}, clock=clock)
    budget.reserve(500, money=500).settle(100)
    assert (budget.remaining_budget, budget.remaining_money) == (900, 500)
    budget.reserve(500, money=500).settle(money=100)
    assert (budget.remaining_budget, budget.remaining_money) == (400, 400)


def test_fifty_threads_settle_one_reservation_once(budget):
    reservation = budget.reserve(5_000)
    in_threads(50, lambda k: reservation.settle(1_000 + k))

    assert 9_000 - 50 <= budget.remaining_budget <= 9_000


# -- D-104: amounts


@pytest.mark.parametrize("wrong", [-1, 1.0, 1.5, True, "1", None, float("nan")])
def test_d104_what_is_not_an_amount_is_refused_and_changes_nothing(budget, wrong):
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


def test_windows_may_be_given_together_with_no_hour():
    assert TokenBudget(None, windows={60: 5}).remaining_budget == 5


# -- D-106: levels


def test_d106_a_request_is_charged_to_every_level_or_to_none(clock):
    """
    Two users of 6 000 under an organisation of 10 000 in a company of 11 000.
    """
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


def test_d106_fifty_threads_of_ten_users_never_exceed_any_level(clock):
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
    """
    TB-02 to TB-06, D-103, D-106: two users under one organisation, against (time, tokens) of each.
    """
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


# -- D-107: what a refusal says


def test_d107_a_refusal_names_the_budget_the_limit_what_is_left_and_when(clock, budget):
    budget.record_usage(8_800)
    clock.advance(600)
    error = refusal(budget, 4_000)

    assert str(error) == (
        "4000 tokens do not fit the budget of 'ann': 1200 of 10000 tokens/hour left (tokens/hour); "
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


def test_d107_the_maximum_of_a_request_is_not_confused_with_the_hour(budget):
    error = refusal(budget, 12_000)

    assert str(error) == (
        "12000 tokens can never fit the budget of 'ann': one request may take 10000 (tokens/request)"
    )
    assert (error.rule, error.remaining, error.retry_after) == ("tokens/request", 10_000, None)


def test_d107_what_can_never_fit_says_so(clock):
    error = refusal(TokenBudget(100, clock=clock), 101)
    assert str(error) == "101 tokens can never fit the budget: it has 100 tokens/hour in all (tokens/hour)"
    assert error.retry_after is None


def test_d107_the_time_is_when_it_would_fit_everywhere(clock):
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
    assert "1 token does not fit the budget: 0 of 1 tokens/hour left" in str(refusal(budget, 1))
    assert "money=7 does not fit the budget: 6 of 10 money/90s left" in str(
        refusal(TokenBudget(None, money={90: 10}, parent=budget, clock=clock), 0, money=7)
    )


def test_a_refusal_survives_pickling(budget):
    error = pickle.loads(pickle.dumps(refusal(budget, 12_000)))
    assert (error.budget, error.remaining, error.rule) == ("ann", 10_000, "tokens/request")


def test_a_budget_says_who_it_is(budget):
    assert repr(budget) == "<TokenBudget 'ann', 10000 tokens remaining>"
    assert repr(TokenBudget(5)) == "<TokenBudget, 5 tokens remaining>"
    assert budget.key == "ann"


# -- D-108, and what may happen in the middle


def test_d108_a_clock_that_goes_back_grants_nothing(clock, budget):
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


def test_whoever_is_interrupted_half_way_leaves_a_budget_that_still_adds_up(clock, budget, monkeypatch):
    """
    Ctrl-C after the total was raised and before its group was: nothing is charged for ever.
    """
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
    """
    Garbage is collected anywhere, also under the lock: what it tells is done before the lock is free.
    """

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


# -- TU-01 to TU-03, D-105: the book


@pytest.fixture
def book(clock):
    return BudgetBook(
        TIERS,
        organizations={"acme": {"max_tokens_per_hour": 60_000}, "tiny": {"max_tokens_per_hour": 100}},
        clock=clock,
    )


def test_tu01_a_user_is_made_on_first_use_with_the_free_tier_and_stays_the_same(book):
    ann = book.for_user("ann")

    assert ann is book.for_user("ann")
    assert ann.remaining_budget == 50_000
    assert ann.check_budget(4_000)
    assert not ann.check_budget(4_001)
    assert ann.key == "ann"
    assert book.for_user("bob") is not ann
    assert (len(book), repr(book)) == (2, "<BudgetBook of 2 users>")


def test_tu02_the_handler_refuses_before_it_calls_and_records_the_total(book):
    calls = []

    def model(prompt):
        calls.append(prompt)
        return f"echo {prompt}", 7

    def handle(user, prompt):
        with book.for_user(user).reserve(2 * len(prompt.split())) as reservation:
            reply, total = model(prompt)
            reservation.settle(total)
        return reply

    assert handle("ann", "hello there") == "echo hello there"
    assert book.for_user("ann").remaining_budget == 50_000 - 7
    with pytest.raises(BudgetExceeded) as caught:
        handle("ann", "word " * 2_001)
    assert caught.value.remaining == 4_000
    assert len(calls) == 1
    assert book.for_user("ann").remaining_budget == 50_000 - 7


def test_tu03_another_tier_retunes_in_place_and_what_was_used_stays_used(book):
    ann = book.for_user("ann")
    reservation = ann.reserve(4_000)

    assert book.for_user("ann", tier="pro") is ann
    assert ann.remaining_budget == 496_000
    ann.reserve(100_000).settle(50_000)
    assert book.for_user("ann").remaining_budget == 0
    reservation.refund()
    assert book.for_user("ann", tier="pro").remaining_budget == 450_000


def test_changing_between_tiers_of_different_windows_forgets_nothing(clock):
    """
    100 a day; then 10 an hour for a while; then back: the day remembers everything.
    """
    book = BudgetBook({"day": {"windows": {86_400: 100}}, "hour": {"windows": {3600: 10}}}, clock=clock)
    book.for_user("ann", tier="day").record_usage(70)
    clock.advance(2 * HOUR)
    ann = book.for_user("ann", tier="hour")
    assert ann.remaining_budget == 10
    ann.record_usage(10)
    clock.advance(2 * HOUR)
    ann.record_usage(10)

    assert book.for_user("ann", tier="day").remaining_budget == 10
    assert book.for_user("ann", tier="hour").remaining_budget == 0


def test_d106_users_share_what_their_organization_has(book):
    ann, bob = (book.for_user(user, tier="pro", organization="acme") for user in ("ann", "bob"))
    ann.reserve(10_000)
    ann.record_usage(45_000)

    assert bob.remaining_budget == 5_000
    assert refusal(bob, 5_001).budget == "acme"


def test_another_organization_is_charged_from_then_on(book):
    """
    What was reserved under one is settled there.
    """
    ann = book.for_user("ann", organization="acme")
    reservation = ann.reserve(4_000)
    assert book.for_user("ann", organization="tiny") is ann
    ann.record_usage(60)
    reservation.settle(1_000)

    assert ann.remaining_budget == 40
    assert book.for_user("bob", organization="acme").remaining_budget == 50_000
    assert book.for_user("bob", tier="pro", organization="acme").remaining_budget == 59_000
    assert book.for_user("ann").remaining_budget == 50_000 - 1_060


def test_d105_fifty_threads_that_come_first_get_one_budget(book):
    got = in_threads(50, lambda _k: book.for_user("ann"))
    assert all(budget is got[0] for budget in got)


def test_d105_users_who_used_nothing_that_counts_are_forgotten(clock, book):
    for k in range(20_000):
        book.for_user(f"user {k}").check_budget(1)
    gc.collect()
    assert len(book) <= 64

    for k in range(2_000):
        book.for_user(f"busy {k}").record_usage(1)
    for k in range(5_000):
        book.for_user(f"user {k}")
    assert len(book) >= 2_000
    assert book.for_user("busy 7").remaining_budget == 49_999
    clock.advance(HOUR)
    for k in range(20_000):
        book.for_user(f"user {k}")
    gc.collect()
    assert len(book) <= 64


def crowd(book, count=2_000):
    """So many users come by once and leave nothing."""
    for k in range(count):
        book.for_user(f"passer-by {k}")


def test_d105_whoever_holds_an_idle_budget_and_uses_it_later_is_not_forgotten(book):
    """
    Let go because nothing counted; used after that; dropped by its holder: still known.
    """
    ann = book.for_user("ann")
    crowd(book)
    assert "ann" not in book._keyed._kept
    ann.record_usage(30_000)
    del ann
    gc.collect()
    assert book.for_user("ann").remaining_budget == 20_000
    crowd(book)
    gc.collect()
    assert book.for_user("ann").remaining_budget == 20_000


def test_a_reservation_that_is_settled_upwards_wakes_its_budget_too(book):
    reservation = book.for_user("ann").reserve(0)
    crowd(book)
    reservation.settle(30_000)
    del reservation
    gc.collect()

    assert book.for_user("ann").remaining_budget == 20_000


@pytest.mark.parametrize("name", ["gold", "", None, 5, ["free"]])
def test_an_unknown_tier_or_organization_lists_the_known(book, name):
    with pytest.raises(UnknownName, match="known: 'free', 'pro'"):
        book.for_user("ann", tier=name)
    if name is not None:
        with pytest.raises(UnknownName, match="known: 'acme', 'tiny'"):
            book.for_user("ann", organization=name)
    assert len(book) == 0


def test_a_book_without_organizations_knows_none():
    with pytest.raises(UnknownName, match="known: none"):
        BudgetBook(TIERS).for_user("ann", organization="acme")


@pytest.mark.parametrize("user", ["", None, 5, b"ann"])
def test_a_user_is_a_name(book, user):
    with pytest.raises(InvalidConfig, match="write a name"):
        book.for_user(user)


@pytest.mark.parametrize(
    ("tiers", "error"),
    [
        ({}, InvalidConfig),
        (["free"], InvalidConfig),
        ({"free": None}, InvalidConfig),
        ({5: {}}, InvalidConfig),
        ({"": {}}, InvalidConfig),
        ({"free": {"max_tokens_per_hour": 0}}, InvalidCapacity),
        ({"free": {"windows": {0: 5}}}, InvalidWindow),
        ({"free": {"max_tokens_per_houer": 5}}, InvalidConfig),
        ({"free": {"parent": TokenBudget()}}, InvalidConfig),
        ({"free": {"clock": None}}, InvalidConfig),
    ],
)
def test_tiers_that_cannot_work_raise_when_the_book_is_made(tiers, error):
    with pytest.raises(error):
        BudgetBook(tiers)
    if tiers:
        with pytest.raises(error):
            BudgetBook(TIERS, organizations=tiers)


def test_a_closed_book_reserves_nothing_and_still_counts(book):
    with book:
        ann = book.for_user("ann")
        reservation = ann.reserve(4_000)
    book.close()

    with pytest.raises(Closed):
        ann.reserve(1)
    with pytest.raises(Closed):
        book.for_user("ann")
    reservation.settle(1_000)
    ann.record_usage(1)
    assert ann.remaining_budget == 48_999


def test_every_error_is_one_of_ours():
    assert issubclass(BudgetExceeded, HeadgateError)
