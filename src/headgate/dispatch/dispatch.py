"""Layered admission: concurrency, throttled concurrency, bytes and rates in one decision."""

from __future__ import annotations

from ..arguments import SECOND, Coroutine, never_awaited, not_awaitable, positive_int, seconds_to_ns
from ..backoff import Backoff
from ..errors import InvalidConfig, UnknownName
from ..frozen import Frozen
from ..gate.bucket import successors
from ..gate.clock import SYSTEM, default_random
from ..gate.decision import Rules
from ..gate.gate import Gate
from ..gate.slots import ConcurrencyRule
from ..gate.weight import WeightRule
from ..limits import COLUMNS, read_cost, read_rates
from .backoff_window import BackoffWindow
from .learning import Learner, unit_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Hashable, Mapping
    from typing import ClassVar, Literal, TypeVar

    from ..gate.admission import Permit
    from ..gate.decision import AnyRate
    from ..gate.line import Ticket
    from ..limits import Rate
    from ..responses.signals import Signal
    from ..sharing.pool.member import Link
    from ..sharing.store import Store
    from ..typing import Clock, Observer, Rates, Seconds
    from ..verdict import Verdict

    T = TypeVar("T")


# A refusal that does not say for how long: everybody waits longer each time, up to a minute.
_UNTOLD = Backoff(1, cap=60, jitter=("range", 0.5, 1.5))
# Where the next window of a quota is far off and nobody said how far, it is tried this seldom.
_QUOTA = Backoff(60, cap=900, jitter=("range", 0.5, 1.5))
_SHORTEST_PAUSE = SECOND // 10


class RateLevel(Frozen):
    """How one rate stands: `level` units could go now (negative: in debt), of `burst` at most."""

    __slots__ = ("burst", "level", "limit", "name", "per", "unit")
    name: str
    unit: str
    limit: int
    per: float
    burst: int
    level: int


class DispatchSnapshot(Frozen):
    """How a Dispatch stands at one instant. What nothing limits is None.

    `binding` is the rule the first in line waits for and `next_at` the moment, on the clock
    of the Dispatch, at which it looks again; None if somebody has to finish first.
    """

    __slots__ = (
        "backoff_active",
        "binding",
        "byte_budget",
        "bytes_in_flight",
        "concurrency",
        "in_flight",
        "next_at",
        "rates",
        "throttled_concurrency",
        "throttled_in_flight",
        "waiting",
    )
    backoff_active: bool
    in_flight: int | None
    throttled_in_flight: int | None
    bytes_in_flight: int | None
    waiting: int
    concurrency: int | None
    throttled_concurrency: int | None
    byte_budget: int | None
    binding: str | None
    next_at: float | None
    rates: tuple[RateLevel, ...]


