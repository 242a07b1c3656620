"""PoolMember: what a gate is shared through. It asks the pool of a key for what the gate's callers want.

It works on the courier's loop; a caller's thread only leaves a note and goes on. While no caller waits and
nothing is held the store does not hear of the member. When the store cannot be asked, the gate goes by its
part of the limits, and what was used in that time is told when the store is back.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from operator import add
from typing import TYPE_CHECKING, Any

from ... import events
from ...arguments import NS_PER_US, SECOND
from ...backoff import Backoff
from ...errors import InvalidConfig, StoreError
from ...gate.leased import LeasedRate
from ...gate.supply import Demand, Grant, holds
from ...gate.window import WindowSignal
from ...limits import columns_for
from ..courier import COURIER
from .client import TRY_AGAIN, PoolClient, loop_time
from .demand import HEARTBEAT, IDLE, LEASE, Forecast, leave_no_calls, limits_of, spare_for, state_demand
from .episode import CLEARED, ENDED, NO_PROBES, USUAL, manner_of
from .heard import HeardWindow, heard_signal
from .lessons import Lessons
from .loss import OwnPart
from .places import HeldPlaces
from .question import PoolLimits, check_units, granted_batches, rate_of_terms, terms_of, window_left

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...gate.gate import Gate
    from ...limits import Rate
    from ..store import AnyStore
    from .heard import WindowNews
    from .lessons import SharedLearner
    from .question import Answer, Question


# How soon a member asks again for places that other members hold, unless it is told another pace.
_PACE = Backoff(0.02, strategy="constant", jitter="none")
# How often a member looks what its waiting callers wait for, and tells what remains because they wait.
_LOOK = 20_000_000


class PoolMember:
    """One gate in the pool of its key."""

    def __init__(
        self,
        gate: Gate,
        hear: Callable[[WindowSignal], None],
        learner: SharedLearner,
        store: AnyStore,
        key: str,
        rates: Sequence[Rate],
        *,
        automatic: bool,
        on_loss: str,
        pace: Backoff | None,
        random: Callable[[], float],
    ) -> None:
        self._gate = gate
        self._clock = gate.clock
        self._hear_window = hear
        self._pool = PoolClient(store, key, gate.clock, self.hear, lambda: gate.observer)
        self._on_loss, self._random = on_loss, random
        self._rates = tuple(rates)
        self._limits = limits_of(gate.rules)
        self._version = 0  # of the limits, as last heard
        self._automatic = automatic  # the rates are learned: those of the pool stay
        self._set: Sequence[Any] | None = [None if automatic else terms_of(rates), self._limits]  # to replace
        self._lessons = Lessons(learner)
        self._members = self._raised = 0
        self._window = HeardWindow()
        self._forgot = False  # the store has lost the pool, and its window was not compared with ours yet
        self._forecast = Forecast(len(rates), self._clock.now())
        self._asked_at = self._clock.now()
        self._owed = [0] * len(rates)  # units used without a grant, to be told
        self._places = HeldPlaces([0, 0], _PACE if pace is None else pace)
        self._part = OwnPart(on_loss)
        self._wish: tuple[int, ...] | None = None  # the cost of a caller that did not wait
        self._pending: Question | None = None  # asked, and not answered yet
        self._pending_since = 0
        self._curious = False  # another member has changed something
        self._working = self._closed = False
        self._news: asyncio.Event | None = None
        self.questions = 0  # asked so far

    # -- what the gate tells: any thread, never waiting

    def wanted(self, cost: tuple[int, ...] | None) -> None:
        """Callers want more than was granted."""
        self._wish = cost
        self._nudge()

    def returned(self, *, corrected: bool) -> None:
        """A call is over: its place, or the difference to its estimate, may serve another member."""
        self._places.ended += 1
        if corrected or self._places.crowded:
            self._nudge()

    def signalled(self, signal: WindowSignal) -> None:
        """The window was changed in this process: the other members are to hear it."""
        self._window.leave(CLEARED if signal.until is None else signal.until, manner_of(signal))
        COURIER.soon(self._stir)

    def end_probes(self) -> None:
        """A call went well: if calls of all members wait for that, they go again."""
        self._window.leave(ENDED, USUAL)
        COURIER.soon(self._stir)

    def set_rates(self, rates: Sequence[Rate]) -> None:
        """Other rates from now on, for all members."""
        if [rate.unit for rate in rates] != [rate.unit for rate in self._rates]:
            raise InvalidConfig(
                "the rates of a shared Dispatch may change, but not what they count; write them alike"
            )
        self._rates = tuple(rates)
        owed = self._install(leased=not self._part.active)
        self._gate.tell_retuned(self._rates, self._clock.now())
        # On the courier's loop, which may be writing a question now.
        COURIER.soon(lambda: self._note_lesson(owed, by_hand=True))

    def learned(self, *, cut: bool) -> None:
        """Something was learned for all members: a `cut` that began an episode, or anything else."""
        COURIER.soon(lambda: self._note_lesson((), cut=cut))

    def stated(self) -> None:
        """Callers wait, and an answer said what remains."""
        if self._clock.now() - self._asked_at >= _LOOK:
            self._nudge()

    def start(self) -> None:
        """Go by the pool from now on. Waits for one answer, to find out whether there is a store at all."""
        self._gate.share(self)
        self._install(leased=True)
        self._use_nothing()

        async def greet() -> None:
            demand = self._gate.demand()
            question, self._pending_since = self._question(demand), demand.at
            assert question is not None  # there are limits to be agreed on
            answer = await self._pool.ask(question)
            self._pool.trips.note(self._clock.now() - self._pending_since, connecting=True)
            if not self._automatic:
                check_units(self._pool.key, self._rates, answer)
            self._take(question, answer)

        self._pool.greet(greet)
        self._nudge()

    def after_fork(self) -> None:
        """In a forked child: another member, to which nothing was granted, with a connection of its own."""
        self._pool.start_anew()
        self._pending = self._news = None
        self._working = self._places.crowded = False
        self._forecast = Forecast(len(self._rates), self._clock.now())
        self._part = OwnPart(self._on_loss)
        self._install(leased=True)
        self._owed = [0] * len(self._rates)  # the parent tells what it owes
        self._use_nothing()
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

    def hear(self, news: WindowNews | None = None) -> None:
        """Another member changed the window or the limits of the pool; `news` tells of the window."""
        if news is not None and not self._closed:
            trips, asking = self._pool.trips, self._pending is not None
            until = self._window.told(news, self._window_end(), trips, self._clock.now(), asking=asking)
            if until is not None:
                self._hear_window(heard_signal(until, self, gentle=news.gentle))
        self._forecast.ask_now()
        self._curious = True
        self._stir()

    def _note_lesson(self, owed: Sequence[int], *, cut: bool = False, by_hand: bool = False) -> None:
        self._owe(owed)
        self._lessons.note(cut=cut, by_hand=by_hand)
        if self._part.active and self._use(self._lessons.rates()):
            self._owe(self._install(leased=False))
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
            self._give_up(self._pending)
        question = self._pending
        if question is None:
            if pause := self._part.pause(self._asked_at, self._members, now):
                return pause
            keeps = self._places.keeps(now - self._asked_at)
            demand = self._gate.demand(keeps=keeps)
            question, self._pending_since = self._question(demand), demand.at
        else:
            self._window.write_again(question, now)
            self._part.tell_again(question, now)
            question["stated"] = [[] for _ in question["owed"]]  # a newer answer will say what remains
        if question is None:
            return self._next_look()
        self._pending = question
        self.questions += 1
        try:
            answer = await self._pool.ask_patiently(question, slow=self._lose)
        except (StoreError, TimeoutError) as error:
            self._lose(str(error) or "no answer")
            self._part.fail(hung=isinstance(error, TimeoutError))
            grant = self._grant_own_part()
            self._gate.grant(Grant(places=grant.places, bytes=grant.bytes))
            return TRY_AGAIN
        self._pending = None
        if self._pool.forgot:
            self._forgot = True
            self._pool.tell(events.StoreForgot)
        self._take(question, answer)
        return self._next_look()

    def _give_up(self, question: Question) -> None:
        """The pool may have forgotten whether it answered: repeat what is owed and set, nothing else."""
        self._pending = None
        self._owe(question["owed"])
        self._lessons.write_again(question)
        if question["lesson"] is None:
            self._set = self._set or question["set"]
        self._window.tell_again()

    def _next_look(self) -> float | None:
        now = self._clock.now()
        delays = []
        if self._places.crowded:
            delays.append(self._places.turn / SECOND)
        if self._forecast.ask_at > now and self._gate.waiting:
            delays.append((self._forecast.ask_at - now) / SECOND)
        if (delay := self._part.look_in(loop_time())) is not None:
            delays.append(delay)
        places = self._gate.rules.places
        if self._gate.waiting and places is not None and places.fits():
            delays.append(_LOOK / SECOND)  # callers wait for a rate, and may come to wait for a place
        if self._gate.look(self._holds_locked):
            delays.append(min(IDLE, HEARTBEAT) / SECOND)
        return min(delays, default=None)

    def _holds_locked(self, _now: int) -> bool:
        return holds(self._gate.rules, self._gate.waiting)

    async def _leave(self) -> None:
        """Keep what calls still use until they are over; then leave the rest to the others."""
        while (demand := self._gate.demand()).inside:
            await self._pool.say(self._question(demand, resting=True))
            await asyncio.sleep(IDLE / SECOND)
        await self._pool.say(self._question(self._gate.demand(leaving=True), leaving=True))
        await self._pool.close()

    def _rest(self) -> bool:
        """Nothing has been used for a while: what was granted goes back. True if there is nothing to tell."""
        if self._gate.look(self._holds_locked):
            return False
        if not self._part.active:
            self._use_nothing()  # first: a call that begins after the demand was read would not be told
            demand = self._gate.demand()
            self._pending = self._question(demand, resting=not demand.holds)
            self._pending_since = demand.at
            if demand.holds:
                return False  # a call has begun since
        return self._pending is None

    def _use_nothing(self) -> None:
        """No place and no byte may be used before the next answer."""
        limits = self._limits
        self._gate.grant(Grant(places=0 if limits.places else None, bytes=0 if limits.bytes else None))
        self._places.granted = [0, 0]

    # -- questions

    def _question(self, demand: Demand, *, resting: bool = False, leaving: bool = False) -> Question | None:
        """What to ask now; None: nothing."""
        now, limits, going, wish = demand.at, self._limits, resting or leaving, self._wish
        self._wish = None
        costs = demand.costs or (() if wish is None else (wish,))
        columns = [self._gate.columns[rate.unit] for rate in self._rates]
        batches: list[list[int]] = []
        more = self._forecast.hears_of_more(demand, self._rates)
        if not (going or self._part.active):
            many = self._members, self._part.processes
            batches = self._forecast.batches(demand, costs, self._rates, columns, *many)
        question = state_demand(self._pool.name, self._rates, limits, demand, costs)
        self._owe([rate.owed for rate in demand.rates])
        waited = now - self._asked_at
        places = self._places.asks(question, (limits.places, limits.bytes), now, waited, going=going)
        signal = window_left(self._window.signal, now)
        telling = more or any(self._owed) or any(question["returned"]) or signal or self._set or self._curious
        telling = telling or self._part.asks(loop_time()) or self._lessons.ask(demand.waiting)
        due = self._forecast.is_due(limits, waited, holds=demand.holds, resting=resting)
        if not (batches or places or telling or leaving or due):
            return None
        self._pool.trips.tell(question, now)
        question |= {
            "id": self._pool.next_number(),
            "version": self._version,
            "set": self._set,
            "batches": batches,
            "owed": self._owed,
            "spare": [0, 0] if self._places.crowded or going else spare_for(demand),
            "leaves": leaving,
        }
        self._window.write(question, self._window_end(), now)
        self._part.tell(question, now)
        self._lessons.write(question, limits)
        if leaving:
            leave_no_calls(question)
        self._owed = [0] * len(self._rates)
        self._places.tell(question)
        self._asked_at, self._set, self._curious = now, None, False
        return question

    # -- answers

    def _take(self, question: Question, answer: Answer) -> None:
        """Give the gate what the pool has granted."""
        if self._goes_apart(question, answer):
            self._take_window(answer)
            return
        self._lessons.read(question, answer)
        if "rates" in answer and self._follow(answer):
            self._owe(self._install(leased=True, keeps_units=True))
            self._gate.tell_retuned(self._rates, self._clock.now())
        now = self._clock.now()
        self._version, self._members = answer["version"], answer["members"]
        self._take_places(question, answer)
        self._part.take(answer, loop_time())
        self._forecast.trip = self._pool.trips.typical
        then = self._pool.trips.moment_of(answer["at"] * NS_PER_US, self._pending_since, now)
        self._forecast.ask_at = then + again * NS_PER_US if (again := answer["ask_again_in"]) else 0
        granted = granted_batches(answer, question["batches"], then)
        if granted:
            self._forecast.provided_until = granted[-1].start
        if raised := answer["raised"] != self._raised:
            self.hear()
        self._raised = answer["raised"]
        self._gate.grant(
            Grant(
                batches=granted,
                sooner=self._pool.trips.sooner,
                sooner_than=self._raised if raised else None,
                ahead=self._forecast.ahead,
                members=max(1, self._members),
                rests=not question["waiting"],
                return_unused=self._forecast.is_idle(now),
            )
        )
        self._take_window(answer)
        if self._lessons.hear_probes(answer["probes"], untold=self._window.signal is not None):
            self.end_probes()

    def _take_places(self, question: Question, answer: Answer) -> None:
        until, now = self._pending_since + LEASE * 9 // 10, self._clock.now()
        self._places.take(question, answer, self._random(), until, now)
        self._gate.grant(self._places.grant(self._limits))

    def _take_window(self, answer: Answer) -> None:
        forgot, self._forgot = self._forgot, False
        own, now = self._window_end(), self._clock.now()
        signal = self._window.take(answer, own, self._pending_since, now, self, forgot=forgot)
        if signal is not None:
            self._hear_window(signal)
        if self._window.tells_more():
            self._stir()

    def _window_end(self) -> int | None:
        window = self._gate.rules.window
        return None if window is None else window.until

    def _follow(self, answer: Answer) -> bool:
        """The limits in force are told. True if they are others than here."""
        rates = tuple(map(rate_of_terms, answer["rates"], answer["units"]))
        before, self._limits = self._limits, PoolLimits(*answer["limits"])
        return self._use(rates) or before != self._limits

    def _use(self, rates: tuple[Rate, ...]) -> bool:
        """Go by these rates from the next installation on. True if they are others."""
        if [rate.unit for rate in rates] != [rate.unit for rate in self._rates]:
            self._owed = [0] * len(rates)
        before, self._rates = self._rates, rates
        return before != rates

    def _install(self, *, leased: bool, keeps_units: bool = False) -> list[int]:
        """Have the gate go by the pool, or by its part. Answers what the rates that were replaced owe."""
        gate, columns = self._gate, columns_for(self._rates, self._gate.columns, learned=True)
        if leased:
            rates = [LeasedRate(rate, columns[rate.unit]) for rate in self._rates]
            grant = Grant(rates=rates, columns=columns, keeps_units=keeps_units)
        else:
            grant = self._grant_own_part()
        used = self._used()
        owed = gate.grant(grant)
        self._forecast.restart(len(self._rates))
        return list(map(add, owed, used)) if len(used) == len(owed) else owed

    def _owe(self, units: Sequence[int]) -> None:
        """Tell with the next question that these units of each rate were used without a grant."""
        if len(units) == len(self._owed):
            self._owed = [owed + more for owed, more in zip(self._owed, units, strict=True)]

    # -- without the store

    def _lose(self, why: str) -> None:
        if not self._part.active:
            self._begin(self._part.lose(self._pending_since, self._clock.now()))
            self._lessons.hear_probes(NO_PROBES)  # each member finds out by itself
            self._pool.tell_loss(why, self._on_loss)

    def _begin(self, again_in: float | None = None) -> None:
        if self._part.active and not self._closed:
            self._owe(self._install(leased=False))
        if again_in is not None:
            asyncio.get_running_loop().call_later(again_in, self._begin)

    def _grant_own_part(self) -> Grant:
        now, columns = self._clock.now(), self._gate.columns
        return self._part.grant(self._rates, self._limits, columns, self._places, now)

    def _goes_apart(self, question: Question, answer: Answer) -> bool:
        """Whether the gate goes by its part although the pool answers: others have to hear that it does."""
        part, now, trips = self._part, self._clock.now(), self._pool.trips
        if part.active:
            self._owe(self._used())
            self._members = max(self._members, answer["members"])
            late = now - self._pending_since > trips.patience  # as the next answer may be
            if not part.asked(question) or (late and not answer["apart"]):
                return True
        elif answer["apart"]:
            self._begin(part.join(answer, loop_time(), now))
        if answer["apart"]:
            if not part.missed:
                self._take_places(question, answer)
            then = trips.moment_of(answer["at"] * NS_PER_US, self._pending_since, now)
            # Not longer than until the earliest moment that it may be: by then others are granted units.
            part.meet(then + answer["apart"] * NS_PER_US - trips.doubt(now), now)
            self._end_apart()
        elif part.active:
            self._return()
        return part.active

    def _used(self) -> list[int]:
        return self._gate.look(lambda _now: self._part.used(self._gate.rules.rates, self._rates))

    def _end_apart(self) -> None:
        left = self._part.left(self._clock.now())
        if left:
            asyncio.get_running_loop().call_later(left, self._end_apart)
        elif left is not None and not self._closed:
            self._return()
            self._stir()

    def _return(self) -> None:
        """All members go by the pool from now on."""
        missed = self._part.end()
        self._owe(self._install(leased=True))
        if missed:
            self._pool.tell(events.StoreRegained)
