"""Periods of the calendar, held against a clock that is read minute by minute and against a plain list."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.budgets.calendar import KEPT, Calendar, CalendarLimit, CalendarRule
from headgate.budgets.windows import MONEY, TOKENS, Allowance, Charge, Limit, Plan, charge_all
from headgate.limits import Rate

SECOND = 1_000_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR

# Clocks are put back over midnight at St. John's and Casey, forward over midnight at Havana, São Paulo and
# Beirut; Apia left out a day, and the days of Lord Howe differ by half an hour.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "America/St_Johns",
    "America/Havana",
    "America/Sao_Paulo",
    "America/Nuuk",
    "Asia/Beirut",
    "Asia/Kolkata",
    "Pacific/Apia",
    "Australia/Lord_Howe",
    "Antarctica/Casey",
]


def at(*when, zone="UTC", fold=0):
    """That local time in nanoseconds since 1970."""
    moment = datetime(*when, tzinfo=ZoneInfo(zone), fold=fold)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


def hours(unit, wall, zone):
    begin, end = Calendar(unit, zone).period(wall)
    return (end - begin) / HOUR


# -- periods


@pytest.mark.parametrize(
    ("unit", "zone", "moment", "begin", "end"),
    [
        ("day", "UTC", (2026, 11, 18, 13), (2026, 11, 18), (2026, 11, 19)),
        ("week", "UTC", (2026, 11, 18), (2026, 11, 16), (2026, 11, 23)),  # from Monday
        ("week", "UTC", (2027, 1, 1), (2026, 12, 28), (2027, 1, 4)),
        ("month", "UTC", (2026, 2, 28, 23, 59), (2026, 2, 1), (2026, 3, 1)),
        ("month", "UTC", (2028, 2, 29), (2028, 2, 1), (2028, 3, 1)),
        ("month", "UTC", (2026, 12, 31), (2026, 12, 1), (2027, 1, 1)),
        ("day", "Europe/Berlin", (2026, 3, 29, 12), (2026, 3, 29), (2026, 3, 30)),
        ("month", "Europe/Berlin", (2026, 10, 31, 23), (2026, 10, 1), (2026, 11, 1)),
    ],
)
def test_a_period_is_from_midnight_to_midnight_of_its_time_zone(unit, zone, moment, begin, end):
    period = at(*begin, zone=zone), at(*end, zone=zone)
    calendar = Calendar(unit, zone)
    assert calendar.period(at(*moment, zone=zone)) == period
    assert calendar.period(period[0]) == period
    assert calendar.period(period[1] - 1) == period
    assert calendar.period(period[1])[0] == period[1]


def test_days_have_23_24_or_25_hours_and_months_their_lengths():
    berlin = "Europe/Berlin"
    assert hours("day", at(2026, 3, 29, 12, zone=berlin), berlin) == 23
    assert hours("day", at(2026, 10, 25, 12, zone=berlin), berlin) == 25
    assert hours("day", at(2026, 10, 26, 12, zone=berlin), berlin) == 24
    assert hours("month", at(2026, 3, 5, zone=berlin), berlin) == 31 * 24 - 1
    assert hours("month", at(2026, 10, 5, zone=berlin), berlin) == 31 * 24 + 1
    assert hours("month", at(2026, 2, 5), "UTC") == 28 * 24
    assert hours("day", at(2026, 4, 5, zone="Australia/Lord_Howe"), "Australia/Lord_Howe") == 24.5


def test_a_day_without_a_midnight_begins_with_its_first_moment():
    """At Havana the clock went from 23:59:59 on the 7th to 01:00 on the 8th of March 2026."""
    begin, end = Calendar("day", "America/Havana").period(at(2026, 3, 8, 12, zone="America/Havana"))
    assert begin == at(2026, 3, 8, 1, zone="America/Havana")
    assert end - begin == 23 * HOUR


def test_a_date_that_was_left_out_is_no_period():
    """Apia went from the 29th to the 31st of December 2011."""
    apia = "Pacific/Apia"
    begin, end = Calendar("day", apia).period(at(2011, 12, 29, 12, zone=apia))
    assert end - begin == DAY
    assert Calendar("day", apia).label(end) == "2011-12-31 (Pacific/Apia)"


def test_minutes_that_come_twice_around_midnight_belong_to_the_day_that_has_begun():
    """At St. John's, 00:01 on the 7th of November 2010 was followed by 23:01 on the 6th."""
    place = "America/St_Johns"
    first = at(2010, 11, 7, zone=place)
    again = at(2010, 11, 6, 23, 30, zone=place, fold=1)
    assert first < again
    assert Calendar("day", place).period(again)[0] == Calendar("day", place).period(first)[0] == first


