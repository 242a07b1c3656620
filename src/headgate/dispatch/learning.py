"""Pure. What the limits are, found out from what responses say.

What was configured is never exceeded. A limit that the far side states is taken at its
word; where it states none, one is found by trying: more and more until it refuses, then one cut for each
episode of refusals, and back along a cubic. Only success makes anything grow.
"""

from __future__ import annotations

from math import ceil

from ..arguments import SECOND, seconds_to_ns
from ..backoff import Backoff
from ..frozen import Frozen
from ..gate.bucket import RateRule
from ..gate.decision import Rules
from ..gate.window import Probes
from ..limits import Rate, rate_of
from .episodes import Episodes
from .ramp import ALL, SOON, Ramp
from .stated import StatedScope

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TypeAlias

    from ..responses.scopes import Scope
    from ..responses.signals import Signal

    # What the far side keeps count of: name, limit, remaining, and nanoseconds until its reset.
    Figures: TypeAlias = tuple[str, int | None, int | None, int | None]

_MINUTE = 60 * SECOND
_PERIODS = {"second": SECOND, "hour": 3600 * SECOND, "day": 86_400 * SECOND, "month": 30 * 86_400 * SECOND}
_USUAL = (SECOND, _MINUTE, 3600 * SECOND, 86_400 * SECOND)

# For a quota whose next period is far off and whose end was not stated.
_QUOTA = Backoff(60, cap=900, jitter=("range", 0.5, 1.5))
_SHORTEST_PAUSE = SECOND // 100


class Advice(Frozen):
    """What a response asks of the gate: to hold calls back for `pause`, or to let them go again."""

    __slots__ = ("began", "ended", "gentle", "pause", "probes", "reason")
    began: bool  # it is the first refusal of an episode
    pause: int  # nanoseconds; 0: none
    reason: str
    gentle: bool  # afterwards calls come back at the full rate at once
    probes: Probes | None  # how single calls go meanwhile
    ended: bool  # the episode is over


