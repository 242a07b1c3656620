"""Limits of budgets as texts: what they mean, what they refuse, and what is a mistake."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets.asking import refusal
from headgate import BudgetBook, InvalidCapacity, InvalidConfig, InvalidLimit, TokenBudget
from headgate.budgets.texts import money_text, parse_limit, plan_of_texts
from headgate.budgets.windows import MONEY, TOKENS, Allowance
from headgate.testing import ManualClock

SECOND = 1_000_000_000
DAY = 86_400 * SECOND
PERIODS = {
    "ms": 1_000_000,
    "s": SECOND,
    "second": SECOND,
    "min": 60 * SECOND,
    "minute": 60 * SECOND,
    "h": 3600 * SECOND,
    "hour": 3600 * SECOND,
    "d": DAY,
    "day": DAY,
    "week": 7 * DAY,
    "month": 31 * DAY,
}


@pytest.mark.parametrize(
    ("text", "amount", "column", "per_ns", "currency"),
    [
        ("$5/day", 5_000_000, MONEY, DAY, "USD"),
        ("$0.20/request", 200_000, MONEY, None, "USD"),
        ("50_000 tokens/hour", 50_000, TOKENS, 3600 * SECOND, None),
        ("€100/month", 100_000_000, MONEY, 31 * DAY, "EUR"),
        ("100 € per month", 100_000_000, MONEY, 31 * DAY, "EUR"),
        ("5 USD/day", 5_000_000, MONEY, DAY, "USD"),
        ("usd 5 / 24 hours", 5_000_000, MONEY, DAY, "USD"),
        ("5 dollars/week", 5_000_000, MONEY, 7 * DAY, "USD"),
        ("$0.000001/call", 1, MONEY, None, "USD"),
        ("$1.5000000000/2 weeks", 1_500_000, MONEY, 14 * DAY, "USD"),
        ("3 CHF/1_0 s", 3_000_000, MONEY, 10 * SECOND, "CHF"),
        ("3 CHF/90s", 3_000_000, MONEY, 90 * SECOND, "CHF"),
        ("4_000 tokens/request", 4_000, TOKENS, None, None),
        ("1 token/day", 1, TOKENS, DAY, None),
        ("50_000 tpm", 50_000, TOKENS, 60 * SECOND, None),
        ("  7tok/MINUTE ", 7, TOKENS, 60 * SECOND, None),
    ],
)
def test_a_text_is_an_amount_of_something_in_a_time(text, amount, column, per_ns, currency):
    assert parse_limit(text) == (text, amount, column, per_ns, currency, None)


@pytest.mark.parametrize(
    ("text", "amount", "column", "calendar"),
    [
        ("$100/calendar month", 100_000_000, MONEY, "month"),
        ("1_000_000 tokens/calendar day", 1_000_000, TOKENS, "day"),
        ("100 dollars per calendar  week", 100_000_000, MONEY, "week"),
        (" 5 CHF / Calendar Day ", 5_000_000, MONEY, "day"),
    ],
)
def test_a_text_may_name_a_period_of_the_calendar(text, amount, column, calendar):
    found = parse_limit(text)
    assert (found.amount, found.column, found.per_ns, found.calendar) == (amount, column, None, calendar)


@given(
    st.integers(1, 10**12),
    st.sampled_from(["$", "€", "£", "USD ", "chf"]),
    st.booleans(),
    st.integers(1, 500),
    st.sampled_from(sorted(PERIODS)),
    st.sampled_from(["/", " per ", " / "]),
)
def test_every_amount_of_money_is_read_exactly(millionths, unit, before, times, period, slash):
    """Held against the decimals as a fraction."""
    digits = f"{millionths // 10**6:_}.{millionths % 10**6:06}"
    money = f"{unit}{digits}" if before else f"{digits} {unit}"
    found = parse_limit(f"{money}{slash}{times} {period}{'s' if len(period) > 3 and times > 1 else ''}")
    assert found.amount == Fraction(digits.replace("_", "")) * 10**6 == millionths
    assert found.per_ns == times * PERIODS[period]
    assert found.column == MONEY


@given(st.integers(1, 2**64), st.sampled_from(["tokens", "token", "tok"]), st.sampled_from(sorted(PERIODS)))
def test_every_amount_of_tokens_is_read_exactly(amount, unit, period):
    assert parse_limit(f"{amount:_} {unit}/{period}")[1:] == (amount, TOKENS, PERIODS[period], None, None)


@given(st.integers(0, 10**15), st.sampled_from(["USD", "EUR", "CHF", "JPY"]))
def test_money_is_written_as_it_would_be_read(millionths, currency):
    text = money_text(millionths, currency)
    if millionths:
        found = parse_limit(f"{text}/day")
        assert (found.amount, found.currency) == (millionths, currency)
    else:
        assert text in ("$0", "€0", "0 CHF", "¥0")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no amount"),
        ("day", "has no amount"),
        ("$/day", "has no amount"),
        ("-$5/day", "has no amount of tokens or money"),
        ("$-5/day", "not a whole number"),
        ("$5", "does not say in what time"),
        ("$5/", "does not say in what time"),
        ("5/day", "does not say of what"),
        ("$0/day", "let nothing through"),
        ("$0.000000/day", "let nothing through"),
        ("0 tokens/day", "let nothing through"),
        ("$0.0000001/day", "at most six decimals"),
        ("$1,000/day", "has a comma"),
        ("€1,50/day", "has a comma"),
        ("$.5/day", "not a whole number"),
        ("$5./day", "is not an amount of money"),
        ("$1.2.3/day", "is not an amount of money"),
        ("1.5 tokens/day", "not a whole number"),
        ("50k tokens/day", "is neither tokens nor a currency"),
        ("5_ tokens/day", "not a whole number"),
        ("$5 USD/day", "two units"),
        ("tokens 5/day", "the amount comes before its unit"),
        ("5 tokns/day", "did you mean 'tokens'"),
        ("5 dolars/day", "did you mean 'dollar'"),
        ("5 eurs/day", "did you mean 'eur"),
        ("5 xyz/day", "is neither tokens nor a currency"),
        ("500 requests/minute", "a rate of requests is for a Dispatch"),
        ("5 input_tokens/day", "input and output together"),
        ("$5/dya", "did you mean 'day'"),
        ("$5/mnth", "did you mean 'month'"),
        ("$5/monthly", "did you mean 'month'"),
        ("$5/requst", "did you mean 'request'"),
        ("$5/m", "did you mean 'min'"),
        ("$5/2 requests", "one request at a time"),
        ("$5/0 days", "lasts no time"),
        ("$5/0 weeks", "lasts no time"),
        ("$5/200 years", "is not a time (second, minute, hour, day, week, month, request)"),
        ("$5/daily", "did you mean 'day'"),
        ("$5/99999 weeks", "longer than 146 years"),
        ("$5/calendar", "is not a period of the calendar (calendar day, calendar week, calendar month)"),
        ("$5/calendarmonth", "is not a period of the calendar"),
        ("$5/calendar hour", "is not a period of the calendar"),
        ("$5/calendar hour", "shorter times slide: /hour"),
        ("$5/calendar minute", "shorter times slide: /minute"),
        ("$5/calendar year", "is not a period of the calendar"),
        ("$5/calendar request", "is not a period of the calendar"),
        ("$5/calendar months", "did you mean 'calendar month'"),
        ("$5/calendar monthly", "did you mean 'calendar month'"),
        ("$5/calendar 2 days", "did you mean 'calendar day'"),
        ("$5/2 calendar months", "one day, week or month: write it without a number"),
        ("$5/calender month", "did you mean 'calendar month'"),
        ("$5/day burst 3", "is not understood"),
        ("$5/day/hour", "is not"),
        (f"{2**64 + 1} tokens/day", "more than 2"),
        ("9" * 50 + " tokens/day", "50 digits"),
        ("$" + "9" * 5_000 + "/day", "5000 digits"),
        ("$5." + "9" * 5_000 + "/day", "six decimals"),
        ("$٥/day", "has no amount"),
        ("x" * 10_000, "has no amount"),
    ],
)
def test_a_mistake_is_an_error_that_says_why_and_what_to_write(text, says):
    with pytest.raises(InvalidLimit) as caught:
        parse_limit(text)
    assert says in str(caught.value)
    assert 'write "$5/day"' in str(caught.value)
    assert len(str(caught.value)) < 400


@given(
    st.text(max_size=30)
    | st.from_regex(r"[$€]?[0-9_.,]{1,6} ?[a-z]{0,7}/[0-9]{0,3} ?[a-z]{0,7}", fullmatch=True)
)
def test_any_text_is_a_limit_above_zero_or_the_error_of_a_limit(text):
    try:
        found = parse_limit(text)
    except InvalidLimit:
        return
    assert found.amount >= 1
    assert found.per_ns is None or (found.per_ns >= 1 and found.calendar is None)


@pytest.mark.parametrize("limit", [None, 5, b"$5/day", ["$5/day"]])
def test_a_limit_in_a_list_is_a_text(limit):
    with pytest.raises(InvalidLimit, match="is a text"):
        TokenBudget(limits=[limit])


@pytest.mark.parametrize("limits", [5, {}, {"$5/day": 1}, [], ()])
def test_limits_are_a_text_or_a_list_of_texts(limits):
    with pytest.raises(InvalidConfig, match="write"):
        TokenBudget(limits=limits)


# -- several limits


@pytest.mark.parametrize(
    "limits",
    [
        ["$5/day", "$5/hour"],
        ["$5/day", "$6/hour"],
        ["$5/request", "$5/day"],
        ["10 tokens/day", "20 tokens/request", "$5/day"],
        ["$5/month", "$5/week"],
        ["$5/calendar month", "$5/calendar day"],
        ["$5/calendar week", "$5/calendar day"],
        ["$5/calendar month", "$10/calendar week"],  # a week may be of two months
        ["$5/calendar month", "$5/request"],
        ["$5/month", "$5/calendar month"],
        ["$5/day", "$5/calendar day"],
        ["$5/calendar day", "$10/day"],  # that reaches into two days
        ["$5/calendar day", "$10/hour"],
    ],
)
def test_a_limit_that_would_limit_nothing_beside_another_one_is_an_error(limits):
    for order in (limits, limits[::-1]):
        with pytest.raises(InvalidConfig, match="would limit nothing beside"):
            TokenBudget(limits=order)


@pytest.mark.parametrize(
    ("limits", "zone"),
    [
        (["$5/calendar month", "$9/calendar week"], "UTC"),
        (["$5/calendar day", "$9/day"], "UTC"),
        (["$5/calendar day", "$9/hour"], "UTC"),
        (["$5/hour", "$5/calendar day"], "UTC"),
        (["$5/day", "$5/calendar week"], "UTC"),
        (["$5/calendar day", "$10/day"], "Europe/Berlin"),  # a day of 23 hours: three days in 24 hours
        (["$5/day", "$5/calendar day"], "Europe/Berlin"),  # a day of 25 hours
        (["$5/month", "$5/calendar month"], "Europe/Berlin"),
        (["$4/calendar month", "4 tokens/calendar day"], "UTC"),
        (["$9/calendar month", "$5/calendar day"], "UTC"),
        (["$9/calendar month", "$5/calendar week"], "UTC"),
    ],
)
def test_a_limit_that_can_refuse_something_beside_another_one_is_accepted(limits, zone):
    for order in (limits, limits[::-1]):
        assert len(plan_of_texts(order, zone).limits) == 2


@pytest.mark.parametrize("limits", [["$5/calendar day", "$6/calendar day"], ["$5/calendar day"] * 2])
def test_two_limits_of_the_same_period_of_the_calendar_are_an_error(limits):
    with pytest.raises(InvalidConfig, match="both limit the money of a calendar day; write one of them"):
        TokenBudget(limits=limits)


@pytest.mark.parametrize(
    "limits",
    [
        ["$5/day", "$6/day"],
        ["$5/day", "$5/24h"],
        ["$7/week", "7 USD/7 days"],
        ["5 tokens/day", "$1/day", "6 tokens/day"],
    ],
)
def test_two_limits_of_the_same_time_are_an_error(limits):
    with pytest.raises(InvalidConfig, match=r"both limit the (money|tokens) in the same time; write one"):
        TokenBudget(limits=limits)


def test_two_limits_of_one_request_are_an_error():
    with pytest.raises(InvalidConfig, match="both limit the money of one request; write one"):
        TokenBudget(limits=["$1/request", "$2/call"])


def test_limits_may_come_from_any_iterable(clock):
    texts = ["9 tokens/day", "3 tokens/request"]
    for limits in (texts, tuple(texts), set(texts), (text for text in texts)):
        assert TokenBudget(limits=limits, clock=clock).remaining_budget == 9


amounts = st.integers(1, 30)
some_texts = st.lists(
    st.tuples(amounts, st.sampled_from(["$", "t"]), st.sampled_from([None, 1, 7, 60])),
    min_size=1,
    max_size=4,
    unique_by=lambda limit: limit[1:],
)
moves = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 12), st.integers(0, 12)), max_size=25)


def written(amount, unit, seconds):
    of = f"${amount / 10**6:.6f}" if unit == "$" else f"{amount} tokens"
    return f"{of}/request" if seconds is None else f"{of}/{seconds}s"


@given(some_texts, moves)
def test_a_budget_of_texts_admits_what_a_plain_list_admits(limits, moves):
    """Every limit is counted over a list of (time, tokens, money); one that limits nothing is an error."""

    def admits(limits, used, now, cost):
        for amount, unit, seconds in limits:
            column = 1 + (unit == "$")
            before = 0 if seconds is None else sum(u[column] for u in used if now < u[0] + seconds)
            if before + cost[column - 1] > amount:
                return False
        return True

    def useless(limit):
        return any(
            limit is not other
            and limit[1] == other[1]
            and limit[0] >= other[0]
            and (limit[2] or 0) < (other[2] or 0)
            for other in limits
        )

    texts = [written(*limit) for limit in limits]
    if any(map(useless, limits)):
        with pytest.raises(InvalidConfig):
            plan_of_texts(texts)
        return
    allowance, used, now = Allowance(plan_of_texts(texts)), [], 0
    for passed, tokens, money in moves:
        now += passed
        fits = admits(limits, used, now, (tokens, money))
        assert allowance.fits((tokens, money), now * SECOND) == fits
        if fits:
            allowance.charge((tokens, money), now * SECOND)
            used.append((now, tokens, money))


# -- in budgets and books


def test_limits_say_everything_and_the_defaults_of_tokens_do_not_hold_beside_them(clock):
    budget = TokenBudget(limits="$5/day", clock=clock)
    with budget.reserve(10**7, money=4_000_000):
        assert budget.remaining_money == 1_000_000
    clock.advance(86_400)
    assert budget.remaining_money == 5_000_000


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens_per_hour": 100_000},
        {"max_tokens_per_request": 10_000},
        {"windows": {60: 5}},
        {"money": {60: 5}},
        {"max_money_per_request": 5},
    ],
)
def test_a_limit_in_figures_beside_texts_is_an_error_even_if_it_is_the_default(options):
    with pytest.raises(InvalidConfig, match="limits say everything"):
        TokenBudget(limits="$5/day", **options)


def test_none_beside_texts_is_what_they_mean_anyway(clock):
    assert TokenBudget(None, None, limits="$5/day", clock=clock).remaining_money == 5_000_000


@pytest.mark.parametrize("option", ["max_tokens_per_hour", "windows", "money"])
def test_a_text_where_a_figure_belongs_is_told_its_place(option):
    with pytest.raises(InvalidConfig, match="write it as limits="):
        TokenBudget(**{option: "$5/day"})


def test_a_refusal_speaks_the_currency_of_its_limits(clock):
    budget = TokenBudget(limits=["$5/day", "$0.20/request", "100 tokens/month"], key="ann", clock=clock)
    budget.record_usage(60, money=4_900_000)

    refused = refusal(budget, 0, money=110_000)
    assert "$0.11 does not fit the budget of 'ann': $0.1 of $5 left (money/day)" in str(refused)
    assert (refused.rule, refused.remaining, refused.retry_after) == ("money/day", 100_000, 86_400)
    assert "$0.3 can never fit the budget of 'ann': one request may take $0.2" in str(
        refusal(budget, 0, money=300_000)
    )
    assert "50 tokens do not fit the budget of 'ann': 40 of 100 tokens left" in str(refusal(budget, 50))


def test_a_month_of_the_calendar_never_holds_more_than_the_limit_of_a_month(clock):
    budget = TokenBudget(limits="€100/month", clock=clock)
    budget.reserve(0, money=100_000_000)
    clock.advance(30.9 * 86_400)
    assert budget.remaining_money == 0
    clock.advance(0.1 * 86_400)
    assert budget.remaining_money == 100_000_000


def test_a_tier_is_a_text_a_list_of_texts_or_options(clock):
    book = BudgetBook(
        {
            "free": "$5/day",
            "pro": ["$50/day", "1_000 tokens/request"],
            "team": {"limits": ["$500/day"]},
            "old": {"money": {86_400: 7_000_000}},
        },
        organizations={"acme": "$6/day"},
        clock=clock,
    )
    of_tier = {
        tier: book.for_user("ann", tier=tier).remaining_money for tier in ("free", "pro", "team", "old")
    }
    assert of_tier == {"free": 5_000_000, "pro": 50_000_000, "team": 500_000_000, "old": 7_000_000}
    assert book.for_user("ann", tier="pro", organization="acme").remaining_money == 6_000_000
    book.for_user("ann").record_usage(0, money=2_000_000)
    assert book.for_user("ann", tier="pro").remaining_money == 48_000_000


def test_a_book_has_one_currency():
    for tiers, organizations in (
        ({"free": "$5/day", "pro": "€5/day"}, None),
        ({"free": "$5/day"}, {"acme": ["100 tokens/day", "100 EUR/day"]}),
    ):
        with pytest.raises(InvalidConfig, match=r"mix currencies: .* is in USD and .* in EUR"):
            BudgetBook(tiers, organizations=organizations)
    with pytest.raises(InvalidConfig, match=r"mix currencies: '\$5/day' is in USD and '€1/hour' in EUR"):
        TokenBudget(limits=["$5/day", "€1/hour"])
    BudgetBook({"free": "$5/day", "pro": "50 dollars/day"}, organizations={"acme": "500 USD/day"})


def test_a_budget_has_the_currency_of_all_above_it(clock):
    acme = TokenBudget(limits="$100/day", key="acme", clock=clock)
    team = TokenBudget(limits="9 tokens/day", key="team", parent=acme, clock=clock)
    with pytest.raises(InvalidConfig, match="mix currencies"):
        TokenBudget(limits="€5/day", key="ann", parent=team, clock=clock)
    assert TokenBudget(limits="$5/day", key="ann", parent=team, clock=clock).remaining_money == 5_000_000


@pytest.mark.parametrize("tier", ["", [], ["$5/day", 5], "5/day", 5, None])
def test_a_tier_that_limits_nothing_or_cannot_be_read_is_an_error(tier):
    with pytest.raises((InvalidLimit, InvalidCapacity)):
        BudgetBook({"free": tier})


def test_limits_of_texts_are_shared_and_kept_by_a_store():
    clock = ManualClock()
    limits = ["$5/day", "100 tokens/month"]
    with BudgetBook({"free": limits}, store="memory:texts", clock=clock) as book:
        book.for_user("ann").record_usage(30, money=1_000_000)
        with BudgetBook({"free": limits}, store="memory:texts", clock=clock) as other:
            ann = other.for_user("ann")
            assert (ann.remaining_budget, ann.remaining_money) == (70, 4_000_000)
