"""Pure. Allowances over windows of time: what was used, what is left, when more would fit.

A cost is a pair of whole numbers, tokens and money. What was used is a fact: a change of plan neither adds
to it nor takes from it. Every answer is about one moment: `now` for windows that slide, and `wall`, the
nanoseconds since 1970, for periods of the calendar. A plan without those needs no wall time.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.strict import StrictRule
from ..hints import Iterable, Sequence, later
from ..light import NamedTuple
from ..limits import Rate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .calendar import Calendar, CalendarLimit, CalendarRule
else:
    # Loaded only with a limit of the calendar.
    Calendar, CalendarLimit, CalendarRule = (
        later("headgate.budgets.calendar", name) for name in ("Calendar", "CalendarLimit", "CalendarRule")
    )

Cost = tuple[int, int]
# Column, period in nanoseconds or calendar, what its window remembers.
Saved = list[tuple[int, int | str, list[int]]]

TOKENS, MONEY = 0, 1
UNITS = ("tokens", "money")

DAY = 86_400 * SECOND
# The windows that rates have no name for. A month is any 31 days: no month of a calendar is longer.
LONG_WINDOWS = {"week": 7 * DAY, "month": 31 * DAY}
_LONG_NAMES = {per_ns: name for name, per_ns in LONG_WINDOWS.items()}
# Periods of the calendar, and how long they are at least and at most where no clock is put forward or back.
SHORTEST = {"day": DAY, "week": 7 * DAY, "month": 28 * DAY}
LONGEST = {"day": DAY, "week": 7 * DAY, "month": 31 * DAY}


class Limit(NamedTuple):
    """At most `amount` of one column in any stretch of the rate's period. None: it is only counted."""

    amount: int | None
    column: int
    rate: Rate

    @property
    def key(self) -> tuple[int, int]:
        """Equal for the same window of two plans."""
        return self.column, self.rate.per_ns

    @property
    def name(self) -> str:
        """Unit and period, e.g. `money/day`: the name of this limit in errors."""
        period = _LONG_NAMES.get(self.rate.per_ns) or self.rate.name.partition("/")[2]
        return f"{UNITS[self.column]}/{period}"


class Plan(NamedTuple):
    """What a budget allows: the caps of one request, tokens and money, and the limit of each window.

    `currency` is that of the money; None if the limits do not say it.
    """

    caps: tuple[int | None, int | None]
    limits: Sequence[Limit | CalendarLimit]
    currency: str | None = None

    @property
    def by_calendar(self) -> bool:
        """Whether any limit goes by wall time."""
        return any(not isinstance(limit, Limit) for limit in self.limits)

    def counting(self, limits: Iterable[Limit | CalendarLimit]) -> Plan:
        """This plan, counting over the periods of those limits too, without limiting them."""
        mine: dict[tuple[int, int | Calendar], Limit | CalendarLimit] = {}
        for limit in self.limits:
            mine[limit.key] = limit
        for limit in limits:
            mine.setdefault(limit.key, limit._replace(amount=None))
        return Plan(self.caps, tuple(mine.values()), self.currency)

    def limits_column(self, column: int) -> bool:
        """Whether any cost in this column can be too large."""
        return self.caps[column] is not None or any(
            limit.amount is not None for limit in self.limits if limit.column == column
        )


class Shortage(NamedTuple):
    """The limit that a cost does not fit: what is left of it, and when the cost would fit. None: never.

    `period` is what the period of the calendar is called, empty for a window that slides.
    """

    name: str
    column: int
    limit: int
    remaining: int
    at: int | None
    period: str = ""

    def outlasts(self, other: Shortage | None) -> bool:
        """Whether this one lasts longer than the other."""
        if other is None:
            return True
        return other.at is not None and (self.at is None or self.at > other.at)


# When the periods of the calendar began in which a cost counts, by the keys of their limits.
Begins = dict[tuple[int, "Calendar"], int]
_NONE: Begins = {}


class Charge(NamedTuple):
    """A cost that was charged to every level: when, by which member of a store, to which periods of each."""

    cost: Cost
    at: int
    by: str = ""
    begins: Sequence[Begins] = ()  # empty if no level goes by the calendar

    def begins_of(self, level: int) -> Begins:
        """To which periods of this level it was charged."""
        return self.begins[level] if self.begins else _NONE


class Refusal(NamedTuple):
    """A cost that was charged nowhere: which level refused it, why, and when."""

    level: int
    shortage: Shortage
    at: int


