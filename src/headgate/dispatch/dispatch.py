"""Dispatch: the gate in front of one API. Concurrency, bytes, rates and a backoff window in one decision."""

from __future__ import annotations

from .. import telling
from ..arguments import (
    Coroutine,
    moment_to_ns,
    never_awaited,
    not_awaitable,
    read_observer,
    read_random,
    seconds_to_ns,
    yes_or_no,
)
from ..errors import InvalidConfig, UnknownName
from ..gate.bucket import RateRule
from ..gate.clock import SYSTEM, default_random
from ..gate.closing import Closing
from ..gate.decision import Rules, successors
from ..gate.gate import Gate
from ..hints import (
    AnyStore,
    Awaitable,
    Callable,
    ClassVar,
    Clock,
    Hashable,
    Literal,
    Mapping,
    Observer,
    Rates,
    Seconds,
    T,
    Verdict,
    later,
)
from ..light import LazyModule
from ..limits import Rate, columns_for, read_rates
from .audience import DispatchAudience
from .backoff_window import BackoffWindow, read_window
from .places import places_of, weight_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .. import events
    from ..backoff import Backoff
    from ..responses.signals import Signal
    from ..sharing.pool.member import PoolMember
    from . import learning, stated
    from .learning import Advice, Learner
    from .snapshot import DispatchSnapshot
else:
    Backoff = later("headgate.backoff", "Backoff")
    DispatchSnapshot = later("headgate.dispatch.snapshot", "DispatchSnapshot")
    events = LazyModule("headgate.events")
    learning = LazyModule("headgate.dispatch.learning")
    stated = LazyModule("headgate.dispatch.stated")
    Signal = later("headgate.responses.signals", "Signal")