@pytest.mark.parametrize(
    ("unit", "label"),
    [
        ("day", "2026-12-31 (Asia/Kolkata)"),
        ("week", "2026-W53 (Asia/Kolkata)"),
        ("month", "2026-12 (Asia/Kolkata)"),
    ],
)
def test_a_period_is_called_by_its_date_and_its_time_zone(unit, label):
    assert Calendar(unit, "Asia/Kolkata").label(at(2026, 12, 31, 8)) == label


def scanned(unit, zone, wall):
    """When the period of a moment began, by a clock that is read every minute for some days before it."""
    clock = ZoneInfo(zone)
    days = {"day": 3, "week": 10, "month": 34}[unit]
    latest, begin = None, None
    minute = wall // MINUTE * 60 - days * 86_400
    while minute * SECOND <= wall:
        day = datetime.fromtimestamp(minute, clock).date()
        first = {"day": day, "week": day - timedelta(days=day.weekday()), "month": day.replace(day=1)}[unit]
        if latest is None or first > latest:
            latest, begin = first, minute * SECOND
        minute += 60
    return begin


# From 1996 to 2037; and the hours around some changes of clocks.
moments = st.integers(at(1996, 1, 1), at(2037, 1, 1)) | st.builds(
    lambda base, off: base + off,
    st.sampled_from(
        [
            at(2010, 11, 7, 2, 30),
            at(2011, 12, 30, 10),
            at(2026, 3, 8, 5),
            at(2026, 3, 29, 1),
            at(2026, 10, 25, 1),
            at(2018, 11, 4, 3),
            at(2010, 3, 4, 15),
            at(2020, 10, 3, 13),
        ]
    ),
    st.integers(-6 * HOUR, 6 * HOUR),
)


@given(st.sampled_from(["day", "day", "week", "month"]), st.sampled_from(ZONES), moments)
@settings(deadline=None, max_examples=60)
def test_a_period_begins_when_the_clock_on_the_wall_first_shows_it(unit, zone, wall):
    begin, end = Calendar(unit, zone).period(wall)
    assert begin <= wall < end
    assert begin == scanned(unit, zone, wall)


@given(st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES), moments)
@settings(deadline=None, max_examples=300)
def test_periods_follow_each_other_without_gaps(unit, zone, wall):
    calendar = Calendar(unit, zone)
    begin, end = calendar.period(wall)
    assert calendar.period(begin) == calendar.period(end - 1) == (begin, end)
    assert calendar.period(end)[0] == end
    assert calendar.period(begin - 1)[1] == begin


# -- one rule


def test_what_is_used_counts_until_the_period_ends():
    rule = CalendarRule(Calendar("day"), TOKENS)
    noon = at(2026, 11, 18, 12)
    assert rule.charge(700, noon) == at(2026, 11, 18)
    assert rule.used(at(2026, 11, 19) - 1) == 700
    assert rule.used(at(2026, 11, 19)) == 0
    assert (rule.down_to(700, noon), rule.down_to(699, noon)) == (noon, at(2026, 11, 19))


