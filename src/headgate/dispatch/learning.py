"""Pure. What the limits are, found out from what responses say.

What was configured is never exceeded. A limit that the far side states is taken at its
word; where it states none, one is found by trying: more and more until it refuses, then one cut for each
episode of refusals, and back along a cubic. Only success makes anything grow.
"""

from __future__ import annotations

from ..arguments import SECOND, seconds_to_ns
from ..backoff import Backoff
from ..frozen import Frozen
from ..gate.bucket import RateRule
from ..gate.decision import Rules
from ..gate.window import Probes
from ..hints import Any
from ..limits import Rate, rate_of
from .episodes import Episodes
from .ramp import ALL, SOON, START, Ramp
from .stated import MINUTE, StatedScope, fallen

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..responses.signals import Signal
    from .stated import Figures

# For a quota whose next period is far off and whose end was not stated.
_QUOTA = Backoff(60, cap=900, jitter=("range", 0.5, 1.5))
_SHORTEST_PAUSE = SECOND // 100
_FIRST_PART = 16  # of a burst that was not configured, one part goes before the first response


class Advice(Frozen):
    """What a response asks of the gate: to hold calls back for `pause`, or to let them go again."""

    __slots__ = ("began", "ended", "gentle", "pause", "probes", "reason")
    began: bool  # it is the first refusal of an episode
    pause: int  # nanoseconds; 0: none
    reason: str
    gentle: bool  # afterwards calls come back at the full rate at once
    probes: Probes | None  # how single calls go meanwhile
    ended: bool  # the episode is over


# In place of advice: the rates have to be made anew before levels can be brought to what is said to remain.
OTHER_LIMITS = Advice(began=False, pause=0, reason="", gentle=False, probes=None, ended=False)


