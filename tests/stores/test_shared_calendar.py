"""Calendar budgets of several processes: the store says what the date is, and keeps the latest period."""

import asyncio
import json
import time
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from headgate import BudgetBook, BudgetExceeded, StoreError, TokenBudget
from headgate.budgets.calendar import Calendar
from headgate.budgets.plans import read_plan
from headgate.budgets.windows import Charge
from headgate.gate.clock import SystemClock
from headgate.sharing import redis as redis_room
from headgate.sharing.memory import MemoryStore
from headgate.sharing.records.record import Times
from headgate.sharing.records.usage import BudgetRecord, SharedUsage
from headgate.sharing.sqlite import SqliteStore
from headgate.testing import ManualClock
from patience import eventually

pytestmark = pytest.mark.alone

SECOND = 1_000_000_000
DAY = 86_400.0


@pytest.fixture
def key():
    return f"calendar {uuid4().hex}"


@pytest.fixture
def clock():
    return ManualClock(500, wall=datetime(2026, 11, 18, 12, tzinfo=UTC))


@pytest.fixture
def memory(clock):
    return MemoryStore(clock)


def refused(budget, *args, **kwargs):
    with pytest.raises(BudgetExceeded) as caught:
        budget.reserve(*args, **kwargs)
    return caught.value


# -- virtual time


def test_budgets_of_equal_keys_share_a_month_and_begin_the_next_one_together(memory, clock):
    one, other = (
        TokenBudget(limits="$100/calendar month", key="ann", store=memory, clock=clock) for _ in range(2)
    )
    one.reserve(0, money=70_000_000)
    error = refused(other, 0, money=40_000_000)
    assert (error.rule, error.remaining) == ("money/calendar month", 30_000_000)
    assert error.retry_after == pytest.approx(12.5 * DAY)
    assert "for 2026-11 (UTC)" in str(error)
    clock.advance(12.5 * DAY - 2)
    assert other.remaining_money == 30_000_000
    clock.advance(4)
    assert [one.remaining_money, other.remaining_money] == [100_000_000] * 2
    assert one.check_budget(0, money=100_000_000)
    other.reserve(0, money=10_000_000)
    assert one.remaining_money == 90_000_000


def test_a_shared_reservation_of_before_midnight_counts_before_midnight(memory, clock):
    one, other = (
        TokenBudget(limits="1_000 tokens/calendar day", key="ann", store=memory, clock=clock)
        for _ in range(2)
    )
    clock.advance(0.5 * DAY - 2)
    less, more = one.reserve(300), one.reserve(300)
    clock.advance(4)
    other.reserve(500)
    less.settle(0)
    more.settle(900)
    assert other.remaining_budget == 500
    one.record_usage(100)
    assert other.remaining_budget == 400


def test_a_reservation_of_nothing_is_settled_in_the_period_in_which_it_was_made(memory, clock):
    """Reservations of one user are not added up as usage is that was only recorded."""
    budget = TokenBudget(limits="1_000 tokens/calendar day", key="ann", store=memory, clock=clock)
    yesterday = budget.reserve(0)
    clock.advance(DAY)
    today = budget.reserve(0)
    client = budget.account.usage.client
    with client._working:  # another exchange is going on, and these two wait for it
        yesterday.settle(700)
        today.settle(200)
    client.flush()
    assert budget.remaining_budget == 800


def test_the_wall_clock_of_the_store_may_be_put_back(memory, clock):
    one, other = (
        TokenBudget(limits="1_000 tokens/calendar day", key="ann", store=memory, clock=clock)
        for _ in range(2)
    )
    one.reserve(1_000)
    clock.advance(DAY)
    other.reserve(400)
    clock.set_wall(datetime(2026, 11, 18, 13, tzinfo=UTC))
    assert one.remaining_budget == 600
    one.reserve(100).settle(50)
    assert other.remaining_budget == 550
    clock.set_wall(datetime(2026, 11, 20, tzinfo=UTC))
    assert one.remaining_budget == 1_000