def test_a_period_that_has_begun_is_not_begun_again():
    """The clock shows the 19th, is put back to the 18th, and to the year before: the 19th goes on."""
    rule = CalendarRule(Calendar("day"), TOKENS)
    rule.charge(700, at(2026, 11, 18, 23))
    rule.charge(5, at(2026, 11, 19, 1))
    for back in (at(2026, 11, 18, 22), at(2025, 11, 18)):
        assert rule.used(back) == 5
        assert rule.charge(0, back) == at(2026, 11, 19)
    rule.charge(10, at(2025, 1, 1))
    assert rule.used(at(2026, 11, 19, 2)) == 15
    assert rule.used(at(2026, 11, 20)) == 0


def test_a_question_and_a_charge_of_nothing_begin_no_period():
    rule = CalendarRule(Calendar("day"), TOKENS)
    rule.charge(700, at(2026, 11, 18))
    later = at(2026, 11, 19)
    assert (rule.used(later), rule.charge(0, later), rule.label(later)) == (0, later, "2026-11-19 (UTC)")
    assert rule.used(at(2026, 11, 18, 12)) == 700


def test_a_correction_changes_the_period_of_the_charge_or_none():
    rule = CalendarRule(Calendar("day"), TOKENS)
    begin = rule.charge(700, at(2026, 11, 18))
    rule.correct(-200, begin)
    rule.correct(100, begin)
    assert rule.used(begin) == 600
    tomorrow = rule.charge(50, at(2026, 11, 19))
    rule.correct(-100, begin)
    rule.correct(100, begin)
    assert rule.used(tomorrow) == 50
    rule.correct(-7, at(2026, 11, 20))
    assert rule.used(at(2026, 11, 20)) == 0
    rule.correct(7, at(2026, 11, 20))  # reserved without an amount in a period that nothing has begun yet
    assert rule.used(at(2026, 11, 20)) == 7


def test_a_store_that_has_lost_a_record_is_not_told_of_less_than_nothing():
    rule = CalendarRule(Calendar("day"), TOKENS)
    rule.correct(-5, at(2026, 11, 18))
    assert rule.used(at(2026, 11, 18)) == 0
    begin = rule.charge(3, at(2026, 11, 18))
    rule.correct(-5, begin)
    assert rule.used(begin) == 0


def test_a_period_does_not_begin_before_the_last_one_has_ended():
    """The calendar was that of another time zone until today."""
    old, new = CalendarRule(Calendar("day"), TOKENS), CalendarRule(Calendar("day", "Asia/Kolkata"), TOKENS)
    old.charge(5, at(2026, 11, 18, 12))
    new.follow(old)
    assert new.charge(1, at(2026, 11, 18, 20)) == at(2026, 11, 18)
    assert new.charge(1, at(2026, 11, 19, 1)) == at(2026, 11, 19)
    assert new.end == at(2026, 11, 20, zone="Asia/Kolkata")


@pytest.mark.parametrize(
    "saved",
    [
        ("hour UTC", [0, DAY, 1]),
        ("day Nowhere/City", [0, DAY, 1]),
        ("day Europe", [0, DAY, 1]),
        ("day " + "x" * 10_000, [0, DAY, 1]),
        ("day nul\0", [0, DAY, 1]),
        ("day \udcff", [0, DAY, 1]),
        ("day UTC", [10**30, 10**30 + DAY, 1]),
        ("day UTC", [-(10**30), DAY - 10**30, 1]),
        ("day ../../etc/passwd", [0, DAY, 1]),
        ("day UTC", [0, DAY]),
        ("day UTC", [0, DAY, -1]),
        ("day UTC", [DAY, 0, 1]),
        ("day UTC", [DAY, DAY, 1]),
        ("day UTC", [0, 400 * DAY, 1]),
        ("day UTC", [0.0, DAY, 1]),
        ("day UTC", ["0", DAY, 1]),
    ],
)
def test_what_was_never_saved_is_not_restored(saved):
    with pytest.raises(ValueError):
        CalendarRule.restored(TOKENS, *saved)