class Learner:
    """The rates to go by, and what to do about refusals. `configured` of None: the rates are found out."""

    __slots__ = (
        "_burst_doubted",
        "_configured",
        "_emptied",
        "_heard_at",
        "_least_told",
        "_quota_refusals",
        "_ramp",
        "_refused_until",
        "_share",
        "_stated",
        "_told",
        "_untold",
        "_withheld",
        "episodes",
        "rates",
    )

    def __init__(self, configured: tuple[Rate, ...] | None, now: int) -> None:
        self._configured = configured
        self._ramp = Ramp(now) if configured is None else None
        self._share: Ramp | None = None  # which part of known limits is not refused; None: all of them
        self._refused_until: int | None = None  # until when the last episode of refusals held calls back
        self._told: dict[str, Rate] = {}  # by name of the scope
        self._least_told: dict[str, int] = {}  # by unit: the smallest amount among them
        self._heard_at: int | None = None  # when the call was sent that told the newest
        self._stated: dict[str, StatedScope] = {}  # by name of the scope
        self._burst_doubted = False  # a call was refused although much was said to remain
        self._quota_refusals = 0  # in a row
        self._emptied = False  # calls are held back because nothing remained
        self._withheld: dict[str, int] = {}  # by name of the rate: units kept back until the first response
        self._untold = 0  # calls that went well, which other processes have not heard of
        self.episodes = Episodes()
        self.rates = self._read()  # what to go by now

    def configure(self, rates: tuple[Rate, ...]) -> None:
        """Other rates were set by hand."""
        self._configured = rates
        self._ramp = self._share = self._refused_until = None
        self._burst_doubted = False
        self.rates = self._read()

    @property
    def has_learned(self) -> bool:
        """Whether limits were learned that a new learner would not know."""
        return self._configured is None or bool(self._told)

    @property
    def automatic(self) -> bool:
        return self._configured is None

    # -- what processes that share a store learn together

    @property
    def configured(self) -> tuple[Rate, ...]:
        """The rates before anything was learned."""
        return (_per_minute(START),) if self._configured is None else self._configured

    def saved(self, now: int) -> dict[str, Any]:
        """What was learned, as plain values with ages in place of times."""
        return {
            "configured": None if self._configured is None else [_plain(rate) for rate in self._configured],
            "told": {name: [rate.amount, rate.per_ns] for name, rate in self._told.items()},
            "periods": {name: scope.found for name, scope in self._stated.items() if scope.found},
            "ramp": None if self._ramp is None else self._ramp.saved(now),
            "share": None if self._share is None else self._share.saved(now),
            "refused": None if self._refused_until is None else now - self._refused_until,
            "doubted": self._burst_doubted,
            "episodes": self.episodes.saved(now),
        }

    def restore(self, saved: dict[str, Any], now: int) -> None:
        """Go on from what another process saved, at a moment that is `now` here."""
        configured, ramp, share = saved["configured"], saved["ramp"], saved["share"]
        self._configured = None if configured is None else tuple(Rate.of_ns(*rate) for rate in configured)
        self._ramp = None if ramp is None else Ramp.restored(ramp, now)
        self._share = None if share is None else Ramp.restored(share, now)
        self._refused_until = None if saved["refused"] is None else now - saved["refused"]
        self._burst_doubted = saved["doubted"]
        self.episodes.restore(saved["episodes"], now)
        for name, period in saved["periods"].items():
            self._scope(name).found = period
        self._told = {
            name: Rate.of_ns(amount, period, None, unit=self._scope(name).unit)
            for name, (amount, period) in saved["told"].items()
        }
        self.rates = self._read()

    def _scope(self, name: str) -> StatedScope:
        scope = self._stated.get(name)
        if scope is None:
            scope = self._stated[name] = StatedScope(name)
        return scope

    def take_successes(self) -> int:
        """How many calls went well since the last time, as far as that teaches something."""
        successes, self._untold = self._untold, 0
        return successes

    @property
    def ramp(self) -> Ramp | None:
        """What is found by trying now: the rate, or which part of known limits is not refused."""
        return self._share if self._configured or self._told else self._ramp

    def _read(self) -> tuple[Rate, ...]:
        told: dict[str, Rate] = {}  # by unit: the slowest
        least = self._least_told = {}
        for name, rate in self._told.items():
            least[rate.unit] = min(rate.amount, least.get(rate.unit, rate.amount))
            if rate.unit == "tokens" and name == "tokens" and "input_tokens" in self._told:
                continue  # there, it only repeats the tighter of the two
            slowest = told.get(rate.unit)
            if slowest is None or _slower(rate, slowest):
                told[rate.unit] = rate
        if self._configured is not None:
            known = tuple(
                _at_most(rate, told[rate.unit]) if rate.unit in told else rate for rate in self._configured
            )
        else:
            known = tuple(told.values())
        if known or self._configured is not None:
            return tuple(map(self._reduced, known))
        assert self._ramp is not None
        return (_per_minute(self._ramp.rate),)

    # -- what responses say

    @property
    def content(self) -> bool:
        """Whether the success of a call that states no limits would change nothing."""
        if self._quota_refusals or self._withheld or not self.episodes.quiet:
            return False
        return self.ramp is None

    def withhold_bursts(self, rules: Rules, now: int) -> None:
        """Keep most of each burst that was not configured back until the first response is heard."""
        for rule in rules.rates:
            if not isinstance(rule, RateRule) or rule.rate.unit != "requests" or rule.rate.burst_given:
                continue
            kept = rule.level(now) - max(1, rule.burst // _FIRST_PART)
            if kept > 0 and rule.full(now):
                rule.lower(rule.level(now) - kept, now)
                self._withheld[rule.name] = kept

    def _end_withholding(self, rules: Rules, now: int, *, refused: bool) -> None:
        withheld, self._withheld = self._withheld, {}
        for rule in () if refused else rules.rates:
            if isinstance(rule, RateRule) and rule.name in withheld:
                rule.give_back(withheld[rule.name], now)

    def hear(
        self,
        signal: Signal,
        figures: Sequence[Figures] | None,
        sent: int,
        now: int,
        rules: Rules,
        chance: float,
    ) -> Advice | None:
        """Learn from a response to a call that was sent then. Under the lock of the gate.

        `figures` are those of its scopes, None without any; `hear_limits` has been told of them before.
        """
        pause = 0
        if self._withheld:
            self._end_withholding(rules, now, refused=signal.reason != "ok")
        newest = figures is not None and sent == self._heard_at  # else a newer one has told already
        if newest and figures:
            stated = None if signal.retry_after is None or signal.from_reset else signal.retry_after
            wait = None if stated is None else round(stated * SECOND)
            pause = self._take_levels(figures, sent, now, rules, limited=signal.limited, stated=wait)
        if signal.limited:
            return self._hear_refusal(signal, sent, now, rules, pause, chance)
        if signal.reason in ("server_error", "timeout"):
            return self._hear_failure(signal.reason, sent, now)
        ended = False
        if not self.content:
            self._quota_refusals = 0
            ended = self.episodes.succeeded(sent)
            self.succeeded(now)
        if newest:
            ended = ended or (self._emptied and not pause)  # something remains again
            self._emptied = pause > 0
        if ended or pause:
            return _advice(pause, "nothing remains", gentle=True, ended=ended)
        return None

    def _hear_refusal(
        self, signal: Signal, sent: int, now: int, rules: Rules, wait: int, chance: float
    ) -> Advice | None:
        if signal.reason in ("quota_exhausted", "too_large"):
            return None  # a wait would not help, and other calls are not concerned
        stated = None if signal.retry_after is None else seconds_to_ns(signal.retry_after, "retry_after")
        if signal.from_reset and signal.reason != "quota_window":
            stated = wait or stated
        if signal.reason == "quota_window" and stated is None:
            self._quota_refusals += not self.episodes.is_echo(sent)
            stated = _QUOTA.delay_ns(max(0, self._quota_refusals - 1), chance, None)
        if signal.reason == "overloaded" and stated is None:
            return self._hear_failure(signal.reason, sent, now)
        if stated is not None:
            # Processes that share nothing come back apart.
            stated = max(stated, _SHORTEST_PAUSE) + int(min(stated // 100, SECOND // 4) * chance)
        # What a window of the far side holds is there at once when it begins, for calls that waited for it.
        waited = rules.reentry is not None and self._ends_window(signal)
        gentle = signal.reason == "overloaded" or stated is None or waited
        if self.episodes.is_echo(sent):
            self.episodes.hear_echo(sent)
            if stated is None:
                return None
            return _advice(stated, signal.reason, gentle=gentle)
        began = self.episodes.refused(sent, now, gap=_gap(rules), stated=stated)
        pause = self.episodes.pause
        if began and signal.reason == "rate_limited":
            in_flight = 0 if rules.places is None else rules.places.in_flight
            self.congested(sent, now, now + pause, in_flight)
            self._doubt_burst(signal, rules, now)
        # An API that is out of order may still be so when it said to come back.
        tried = stated is None or signal.reason == "overloaded"
        probes = self.episodes.probes(now) if tried else None
        return _advice(pause, signal.reason, gentle=gentle, probes=probes, began=began)

    def _ends_window(self, signal: Signal) -> bool:
        """Whether a used-up fixed window of the far side is what refused a call."""
        used_up = [self._stated.get(scope.name) for scope in signal.scopes if scope.remaining == 0]
        return any(scope is not None and scope.form == "window" for scope in used_up)

    def _hear_failure(self, reason: str, sent: int, now: int) -> Advice | None:
        began = self.episodes.started_at is None
        if self.episodes.is_echo(sent) or not self.episodes.failed(sent, now):
            return None
        probes = self.episodes.probes(now)
        return _advice(self.episodes.pause, reason, gentle=True, probes=probes, began=began)

    def hear_limits(self, figures: Sequence[Figures], sent: int) -> bool:
        """Learn limits from the figures of a response. True: the rates are others now."""
        if self._heard_at is not None and sent < self._heard_at:
            return False  # a newer one has told already
        self._heard_at = sent
        changed = False
        for name, limit, remaining, reset, stated in figures:
            scope = self._scope(name)
            period = scope.find_period(limit, remaining, reset, sent, self._configured, stated)
            if not limit:
                continue
            known = self._told.get(name)
            if known is not None and known.amount == limit and known.per_ns == period:
                continue
            if period > MINUTE:  # a day's worth is not given out evenly
                changed |= self._told.pop(name, None) is not None
            else:
                self._told[name] = Rate.of_ns(limit, period, None, unit=scope.unit)
                changed = True
        if changed:
            before, self.rates = self.rates, self._read()
            changed = before != self.rates
            if fallen(before, self.rates):  # that explains what was refused until now
                self._refused_until = None
        return changed

    def _take_levels(
        self,
        figures: Sequence[Figures],
        sent: int,
        now: int,
        rules: Rules,
        *,
        limited: bool,
        stated: int | None,
    ) -> int:
        """Bring the levels of the rates to what is said to remain.

        Answers for how long calls should be held back, where no rate can do that. A reset that is longer
        than what was `stated` says nothing about when to come back.
        """
        scopes: list[tuple[StatedScope, int]] = []
        empty_scopes: list[tuple[StatedScope, int]] = []
        for name, limit, remaining, reset, _period in figures:
            if remaining is not None:
                scope = self._stated[name]
                scope.hear(limit, remaining, reset, sent, now)
                scopes.append((scope, remaining))
                if not remaining and reset:
                    empty_scopes.append((scope, reset))
        pause = 0
        for rule in rules.rates:
            unit, level = rule.rate.unit, 0
            at_least: int | None = None
            left: int | None = None
            for scope, remaining in scopes:
                if scope.unit != unit:
                    continue
                if at_least is None:
                    level = rule.level(now)
                if left is None or remaining < left:
                    left = remaining
                least, most, empty = scope.bounds(remaining, rule, sent, now)
                if at_least is None or least < at_least:
                    at_least = least
                until = scope.ends_at if empty and scope.form == "window" else 0
                if until > now and (stated is None or until <= now + stated + _rounding(stated)):
                    units = 1
                    held = rules.reentry is not None and (stated is None or until <= now + stated)
                    if held and not rule.rate.strict:
                        # Calls are held back by the backoff window: then all of the new window is there.
                        units = min(scope.limit or 1, getattr(rule, "burst", 1))
                        pause = max(pause, until - now)
                    rule.hold_until(until, now, units)
                    at_least, level = 0, rule.level(now)
                elif most < level:
                    rule.lower(max(0, most), now)
                    level = rule.level(now)
            if at_least is not None and isinstance(rule, RateRule):
                if not limited and at_least > max(0, level):
                    self._raise(rule, at_least, now)
                rule.mark(now)
            elif left is not None and (tell := getattr(rule, "tell", None)) is not None:
                tell(left, self._allowed_at_once(rule.rate) if not limited else 0, sent)
        if empty_scopes:
            counted = {rule.rate.unit for rule in rules.rates}
            for scope, reset in empty_scopes:
                if limited or scope.unit not in counted:
                    pause = max(pause, scope.wait(reset))
        return pause

    def _raise(self, rule: RateRule, level: int, now: int) -> None:
        """Let a rate use what the far side said that it has."""
        if rule.rate.unit not in self._least_told and rule.held_until <= now:
            return
        allowed = max(0, self._allowed_at_once(rule.rate))
        if min(level, allowed) > rule.burst:
            rule.set_burst(min(level, allowed), now)
        rule.held_until = min(rule.held_until, now)
        # Twice as much: the end of one window of the far side, and the beginning of the next.
        rule.raise_to(level, now, 2 * allowed)

    def _allowed_at_once(self, rate: Rate) -> int:
        """Up to which burst the far side is believed; 0: to none, and -1: it was found to allow less."""
        told = self._least_told.get(rate.unit)
        if told is None or rate.burst_given:
            return 0
        return -1 if self._burst_doubted else min(rate.amount, told)

    def _doubt_burst(self, signal: Signal, rules: Rules, now: int) -> None:
        """A call was refused. If much is said to remain, less goes at once than is said."""
        if not self._told or any(
            scope.limit and scope.remaining is not None and scope.remaining * 20 <= scope.limit
            for scope in signal.scopes
        ):
            return
        self._burst_doubted = True
        for rule in rules.rates:
            if isinstance(rule, RateRule) and rule.burst > rule.rate.burst:
                rule.set_burst(rule.rate.burst, now)

    def congested(self, sent_at: int, now: int, until: int, in_flight: int = 0) -> bool:
        """A call was told to slow down, as the first of an episode. True: the rates are others now.

        Limits that were configured or stated are only doubted when they are refused again right after a
        pause: another program may use a part of them.
        """
        ramp = self._ramp
        if self._configured or self._told:
            again = self._refused_until is not None and now - self._refused_until < SOON
            self._refused_until = max(now, until)
            if not again and self._share is None:
                return False
            ramp = self._share = self._share or Ramp(now, ALL, ALL)
        if ramp is None or not ramp.congested(
            sent_at, now, until, in_flight, self.episodes.edges.period or 0
        ):
            return False
        self.rates = self._read()
        return True

    def succeeded(self, now: int) -> bool:
        """A call went well. True: the rates are others now."""
        ramp = self.ramp
        self._untold += ramp is not None
        if ramp is None or not ramp.succeeded(now, self._per_minute()):
            return False
        if ramp is self._share and ramp.rate == ALL:
            self._share = None
        self.rates = self._read()
        return True

    def _per_minute(self) -> int:
        """How many requests a minute are possible at best; 0 if no rate counts them."""
        counted = [rate for rate in self.rates if rate.unit == "requests"]
        return min((rate.amount * MINUTE // rate.per_ns for rate in counted), default=0)

    def _reduced(self, rate: Rate) -> Rate:
        """The part of a known rate that is not refused."""
        if self._share is None:
            return rate
        return rate_of(rate, max(1, rate.amount * self._share.rate // ALL))


def _rounding(stated: int) -> int:
    """By how much a stated wait may fall short of the moment that it means."""
    return SECOND // 50 if stated % SECOND else SECOND


def _per_minute(amount: int) -> Rate:
    # A tenth of a second at once: where the limit is not known, its burst is not known either.
    return Rate(amount, 60, burst=max(1, amount // 600))


def _plain(rate: Rate) -> list[Any]:
    burst = rate.burst if rate.burst_given and not rate.strict else None
    return [rate.amount, rate.per_ns, burst, rate.unit, rate.strict]


def _slower(one: Rate, other: Rate) -> bool:
    return one.amount * other.per_ns < other.amount * one.per_ns


def _at_most(configured: Rate, told: Rate) -> Rate:
    """What was configured, or less if the far side states less."""
    if not _slower(told, configured):
        return configured
    if configured.strict:  # never more at once than was configured
        amount = min(told.amount, configured.amount)
        return Rate.of_ns(amount, told.per_ns * amount // told.amount, None, told.unit, strict=True)
    burst = min(told.amount, configured.burst) if configured.burst_given else None
    return Rate.of_ns(told.amount, told.per_ns, burst, told.unit)


def _advice(
    pause: int,
    reason: str,
    *,
    gentle: bool = False,
    probes: Probes | None = None,
    began: bool = False,
    ended: bool = False,
) -> Advice:
    return Advice(pause=pause, reason=reason, gentle=gentle, probes=probes, began=began, ended=ended)


def _gap(rules: Rules) -> int:
    """The time between two calls at the present rates."""
    rates = [rule.rate for rule in rules.rates if rule.rate.unit == "requests"]
    return max((rate.per_ns // rate.amount for rate in rates), default=0)