class Dispatch(Gate):
    """The gate in front of one API, for any number of threads and event loops.

    >>> from headgate import Dispatch
    >>> api = Dispatch("api", rates=["500/minute", "200_000 tokens/minute"], concurrency=64)
    >>> with api.admit(tokens=1200) as permit:
    ...     permit.settle(tokens=900)           # the estimate becomes the fact

    After a backoff signal, while `window` is open and `backoff_window` seconds beyond, calls
    go under tighter rules: `throttled_concurrency` of them at once, each byte counting
    `byte_penalty_multiplier` times. `throttled_concurrency="adaptive"` instead cuts the
    concurrency to 70 % once per episode and lets it grow back over another `backoff_window`
    seconds. With `pause=True` nobody goes at all before the window's end.

    `concurrency`, `throttled_concurrency` or `byte_budget` of None takes that layer away.
    Two Dispatches share nothing unless they are given the same `window`. Tenants that wait
    share by cost, equally unless `weights` gives some of them more, e.g. `{"gold": 4}`.

    With `store` everybody who is given the same store and key shares all of it, the window included: in
    this process (`"memory:"`), on this machine (`"sqlite:///limits.db"`) or in a fleet
    (`"redis://limits.internal/0"`). Limits other than those in force replace them for all. If the store
    cannot be asked, `on_loss` says how to go on: by this process's "share" of the limits, "open" or "closed".
    `acquire_backoff`, a Backoff, paces how the store is asked again for places that others have; every 20 ms
    without it.

    With `rates="auto"` the limits are those that responses state, given to `observe`, or else found by
    trying. Rates that are configured are lowered to what responses state, never raised above.
    """

    __slots__ = ("_learner", "_link", "_name", "_random", "_untold", "window")

    _names: ClassVar[dict[str, Dispatch]] = {}

    def __init__(
        self,
        key: Hashable = "default",
        *,
        window: BackoffWindow | None = None,
        concurrency: int | None = 400,
        throttled_concurrency: int | Literal["adaptive"] | None = 10,
        byte_budget: int | None = 5 * 1024 * 1024,
        backoff_window: Seconds = 10.0,
        byte_penalty_multiplier: int = 20,
        rates: Rates | Literal["auto"] = (),
        pause: bool = False,
        max_waiting: int | None = None,
        weights: Mapping[Hashable, int] | None = None,
        acquire_backoff: Backoff | None = None,
        store: Store | str | None = None,
        on_loss: Literal["share", "open", "closed"] = "share",
        name: str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        if window is None:
            window = BackoffWindow(clock=clock)
            window._key = key
        elif not isinstance(window, BackoffWindow):
            raise InvalidConfig(
                f'window={window!r} is not a BackoffWindow; write BackoffWindow.for_key("api")'
            )
        elif window._clock is not clock:
            raise InvalidConfig(
                "a Dispatch and its window must tell time by the same clock; give both the same clock="
            )
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidConfig(f'name={name!r} is not a name; write a string, e.g. name="openai"')
        tail = seconds_to_ns(backoff_window, "backoff_window")
        now = clock.now()
        self._learner = Learner(None if rates == "auto" else read_rates(rates), now)
        self._random = random
        self._untold = 0  # refusals in a row that did not say for how long
        read = self._learner.rates()
        columns = dict(COLUMNS)
        for rate in read:
            columns.setdefault(rate.unit, len(columns))
        rules = Rules(
            window=window._window,
            tail=tail,
            reentry=window._reentry() if pause else None,
            places=_places(concurrency, throttled_concurrency, tail),
            weight=_weight(byte_budget, byte_penalty_multiplier),
            rates=successors((), read, columns, now),
        )
        super().__init__(
            key,
            rules,
            columns=columns,
            max_waiting=max_waiting,
            weights=weights,
            observer=observer,
            clock=clock,
        )
        self.window = window
        window._watch(self)
        self._link: Link | None = None
        if store is not None:
            self._share(store, on_loss, read, acquire_backoff)
        elif acquire_backoff is not None:
            raise InvalidConfig(
                "acquire_backoff paces how a store is asked again; without store= nobody asks twice, "
                "those who wait are woken: leave it out"
            )
        self._name = name
        if name is not None and self._names.setdefault(name, self) is not self:
            raise InvalidConfig(
                f"a Dispatch named {name!r} exists already; use Dispatch.named({name!r}), or close it first"
            )

    def _share(self, store: Store | str, on_loss: str, rates: tuple[Rate, ...], pace: Backoff | None) -> None:
        """From now on this is one of many at the same pool."""
        if not isinstance(self._key, str) or not self._key:
            raise InvalidConfig(
                f'key={self._key!r}: in a store a key is a string, e.g. Dispatch("openai", ...)'
            )
        if on_loss not in ("share", "open", "closed"):
            raise InvalidConfig(f'on_loss={on_loss!r} is unknown; write "share", "open" or "closed"')
        if pace is not None and not isinstance(pace, Backoff):
            raise InvalidConfig(
                f"acquire_backoff={pace!r} is not a Backoff; write e.g. acquire_backoff=Backoff(0.02, cap=1)"
            )
        for rate in rates:
            if rate.strict:
                raise InvalidConfig(f"{str(rate)!r}: a strict rate cannot be shared; give it a burst instead")
        if self._learner.automatic:
            raise InvalidConfig('rates="auto" cannot be shared by processes; write the rates')
        from ..sharing.pool.member import Link  # noqa: PLC0415 - only those who share load what it takes

        rules = self._rules
        places, weight = rules.places, rules.weight
        limits = [
            0 if places is None or places.limit is None else places.limit,
            0 if places is None or places.throttled_limit is None else places.throttled_limit,
            0 if weight is None else weight.budget,
            rules.tail // 1000,
        ]
        self.__class__ = _SharedDispatch  # the same, and it tells the link what happens
        self._link = Link(
            self,  # type: ignore[arg-type]  # it is one now
            store,
            self._key,
            rates,
            limits,
            on_loss=on_loss,
            pace=pace,
        )
        self._link.start(timeout=2.0)

    @classmethod
    def named(cls, name: str) -> Dispatch:
        """The Dispatch that was made with that name and has not been closed."""
        try:
            return cls._names[name]
        except KeyError:
            known = ", ".join(map(repr, cls._names)) or "none"
            raise UnknownName(
                f"no Dispatch is named {name!r} (known: {known}); make one with Dispatch(..., name={name!r})"
            ) from None

    # -- running a call

    def with_rate_limit(self, estimated_bytes: int, fn: Callable[[], T]) -> T:
        """Wait for a place, run the function, give the place back, return what it returned."""
        with self.admit(bytes=estimated_bytes):
            result = fn()
            if result.__class__ is Coroutine:
                raise never_awaited(result, "with_rate_limit")
            return result

    async def with_rate_limit_async(self, estimated_bytes: int, fn: Callable[[], Awaitable[T]]) -> T:
        """Wait for a place, await the function, give the place back, return what it returned."""
        async with self.admit(bytes=estimated_bytes):
            coming = fn()
            if not hasattr(coming, "__await__"):
                raise not_awaitable(fn, "with_rate_limit_async")
            return await coming

    # -- signals and changes

    def set_backoff(self, duration: Seconds, *, reason: str = "") -> None:
        """The API said "slow down": open the shared window, and go by the tighter rules."""
        self.window.set(duration, reason=reason)

    def set_rates(self, rates: Rates) -> None:
        """Other rates from now on, for those who wait too. What was used stays used."""
        read = read_rates(rates)
        self._learner.configure(read)
        self._retune(read)

    def observe(self, signal: Signal, *, sent_at: float | None = None) -> None:
        """Learn from what a response said, as `headgate.http.read_signal` reads it.

        "Slow down" closes the shared window for as long as it asked and a little more, once for all calls
        that hear the same. Stated limits become the rates, where these are "auto" or higher; what is said
        to remain lowers what there is. `sent_at`, on the clock of the Dispatch (`time.monotonic()`), is when
        the call was sent: without it, answers of one burst cannot be told from news.

        >>> from headgate import Dispatch
        >>> from headgate.http import read_signal
        >>> api = Dispatch("api", rates="auto")
        >>> headers = {"x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "599"}
        >>> api.observe(read_signal(200, headers))
        >>> api.snapshot().rates[0].limit
        600
        """
        now = self._now()
        before = self._learner.rates()
        sent = now if sent_at is None else min(now, round(sent_at * SECOND))
        slow_down = signal.limited and signal.reason not in ("quota_exhausted", "too_large")
        if slow_down:
            self._close_window(signal, now, sent)
        pause = self._under_lock(lambda now: self._learn_locked(signal, now, sent))
        if pause:
            self.window._signal(pause, "nothing remains", sent)
        self._heed(before, self._learner.rates())

    def _heed(self, _before: tuple[Rate, ...], learned: tuple[Rate, ...]) -> None:
        if learned != tuple(rule.rate for rule in self._rules.rates):
            self._retune(learned)

    def _close_window(self, signal: Signal, now: int, sent: int) -> None:
        window = self.window._window
        if signal.retry_after is not None:
            told = max(seconds_to_ns(signal.retry_after, "retry_after"), _SHORTEST_PAUSE)
            duration = told + int(min(told // 10, 5 * SECOND) * self._random())
        else:
            if window.opened_at is None or sent > window.opened_at:
                self._untold += 1
            backoff = _QUOTA if signal.reason == "quota_window" else _UNTOLD
            duration = backoff.delay_ns(max(0, self._untold - 1), self._random(), None)
            if window.closed(now):
                return  # an echo of what everybody has heard
        self.window._signal(duration, signal.reason, sent)

    def _learn_locked(self, signal: Signal, now: int, sent: int) -> int:
        """What the response teaches about rates. Answers for how long nobody should go at all."""
        learner = self._learner
        scopes = [
            (
                scope.name,
                None if scope.limit is None else int(scope.limit),
                None if scope.remaining is None else int(scope.remaining),
                None if scope.reset_after is None else round(scope.reset_after * SECOND),
            )
            for scope in signal.scopes
        ]
        pause = 0
        if scopes and learner.heard(scopes, sent):
            for name, limit, remaining, reset in scopes:
                if remaining is not None:
                    pause = max(pause, self._remains_locked(name, limit, remaining, reset, now))
        if signal.reason == "rate_limited":
            learner.congested(sent, now, self.window._window.until or now)
        elif not signal.limited:
            learner.succeeded(now)
            self._untold = 0
        return 0 if signal.limited else pause

    def _remains_locked(
        self, name: str, limit: int | None, remaining: int, reset: int | None, now: int
    ) -> int:
        unit = unit_of(name)
        pause = self._learner.pause(name, limit, reset) if remaining == 0 and reset else 0
        rules: list[AnyRate] = [rule for rule in self._rules.rates if rule.rate.unit == unit]
        for rule in rules:
            if pause:
                rule.hold_until(now + pause, now)
            elif remaining < rule.level(now):
                rule.lower(remaining, now)
        return 0 if rules else pause

    def close(self) -> None:
        """Refuse everybody who waits and everybody who comes, and free the name."""
        super().close()
        if self._name is not None and self._names.get(self._name) is self:
            del self._names[self._name]

    # -- looking

    def snapshot(self) -> DispatchSnapshot:
        """How it stands right now, and why the first in line waits."""
        with self._lock:
            now = self._now()
            rules = self._rules
            places, weight = rules.places, rules.weight
            binding: str | None = None
            look_at: int | None = None
            first = self._line.first()
            if first is not None:
                binding, look_at = self._held_by_locked(first.cost, now)
                if binding is None:  # it is due, and its alarm is about to ring
                    binding = self._binding
                    look_at = None if self._watch is None else self._watch[1]
            snapshot = DispatchSnapshot(
                backoff_active=rules.throttled(now),
                in_flight=None if places is None else places.in_flight,
                throttled_in_flight=None if places is None else places.throttled_in_flight,
                bytes_in_flight=None if weight is None else weight.in_flight,
                waiting=self._line.waiting,
                concurrency=None if places is None else places.limit,
                throttled_concurrency=rules.throttled_places(now),
                byte_budget=None if weight is None else weight.budget,
                binding=binding,
                next_at=None if look_at is None else look_at / SECOND,
                rates=tuple(
                    RateLevel(
                        name=rule.name,
                        unit=rule.rate.unit,
                        limit=rule.rate.amount,
                        per=rule.rate.per,
                        burst=rule.rate.burst,
                        level=rule.level(now),
                    )
                    for rule in rules.rates
                ),
            )
        if self._tray:
            self._carry_out()
        self.window._notice_end(now)
        return snapshot

    def _learn(self, verdict: Verdict, sent_at: int) -> None:
        if verdict.kind == "throttled" and verdict.retry_after is not None:
            duration = seconds_to_ns(verdict.retry_after, "retry_after")
            self.window._signal(duration, "throttled", sent_at)

    def _tell_admitted(self, permit: Permit, rule: str | None, tenant: Hashable) -> None:
        self.window._notice_end(permit._taken_at)  # what let it in may have been the end of the window
        super()._tell_admitted(permit, rule, tenant)

    def __repr__(self) -> str:
        rates = ", ".join(str(rule.rate) for rule in self._rules.rates) or "no rates"
        return f"<Dispatch {self._key!r}: {rates}, {self._line.waiting} waiting>"


class _SharedDispatch(Dispatch):
    """A Dispatch that shares a pool: whatever its calls do may be news for the link."""

    __slots__ = ()
    _link: Link

    def try_admit(
        self,
        _keywords_only: None = None,
        bytes: int = 0,
        tokens: int = 0,
        cost: int | Mapping[str, int] | None = None,
        priority: int = 0,
        tenant: Hashable = None,
    ) -> Permit | None:
        permit = super().try_admit(_keywords_only, bytes, tokens, cost, priority, tenant)
        if permit is None:
            self._link.wish = read_cost(self._columns, bytes, tokens, cost)
            self._link.nudge()
        elif self._link.low():
            self._link.nudge()
        return permit

    def _follow_rules(self) -> None:
        super()._follow_rules()
        if self._holds:
            self._enter = self._enter_in_time
            self._bar(self._busy)

    def _enter_in_time(self, cost: tuple[int, ...], now: int) -> int:
        if now >= self._link.valid_until:  # this process was stopped, or its store is slow
            self._link.have_none_locked()
        return self._enter_any_length(cost, now)

    def _join(self, ticket: Ticket, timeout: int | None) -> None:
        super()._join(ticket, timeout)
        self._link.wish = None  # it waits: its ticket says what it wants
        self._link.nudge()

    def _give_back(self, what: Permit | Ticket, actual: tuple[int, ...] | None = None) -> None:
        super()._give_back(what, actual)
        if actual is not None or self._link.crowded:
            self._link.nudge()  # others may use it

    def _look_again(self) -> None:
        super()._look_again()
        self._under_lock(self._link.drop_batches_locked)
        window = self.window._window
        state = (window.generation, window.until)
        if self._link is not None and self._link.window_told != state and not self._link.hears_of_it():
            self._link.window_told = state
            self._link.signal(window.until if window.closed(self._now()) else None)

    def _hear_of_window(self, remaining: int) -> None:
        """Somebody else closed the window, or opened it."""
        until = self.window._window.until
        here = 0 if until is None else max(0, until - self._now())
        if remaining > here:
            self.window._signal(remaining, "shared", None)
        elif remaining == 0 and here:
            self.window.clear()

    def set_rates(self, rates: Rates) -> None:
        read = read_rates(rates)
        self._learner.configure(read)
        self._link.set_rates(read)

    def _heed(self, before: tuple[Rate, ...], learned: tuple[Rate, ...]) -> None:
        self._link.learn(before, learned)

    def close(self) -> None:
        super().close()
        self._link.close()

    def after_fork(self) -> None:
        super().after_fork()
        self._link.after_fork()


def _places(
    concurrency: int | None, throttled: int | Literal["adaptive"] | None, regrow: int
) -> ConcurrencyRule | None:
    if concurrency is not None:
        positive_int(concurrency, "concurrency", example=400)
    if throttled == "adaptive":
        if concurrency is None:
            raise InvalidConfig(
                'throttled_concurrency="adaptive" needs a concurrency to adapt; write concurrency=400'
            )
        return ConcurrencyRule(concurrency, None, adaptive=True, regrow=regrow)
    if throttled is not None:
        positive_int(throttled, "throttled_concurrency", example=10)
    if concurrency is None and throttled is None:
        return None
    return ConcurrencyRule(concurrency, throttled)


def _weight(budget: int | None, penalty: int) -> WeightRule | None:
    positive_int(penalty, "byte_penalty_multiplier", example=20)
    if budget is None:
        return None
    return WeightRule(positive_int(budget, "byte_budget", example=5 * 1024 * 1024), penalty)