# -- allowances, held against a plain list


class Model:
    """A list of (period, amount) for every limit. The latest period that has begun is the current one."""

    def __init__(self, limits):
        self.limits = limits
        self.entries = {limit.key: [] for limit in limits}
        self.latest = {limit.key: (-(10**30), -(10**30)) for limit in limits}

    def period(self, limit, wall):
        known = self.latest[limit.key]
        return known if wall < known[1] else limit.calendar.period(wall)

    def charge(self, cost, wall):
        made = {}
        for limit in self.limits:
            period = self.period(limit, wall)
            if cost[limit.column]:
                self.latest[limit.key] = period
            made[limit.key] = [period[0], cost[limit.column]]
            self.entries[limit.key].append(made[limit.key])
        return made

    def settle(self, made, actual):
        """More than the estimate begins the period of the reservation, if nothing has begun a later one."""
        for limit in self.limits:
            entry, latest = made[limit.key], self.latest[limit.key]
            if actual[limit.column] > entry[1] and entry[0] > latest[0]:
                self.latest[limit.key] = limit.calendar.period(entry[0])
            entry[1] = actual[limit.column]

    def used(self, limit, wall):
        begin = self.period(limit, wall)[0]
        return sum(used for of, used in self.entries[limit.key] if of == begin)

    def fits(self, cost, wall):
        return all(
            self.used(limit, wall) + cost[limit.column] <= limit.amount
            for limit in self.limits
            if limit.amount is not None
        )

    def left(self, column, wall):
        return min(
            (
                limit.amount - self.used(limit, wall)
                for limit in self.limits
                if limit.amount is not None and limit.column == column
            ),
            default=None,
        )

    def earliest(self, cost, wall):
        """When the cost would fit, if no other call came; None: never."""
        moments = [wall]
        for limit in self.limits:
            if limit.amount is not None:
                if cost[limit.column] > limit.amount:
                    return None
                if self.used(limit, wall) + cost[limit.column] > limit.amount:
                    moments.append(self.period(limit, wall)[1])
        return max(moments)


calendars = st.builds(
    Calendar,
    st.sampled_from(["day", "week", "month"]),
    st.sampled_from(["UTC", "Europe/Berlin", "America/Havana"]),
)
some_limits = st.lists(
    st.builds(
        CalendarLimit,
        st.none() | st.integers(1, 100),
        st.sampled_from([TOKENS, MONEY]),
        calendars,
    ),
    min_size=1,
    max_size=4,
    # Those of one unit in two time zones go on from each other, which the model does not.
    unique_by=lambda limit: limit.key,
)
costs = st.tuples(st.integers(0, 60), st.integers(0, 60))
gaps = st.sampled_from([0, 1, HOUR, 11 * HOUR, DAY, 6 * DAY, 27 * DAY])
steps = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "record", "settle", "settle", "put back"]),
        gaps,
        costs,
        st.integers(0, 99),
    ),
    max_size=40,
)


def play(limits, steps, *, overshoot=True, restart=False):
    """Yields after every step: the allowance, the model, the time and the wall time."""
    plan = Plan((None, None), limits)
    allowance, model = Allowance(plan), Model(limits)
    now, wall, open_ones = 5_000, at(2026, 3, 27, 20), []
    for kind, gap, cost, which in steps:
        if kind == "put back":
            wall -= gap
        else:
            now, wall = now + gap, wall + gap
        if kind == "reserve":
            could, when = model.fits(cost, wall), model.earliest(cost, wall)
            taken = charge_all([allowance], cost, now, now, walls=(wall, wall))
            assert isinstance(taken, Charge) == could
            if could:
                open_ones.append((taken, model.charge(cost, wall)))
            else:
                assert taken.shortage.at == (None if when is None else now + when - wall)
        elif kind == "record" and overshoot:
            allowance.settle((0, 0), cost, 0, now, wall)
            model.charge(cost, wall)
        elif kind == "settle" and open_ones:
            charge, made = open_ones.pop(which % len(open_ones))
            actual = cost if overshoot else tuple(map(min, cost, charge.cost))
            allowance.settle(charge.cost, actual, charge.at, now, wall, charge.begins_of(0))
            model.settle(made, actual)
        if restart:
            saved = [(column, name, list(state)) for column, name, state in allowance.saved(now, wall)]
            allowance = Allowance.after(saved, plan, now, wall)
        yield allowance, model, now, wall


