"""Pure. Periods of the calendar: days, weeks and months of a time zone by wall time, and their usage.

Wall time is in nanoseconds since 1970, and a period is [begin, end). One that has begun is not begun again:
while a wall clock that was put back shows an earlier time, usage counts in the latest period that has begun.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from ..arguments import SECOND
from ..gate.bucket import LONG_AGO
from ..gate.strict import StrictRule
from .windows import DAY, LONGEST, UNITS

# For how long after its end a period is remembered: the clock may be put back by so much.
KEPT = DAY
# No period that was saved is longer: a month in which clocks are put back, even by a day.
_MOST = 33 * DAY

# Nor does one that was saved end more than 292 years from 1970: later dates may have no name.
_FARTHEST = 1 << 63

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_SECOND = timedelta(seconds=1)


@cache
def zone_of(name: str) -> tzinfo:
    """The time zone of that name. ValueError if the machine knows none."""
    if name == "UTC":
        return UTC  # there even where the machine has no list of zones
    try:
        return ZoneInfo(name)
    except (KeyError, OSError):
        raise ValueError(f"{name!r} is not a time zone that this machine knows") from None


class Calendar(NamedTuple):
    """The days, weeks or months of a time zone. Weeks begin on Monday.

    >>> Calendar("month", "Europe/Berlin").label(0)
    '1970-01 (Europe/Berlin)'
    """

    unit: str
    zone: str = "UTC"

    def period(self, wall: int) -> tuple[int, int]:
        """The period that has this moment: when it begins and ends.

        >>> Calendar("week").period(0)    # 1970 began on a Thursday
        (-259200000000000, 345600000000000)
        """
        zone, at = zone_of(self.zone), wall // SECOND
        first = self._first_day(datetime.fromtimestamp(at, zone).date())
        begin = _first_moment(first, zone)
        while True:
            following = self._first_day(first + timedelta(days=LONGEST[self.unit] // DAY))
            end = _first_moment(following, zone)
            if at < end:
                return begin * SECOND, end * SECOND
            # Clocks were put back over midnight: these minutes are of a date whose period is over.
            first, begin = following, end

    def label(self, wall: int) -> str:
        """What the period that has this moment is called, e.g. "2026-11-18 (UTC)", "2026-W47 (UTC)"."""
        begin = self.period(wall)[0] // SECOND
        day = datetime.fromtimestamp(begin, zone_of(self.zone)).date()
        if self.unit == "week":
            year, week, _ = day.isocalendar()
            return f"{year}-W{week:02} ({self.zone})"
        text = day.isoformat()
        return f"{text[:7] if self.unit == 'month' else text} ({self.zone})"

    def _first_day(self, day: date) -> date:
        if self.unit == "week":
            return day - timedelta(days=day.weekday())
        return day.replace(day=1) if self.unit == "month" else day


def _first_moment(day: date, zone: tzinfo) -> int:
    """When a date begins in a time zone, in seconds since 1970.

    At the first midnight if there are two. Where clocks are put forward at midnight, when they are.
    """
    return (datetime(day.year, day.month, day.day, tzinfo=zone) - _EPOCH) // _ONE_SECOND


class CalendarLimit(NamedTuple):
    """At most `amount` of one column in any period of the calendar. None: it is only counted."""

    amount: int | None
    column: int
    calendar: Calendar

    @property
    def key(self) -> tuple[int, Calendar]:
        """Equal for the same periods of two plans."""
        return self.column, self.calendar

    @property
    def name(self) -> str:
        """Unit and period, e.g. `money/calendar month`: the name of this limit in errors."""
        return f"{UNITS[self.column]}/calendar {self.calendar.unit}"

    def rule(
        self, known: Sequence[CalendarRule], sliding: Sequence[StrictRule], now: int, wall: int
    ) -> CalendarRule:
        """What was used in the period of this moment, as far as other rules know it."""
        rule = CalendarRule(self.calendar, self.column)
        same = [old for old in known if old.column == self.column and old.calendar.unit == self.calendar.unit]
        if same:
            # The same calendar; or that of another time zone, so that a change of zone gives nothing back.
            rule.follow(max(same, key=lambda old: (old.calendar == self.calendar, old.end)))
            return rule
        # Sliding windows know moments: what was used since the period began.
        longest = max(
            (old for old in sliding if old.column == self.column),
            key=lambda old: old.rate.per_ns,
            default=None,
        )
        if longest is not None:
            begin = now - wall + self.calendar.period(wall)[0]
            rule.charge(longest.used(max(now, begin - 1 + longest.rate.per_ns)), wall)
        return rule


class CalendarRule:
    """What was used in the latest period that has begun. Periods follow each other; none comes twice.

    >>> day = CalendarRule(Calendar("day"), 0)
    >>> begun = day.charge(700, 5)
    >>> day.used(6), day.down_to(0, 6) == DAY, day.used(DAY)
    (700, True, 0)
    """

    __slots__ = ("_latest", "calendar", "column")

    def __init__(self, calendar: Calendar, column: int) -> None:
        self.calendar = calendar
        self.column = column
        # Begin, end, used. Replaced as a whole: an interrupt finds it before a change or after it.
        self._latest = (LONG_AGO, LONG_AGO, 0)

    @property
    def key(self) -> tuple[int, Calendar]:
        """As that of its limit."""
        return self.column, self.calendar

    @property
    def end(self) -> int:
        """When the latest period ends."""
        return self._latest[1]

    def used(self, wall: int) -> int:
        """What counts at this moment."""
        _begin, end, used = self._latest
        return used if wall < end else 0

    def down_to(self, most: int, wall: int) -> int:
        """When no more than `most` will count, if no other call came."""
        return wall if self.used(wall) <= most else self._latest[1]

    def ends_between(self, early: int, late: int) -> int | None:
        """When the period of the early moment ends, if that is not after the late one."""
        end = self._as_of(early)[1]
        return end if end <= late else None

    def label(self, wall: int) -> str:
        """What the period is called in which usage of this moment counts."""
        return self.calendar.label(self._as_of(wall)[0])

    @property
    def forgotten_at(self) -> int:
        """From when on the latest period need not be known."""
        return self._latest[1] + KEPT

    def over(self, wall: int) -> bool:
        """Whether the latest period need not be known any more."""
        return wall >= self.forgotten_at

    def charge(self, taken: int, wall: int) -> int:
        """Count this, whether or not it fits. Returns when the period began in which it counts."""
        begin, end, used = self._as_of(wall)
        if taken:
            self._latest = begin, end, used + taken
        return begin

    def correct(self, more: int, begin: int) -> None:
        """Change what was charged to the period that began then. Nothing happens if that is over."""
        latest, end, used = self._latest
        if begin == latest:
            self._latest = latest, end, max(0, used + more)
        elif begin > latest and more > 0:
            self.charge(more, begin)

    def follow(self, old: CalendarRule) -> None:
        """Go on from what another rule knows."""
        self._latest = old._latest

    def _as_of(self, wall: int) -> tuple[int, int, int]:
        if wall < self._latest[1]:
            return self._latest
        begin, end = self.calendar.period(wall)
        # Where two lists of time zones differ, a period may have ended a little later.
        return max(begin, self._latest[1]), end, 0

    # -- beyond the life of a process

    def saved(self) -> tuple[int, str, list[int]]:
        """Column, calendar and the latest period, in plain values."""
        return self.column, f"{self.calendar.unit} {self.calendar.zone}", list(self._latest)

    @classmethod
    def restored(cls, column: int, calendar: str, latest: Sequence[int]) -> CalendarRule:
        """Go on from what was saved. ValueError: this was never saved, or its time zone is not known here."""
        unit, _, zone = calendar.partition(" ")
        begin, end, used = latest
        if unit not in LONGEST or any(type(number) is not int for number in latest):
            raise ValueError(f"no calendar has {calendar!r}")
        if not 0 < end - begin <= _MOST or abs(end) > _FARTHEST or used < 0:
            raise ValueError(f"no {unit} is from {begin} to {end}")
        zone_of(zone)
        rule = cls(Calendar(unit, zone), column)
        rule._latest = begin, end, used
        return rule
