"""Pure. Allowances over sliding windows: what was used, what is left, when more would fit.

A cost is a pair of whole numbers, tokens and money. What was used is a fact: a change of plan neither adds
to it nor takes from it. Every answer is about one moment.
"""

from __future__ import annotations

from ..arguments import SECOND
from ..gate.strict import StrictRule
from ..hints import Iterable, Sequence
from ..light import NamedTuple
from ..limits import Rate

Cost = tuple[int, int]
Saved = list[tuple[int, int, list[int]]]  # column, period, what its window remembers

TOKENS, MONEY = 0, 1
UNITS = ("tokens", "money")

DAY = 86_400 * SECOND
# The windows that rates have no name for. A month is any 31 days: no month of a calendar is longer.
LONG_WINDOWS = {"week": 7 * DAY, "month": 31 * DAY}
_LONG_NAMES = {per_ns: name for name, per_ns in LONG_WINDOWS.items()}


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
    limits: Sequence[Limit]
    currency: str | None = None

    def counting(self, limits: Iterable[Limit]) -> Plan:
        """This plan, counting over the periods of those limits too, without limiting them."""
        mine = {limit.key: limit for limit in self.limits}
        for limit in limits:
            mine.setdefault(limit.key, Limit(None, limit.column, limit.rate))
        return Plan(self.caps, tuple(mine.values()), self.currency)

    def limits_column(self, column: int) -> bool:
        """Whether any cost in this column can be too large."""
        return self.caps[column] is not None or any(
            limit.amount is not None for limit in self.limits if limit.column == column
        )


class Shortage(NamedTuple):
    """The limit that a cost does not fit: what is left of it, and when the cost would fit. None: never."""

    name: str
    column: int
    limit: int
    remaining: int
    at: int | None

    def outlasts(self, other: Shortage | None) -> bool:
        """Whether this one lasts longer than the other."""
        if other is None:
            return True
        return other.at is not None and (self.at is None or self.at > other.at)


class Charge(NamedTuple):
    """A cost that was charged to every level: when, and by which member of a store."""

    cost: Cost
    at: int
    by: str = ""


class Refusal(NamedTuple):
    """A cost that was charged nowhere: which level refused it, why, and when."""

    level: int
    shortage: Shortage
    at: int


class Allowance:
    """What one budget may use, and what it has used: nothing, or what known windows say."""

    __slots__ = ("_limits", "_rules", "plan")

    def __init__(self, plan: Plan, known: Sequence[StrictRule] = ()) -> None:
        self._rules = known
        self.retune(plan)

    # -- questions

    def shortage(self, cost: Cost, now: int, besides: Cost = (0, 0)) -> Shortage | None:
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
            need, used = cost[limit.column], rule.used(now) + besides[limit.column]
            if used + need <= limit.amount:
                continue
            at = None if need > limit.amount else rule.down_to(limit.amount - need, now)
            found = Shortage(limit.name, limit.column, limit.amount, max(0, limit.amount - used), at)
            if found.outlasts(worst):
                worst = found
        return worst

    def fits(self, cost: Cost, now: int, besides: Cost = (0, 0)) -> bool:
        """Whether this cost fits in one request and in every window."""
        return self.shortage(cost, now, besides) is None

    def left(self, column: int, now: int) -> int | None:
        """The least that any window has left, negative if overdrawn. None: no window limits it."""
        return min(
            (
                limit.amount - rule.used(now)
                for limit, rule in self._limits
                if limit.amount is not None and limit.column == column
            ),
            default=None,
        )

    def idle(self, now: int) -> bool:
        """Whether nothing of what was used counts any more."""
        return not any(rule.used(now) for rule in self._rules)

    # -- changes

    def charge(self, cost: Cost, now: int) -> None:
        """Count this cost in every window, whether or not it fits."""
        for rule in self._rules:
            rule.charge(cost[rule.column], now)

    def settle(self, estimate: Cost, actual: Cost, taken_at: int, now: int) -> None:
        """Replace what was charged at `taken_at` by what it was, where it still counts."""
        for rule in self._rules:
            rule.settle(estimate[rule.column], actual[rule.column], taken_at, now)

    def retune(self, plan: Plan) -> None:
        """Go by another plan. What was used stays used, as far back as it is known."""
        rules = [_following(limit, self._rules) for limit in plan.limits]
        limits = list(zip(plan.limits, rules, strict=True))
        self.plan, self._rules, self._limits = plan, rules, limits  # an interrupt finds all or none changed

    def mend(self) -> None:
        """Put the totals right after a change that an interrupt broke off."""
        for rule in self._rules:
            rule.mend()

    # -- beyond the life of a process

    @classmethod
    def after(cls, saved: Saved, plan: Plan, now: int) -> Allowance:
        """Go on from what was saved, perhaps under another plan. ValueError: this was never saved.

        Windows that this plan does not have go on being counted, for members of other plans.
        """
        rules = []
        for column, per_ns, state in saved:
            if column not in (TOKENS, MONEY) or per_ns < 1:
                raise ValueError(f"no window counts column {column} over {per_ns} ns")
            rule = StrictRule(Rate.of_ns(1, per_ns, None, "tokens", strict=True), column)
            rule.restore(state, now)
            rules.append(rule)
        return cls(plan.counting([Limit(None, rule.column, rule.rate) for rule in rules]), rules)

    def saved(self, now: int) -> Saved:
        """Every window of which anything still counts, in plain integers."""
        return [(rule.column, rule.rate.per_ns, rule.saved()) for rule in self._rules if rule.used(now)]

    @property
    def latest(self) -> int:
        """When it was last charged: nothing can be charged before that any more."""
        return max((rule.latest for rule in self._rules), default=0)

    def forgotten_at(self) -> int:
        """From when on nothing of what was used so far counts."""
        return max((rule.latest + rule.rate.per_ns for rule in self._rules), default=0)


def binding(levels: Sequence[Allowance], cost: Cost, now: int) -> tuple[int, Shortage] | None:
    """Which level refuses this cost for the longest time, and why. None: it fits everywhere."""
    worst = None
    for i, level in enumerate(levels):
        found = level.shortage(cost, now)
        if found is not None and found.outlasts(None if worst is None else worst[1]):
            worst = i, found
    return worst


def charge_all(
    levels: Sequence[Allowance], cost: Cost, early: int, late: int, by: str = ""
) -> Charge | Refusal:
    """Charge every level or, if it does not fit one of them, none. The time is between `early` and `late`.

    It counts from the latest moment that it may be now, and must fit at the earliest: no window ever holds
    too much.
    """
    refused = binding(levels, cost, early)
    if refused is not None:
        return Refusal(*refused, early)
    for level in levels:
        level.charge(cost, late)
    return Charge(cost, late, by)


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