def play_out(limits, steps, **options):
    """The model after all steps."""
    model = Model(limits)
    for _allowance, model, _now, _wall in play(limits, steps, **options):  # noqa: B007 - the last one
        pass
    return model


@given(some_limits, steps)
@settings(deadline=None, max_examples=300)
def test_every_answer_is_that_of_a_plain_list(limits, steps):
    for allowance, model, now, wall in play(limits, steps):
        for column in (TOKENS, MONEY):
            assert allowance.left(column, now, wall) == model.left(column, wall)


@given(some_limits, steps)
@settings(deadline=None, max_examples=300)
def test_no_period_ever_holds_more_than_its_limit(limits, steps):
    """Counted is what was reserved and really used, with estimates that are high enough."""
    model = play_out(limits, steps, overshoot=False)
    for limit in limits:
        used: dict[int, int] = {}
        for begin, amount in model.entries[limit.key]:
            used[begin] = used.get(begin, 0) + amount
        assert limit.amount is None or all(amount <= limit.amount for amount in used.values())


@given(some_limits, steps)
@settings(deadline=None, max_examples=200)
def test_periods_begin_in_order_and_none_twice(limits, steps):
    model = play_out(limits, steps)
    for limit in limits:
        begins = [begin for begin, used in model.entries[limit.key] if used]
        charged = [limit.calendar.period(begin)[0] for begin in begins]
        assert charged == begins


# What happens around midnight, of processes that know the time more and less exactly.
doubts = st.sampled_from([0, 0, SECOND // 2, 2 * SECOND, HOUR])
around_midnight = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "reserve", "record", "refund"]),
        st.sampled_from([0, 1, SECOND // 4, SECOND, HOUR, 23 * HOUR, DAY - SECOND // 2]),
        doubts,
        doubts,
        st.integers(1, 60),
    ),
    max_size=30,
)


@given(st.sampled_from(["day", "week", "month"]), around_midnight)
@settings(deadline=None, max_examples=300)
def test_no_period_holds_too_much_by_the_clock_on_the_wall_where_processes_know_the_time_inexactly(
    unit, steps
):
    """A charge is refused only if it does not fit, or if its period may have ended or not."""
    calendar = Calendar(unit)
    allowance = Allowance(Plan((None, None), [CalendarLimit(100, TOKENS, calendar)]))
    now, wall = DAY, at(2026, 11, 29, 23, 59, 59)  # a Sunday, and the last day but one of the month
    reserved: dict[int, int] = {}  # by when the period began in which it was reserved
    open_ones, counted = [], {}
    latest = -(10**30)
    for kind, gap, before, after, cost in steps:
        now, wall = now + gap, wall + gap
        walls = wall - before, wall + after
        begin = calendar.period(wall)[0]
        if kind == "reserve":
            first, last = (max(latest, calendar.period(each)[0]) for each in walls)
            fits = first == last and counted.get(first, 0) + cost <= 100
            taken = charge_all([allowance], (cost, 0), now - before, now + after, walls=walls)
            assert isinstance(taken, Charge) == fits
            if isinstance(taken, Charge):
                latest = first
                open_ones.append((taken, begin, first))
                reserved[begin] = reserved.get(begin, 0) + cost
                counted[first] = counted.get(first, 0) + cost
                assert reserved[begin] <= 100
            else:
                assert taken.shortage.at - taken.at == calendar.period(max(walls[0], latest))[1] - walls[0]
        elif kind == "record":
            allowance.settle((0, 0), (cost, 0), 0, now + after, walls[0])
            latest = max(latest, calendar.period(walls[0])[0])
            counted[latest] = counted.get(latest, 0) + cost
        elif open_ones:
            charge, begun, first = open_ones.pop()
            allowance.settle(charge.cost, (0, 0), charge.at, now + after, walls[0], charge.begins_of(0))
            reserved[begun] -= charge.cost[0]
            counted[first] -= charge.cost[0]