class Dispatch(Gate, Closing):
    """The gate in front of one API, for any number of threads and event loops.

    >>> from headgate import Dispatch
    >>> api = Dispatch("api", rates=["500/minute", "200_000 tokens/minute"], concurrency=64)
    >>> with api.admit(tokens=1200) as permit:
    ...     permit.settle(tokens=900)           # the estimate becomes the fact

    Callers use `admit` and `try_admit`; `with_rate_limit` runs a function. `observe` and `set_backoff` tell
    it what the API said, `set_rates` changes its rates, `snapshot` shows how it stands, `named` finds it, and
    `close`, or the end of a `with` block, refuses all further calls.

    `key` is its name in events, errors and a store. `rates` is a rate, as text or as a `Rate`, or a list of
    them; a call must fit all. With `rates="auto"` they are those that responses state, given to `observe`, or
    else found by trying. Rates that are configured are lowered to what responses state, never raised above.
    `concurrency` is how many calls may be in flight, and `byte_budget` how many bytes of them.

    After a backoff signal, while `window` is active and `backoff_window` seconds beyond, calls go under
    tighter rules: `throttled_concurrency` of them at once, each byte counting `byte_penalty_multiplier`
    times. `throttled_concurrency="adaptive"` instead cuts the concurrency to 70 % once per episode and lets
    it grow back over another `backoff_window` seconds. With `pause=True` no call goes at all before the
    window's end. None takes `concurrency`, `throttled_concurrency` or `byte_budget` away.

    The defaults suit a service that takes what it can and slows down under load. APIs of language models
    state limits and mean their Retry-After. For them write `pause=True`, `throttled_concurrency="adaptive"`
    and `byte_budget=None`, as the gates have that headgate makes where none is given.

    `max_waiting` is how many callers may wait (None: any number). Tenants that wait share by cost, equally
    unless `weights` gives some of them more, e.g. `{"gold": 4}`. `name` is for `Dispatch.named`. An
    `observer` is called with every event. `clock` and `random` replace time and chance in tests. Two
    Dispatches share nothing unless they are given the same `window`, a `BackoffWindow`, or a store.

    With `store` all processes that name the same store and key share all of it, the window included: in
    this process (`"memory:"`), on this machine (`"sqlite:///limits.db"`) or in a fleet
    (`"redis://limits.internal/0"`, `"postgresql://limits.internal/db"`). Limits other than those in force
    replace them for all. If the store cannot be asked, `on_loss` says how to go on: by this process's
    "share" of the limits, by the "lease" of what was granted, "open" or "closed".
    `acquire_backoff`, a `Backoff`, paces how the store is asked again for places that other processes hold;
    every 20 ms without it.

    Raises InvalidLimit, or InvalidCapacity, InvalidWindow and InvalidConfig, which are kinds of it, for
    arguments that cannot work, and StoreError if the store cannot be asked.
    """

    __slots__ = (
        "_configured",
        "_learner",
        "_limited",
        "_member",
        "_name",
        "_probing",
        "_random",
        "_responses",
        "expected_delay",
        "window",
    )

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
        store: AnyStore | None = None,
        on_loss: Literal["share", "lease", "open", "closed"] = "share",
        name: str | None = None,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
        random: Callable[[], float] = default_random,
    ) -> None:
        window = read_window(window, key, clock)
        if name is not None and (not isinstance(name, str) or not name):
            raise InvalidConfig(f'name={name!r} is not a name; write a string, e.g. name="openai"')
        if on_loss not in ("share", "lease", "open", "closed"):
            raise InvalidConfig(f'on_loss={on_loss!r} is unknown; write "share", "lease", "open" or "closed"')
        throttled_for = seconds_to_ns(backoff_window, "backoff_window")
        now = clock.now()
        self._configured = None if rates == "auto" else read_rates(rates)
        # With configured rates it is made when there is something to learn.
        self._learner: Learner | None = None
        self._random = read_random(random)
        self._responses = self._limited = 0  # given to `observe`, and those of them that said "slow down"
        self.expected_delay = 0  # nanoseconds
        self._probing: int | None = None  # the generation of the window that a success ends
        if self._configured is None:
            self._learner = learning.Learner(None, now)
            read = self._learner.rates
        else:
            read = self._configured
        columns = columns_for(read)
        rules = Rules(
            window=window.rule,
            throttled_for=throttled_for,
            reentry=window.reentry() if yes_or_no(pause, "pause") else None,
            places=places_of(concurrency, throttled_concurrency, throttled_for),
            weight=weight_of(byte_budget, byte_penalty_multiplier),
            rates=successors((), read, columns, now),
        )
        super().__init__(
            key,
            rules,
            columns=columns,
            max_waiting=max_waiting,
            weights=weights,
            clock=clock,
            audience=DispatchAudience(key, read_observer(observer), window),
        )
        self.window = window
        window.watch(self)
        self._member: PoolMember | None = None
        if store is not None:
            from .membership import join_pool  # noqa: PLC0415 - only for a Dispatch that is shared

            self._member = join_pool(
                self,
                self._find_learner,
                store,
                read,
                automatic=self._configured is None,
                on_loss=on_loss,
                pace=acquire_backoff,
                random=self._random,
            )
            self._member.start()
        elif acquire_backoff is not None:
            raise InvalidConfig(
                "acquire_backoff paces how a store is asked again; without store= waiting callers are woken "
                "and never ask twice: leave it out"
            )
        self._name = name
        if name is not None and self._names.setdefault(name, self) is not self:
            raise InvalidConfig(
                f"a Dispatch named {name!r} exists already; use Dispatch.named({name!r}), or close it first"
            )

    def _find_learner(self) -> Learner:
        """What is learned here, from now on. Not under the lock: the first call loads a module."""
        learner = self._learner
        if learner is None:
            made = learning.Learner(self._configured, self.clock.now())

            def keep(_now: int) -> Learner:
                self._learner = self._learner or made  # another thread may have made one meanwhile
                return self._learner

            learner = self.look(keep)
        return learner

    @classmethod
    def named(cls, name: str) -> Dispatch:
        """The Dispatch that was made with that `name` and has not been closed.

        Raises UnknownName if there is none; the message lists the names that there are.

        >>> api = Dispatch("openai", name="openai")
        >>> Dispatch.named("openai") is api
        True
        """
        try:
            return cls._names[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, cls._names)) or "none"
            raise UnknownName(
                f"no Dispatch is named {name!r} (known: {known}); make one with Dispatch(..., name={name!r})"
            ) from None

    # -- running a call

    def with_rate_limit(self, estimated_bytes: int, fn: Callable[[], T]) -> T:
        """Wait for a place, call `fn` without arguments, give the place back, and return what it returned.

        The call has `estimated_bytes` in flight meanwhile. It waits without a time-out: for one, write
        `with api.admit(timeout=...)`. Raises what `fn` raises, the refusals of `admit`, and InvalidConfig if
        `fn` is a coroutine function.

        >>> Dispatch("api").with_rate_limit(2_000, lambda: "answer")
        'answer'
        """
        with self.admit(bytes=estimated_bytes):
            result = fn()
            if result.__class__ is Coroutine:
                raise never_awaited(result, "with_rate_limit")
            return result

    async def with_rate_limit_async(self, estimated_bytes: int, fn: Callable[[], Awaitable[T]]) -> T:
        """Wait for a place in a task, await what `fn()` returns, give the place back, and return the result.

        `estimated_bytes` and the exceptions are those of `with_rate_limit`; it raises InvalidConfig if what
        `fn` returns cannot be awaited.

        >>> import asyncio
        >>> async def ask():
        ...     return "answer"
        >>> asyncio.run(Dispatch("api").with_rate_limit_async(2_000, ask))
        'answer'
        """
        async with self.admit(bytes=estimated_bytes):
            coming = fn()
            if not hasattr(coming, "__await__"):
                raise not_awaitable(fn, "with_rate_limit_async")
            return await coming

    # -- signals and changes

    def set_backoff(self, duration: Seconds, *, reason: str = "") -> None:
        """Start the backoff window because the API said "slow down", or extend it: it ends in `duration`.

        `duration` is seconds or a timedelta, and never moves the end of a window earlier. `reason` is for
        observers and logs. Calls go by the tighter rules meanwhile; only with `pause=True` none goes before
        the end. To end the window write `api.window.clear()`. Raises InvalidWindow if `duration` is not a
        time.

        >>> api = Dispatch("api", pause=True)
        >>> api.set_backoff(30, reason="429")
        >>> api.try_admit() is None
        True
        """
        self.window.set(duration, reason=reason)

    def set_rates(self, rates: Rates) -> None:
        """Set other rates from now on, for waiting callers too. What was used stays used.

        `rates` is written as for the class, except "auto"; `()` removes all rates. With a store the rates
        hold for all processes of the key. A waiting caller whose call can never fit the new rates gets
        CostTooLarge. Raises InvalidLimit, or InvalidConfig, for what is not a rate.

        >>> api = Dispatch("api", rates="500/minute")
        >>> api.set_rates(["300/minute", "50_000 tokens/minute"])
        >>> api
        <Dispatch 'api': 300 requests/minute burst 5, 50000 tokens/minute burst 833, 0 waiting>
        """
        read = read_rates(rates)
        learner = self._find_learner()
        self.look(lambda _now: learner.configure(read))
        if self._member is not None:
            self._member.set_rates(learner.rates)
        else:
            self.retune(read)

    def observe(self, signal: Signal, *, sent_at: float | None = None, status: int | None = None) -> None:
        """Learn from `signal`: what a response said, as `headgate.http.read_signal` reads it.

        "Slow down" starts the backoff window for as long as it asked and a little more, once for all calls
        that hear the same. Stated limits become the rates, where these are "auto" or higher; what is said
        to remain lowers what there is. `sent_at`, on the clock of the Dispatch (`time.monotonic()`), is when
        the call was sent: without it, answers of one burst cannot be told from news. `status` is for
        observers alone. The adapters of `headgate.http` call this for each response. Raises InvalidWindow if
        `sent_at` is not a moment.

        >>> from headgate.http import read_signal
        >>> api = Dispatch("api", rates="auto")
        >>> headers = {"x-ratelimit-limit-requests": "600", "x-ratelimit-remaining-requests": "599"}
        >>> api.observe(read_signal(200, headers))
        >>> api.snapshot().rates[0].limit
        600
        """
        sent = self.clock.now()
        if sent_at is not None:
            sent = min(sent, moment_to_ns(sent_at, "sent_at"))
        learner = self._learner
        teaches = signal.scopes or signal.limited or signal.reason != "ok"
        if teaches or not (learner is None or learner.content):
            self._learn_from(signal, sent)
        else:
            for _ in self._locking:  # takes the lock, as `Guard` says
                break
            try:
                self._responses += 1
            finally:
                self._unlock()
            if self._pending:
                self._finish()
        if self.observer is not None:
            self._tell_response(signal, status)

    def _learn_from(self, signal: Signal, sent: int) -> None:
        learner, scopes, limited = self._find_learner(), signal.scopes, signal.limited
        figures = stated.figures_of(scopes) if scopes else None
        first = before = learner.rates
        chance = self._random() if limited else 0.0
        other_limits = learning.OTHER_LIMITS

        def hear_signal(now: int) -> Advice | None:
            advice = learner.hear(signal, figures, sent, now, self.rules, chance)
            if advice is not None:  # a stated wait, or an end, leaves no probes
                self.rules.probes = advice.probes
                self.follow_rules()
            return advice

        def hear(now: int) -> Advice | None:
            self._responses += 1
            self._limited += limited
            if figures is not None and learner.hear_limits(figures, sent):
                return other_limits  # what remains is that of other rates, to be made first
            return hear_signal(now)

        advice = self.look(hear)
        if advice is other_limits:
            self._go_by(learner.rates)
            before = learner.rates
            advice = self.look(hear_signal)
        if learner.rates is not before:
            self._go_by(learner.rates)
        if advice is not None:
            self._follow_advice(advice, sent)
        if self._member is not None:
            self._tell_member(self._member, advice, changed=learner.rates is not first)
            if scopes and self.waiting:
                self._member.stated()

    def _go_by(self, learned: tuple[Rate, ...]) -> None:
        if self._member is None:  # otherwise it goes by them when the pool has heard of them
            self.retune(learned, learned=True)

    def _tell_member(self, member: PoolMember, advice: Advice | None, *, changed: bool) -> None:
        """Have other processes hear what was learned, and that an episode is over."""
        if advice is not None and advice.ended:
            member.end_probes()
        if advice is not None and (advice.began or advice.ended or advice.probes is not None):
            member.learned(cut=advice.began)
        elif changed:
            member.learned(cut=False)

    def expect_delay(self, seconds: Seconds) -> None:
        """Say that some calls may arrive at the API later than others, by up to `seconds` (or a timedelta).

        So much distance is kept from each burst. What an API that was full allows is counted from the arrival
        of the first call. Until the first response is observed, only a few calls of a burst that was not
        configured go at once: other programs may have used it, and then all of them would be refused. Raises
        InvalidWindow if `seconds` is not a time.

        >>> api = Dispatch("api", rates="600/minute")
        >>> api.expect_delay(0.1)                  # the first calls open their connections
        """
        delay = self.expected_delay = seconds_to_ns(seconds, "seconds")
        learner = self._find_learner()

        def keep_distance(now: int) -> None:
            for rule in self.rules.rates:
                if isinstance(rule, RateRule):
                    rule.set_burst(rule.burst, now, delay)
            if self._member is None:
                learner.withhold_bursts(self.rules, now)

        self.change(keep_distance)

    def _follow_advice(self, advice: Advice, sent: int) -> None:
        if advice.ended:
            self.look_again()
            if self._probing is not None:
                self.window.clear(generation=self._probing)
                self._probing = None
        if advice.pause:
            # A refusal of a probe belongs to the episode that the window knows of.
            of_call = sent if advice.began else min(sent, self.window.rule.started_at or sent)
            self.window.signal(advice.pause, advice.reason, of_call, gentle=advice.gentle)
            self._probing = self.window.generation if advice.gentle else None

    def learn(self, verdict: Verdict, sent_at: int) -> None:
        """A verdict of `throttled(retry_after)` starts the backoff window."""
        if verdict.kind == "throttled" and verdict.retry_after is not None:
            duration = seconds_to_ns(verdict.retry_after, "retry_after")
            self.window.signal(duration, "throttled", sent_at)

    def close(self) -> None:
        """Refuse the callers that wait and every later one, with Closed, and free the name.

        Calls in flight may finish. A store is left. A second call does nothing.

        >>> api = Dispatch("api")
        >>> api.close()
        >>> api.try_admit()
        Traceback (most recent call last):
        headgate.errors.Closed: the gate 'api' was closed (closed)
        """
        if self._name is not None and self._names.get(self._name) is self:
            del self._names[self._name]
        super().close()

    # -- looking

    def snapshot(self) -> DispatchSnapshot:
        """How the Dispatch stands right now, and why the first in line waits, as a `DispatchSnapshot`.

        >>> api = Dispatch("api", rates="500/minute", concurrency=64)
        >>> with api.admit():
        ...     api.snapshot().in_flight
        1
        """
        from .snapshot import take_snapshot  # noqa: PLC0415 - loaded by the first that looks

        def look(now: int) -> DispatchSnapshot:
            responses = self._responses, self._limited
            return take_snapshot(self.rules, self.callers, now, self.totals(), responses)

        snapshot = self.look(look)
        self.tell_left()
        self.window.notice_end(self.clock.now())
        return snapshot

    @property
    def pauses(self) -> bool:
        """Whether calls are held back until the end of a window, instead of being throttled."""
        return self.rules.reentry is not None

    def is_idle(self) -> bool:
        """Whether forgetting this Dispatch would change nothing for later calls."""
        state = self.snapshot()
        full = all(rate.level >= rate.burst for rate in state.rates)
        learned = self._learner is not None and self._learner.has_learned
        used = state.in_flight or state.bytes_in_flight or state.waiting or state.backoff_active
        return full and not used and not learned

    def _tell_response(self, signal: Signal, status: int | None) -> None:
        event = events.ResponseObserved(
            key=self.key,
            at=self.clock.seconds(),
            status=status,
            reason=signal.reason,
            retry_after=signal.retry_after,
        )
        telling.tell(self.observer, event)

    def __repr__(self) -> str:
        rates = ", ".join(str(rule.rate) for rule in self.rules.rates) or "no rates"
        return f"<Dispatch {self.key!r}: {rates}, {self.waiting} waiting>"
