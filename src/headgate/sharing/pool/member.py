"""PoolMember: what a gate is shared through. It asks the pool of a key for what the gate's callers want.

It works on the courier's loop; a caller's thread only leaves a note and goes on. While no caller waits and
nothing is held the store does not hear of the member. When the store cannot be asked, the gate goes by its
part of the limits, and what was used in that time is told when the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ... import events
from ...arguments import NS_PER_US, SECOND
from ...backoff import Backoff
from ...errors import InvalidConfig, StoreError
from ...gate.decision import FAR_OFF
from ...gate.leased import LeasedRate
from ...gate.supply import Batch, Demand, Grant
from ...gate.window import WindowSignal
from ...hints import AnyRate
from ...limits import Rate
from ..courier import COURIER
from .client import TRY_AGAIN, PoolClient
from .demand import HEARTBEAT, IDLE, LEASE, Forecast, spare_for, state_demand, terms_of
from .loss import rates_without_store, used_without_store
from .question import CLEARED, PoolLimits, window_left

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...gate.decision import Rules
    from ...gate.gate import Gate
    from ..store import Store
    from .question import Answer, Question


# How soon a member asks again for places that other members hold, unless it is told another pace.
_PACE = Backoff(0.02, strategy="constant", jitter="none")
_SOONEST = 1_000_000
# How long after a store is back nothing is granted: all members have told by then what they used.
_REUNION = 350_000_000
# After how many seconds without an answer the gate goes on by itself, and how much longer one is waited for.
_PROMPT = 0.25
_PATIENCE = 2.0


def limits_of(rules: Rules) -> PoolLimits:
    """The limits of a gate that its pool keeps, besides its rates."""
    places, weight = rules.places, rules.weight
    return PoolLimits(
        places=0 if places is None or places.limit is None else places.limit,
        throttled_places=0 if places is None or places.throttled_limit is None else places.throttled_limit,
        bytes=0 if weight is None else weight.budget,
        throttled_for=rules.throttled_for // NS_PER_US,
    )


class PoolMember:
    """One gate in the pool of its key."""

    def __init__(
        self,
        gate: Gate,
        hear: Callable[[WindowSignal], None],
        store: Store | str,
        key: str,
        rates: Sequence[Rate],
        *,
        on_loss: str,
        pace: Backoff | None,
        random: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._clock = gate.clock
        self._hear_window = hear
        self._pool = PoolClient(store, key, gate.clock, self.hear)
        self._on_loss = on_loss
        self._pace = _PACE if pace is None else pace
        self._random = random
        self._rates = tuple(rates)
        self._limits = limits_of(gate.rules)
        self._version = 0  # of the limits, as last heard
        self._set: Sequence[Any] | None = [terms_of(rates), self._limits]  # to replace those of the pool
        self._learned: tuple[Rate, ...] = ()  # what responses to this process taught all members
        self._members = 0
        self._signal: int | None = None  # the end of the window, or CLEARED, that the pool has not heard of
        self._telling: int | None = None  # the one that the pending question tells
        self._generation = 0  # of the pool's window, as last heard
        self._forecast = Forecast(len(rates), self._clock.now())
        self._asked_at = self._clock.now()
        self._owed = [0] * len(rates)  # units used without a grant, to be told
        self._granted = [self._limits.places, self._limits.bytes]
        self._crowded = False  # other members want places or bytes
        self._turn = 0  # how long to wait before asking again, while that is so
        self._in_vain = 0  # answers in a row that granted nothing to waiting callers
        self._wish: tuple[int, ...] | None = None  # the cost of a caller that did not wait
        self._pending: Question | None = None  # asked, and not answered yet
        self._pending_since = 0
        self._lost = False
        self._returns_at: int | None = None  # when a store that is back grants again
        self._curious = False  # another member has changed something
        self._working = False
        self._news: asyncio.Event | None = None
        self._closed = False
        self.questions = 0  # asked so far

    # -- what the gate tells: any thread, never waiting

    def wanted(self, cost: tuple[int, ...] | None) -> None:
        """Callers want more than was granted."""
        self._wish = cost
        self._nudge()

    def returned(self, *, corrected: bool) -> None:
        """A call is over: its place, or the difference to its estimate, may serve another member."""
        if corrected or self._crowded:
            self._nudge()

    def signalled(self, signal: WindowSignal) -> None:
        """The window was changed in this process: the other members are to hear it."""
        until = CLEARED if signal.until is None else signal.until

        def note() -> None:
            self._signal = until
            self._stir()

        COURIER.soon(note)

    def set_rates(self, rates: Sequence[Rate]) -> None:
        """Other rates from now on, for all members."""
        if [rate.unit for rate in rates] != [rate.unit for rate in self._rates]:
            raise InvalidConfig(
                "the rates of a shared Dispatch may change, but not what they count; write them alike"
            )
        self._rates = tuple(rates)
        owed = self._install(leased=not self._lost)
        self._gate.tell_retuned(self._rates, self._clock.now())

        def note() -> None:  # on the courier's loop, which may be writing a question now
            self._set = [terms_of(rates), self._limits]
            self._owe(owed)
            self._stir()

        COURIER.soon(note)

    def learn(self, before: tuple[Rate, ...], rates: tuple[Rate, ...]) -> None:
        """Responses state other limits, for all members. Only the member that lowered them raises them."""
        if rates == before or [rate.unit for rate in rates] != [rate.unit for rate in self._rates]:
            return
        if self._rates != self._learned:
            rates = tuple(
                new if new.amount * now.per_ns < now.amount * new.per_ns else now
                for new, now in zip(rates, self._rates, strict=True)
            )
        if rates != self._rates:
            self._learned = rates
            self.set_rates(rates)

    def start(self, timeout: float) -> None:
        """Go by the pool from now on. Waits for one answer, to find out whether there is a store at all."""
        self._gate.share(self)
        self._install(leased=True)

        async def greet() -> None:
            question = self._question(self._gate.demand())
            self._pending_since = self._clock.now()
            assert question is not None  # there are limits to be agreed on
            answer = await self._pool.ask(question)
            key, ours = self._pool.key, [rate.unit for rate in self._rates]
            theirs = answer.get("units", ours)
            if theirs != ours:
                said = ", ".join(theirs) or "none"
                raise InvalidConfig(
                    f"{key!r} is shared by others, whose rates are of {said}; write rates of the same"
                )
            self._take(question, answer)

        self._pool.greet(greet, timeout)
        self._nudge()

    def after_fork(self) -> None:
        """In a forked child: another member, to which nothing was granted, with a connection of its own."""
        self._pool.start_anew()
        self._pending = self._news = None
        self._working = self._crowded = self._lost = False
        self._forecast = Forecast(len(self._rates), self._clock.now())
        self._returns_at = None
        self._install(leased=True)
        self._owed = [0] * len(self._rates)  # the parent tells what it owes
        self._use_nothing()
        self._granted = [0, 0]
        if not self._closed:
            COURIER.send(self._pool.listen)

    def close(self) -> None:
        """Leave the pool, as far as the end of the process gives time for it."""
        if not self._closed:
            self._closed = True
            COURIER.send_last(self._leave)

    def _nudge(self) -> None:
        if not self._closed:
            COURIER.soon(self._stir)

    # -- on the courier's loop

    def hear(self) -> None:
        """Another member changed the window or the limits of the pool."""
        self._forecast.ask_at = 0
        self._curious = True
        self._stir()

    def _stir(self) -> None:
        if self._news is not None:
            self._news.set()
        if not self._working and not self._closed:
            self._working = True
            COURIER.start(self._work)

    async def _work(self) -> None:
        self._news = asyncio.Event()
        try:
            while not self._closed:
                self._news.clear()
                delay = await self._exchange()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._news.wait(), IDLE / SECOND if delay is None else delay)
                if delay is None and not self._news.is_set() and self._rest():
                    return
                # Callers that come in the same instant are asked for together.
                await asyncio.sleep(0)
        finally:
            self._working = False
            self._news = None

    async def _exchange(self) -> float | None:
        """Ask once, if there is anything to ask. Answers in how many seconds to look again, or None."""
        now = self._clock.now()
        if self._pending is not None and now - self._pending_since > LEASE // 3:
            self._give_up()
        question = self._pending
        if question is None:
            question = self._question(self._gate.demand())
            self._pending_since = self._clock.now()
        else:
            question["window"] = window_left(self._telling, now)  # less than when it was first asked
        if question is None:
            return self._next_look()
        self._pending = question
        self.questions += 1
        answering = asyncio.ensure_future(self._pool.ask(question))
        try:
            # In two halves: if this process was stopped in the first, the answer may be there in the second.
            await asyncio.wait({answering}, timeout=_PROMPT / 2)
            done, _ = await asyncio.wait({answering}, timeout=_PROMPT / 2)
            if not done:
                self._lose(f"no answer within {_PROMPT:g} s")  # it may still come
            answer = await asyncio.wait_for(answering, _PATIENCE)
        except (StoreError, TimeoutError) as error:
            self._lose(str(error) or "no answer")
            return TRY_AGAIN
        finally:
            answering.cancel()
        self._pending = None
        self._take(question, answer)
        return self._next_look()

    def _give_up(self) -> None:
        """The pool may have forgotten whether it answered: repeat what is owed and set, nothing else."""
        assert self._pending is not None
        question, self._pending = self._pending, None
        self._owe(question["owed"])
        self._set = self._set or question["set"]
        if self._signal is None:
            self._signal = self._telling

    def _next_look(self) -> float | None:
        now = self._clock.now()
        delays = []
        if self._crowded:
            delays.append(self._turn / SECOND)
        if self._forecast.ask_at > now:
            delays.append((self._forecast.ask_at - now) / SECOND)
        if self._gate.look(self._holds_locked):
            delays.append(min(IDLE, HEARTBEAT) / SECOND)
        return min(delays, default=None)

    def _holds_locked(self, _now: int) -> bool:
        rules = self._gate.rules
        granted = any(rate.units or rate.scheduled() for rate in rules.rates if isinstance(rate, LeasedRate))
        in_flight = (rules.places and rules.places.in_flight) or (rules.weight and rules.weight.in_flight)
        return bool(granted or in_flight or self._gate.waiting)

    async def _leave(self) -> None:
        """Keep what calls still use until they are over; then leave the rest to the others."""
        while (demand := self._gate.demand()).inside:
            await self._say(self._question(demand, resting=True))
            await asyncio.sleep(IDLE / SECOND)
        await self._say(self._question(self._gate.demand(leaving=True), leaving=True))
        await self._pool.close()

    async def _say(self, question: Question | None) -> None:
        if question is not None:
            with suppress(StoreError, TimeoutError):  # what was held expires by itself
                await asyncio.wait_for(self._pool.ask(question), _PATIENCE)

    def _rest(self) -> bool:
        """Nothing has been used for a while: what was granted goes back. True if there is nothing to tell."""
        if self._gate.look(self._holds_locked):
            return False
        if not self._lost:
            self._use_nothing()  # first: a call that begins after the demand was read would not be told
            demand = self._gate.demand()
            self._pending = self._question(demand, resting=not demand.holds)
            self._pending_since = demand.at
            self._granted = [0, 0]
            if demand.holds:
                return False  # a call has begun since
        return self._pending is None

    def _use_nothing(self) -> None:
        """No place and no byte may be used before the next answer."""
        places, load = self._limits.places, self._limits.bytes
        self._gate.grant(Grant(places=0 if places else None, bytes=0 if load else None))

    # -- questions

    def _question(self, demand: Demand, *, resting: bool = False, leaving: bool = False) -> Question | None:
        """What to ask now; None: nothing."""
        now, limits, going = demand.at, self._limits, resting or leaving
        wish, self._wish = self._wish, None
        costs = demand.costs or (() if wish is None else (wish,))
        columns = [self._gate.columns[rate.unit] for rate in self._rates]
        batches: list[list[int]] = []
        if not (going or self._lost):
            batches = self._forecast.batches(demand, costs, self._rates, columns, self._members)
        question = state_demand(self._pool.name, self._rates, limits, demand, costs)
        returned = [rate.returned for rate in demand.rates] or [[] for _ in self._rates]
        self._owe([rate.owed for rate in demand.rates])
        uses, wants = question["uses"], question["wants"]
        kinds = [i for i, limit in enumerate((limits.places, limits.bytes)) if limit]
        wanting = any(uses[i] + wants[i] > self._granted[i] for i in kinds)
        spared = (self._crowded or resting) and any(self._granted[i] > uses[i] for i in kinds)
        if self._crowded and now - self._asked_at < self._turn:
            wanting = spared = False  # it is the turn of other members
        signal = window_left(self._signal, now)
        telling = any(self._owed) or any(returned) or signal or self._set or self._lost or self._curious
        due = now - self._asked_at >= HEARTBEAT and demand.holds
        if not (batches or wanting or spared or telling or leaving or due):
            return None
        question |= {
            "id": self._pool.next_number(),
            "version": self._version,
            "set": self._set,
            "batches": batches,
            "returned": returned,
            "owed": self._owed,
            "spare": [0, 0] if self._crowded or going else spare_for(demand),
            "window": signal,
            "leaves": leaving,
        }
        if leaving:
            question |= {"uses": [0, 0], "wants": [0, 0], "next_bytes": 0, "waiting": 0}
        self._owed = [0] * len(self._rates)
        self._asked_at = now
        self._telling, self._signal = self._signal, None
        self._set = None
        self._curious = False
        return question

    # -- answers

    def _take(self, question: Question, answer: Answer) -> None:
        """Give the gate what the pool has granted."""
        batches = question["batches"]
        if self._lost:
            # What an earlier question was granted is not used: the pool did not know yet what was used here.
            batches = []
            if not self._is_back(answer):
                return
        if "rates" in answer and self._follow(answer):
            self._owe(self._install(leased=True))
            self._gate.tell_retuned(self._rates, self._clock.now())
        now, limits = self._clock.now(), self._limits
        self._version = answer["version"]
        self._members = answer["members"]
        self._crowded = answer["crowded"]
        places, load = self._granted = [answer["places"], answer["bytes"]]
        short = places < question["uses"][0] + question["wants"][0]
        self._in_vain = self._in_vain + 1 if short and places <= question["uses"][0] else 0
        turn = self._pace.delay_ns(max(0, self._in_vain - 1), self._random(), self._turn)
        self._turn = max(turn, _SOONEST)
        again = answer["ask_again_in"]
        self._forecast.ask_at = now + again * NS_PER_US if again else 0
        granted = [
            Batch(now + start * NS_PER_US, stamp, units)
            for stamp, (start, units) in enumerate(
                zip(answer["starts"], batches, strict=False), answer["first_stamp"]
            )
        ]
        if granted:
            self._forecast.provided_until = granted[-1].start
        self._gate.grant(
            Grant(
                batches=granted,
                places=places if limits.places else None,
                bytes=load if limits.bytes else None,
                all_bytes=limits.bytes or None,
                valid_until=self._pending_since + LEASE * 9 // 10,
                ahead=self._forecast.ahead,
                return_unused=self._forecast.is_idle(now),
            )
        )
        generation, left = answer["window_generation"], answer["window_left"]
        if generation != self._generation:
            self._generation = generation
            until = self._clock.now() + left * NS_PER_US if left else None
            self._hear_window(WindowSignal(until=until, origin=self))

    def _follow(self, answer: Answer) -> bool:
        """Another member set other limits. True if that changes anything here."""
        rates = tuple(
            Rate(amount, period * NS_PER_US / SECOND, burst=burst, unit=ours.unit)
            for (amount, period, burst), ours in zip(answer["rates"], self._rates, strict=False)
        )
        limits = PoolLimits(*answer["limits"])
        changed = self._version != 0 and (rates != self._rates or limits != self._limits)
        if len(rates) == len(self._rates):
            self._rates = rates
        self._limits = limits
        return changed

    def _install(self, *, leased: bool) -> list[int]:
        """Have the gate go by what the pool grants, or by what it may use without the store.

        Answers what the rates that were replaced owe.
        """
        gate, limits = self._gate, self._limits
        if leased:
            rates: list[AnyRate] = [LeasedRate(rate, gate.columns[rate.unit]) for rate in self._rates]
            grant = Grant(rates=rates)
        else:
            members = self._members or 2
            now = self._clock.now()
            grant = Grant(
                rates=rates_without_store(self._rates, gate.columns, self._on_loss, members, now),
                places=max(1, limits.places // members) if limits.places else None,
                bytes=limits.bytes // members if limits.bytes else None,
                valid_until=FAR_OFF,
            )
        owed = gate.grant(grant)
        self._forecast.restart(len(self._rates))
        return owed

    def _owe(self, units: Sequence[int]) -> None:
        """Tell with the next question that these units of each rate were used without a grant."""
        if len(units) == len(self._owed):
            self._owed = [owed + more for owed, more in zip(self._owed, units, strict=True)]

    # -- without the store

    def _lose(self, why: str) -> None:
        if self._lost:
            return
        self._lost = True
        where, key = self._pool.where, self._pool.key
        logging.getLogger("headgate").warning(
            "%s cannot be asked (%s); %r goes on by on_loss=%r", where, why, key, self._on_loss
        )
        self._owe(self._install(leased=False))
        events.tell(self._gate.observer, events.StoreLost(key=key, at=self._clock.seconds(), reason=why))

    def _is_back(self, answer: Answer) -> bool:
        """The store answers again. True when all members have had time to tell what they used."""
        now, gate = self._clock.now(), self._gate
        self._owe(gate.look(lambda _now: used_without_store(gate.rules.rates, self._rates, self._members)))
        if self._returns_at is None:
            self._returns_at = now + _REUNION
            self._members = max(self._members, answer["members"])
        if now < self._returns_at:
            self._forecast.ask_at = self._returns_at
            return False
        self._lost = False
        self._returns_at = None
        self._owe(self._install(leased=True))
        events.tell(gate.observer, events.StoreRegained(key=self._pool.key, at=self._clock.seconds()))
        return True