class Allowance:
    """What one budget may use, and what it has used: nothing, or what known windows and periods say."""

    __slots__ = ("_limits", "_periods", "_rules", "by_calendar", "plan")

    def __init__(
        self,
        plan: Plan,
        known: Sequence[StrictRule] = (),
        periods: Sequence[CalendarRule] = (),
        now: int = 0,
        wall: int = 0,
    ) -> None:
        self._rules = known
        self._periods = periods
        self.retune(plan, now, wall)

    # -- questions

    def shortage(self, cost: Cost, now: int, besides: Cost = (0, 0), wall: int = 0) -> Shortage | None:
        """The shortage that refuses this cost for the longest time, or None: it fits.

        What is used `besides` counts too, but is not known to the windows.
        """
        for column, cap in enumerate(self.plan.caps):
            if cap is not None and cost[column] > cap:
                return Shortage(f"{UNITS[column]}/request", column, cap, cap, None)
        worst = None
        for limit, rule in self._limits:
            if limit.amount is None:
                continue
            moment = now if isinstance(rule, StrictRule) else wall
            need, used = cost[limit.column], rule.used(moment) + besides[limit.column]
            if used + need <= limit.amount:
                continue
            at = None if need > limit.amount else rule.down_to(limit.amount - need, moment) - moment + now
            period = "" if isinstance(rule, StrictRule) else rule.label(wall)
            left = max(0, limit.amount - used)
            found = Shortage(limit.name, limit.column, limit.amount, left, at, period)
            if found.outlasts(worst):
                worst = found
        return worst

    def fits(self, cost: Cost, now: int, besides: Cost = (0, 0), wall: int = 0) -> bool:
        """Whether this cost fits in one request and in every window."""
        return self.shortage(cost, now, besides, wall) is None

    def left(self, column: int, now: int, wall: int = 0) -> int | None:
        """The least that any window has left, negative if overdrawn. None: no window limits it."""
        return min(
            (
                limit.amount - rule.used(now if isinstance(rule, StrictRule) else wall)
                for limit, rule in self._limits
                if limit.amount is not None and limit.column == column
            ),
            default=None,
        )

    def idle(self, now: int, wall: int = 0) -> bool:
        """Whether nothing of what was used counts any more."""
        return not any(rule.used(now) for rule in self._rules) and all(
            rule.over(wall) for rule in self._periods
        )

    def counts(self, now: int, wall: int = 0) -> bool:
        """Whether anything of what was used counts now."""
        return any(rule.used(now) for rule in self._rules) or any(
            period.used(wall) for period in self._periods
        )

    def between(self, cost: Cost, early: int, walls: tuple[int, int]) -> Shortage | None:
        """The limit whose period of the calendar may have ended or not, as its shortage. None: there is none.

        It is `early` or later, by wall time between `walls`. The period cannot be used any more, and the next
        one not yet.
        """
        worst = None
        for limit, rule in self._limits:
            if limit.amount is None or isinstance(rule, StrictRule) or not cost[limit.column]:
                continue
            end = rule.ends_between(*walls)
            if end is not None:
                period = rule.label(walls[0])
                found = Shortage(limit.name, limit.column, limit.amount, 0, early + end - walls[0], period)
                if found.outlasts(worst):
                    worst = found
        return worst

    # -- changes

    def charge(self, cost: Cost, now: int, wall: int = 0) -> Begins:
        """Count this cost in every window, whether or not it fits. Returns the periods in which it counts."""
        for rule in self._rules:
            rule.charge(cost[rule.column], now)
        if not self._periods:
            return _NONE
        return {period.key: period.charge(cost[period.column], wall) for period in self._periods}

    def settle(
        self, estimate: Cost, actual: Cost, taken_at: int, now: int, wall: int = 0, begins: Begins = _NONE
    ) -> None:
        """Replace what was charged at `taken_at` by what it was, where it still counts.

        `begins` are the periods to which it was charged. In others, what was used beyond the estimate counts
        now.
        """
        for rule in self._rules:
            rule.settle(estimate[rule.column], actual[rule.column], taken_at, now)
        for period in self._periods:
            more, begin = actual[period.column] - estimate[period.column], begins.get(period.key)
            if begin is not None:
                period.correct(more, begin)
            elif more > 0:
                period.charge(more, wall)

    def retune(self, plan: Plan, now: int = 0, wall: int = 0) -> None:
        """Go by another plan. What was used stays used, as far back as it is known."""
        rules: list[StrictRule] = []
        periods: list[CalendarRule] = []
        limits: list[tuple[Limit | CalendarLimit, StrictRule | CalendarRule]] = []
        for limit in plan.limits:
            if isinstance(limit, Limit):
                rules.append(_following(limit, self._rules))
                limits.append((limit, rules[-1]))
            else:
                periods.append(limit.rule(self._periods, self._rules, now, wall))
                limits.append((limit, periods[-1]))
        # An interrupt finds all or none changed.
        self.plan, self._rules, self._periods, self._limits = plan, rules, periods, limits
        self.by_calendar = bool(periods)

    def mend(self) -> None:
        """Put the totals right after a change that an interrupt broke off."""
        for rule in self._rules:
            rule.mend()

    # -- beyond the life of a process

    @classmethod
    def after(cls, saved: Saved, plan: Plan, now: int, wall: int = 0, tolerated: int = 0) -> Allowance:
        """Go on from what was saved, perhaps under another plan. ValueError: this was never saved.

        Windows that this plan does not have go on being counted, for members of other plans. What was charged
        in the future, by more than is `tolerated`, counts from now.
        """
        rules: list[StrictRule] = []
        periods: list[CalendarRule] = []
        others: list[Limit | CalendarLimit] = []
        for column, per, state in saved:
            if type(column) is not int or column not in (TOKENS, MONEY):
                raise ValueError(f"no window counts column {column}")
            if isinstance(per, str):
                from . import calendar  # noqa: PLC0415 - only limits of the calendar need it

                period = calendar.CalendarRule.restored(column, per, state)
                periods.append(period)
                others.append(calendar.CalendarLimit(None, column, period.calendar))
                continue
            if per < 1:
                raise ValueError(f"no window is {per} ns long")
            rule = StrictRule(Rate.of_ns(1, per, None, "tokens", strict=True), column)
            rule.restore(state, now + tolerated)
            rules.append(rule)
            others.append(Limit(None, column, rule.rate))
        return cls(plan.counting(others), rules, periods, now, wall)

    def saved(self, now: int, wall: int = 0) -> Saved:
        """Every window and period of which anything still counts, in plain values."""
        known: Saved = [
            (rule.column, rule.rate.per_ns, rule.saved()) for rule in self._rules if rule.used(now)
        ]
        return known + [period.saved() for period in self._periods if not period.over(wall)]

    @property
    def latest(self) -> int:
        """When it was last charged: nothing can be charged before that any more."""
        return max((rule.latest for rule in self._rules), default=0)

    def forgotten_at(self, now: int = 0, wall: int = 0) -> int:
        """From when on nothing of what was used so far counts."""
        by_calendar = (period.forgotten_at - wall + now for period in self._periods)
        return max([0, *(rule.latest + rule.rate.per_ns for rule in self._rules), *by_calendar])


