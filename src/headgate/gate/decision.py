"""Pure. All the rules of one gate as one decision, all or nothing.

The mode is judged at the instant of admission and nowhere else; a call
that does not fit everywhere has taken nothing anywhere.
"""

from __future__ import annotations

from ..hints import AnyRate, Callable, Mapping, Sequence, later
from ..limits import BYTES, COLUMNS, REQUESTS, Rate
from .bucket import RateRule
from .slots import ConcurrencyRule, WeightRule
from .window import Probes, Reentry, Window

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .strict import StrictRule
else:
    StrictRule = later("headgate.gate.strict", "StrictRule")

# How far off a moment is that is not known: further than any rate makes a call wait.
FAR_OFF = 1 << 62

REFUSED, ADMITTED, THROTTLED = 0, 1, 2


class Rules:
    """Window, concurrency, bytes and rates. Any of them may be absent."""

    __slots__ = (
        "_first_rate",
        "_largest",
        "_other_rates",
        "_resumed",
        "columns",
        "final",
        "places",
        "probes",
        "rates",
        "reentry",
        "throttled_for",
        "valid_until",
        "weight",
        "window",
    )

    def __init__(
        self,
        *,
        window: Window | None = None,
        throttled_for: int = 0,
        reentry: Reentry | None = None,
        places: ConcurrencyRule | None = None,
        weight: WeightRule | None = None,
        rates: Sequence[AnyRate] = (),
        final: bool = False,
    ) -> None:
        self.window = window
        self.throttled_for = throttled_for  # how long after its end a window still counts as recent
        self.reentry = reentry  # if given, no call goes before the window ends
        self.probes: Probes | None = None  # if given, single calls go, however active the window is
        self.places = places
        self.weight = weight
        self.final = final  # what was taken is never corrected afterwards
        self.valid_until = FAR_OFF  # where limits are granted: until when
        self._largest: tuple[object, dict[str, int]] = (None, {})  # by which rates
        self._resumed: int | None = None  # the end of the window that the rates have come back from
        self.set_rates(rates)

    def set_rates(self, rates: Sequence[AnyRate]) -> None:
        self.rates = tuple(rates)
        self.columns = tuple({rate.column: None for rate in self.rates})
        self._first_rate = self.rates[0] if self.rates else None
        self._other_rates = self.rates[1:]

    # -- admission

    def entrance(self) -> Callable[[tuple[int, ...], int], int]:
        """The shortest way to `enter`: a lone rate needs no rules around it."""
        others = (self.places, self.weight, self.reentry, self.probes)
        if len(self.rates) == 1 and not any(others):
            return self.rates[0].enter
        return self.enter

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost from every rule and answer the mode, or change nothing and answer REFUSED."""
        places = self.places
        weight = self.weight
        load = cost[BYTES]
        mode = ADMITTED
        after_window = False
        window = self.window
        if window is not None and window.until is not None:
            mode = self._mode(now)
            after_window = True
            if mode == THROTTLED and weight is not None:
                load *= weight.penalty
        if mode == REFUSED:
            return REFUSED
        if places is not None:
            if mode == THROTTLED:
                if not places.fits_throttled():
                    return REFUSED
            elif places.limit is not None and places.in_flight >= places.limit:  # as `not places.fits()`
                return REFUSED
        if weight is not None:  # as `weight.fits`, without the call
            need = load if load < weight.whole else weight.whole  # noqa: FURB136 - nor that of `min`
            if weight.in_flight + need > weight.budget:
                return REFUSED
        first = self._first_rate
        if first is not None:
            others = self._other_rates
            if others:
                for rate in others:
                    if not rate.fits(cost, now):
                        return REFUSED
            if not first.enter(cost, now):
                return REFUSED
            if others:
                for rate in others:
                    rate.enter(cost, now)
        if after_window:
            self._resume(now)
        # What is held is taken last and without a call, so that Ctrl-C cannot come in between.
        if weight is not None:
            weight.in_flight += load
        if places is not None:
            places.in_flight += 1
            if mode == THROTTLED:
                places.throttled_in_flight += 1
        return mode

    def _mode(self, now: int) -> int:
        """Under which rules one who comes now would go in, if at all."""
        until = self.window.until  # type: ignore[union-attr]  # asked only if there was a window
        assert until is not None
        if self.probes is not None and now < self.probes.next_at:
            return REFUSED
        if now < until and self.waits_for_window:
            return REFUSED
        places = self.places
        if places is not None and places.adaptive:
            self.hear_window()
            if now >= until + self.throttled_for and not places.fits_regrowing(now):
                return REFUSED
        if self.throttled(now) and (places is not None or self.weight is not None):
            return THROTTLED  # without either nothing would be any tighter
        return ADMITTED

    def _resume(self, now: int) -> None:
        """A call has gone in after a window. The first: nothing was saved up while calls were held back.

        Judged now and not before: the window might have been cleared, and the rates have become others.
        """
        window = self.window
        assert window is not None
        if self.probes is not None:
            self.probes.take(now)
        assert window.until is not None
        if self.reentry is not None and self._resumed != window.until <= now:
            self._resumed = window.until
            if not window.gentle:
                for rate in self.rates:
                    rate.hold_until(window.until, now, 0)

    def hear_window(self) -> None:
        """Let the places know of what was signalled to the window."""
        places, window, until = self.places, self.window, self.throttled_until
        if places is not None and places.adaptive and window is not None and until is not None:
            assert window.started_at is not None
            before = None if window.before is None else window.before + self.throttled_for
            places.hear(window.episode, window.started_at, until, before)

    def throttled_places(self, now: int) -> int | None:
        """How many may be inside while throttled; None if throttling does not limit them."""
        self.hear_window()
        return None if self.places is None else self.places.throttled_places(now)

    @property
    def throttled_until(self) -> int | None:
        """When the last signal stops being recent; None if there never was one, or it was a gentle one."""
        window = self.window
        if window is None or window.until is None or (window.gentle and not self._adapts):
            return None
        return window.until + self.throttled_for

    @property
    def waits_for_window(self) -> bool:
        """Whether no call goes while the window is active. Probes go in a window that waits for them only."""
        if self.reentry is None or self.window is None:
            return False
        return self.probes is None or not self.window.gentle

    @property
    def _adapts(self) -> bool:
        return self.places is not None and self.places.adaptive

    def throttled(self, now: int) -> bool:
        """Is a signal recent?"""
        until = self.throttled_until
        return until is not None and now < until

    def refusal(self, cost: tuple[int, ...]) -> tuple[str, str] | None:
        """Why this cost can never be admitted, and which rule says so; or None."""
        for rate in self.rates:
            why = rate.refusal(cost)
            if why is not None:
                return why, rate.name
        return None

    def largest_cost(self) -> Mapping[str, int]:
        """By unit that a rate counts: the largest amount that one call may take."""
        known, largest = self._largest
        rates = self.rates
        if known is not rates:
            largest = {}
            for rule in rates:
                most = max(rule.rate.amount, rule.rate.burst)
                largest[rule.rate.unit] = min(largest.get(rule.rate.unit, most), most)
            self._largest = (rates, largest)
        return largest

    def held_by(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        """What keeps this cost out, and when to look again.

        No rule: nothing does. No moment: when a call ends.
        """
        window, places, weight = self.window, self.places, self.weight
        if self.probes is not None and now < self.probes.next_at:
            return "window", self.probes.next_at if self.probes.next_at < FAR_OFF else None
        if window is not None and window.active(now) and self.waits_for_window:
            return "window", window.until
        if window is not None and window.until is not None:  # else there never was a signal
            self.hear_window()
            if self.throttled(now):
                return self._held_by_throttled(cost, now)
        if places is not None and not places.fits():
            return "concurrency", None
        if weight is not None and not weight.fits(cost[BYTES]):
            return "bytes", None
        binding, at = self._held_by_rate(cost, now)
        if places is not None and places.adaptive and not places.fits_regrowing(now):
            grows = places.grows_at()
            return "concurrency", None if grows is None else max(at, grows)
        return binding, at if binding and at < now + FAR_OFF else None

    def _held_by_throttled(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        places, weight, until = self.places, self.weight, self.throttled_until
        assert until is not None
        binding, at = self._held_by_rate(cost, now)
        # A call that ends may let it in before, but the end of the throttling is certain.
        if places is not None and not places.fits_throttled():
            return "throttled concurrency" if places.fits() else "concurrency", max(at, until)
        if weight is not None and not weight.fits(cost[BYTES] * weight.penalty):
            return "bytes", max(at, until)
        return binding, at if binding and at < now + FAR_OFF else None

    def _held_by_rate(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int]:
        binding, at = None, now
        for rate in self.rates:
            earliest = rate.earliest(cost, now)
            if earliest > at:
                binding, at = rate.name, earliest
        return binding, at

    def coalesce_by(self, cost: tuple[int, ...], now: int, waiting: int, binding: str | None) -> int:
        """How much later than it could the line may look, so that several go in at once.

        No later than leaves every rate fully used, and than makes the wait of the last in
        line a sixteenth longer. Nothing unless a rate is what they wait for.
        """
        if waiting < 16 or binding is None or binding != self._held_by_rate(cost, now)[0]:
            return 0
        slack = min(rate.slack(cost, now) for rate in self.rates)
        return min(slack // 2, waiting // 16 * self.size(cost))

    def size(self, cost: tuple[int, ...]) -> int:
        """How long this cost occupies the rate it weighs on most, in nanoseconds: what tenants share."""
        size = 1
        for rule in self.rates:
            if rule.column < len(cost):
                size = max(size, cost[rule.column] * rule.rate.per_ns // rule.rate.amount)
        return size

    def certain_wait(self, cost: tuple[int, ...], now: int) -> tuple[str, int] | None:
        """The rate that makes this cost wait longest, and until when; None if that may yet change.

        It may while a call is under way, which may turn out to have cost less than estimated.
        """
        if not self.final and (self.places is None or self.places.in_flight):
            return None
        binding, at = self._held_by_rate(cost, now)
        return None if binding is None or at >= now + FAR_OFF else (binding, at)

    def certain_rates(self, now: int) -> Sequence[AnyRate]:  # noqa: ARG002 - a share is certain until it ends
        """The rates that callers behind a line are certain to wait for.

        What is only estimated may be given back, when a call turns out to have cost less. Requests are not
        estimated. Units that are granted from elsewhere may come at any time.
        """
        if self.valid_until != FAR_OFF:
            return ()
        return self.rates if self.final else [rate for rate in self.rates if rate.column == REQUESTS]

    # -- after the call

    def correct(
        self, cost: tuple[int, ...], actual: tuple[int, ...], taken_at: int, now: int
    ) -> tuple[int, ...]:
        """Replace what was estimated by what it was. Return that, where it is too much to be true reduced.

        A rate takes on no more debt at once than `Rate.most_debt`.
        """
        charged = actual
        for rate in self.rates:
            column = rate.column
            if column < len(cost):
                units = actual[column]
                # No rate has a bound below its amount.
                if units - cost[column] > rate.rate.amount and units - cost[column] > rate.rate.most_debt:
                    units = cost[column] + rate.rate.most_debt
                    charged = (*charged[:column], min(units, charged[column]), *charged[column + 1 :])
                rate.settle(cost[column], units, taken_at, now)
        return charged

    def leave(self, cost: tuple[int, ...], mode: int) -> None:
        """Give back what was held. Without a call, as it was taken."""
        places, weight = self.places, self.weight
        if weight is not None:
            weight.in_flight -= cost[BYTES] * weight.penalty if mode == THROTTLED else cost[BYTES]
        if places is not None:
            places.in_flight -= 1
            if mode == THROTTLED:
                places.throttled_in_flight -= 1

    def empty(self) -> None:
        """No call is under way: how a forked child starts."""
        if self.places is not None:
            self.places.in_flight = self.places.throttled_in_flight = 0
        if self.weight is not None:
            self.weight.in_flight = 0


# -- the rules of rates


def load_rules(rates: Sequence[Rate]) -> None:
    """Load what `successors` makes of these rates, before a lock under which nothing may be loaded."""
    if any(rate.strict for rate in rates):
        from . import strict  # noqa: F401, PLC0415 - most gates have none


def rule_for(rate: Rate, columns: Mapping[str, int] = COLUMNS) -> RateRule | StrictRule:
    """The rule that keeps this rate, counting the column of its unit."""
    if not rate.strict:
        return RateRule(rate, columns[rate.unit])
    from .strict import StrictRule  # noqa: PLC0415 - most gates have none

    return StrictRule(rate, columns[rate.unit])


def successors(
    old: Sequence[AnyRate], rates: Sequence[Rate], columns: Mapping[str, int], now: int
) -> tuple[RateRule | StrictRule, ...]:
    """Rules for these rates, each going on where the old rule of its unit and period stood.

    A rate whose period is new follows a rule of its unit, if one is left over.
    """
    left = list(old)
    rules = [rule_for(rate, columns) for rate in rates]
    followed: dict[int, AnyRate] = {}
    for same_period in (True, False):
        for i, rule in enumerate(rules):
            if i in followed:
                continue
            for other in left:
                if other.column == rule.column and (other.rate.per_ns == rule.rate.per_ns or not same_period):
                    followed[i] = other
                    left.remove(other)
                    break
    for i, rule in enumerate(rules):
        if i in followed:
            rule.follow(followed[i], now)
        elif isinstance(rule, RateRule):
            rule.made_at = now
    return tuple(rules)