class Learner:
    """The rates to go by, and what to do about refusals. `configured` of None: the rates are found out."""

    __slots__ = (
        "_burst_doubted",
        "_configured",
        "_emptied",
        "_heard_at",
        "_hints",
        "_periods",
        "_quota_refusals",
        "_ramp",
        "_refused_until",
        "_risen",
        "_share",
        "_stated",
        "_told",
        "episodes",
        "rates",
    )

    def __init__(self, configured: tuple[Rate, ...] | None, now: int) -> None:
        self._configured = configured
        self._ramp = Ramp(now) if configured is None else None
        self._share: Ramp | None = None  # which part of known limits is not refused; None: all of them
        self._refused_until: int | None = None  # until when the last episode of refusals held calls back
        self._told: dict[str, Rate] = {}  # by name of the scope
        self._periods: dict[str, int] = {}  # those that were found out
        self._hints: dict[str, tuple[int, int]] = {}  # what would be one, and how much was used then
        self._risen: dict[str, tuple[int, int, int]] = {}  # limit, what remained, and when that was asked
        self._heard_at: int | None = None  # when the call was sent that told the newest
        self._stated: dict[str, StatedScope] = {}  # by name of the scope
        self._burst_doubted = False  # a call was refused although much was said to remain
        self._quota_refusals = 0  # in a row
        self._emptied = False  # calls are held back because nothing remained
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

    def _read(self) -> tuple[Rate, ...]:
        told: dict[str, Rate] = {}  # by unit: the slowest
        for name, rate in self._told.items():
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

    def hear(self, signal: Signal, sent: int, now: int, rules: Rules, chance: float) -> Advice | None:
        """Learn from a response to a call that was sent then. Under the lock of the gate."""
        pause = 0
        if signal.scopes and sent == self._heard_at:  # else a newer one has told already
            scopes = _figures(signal.scopes)
            stated = None if signal.retry_after is None or signal.from_reset else signal.retry_after
            wait = None if stated is None else round(stated * SECOND)
            pause = self._take_levels(scopes, sent, now, rules, limited=signal.limited, stated=wait)
        if signal.limited:
            return self._hear_refusal(signal, sent, now, rules, pause, chance)
        if signal.reason in ("server_error", "timeout"):
            return self._hear_failure(signal.reason, sent, now)
        self._quota_refusals = 0
        ended = self.episodes.succeeded(sent)
        if signal.scopes and sent == self._heard_at:
            ended = ended or (self._emptied and not pause)  # something remains again
            self._emptied = pause > 0
        self.succeeded(now)
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
            if stated is None:
                return None
            return _advice(stated, signal.reason, gentle=gentle)
        began = self.episodes.refused(sent, now, gap=_gap(rules), stated=stated)
        pause = self.episodes.pause
        if began and signal.reason == "rate_limited":
            self.congested(sent, now, now + pause)
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

    def hear_limits(self, scopes: Sequence[Scope], sent_at: int) -> bool:
        """Learn limits from the scopes of a response. True: the rates are others now."""
        if self._heard_at is not None and sent_at < self._heard_at:
            return False  # a newer one has told already
        self._heard_at = sent_at
        changed = False
        for name, limit, remaining, reset in _figures(scopes):
            if limit is None or limit < 1:
                continue
            self._notice_seconds(name, limit, remaining, reset, sent_at)
            period = self._period(name, limit, remaining, reset)
            if period > _MINUTE:  # a day's worth is not given out evenly
                changed |= self._told.pop(name, None) is not None
                continue
            known = self._told.get(name)
            if known is None or known.amount != limit or known.per_ns != period:
                self._told[name] = Rate.of_ns(limit, period, None, unit=unit_of(name))
                changed = True
        if changed:
            before, self.rates = self.rates, self._read()
            changed = before != self.rates
        return changed

    def _take_levels(
        self,
        scopes: Sequence[Figures],
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
        pause = 0
        figures = [
            (unit_of(name), self._scope(name, limit, remaining, reset, sent, now), remaining, reset)
            for name, limit, remaining, reset in scopes
            if remaining is not None
        ]
        for rule in rules.rates:
            at_least: int | None = None
            for unit, scope, remaining, _reset in figures:
                if unit != rule.rate.unit:
                    continue
                least, most, empty = scope.bounds(remaining, rule, sent, now)
                at_least = least if at_least is None else min(at_least, least)
                until = scope.ends_at if scope.form == "window" and empty else 0
                if until > now and (stated is None or until <= now + stated + SECOND):
                    units = 1
                    held = rules.reentry is not None and (stated is None or until <= now + stated)
                    if held and isinstance(rule, RateRule):
                        # Calls are held back by the backoff window: then all of the new window is there.
                        units = min(scope.limit or 1, rule.burst)
                        pause = max(pause, until - now)
                    rule.hold_until(until, now, units)
                    at_least = 0
                elif most < rule.level(now):
                    rule.lower(max(0, most), now)
            if at_least is not None and isinstance(rule, RateRule):
                if not limited:
                    self._raise(rule, at_least, now)
                rule.mark(now)
        counted = {rule.rate.unit for rule in rules.rates}
        for unit, scope, remaining, reset in figures:
            if not remaining and reset and (limited or unit not in counted):
                pause = max(pause, scope.wait(reset))
        return pause

    def _scope(
        self, name: str, limit: int | None, remaining: int, reset: int | None, sent: int, now: int
    ) -> StatedScope:
        scope = self._stated.get(name)
        if scope is None:
            scope = self._stated[name] = StatedScope()
        period = self._periods.get(name)
        if period is None:
            period = _MINUTE if limit is None else self._period(name, limit, None, reset)
        scope.hear(limit, remaining, reset, period, sent, now)
        return scope

    def _raise(self, rule: RateRule, level: int, now: int) -> None:
        """Let a rate use what the far side said that it has."""
        told = [rate.amount for rate in self._told.values() if rate.unit == rule.rate.unit]
        if not (told or rule.held_until > now) or level <= max(0, rule.level(now)):
            return
        most = 0
        if told and not rule.rate.burst_given and not self._burst_doubted:
            allowed = min(rule.rate.amount, *told)
            most = 2 * allowed  # the end of one window of the far side, and the beginning of the next
            if min(level, allowed) > rule.burst:
                rule.set_burst(min(level, allowed), now)
        rule.held_until = min(rule.held_until, now)
        rule.raise_to(level, now, most)

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

    def congested(self, sent_at: int, now: int, until: int) -> bool:
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
        if ramp is None or not ramp.congested(sent_at, now, until):
            return False
        self.rates = self._read()
        return True

    def succeeded(self, now: int) -> bool:
        """A call went well. True: the rates are others now."""
        ramp = self._share if self._configured or self._told else self._ramp
        if ramp is None or not ramp.succeeded(now, self._per_minute()):
            return False
        if ramp is self._share and ramp.rate == ALL:
            self._share = None
        self.rates = self._read()
        return True

    def _per_minute(self) -> int:
        """How many requests a minute are possible at best; 0 if no rate counts them."""
        counted = [rate for rate in self.rates if rate.unit == "requests"]
        return min((rate.amount * _MINUTE // rate.per_ns for rate in counted), default=0)

    def _reduced(self, rate: Rate) -> Rate:
        """The part of a known rate that is not refused."""
        if self._share is None:
            return rate
        return rate_of(rate, max(1, rate.amount * self._share.rate // ALL))

    def _notice_seconds(
        self, name: str, limit: int, remaining: int | None, reset: int | None, sent: int
    ) -> None:
        """More came back than a limit for a minute gives back: the limit is one for a second."""
        if remaining is None or reset != SECOND:  # finer figures tell the period, longer ones are no seconds
            self._risen.pop(name, None)
            return
        before = self._risen.get(name)
        self._risen[name] = (limit, remaining, sent)
        if before is None or before[0] != limit:
            return
        if 2 * (remaining - before[1]) > limit and sent - before[2] < _MINUTE // 4:
            self._periods[name] = SECOND

    def _period(self, name: str, limit: int, remaining: int | None, reset: int | None) -> int:
        """Over which time the limit is meant. A minute, unless the name or the figures say otherwise."""
        suffix = name.rpartition("_")[2]
        if suffix in _PERIODS:
            return _PERIODS[suffix]
        for rate in self._configured or ():
            if rate.amount == limit and rate.unit == unit_of(name):
                return rate.per_ns  # it states what was configured
        coarse = reset is not None and reset % SECOND == 0 and reset < 10 * SECOND  # rounded, perhaps
        if reset and not coarse and remaining is not None and 0 <= remaining < limit:
            # A bucket is full again after as much of its period as is missing of its limit.
            used = limit - remaining
            implied = reset * limit // used
            for period in _USUAL:
                # Nearly empty, a bucket that holds less than its limit looks as if the limit were a second's.
                if period < _MINUTE and 2 * used > limit:
                    continue
                if abs(implied - period) <= period // 10:
                    hint = self._hints.get(name)
                    if hint is not None and hint[0] == period and hint[1] != used:
                        self._periods[name] = period
                    self._hints[name] = (period, used)
                    break
        known = self._periods.get(name)
        if known is not None:
            return known
        return next((period for period in _USUAL[1:] if (reset or 0) <= period), _USUAL[-1])


def unit_of(name: str) -> str:
    """What a scope counts, by its name."""
    for unit in ("input_tokens", "output_tokens"):
        if name.startswith(unit):
            return unit
    return "tokens" if "token" in name else "requests"


def _per_minute(amount: int) -> Rate:
    # A tenth of a second at once: where the limit is not known, its burst is not known either.
    return Rate(amount, 60, burst=max(1, amount // 600))


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


def _figures(scopes: Sequence[Scope]) -> list[Figures]:
    """The scopes in whole numbers. A share of a quota counts only when none of it is left."""
    return [
        (
            scope.name,
            None if scope.limit is None or scope.name.startswith("unified") else int(scope.limit),
            None if scope.remaining is None else ceil(scope.remaining),
            None if scope.reset_after is None else round(scope.reset_after * SECOND),
        )
        for scope in scopes
        if not scope.name.startswith("unified") or scope.remaining == 0
    ]


def _gap(rules: Rules) -> int:
    """The time between two calls at the present rates."""
    rates = [rule.rate for rule in rules.rates if rule.rate.unit == "requests"]
    return max((rate.per_ns // rate.amount for rate in rates), default=0)
