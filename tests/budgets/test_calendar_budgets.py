"""Budgets of calendar days, weeks and months, as timelines of a wall clock that the test moves."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from budgets.asking import refusal
from headgate import BudgetBook, InvalidConfig, InvalidLimit, InvalidWindow, TokenBudget
from headgate.budgets.plans import read_plan
from headgate.budgets.usage import LocalUsage
from headgate.budgets.windows import TOKENS
from headgate.gate.clock import SYSTEM
from headgate.testing import ManualClock

HOUR = 3600.0
DAY = 24 * HOUR


def clock_at(*when, zone="UTC"):
    return ManualClock(1_000, wall=datetime(*when, tzinfo=ZoneInfo(zone)))


def test_a_calendar_month_begins_anew_on_its_first_day():
    """100 dollars on the last evening of November, and again an hour later."""
    clock = clock_at(2026, 11, 30, 23)
    budget = TokenBudget(limits="$100/calendar month", key="ann", clock=clock)
    budget.reserve(0, money=100_000_000)
    clock.advance(HOUR - 1e-6)
    assert budget.remaining_money == 0
    clock.advance(1e-6)
    assert budget.remaining_money == 100_000_000
    budget.reserve(0, money=60_000_000)
    clock.advance(31 * DAY - 1)
    assert budget.remaining_money == 40_000_000
    clock.advance(1)
    assert budget.remaining_money == 100_000_000


def test_a_refusal_names_the_period_and_says_when_it_ends():
    clock = clock_at(2026, 11, 18, 20)
    budget = TokenBudget(limits=["1_000 tokens/calendar day", "$5/calendar week"], key="ann", clock=clock)
    budget.record_usage(900, money=4_900_000)
    error = refusal(budget, 101)
    assert str(error) == (
        "101 tokens do not fit the budget of 'ann': 100 of 1000 tokens left for 2026-11-18 "
        "(UTC) (tokens/calendar day); worth another try in 14400.0 s"
    )
    assert (error.rule, error.remaining, error.retry_after) == ("tokens/calendar day", 100, 4 * HOUR)
    error = refusal(budget, 0, money=200_000)
    assert "$0.1 of $5 left for 2026-W47 (UTC) (money/calendar week)" in str(error)
    assert error.retry_after == 4 * DAY + 4 * HOUR  # Monday
    assert refusal(budget, 1_001).retry_after is None


def test_a_day_is_that_of_the_time_zone_and_may_have_23_or_25_hours():
    for date, hours in [((2026, 3, 29), 23), ((2026, 10, 25), 25), ((2026, 11, 18), 24)]:
        clock = clock_at(*date, zone="Europe/Berlin")
        budget = TokenBudget(limits="10 tokens/calendar day", timezone="Europe/Berlin", clock=clock)
        budget.reserve(10)
        assert refusal(budget, 1).retry_after == hours * HOUR
        clock.advance(hours * HOUR - 1)
        assert budget.remaining_budget == 0
        clock.advance(1)
        assert budget.remaining_budget == 10


def test_what_was_reserved_before_midnight_and_settled_after_it_counts_before_midnight():
    clock = clock_at(2026, 11, 18, 23, 59)
    budget = TokenBudget(limits="1_000 tokens/calendar day", clock=clock)
    less, more, none = budget.reserve(300), budget.reserve(300), budget.reserve(300)
    clock.advance(60)
    assert budget.remaining_budget == 1_000
    less.settle(100)
    more.settle(900)
    none.refund()
    assert budget.remaining_budget == 1_000
    budget.reserve(600).settle(700)
    budget.record_usage(50)
    assert budget.remaining_budget == 250


def test_each_level_goes_by_its_own_calendar():
    """A user by the day, the team by the month: a reservation of the 30th is settled on the 1st."""
    clock = clock_at(2026, 11, 30, 23)
    team = TokenBudget(limits="1_000 tokens/calendar month", key="team", clock=clock)
    ann = TokenBudget(limits="100 tokens/calendar day", key="ann", parent=team, clock=clock)
    ann.reserve(100).settle(40)
    assert (ann.remaining_budget, team.remaining_budget) == (60, 960)
    reservation = ann.reserve(50)
    clock.advance(HOUR)
    reservation.settle(90)
    assert (ann.remaining_budget, team.remaining_budget) == (100, 1_000)
    today = ann.reserve(30)
    clock.advance(DAY)
    today.settle(20)
    assert (ann.remaining_budget, team.remaining_budget) == (100, 980)
    ann.record_usage(5)
    assert (ann.remaining_budget, team.remaining_budget) == (95, 975)


def test_another_plan_with_a_calendar_counts_what_its_windows_know_of_the_period():
    """What was used half an hour before midnight is of yesterday."""
    clock = clock_at(2026, 11, 18, 23, 30)
    usage = LocalUsage(clock)
    level = usage.level(read_plan(limits="10 tokens/2 hours"), ("ann",))
    usage.take([level], (4, 0))
    clock.advance(HOUR)
    usage.take([level], (3, 0))
    usage.retune(level, read_plan(limits="10 tokens/calendar day"))
    assert usage.left([level], TOKENS) == 7


def test_a_wall_clock_that_is_put_back_gives_nothing_back():
    clock = clock_at(2026, 11, 18, 23)
    budget = TokenBudget(limits="1_000 tokens/calendar day", clock=clock)
    budget.reserve(1_000)
    clock.advance(HOUR)
    budget.reserve(400)
    for wall in (datetime(2026, 11, 18, 12, tzinfo=UTC), 0.0):
        clock.set_wall(wall)
        assert budget.remaining_budget == 600
    # The 19th goes on until it has ended.
    reservation = budget.reserve(500)
    assert refusal(budget, 200).rule == "tokens/calendar day"
    reservation.settle(100)
    assert budget.remaining_budget == 500
    clock.set_wall(datetime(2026, 11, 19, 23, 59, 59, tzinfo=UTC))
    assert budget.remaining_budget == 500
    clock.advance(1)
    assert budget.remaining_budget == 1_000


def test_windows_that_slide_and_periods_of_the_calendar_go_together():
    """Ten an hour, fifteen a calendar day: the hour of before midnight still counts after it."""
    clock = clock_at(2026, 11, 18, 23, 30)
    budget = TokenBudget(limits=["10 tokens/hour", "15 tokens/calendar day"], clock=clock)
    budget.reserve(10)
    clock.advance(1_800)
    assert budget.remaining_budget == 0
    assert refusal(budget, 1).rule == "tokens/hour"
    clock.advance(1_800)
    budget.reserve(10)
    clock.advance(HOUR)
    assert budget.remaining_budget == 5
    assert refusal(budget, 6).rule == "tokens/calendar day"


def test_a_step_of_the_wall_clock_does_not_move_windows_that_slide():
    clock = clock_at(2026, 11, 18, 12)
    budget = TokenBudget(limits=["10 tokens/hour", "100 tokens/calendar day"], clock=clock)
    budget.reserve(10)
    clock.set_wall(datetime(2026, 12, 24, tzinfo=UTC))
    assert budget.remaining_budget == 0
    clock.advance(HOUR)
    assert budget.remaining_budget == 10


def test_organizations_and_tiers_have_calendars_too():
    clock = clock_at(2026, 11, 18, 12)
    book = BudgetBook(
        {"free": "10 tokens/calendar day", "pro": ["100 tokens/calendar day", "20 tokens/request"]},
        organizations={"acme": "150 tokens/calendar month"},
        clock=clock,
    )
    ann = book.for_user("ann", organization="acme")
    ann.reserve(10)
    assert book.for_user("ann", tier="pro", organization="acme").remaining_budget == 90
    for _ in range(4):
        ann.reserve(20)
    assert refusal(ann, 20).budget == "ann"
    bob = book.for_user("bob", tier="pro", organization="acme")
    for _ in range(3):
        bob.reserve(20)
    error = refusal(bob, 1)
    assert (error.budget, error.rule, error.retry_after) == ("acme", "tokens/calendar month", 12.5 * DAY)
    clock.advance(DAY)
    assert bob.remaining_budget == 0
    clock.advance(12 * DAY)
    assert bob.remaining_budget == 100


def test_each_tier_may_have_a_time_zone_and_the_book_has_one_for_all_others():
    clock = clock_at(2026, 11, 18, 17)
    book = BudgetBook(
        {
            "berlin": "10 tokens/calendar day",
            "kolkata": {"limits": "10 tokens/calendar day", "timezone": "Asia/Kolkata"},
        },
        timezone="Europe/Berlin",
        clock=clock,
    )
    ann, bob = book.for_user("ann", tier="berlin"), book.for_user("bob", tier="kolkata")
    ann.reserve(10)
    bob.reserve(10)
    assert refusal(bob, 1).retry_after == 1.5 * HOUR
    assert refusal(ann, 1).retry_after == 6 * HOUR
    clock.advance(1.5 * HOUR)
    assert (ann.remaining_budget, bob.remaining_budget) == (0, 10)
    # A user that changes to the other tier finds there what was used in its day.
    assert book.for_user("ann", tier="kolkata").remaining_budget == 10
    assert book.for_user("bob", tier="berlin").remaining_budget == 0


def test_a_user_is_remembered_while_the_month_lasts_and_forgotten_after_it():
    clock = clock_at(2026, 11, 1)
    book = BudgetBook({"free": "100 tokens/calendar month"}, clock=clock)
    book.for_user("ann").record_usage(40)
    clock.advance(29 * DAY)
    for k in range(500):
        book.for_user(f"passer-by {k}").check_budget(1)
    assert book.for_user("ann").remaining_budget == 60
    clock.advance(3 * DAY)
    for k in range(500):
        book.for_user(f"later passer-by {k}").check_budget(1)
    assert "ann" not in book._keyed._kept


@pytest.mark.parametrize(
    ("zone", "says"),
    [
        ("Europe/Berlinn", "did you mean 'Europe/Berlin'"),
        ("", "is not known"),
        ("../etc/passwd", "is not known"),
        ("Europe", "is not known"),
        ("nul\0", "is not known"),
        (5, "is not a text"),
        (UTC, "is not a text"),
    ],
)
def test_a_time_zone_is_known_by_its_name(zone, says):
    for make in (
        lambda: TokenBudget(limits="$5/calendar day", timezone=zone),
        lambda: BudgetBook({"free": "$5/calendar day"}, timezone=zone),
        lambda: BudgetBook({"free": {"limits": "$5/calendar day", "timezone": zone}}),
    ):
        with pytest.raises(InvalidConfig, match=says):
            make()


@pytest.mark.parametrize("options", [{"limits": "$5/day"}, {}, {"windows": {60: 5}}])
def test_a_time_zone_that_changes_nothing_is_an_error(options):
    with pytest.raises(InvalidConfig, match="changes nothing: no limit is one of the calendar"):
        TokenBudget(**options, timezone="Europe/Berlin")
    with pytest.raises(InvalidConfig, match="changes nothing"):
        BudgetBook({"free": options}, timezone="UTC")


def test_a_text_that_is_no_period_of_the_calendar_is_an_error_of_budgets_and_books():
    with pytest.raises(InvalidLimit, match="shorter times slide: /hour"):
        TokenBudget(limits="$5/calendar hour")
    with pytest.raises(InvalidLimit, match="not a period of the calendar"):
        BudgetBook({"free": ["$5/calendar decade"]})


# -- wall time of clocks


def test_the_wall_time_of_a_manual_clock_advances_with_it_and_can_be_set():
    clock = ManualClock(100)
    assert clock.wall() == clock.now() == 100 * 10**9
    clock.set_wall(datetime(2026, 11, 18, 1, 2, 3, 456_789, tzinfo=UTC))
    since = datetime(2026, 11, 18, 1, 2, 3, tzinfo=UTC).timestamp()
    assert clock.wall() == round(since) * 10**9 + 456_789_000
    clock.advance(0.5)
    assert clock.wall() == round(since) * 10**9 + 956_789_000
    assert clock.now() == 100_500_000_000
    clock.set_wall(-1.5)
    assert clock.wall() == -1_500_000_000


@pytest.mark.parametrize("wrong", ["2026-11-18", datetime(2026, 11, 18), True, float("nan")])  # noqa: DTZ001
def test_a_wall_time_is_a_moment(wrong):
    with pytest.raises((InvalidConfig, InvalidWindow)):
        ManualClock(wall=wrong)


def test_the_clock_of_the_machine_knows_the_wall_time():
    before = datetime.now(UTC).timestamp()
    assert before - 1 <= SYSTEM.wall() / 1e9 <= datetime.now(UTC).timestamp() + 1
    assert TokenBudget(limits="10 tokens/calendar day").remaining_budget == 10