def test_a_far_process_begins_no_day_before_midnight():
    """Its question takes 1.5 seconds, and it is asked 0.4 seconds before midnight."""
    allowance = Allowance(Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("day"))]))
    wall = at(2026, 11, 19) - 4 * SECOND // 10
    late = wall + 15 * SECOND // 10
    assert isinstance(charge_all([allowance], (60, 0), 0, 0, walls=(wall, wall)), Charge)
    refused = charge_all([allowance], (40, 0), 0, late - wall, walls=(wall, late))
    assert (refused.shortage.name, refused.shortage.period) == ("tokens/calendar day", "2026-11-18 (UTC)")
    assert (refused.shortage.remaining, refused.shortage.at) == (0, 4 * SECOND // 10)
    assert allowance.left(TOKENS, 0, wall) == 40
    # A change of money alone has nothing to do with the tokens of the day.
    assert isinstance(charge_all([allowance], (0, 7), 0, late - wall, walls=(wall, late)), Charge)
    late = at(2026, 11, 19) + 15 * SECOND // 10
    assert isinstance(charge_all([allowance], (100, 0), 0, 0, walls=(at(2026, 11, 19), late)), Charge)


one_each = st.lists(
    st.builds(
        CalendarLimit,
        st.none() | st.integers(1, 100),
        st.sampled_from([TOKENS, MONEY]),
        st.builds(Calendar, st.sampled_from(["day", "week", "month"]), st.just("Europe/Berlin")),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda limit: limit.key,
)
forward = st.lists(
    st.tuples(
        st.sampled_from(["reserve", "reserve", "record", "settle"]),
        gaps,
        costs,
        st.integers(0, 99),
    ),
    max_size=30,
)


@given(one_each, forward)
@settings(deadline=None, max_examples=200)
def test_a_restart_after_every_step_changes_nothing(limits, steps):
    for allowance, model, now, wall in play(limits, steps, restart=True):
        for column in (TOKENS, MONEY):
            assert allowance.left(column, now, wall) == model.left(column, wall)


def test_a_period_is_remembered_for_a_day_after_its_end():
    """In that time the clock may be put back, and nothing is given back."""
    plan = Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("month"))])
    allowance = Allowance(plan)
    allowance.charge((100, 0), 0, at(2026, 11, 18))
    end = at(2026, 12, 1)
    assert not allowance.idle(0, end + KEPT - 1)
    again = Allowance.after(allowance.saved(0, end + KEPT - 1), plan, 0, end + KEPT - 1)
    assert (again.left(TOKENS, 0, end), again.left(TOKENS, 0, end - 1)) == (100, 0)
    assert allowance.idle(0, end + KEPT)
    assert allowance.saved(0, end + KEPT) == []
    assert allowance.forgotten_at(7, end) == 7 + KEPT


def test_a_refusal_names_the_period():
    allowance = Allowance(Plan((None, None), [CalendarLimit(100, MONEY, Calendar("week", "Asia/Kolkata"))]))
    wall = at(2026, 11, 18, 8)
    allowance.charge((0, 60), 5, wall)
    short = allowance.shortage((0, 41), 5, wall=wall)
    assert (short.name, short.remaining, short.period) == (
        "money/calendar week",
        40,
        "2026-W47 (Asia/Kolkata)",
    )
    assert short.at == 5 + at(2026, 11, 23, zone="Asia/Kolkata") - wall
    assert allowance.shortage((0, 101), 5, wall=wall).at is None