def test_users_and_organizations_of_two_books_share_their_calendars(memory, clock):
    one, other = (
        BudgetBook(
            {"free": ["10 tokens/calendar day", "8 tokens/hour"]},
            organizations={"acme": "15 tokens/calendar week"},
            timezone="America/New_York",
            store=memory,
            clock=clock,
        )
        for _ in range(2)
    )
    one.for_user("ann", organization="acme").reserve(8)
    other.for_user("bob", organization="acme").reserve(7)
    error = refused(one.for_user("bob", organization="acme"), 1)
    assert (error.budget, error.rule) == ("acme", "tokens/calendar week")
    clock.advance(3_700)
    assert refused(other.for_user("ann"), 3).rule == "tokens/calendar day"
    clock.advance(16 * 3_600)  # over midnight of New York, at 05:00 of UTC
    assert other.for_user("ann").remaining_budget == 8
    clock.advance(4 * DAY)
    assert other.for_user("bob", organization="acme").remaining_budget == 8


def test_a_record_is_kept_until_a_day_after_its_period(memory, clock):
    budget = TokenBudget(limits="10 tokens/calendar day", key="ann", store=memory, clock=clock)
    budget.record_usage(1)
    ((_, (_, expires)),) = memory._records._kept.items()
    assert expires * 1_000 - clock.now() == pytest.approx(1.5 * DAY * SECOND, abs=SECOND)


def test_members_with_and_without_calendars_count_for_each_other(memory, clock):
    month = TokenBudget(limits="100 tokens/calendar month", key="ann", store=memory, clock=clock)
    hour = TokenBudget(limits="50 tokens/hour", key="ann", store=memory, clock=clock)
    month.reserve(30)
    hour.reserve(20)
    assert month.remaining_budget == 50
    assert hour.remaining_budget == 30  # a month does not say in which hour something was used


# -- real stores


class Skewed(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, days):
        self.days = days

    def wall(self):
        return time.time_ns() + round(self.days * DAY) * SECOND


def test_processes_whose_clocks_are_wrong_share_the_period_of_the_store(store, key):
    """One clock is forty days behind, one forty days ahead; the store's own time decides."""
    budgets = [
        TokenBudget(limits="100 tokens/calendar month", key=key, store=store, clock=Skewed(days))
        for days in (-40, 0, 40)
    ]
    for budget in budgets:
        budget.reserve(20)
        budget.reserve(10).settle(5)
    client = budgets[0].account.usage.client
    for budget in budgets:
        eventually(lambda budget=budget: not budget.account.usage.client.untold(), "all is told")
        eventually(lambda budget=budget: budget.remaining_budget == 25, "all three see what is left")
        error = refused(budget, 26)
        assert error.remaining == 25
    begin, end = Calendar("month").period(time.time_ns())
    assert 0 <= error.retry_after - (end - time.time_ns()) / SECOND + 5 < 10
    (record,) = budgets[0].account.usage._records.values()
    ((_column, name, (began, ends, used)),) = json.loads(record.text)[1]
    assert (name, began, ends, used) == ("month UTC", begin, end, 75)
    assert not client.lost


def test_a_month_survives_all_processes(store, key):
    with BudgetBook({"free": "$100/calendar month"}, store=store, key=key) as book:
        book.for_user("ann").reserve(0, money=30_000_000)
    with BudgetBook({"free": ["$100/calendar month", "$1/hour"]}, store=store, key=key) as book:
        assert book.for_user("ann").remaining_money == 1_000_000
        assert refused(book.for_user("ann"), 0, money=70_000_001).rule == "money/hour"
    with BudgetBook({"free": "$100/calendar month"}, store=store, key=key) as book:
        assert book.for_user("ann").remaining_money == 70_000_000


@pytest.mark.parametrize("store", ["sqlite", "valkey"], indirect=True)
def test_a_period_ends_by_the_time_of_the_store(store, key, monkeypatch):
    """A day of two seconds: it ends when the refusal says, and then all is there again."""

    def two_seconds(_calendar, wall):
        begin = wall - wall % (2 * SECOND)
        return begin, begin + 2 * SECOND

    monkeypatch.setattr(Calendar, "period", two_seconds)
    one, other = (
        TokenBudget(limits="100 tokens/calendar day", key=key, store=store, clock=Skewed(days))
        for days in (3, -3)
    )
    one.reserve(100)
    time.sleep(refused(other, 100).retry_after + 0.05)
    other.reserve(60)
    error = refused(one, 41)
    assert error.remaining == 40
    assert 0 < error.retry_after <= 2.01