def binding(levels: Sequence[Allowance], cost: Cost, now: int, wall: int = 0) -> tuple[int, Shortage] | None:
    """Which level refuses this cost for the longest time, and why. None: it fits everywhere."""
    worst = None
    for i, level in enumerate(levels):
        found = level.shortage(cost, now, wall=wall)
        if found is not None and found.outlasts(None if worst is None else worst[1]):
            worst = i, found
    return worst


def charge_all(
    levels: Sequence[Allowance],
    cost: Cost,
    early: int,
    late: int,
    by: str = "",
    walls: tuple[int, int] = (0, 0),
) -> Charge | Refusal:
    """Charge every level or, if it does not fit one of them, none. The time is between `early` and `late`.

    It counts from the latest moment that it may be now, and must fit at the earliest: no window ever holds
    too much. `walls` are these two moments by wall time: while a period of the calendar may have ended or
    not, nothing is charged to it or to the next one, which would begin too early for all.
    """
    refused = binding(levels, cost, early, walls[0])
    if refused is not None:
        return Refusal(*refused, early)
    if walls[0] != walls[1]:
        for i, level in enumerate(levels):
            uncertain = level.between(cost, early, walls)
            if uncertain is not None:
                return Refusal(i, uncertain, early)
    begins = [level.charge(cost, late, walls[0]) for level in levels]
    return Charge(cost, late, by, begins if any(begins) else ())


def _following(limit: Limit, known: Sequence[StrictRule]) -> StrictRule:
    rule = StrictRule(limit.rate, limit.column)
    same = [old for old in known if old.column == limit.column]
    # The same window, or the shortest that reaches as far back, or the one that reaches furthest.
    longer = [old for old in same if old.rate.per_ns >= limit.rate.per_ns]
    if longer:
        rule.carry_on(min(longer, key=lambda old: old.rate.per_ns))
    elif same:
        rule.carry_on(max(same, key=lambda old: old.rate.per_ns))
    return rule