def test_what_is_used_besides_counts_in_the_period():
    allowance = Allowance(Plan((None, None), [CalendarLimit(10, TOKENS, Calendar("day"))]))
    assert allowance.fits((3, 0), 0, (7, 0), at(2026, 11, 18))
    assert not allowance.fits((3, 0), 0, (8, 0), at(2026, 11, 18))


# -- other plans


def sliding(amount, per_ns, column=TOKENS):
    return Limit(amount, column, Rate(amount, per_ns / SECOND, strict=True))


def test_a_calendar_that_is_new_counts_what_sliding_windows_know_of_its_period():
    """100 used yesterday and 30 today, under a limit of a day that slides."""
    allowance = Allowance(Plan((None, None), [sliding(1_000, DAY)]))
    midnight, base = at(2026, 11, 18), 77 * DAY  # the two clocks have nothing in common
    allowance.charge((100, 0), base - 1)
    allowance.charge((30, 0), base)
    plan = Plan((None, None), [CalendarLimit(1_000, TOKENS, Calendar("day"))])
    now, wall = base + HOUR, midnight + HOUR
    allowance.retune(plan, now, wall)
    assert allowance.left(TOKENS, now, wall) == 970


def test_another_time_zone_gives_nothing_back():
    """The calendar of the new zone goes on when the period of the old one has ended."""
    allowance = Allowance(Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("day", "Asia/Kolkata"))]))
    allowance.charge((100, 0), 0, at(2026, 11, 18, 12, zone="Asia/Kolkata"))
    allowance.retune(Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("day"))]))
    end = at(2026, 11, 19, zone="Asia/Kolkata")
    assert allowance.left(TOKENS, 0, end - 1) == 0
    assert allowance.left(TOKENS, 0, end) == 100
    allowance.charge((40, 0), 0, end)
    assert allowance.left(TOKENS, 0, at(2026, 11, 18, 23)) == 60
    assert allowance.left(TOKENS, 0, at(2026, 11, 19)) == 100


def test_periods_that_a_plan_does_not_have_go_on_being_counted_for_others():
    month = Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("month"))])
    allowance = Allowance(month)
    wall = at(2026, 11, 18)
    allowance.charge((30, 0), 0, wall)
    other = Allowance.after(allowance.saved(0, wall), Plan((None, None), [sliding(50, DAY)]), 0, wall)
    other.charge((20, 0), 0, wall + DAY)
    again = Allowance.after(other.saved(0, wall + DAY), month, 0, wall + DAY)
    assert again.left(TOKENS, 0, wall + DAY) == 50


def test_what_was_saved_without_calendars_is_read():
    """A record that was written before there were calendars has periods in nanoseconds only."""
    saved = [(TOKENS, DAY, [1, 5, 5, 70, 4, 5, 70])]
    plan = Plan((None, None), [sliding(100, DAY), CalendarLimit(100, TOKENS, Calendar("month"))])
    wall = at(2026, 11, 18)
    allowance = Allowance.after(saved, plan, HOUR, wall)
    assert allowance.left(TOKENS, HOUR, wall) == 30


def test_a_reservation_of_before_a_plan_with_calendars_gives_nothing_back_to_it():
    allowance = Allowance(Plan((None, None), []))
    charge = charge_all([allowance], (50, 0), 0, 0)
    allowance.retune(Plan((None, None), [CalendarLimit(100, TOKENS, Calendar("day"))]))
    allowance.charge((10, 0), 0, 5)
    allowance.settle(charge.cost, (0, 0), charge.at, 0, 5, charge.begins_of(0))
    assert allowance.left(TOKENS, 0, 5) == 90
    allowance.settle(charge.cost, (60, 0), charge.at, 0, 5, charge.begins_of(0))
    assert allowance.left(TOKENS, 0, 5) == 80