@pytest.mark.parametrize(
    "window",
    [
        '[0, "day UTC", [5, 1, 2]]',
        '[0, "day UTC", [0, 86400000000000]]',
        '[0, "day UTC", [0, 86400000000000, -5]]',
        '[0, "day UTC", [0, 1e300, 5]]',
        '[0, "day UTC", null]',
        '[0, "hour UTC", [0, 86400000000000, 5]]',
        '[0, "day Europe", [0, 86400000000000, 5]]',
        '[0, "day UTC", [900000000000000000000000, 900000000086400000000000, 5]]',
        '[0, "day Nowhere/City", [0, 86400000000000, 5]]',
        '[0, "day ../../etc/passwd", [0, 86400000000000, 5]]',
        '[0, "day", [0, 86400000000000, 5]]',
        '[0, "", [0, 86400000000000, 5]]',
        '[7, "day UTC", [0, 86400000000000, 5]]',
        '[0.0, "day UTC", [0, 86400000000000, 5]]',
        "[false, 3600000000000, []]",
        "[0.0, 3600000000000, []]",
    ],
)
def test_a_period_that_makes_no_sense_is_a_store_error(server, key, window):
    with closing(server.client()) as client:
        client.set(redis_room._record(f"book {key}", '["user", "ann"]'), f"m [{{}}, [{window}]]")
    with BudgetBook({"free": "10 tokens/calendar day"}, store=server.url, key=key) as book:
        with pytest.raises(StoreError, match="cannot be read"):
            book.for_user("ann").reserve(1)
        book.for_user("bob").reserve(1)


def test_a_record_of_before_there_were_calendars_goes_on(server, key):
    """What its sliding windows know of the day counts in the day."""
    now = time.time_ns()
    window = [1, now - SECOND, now - SECOND, 6, now - 2 * SECOND, now - SECOND, 6]
    with closing(server.client()) as client:
        text = json.dumps([{}, [[0, round(DAY) * SECOND, window]]])
        client.set(redis_room._record(f"book {key}", '["user", "ann"]'), f"m {text}")
    with BudgetBook(
        {"free": ["10 tokens/calendar month", "9 tokens/day"]}, store=server.url, key=key
    ) as book:
        ann = book.for_user("ann")
        assert ann.remaining_budget == 3
        ann.reserve(2)
        assert ann.remaining_budget == 1


def test_a_file_that_is_written_slowly_says_the_wall_time_of_when_the_change_was_made(tmp_path, monkeypatch):
    """The wall clock goes on by two hours while the change is committed."""
    store, read_clock, slow = SqliteStore(f"sqlite:///{tmp_path}/slow.db"), time.time_ns, [0]
    monkeypatch.setattr("headgate.sharing.sqlite.time.time_ns", lambda: read_clock() + slow[0])
    transaction = store._transaction

    @contextmanager
    def slowly():
        with transaction() as begun:
            yield begun
        slow[0] = 7_200 * SECOND

    monkeypatch.setattr(store, "_transaction", slowly)

    async def ask():
        try:
            return await store.swap("group", {"name": (None, None, 0)}, "mark")
        finally:
            await store.close()

    before = read_clock()
    answer = asyncio.run(ask())
    assert before - SECOND < (answer.now + answer.ahead) * 1_000 < before + 60 * SECOND


def test_usage_that_is_told_around_midnight_begins_no_day_too_early(clock):
    """It was used before it was told, and by the store it is 23:59:59 or 00:00:01."""
    day = 86_400 * SECOND
    record = BudgetRecord("ann", read_plan(limits="100 tokens/calendar day"))
    usage = SharedUsage(MemoryStore(clock), "group", clock)
    state = record.read(None, Times(0, 0, day // 2))
    state.charge((60, 0), 0, day // 2)
    told = []
    usage.client.tell = told.append
    usage.settle([record], Charge((0, 0), 0), (30, 0))
    told[0].act([state], Times(day - SECOND, day + SECOND))
    assert state.left(0, day - SECOND, day - SECOND) == 10
