"""What ties a gate to the pool it shares: asks for what the line needs, and brings the answers to the gate.

Rules of this room: it runs on the courier's loop and touches the gate through the gate's lock. While nothing
waits and nothing is held it does not exist for the store. When the store cannot be asked, the gate goes by
its part of the limits, and what was used meanwhile is told when the store is back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from contextlib import suppress
from itertools import count, islice
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import ref

from ... import events
from ...arguments import NS_PER_US, SECOND
from ...backoff import Backoff
from ...errors import InvalidConfig, StoreError
from ...gate.bucket import RateRule
from ...gate.decision import FAR_OFF
from ...limits import BYTES, Rate, share_of
from ..courier import COURIER
from ..store import open_store, plain_name
from .leased import LeasedRate
from .question import CLEARED, PoolLimits, empty_question, window_left

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...dispatch.dispatch import _SharedDispatch
    from ..store import Store
    from .question import Answer, Question

# How long a member that is not heard of keeps what it holds, and how often one that holds something is.
_LEASE = 3 * SECOND
_HEARTBEAT = SECOND
# One batch is what all of a rate gives in this time, and no more than a part of its burst.
_BATCH = 40_000_000
# How far ahead of the demand stock is kept, and how long it lies unused before it goes back.
_AHEAD = 50_000_000
_IDLE = 250_000_000
# How soon others are given a chance when they want places too, and how often a lost store is tried again.
_AT_ONCE = 1_000_000
_CROWDED = Backoff(0.02, strategy="constant", jitter="none")
_TRY_AGAIN = 0.25
# How long after its return nothing is taken from it: all have noticed by then.
_REUNION = 350_000_000
# After so long without an answer we go on by ourselves, and after so much more no longer wait for it.
_PROMPT = 0.25
_PATIENCE = 2.0
_MOST_TICKETS = 256
# While what was given lasts, nobody asks for more; but in time.
_EARLY = 20_000_000


def _new_member() -> str:
    return f"{socket.gethostname()}-{os.getpid()}-{token_hex(6)}"


class CountedRate(RateRule):
    """A rate of our own while the store is lost, which remembers what it gave out."""

    __slots__ = ("taken",)

    def __init__(self, rate: Rate, column: int) -> None:
        super().__init__(rate, column)
        self.taken = 0

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        entered = super().enter(cost, now)
        if entered:
            self.taken += cost[self.column]
        return entered


class Link:
    """One gate's tie to the pool of its key."""

    def __init__(
        self,
        gate: _SharedDispatch,
        store: Store | str,
        key: str,
        rates: Sequence[Rate],
        limits: Sequence[int],
        *,
        on_loss: str,
        pace: Backoff | None,
    ) -> None:
        self._gate = gate
        self._where = store
        self._store = open_store(store, gate._clock)
        self._key = key
        self._name = plain_name(store)  # for people
        self._on_loss = on_loss
        self._pace = _CROWDED if pace is None else pace
        self._vain = 0  # answers in a row that gave nothing to those who wait
        self._member = _new_member()
        self._numbers = count(1)
        self.rates = tuple(rates)
        self._limits = limits  # places, places while throttled, bytes, tail: of the whole pool
        self._version = 0
        self._set: Sequence[Sequence[object]] | None = [
            self._terms(),
            limits,
        ]  # what this one wants everybody to go by
        self._learnt: tuple[Rate, ...] = ()  # what responses to this one taught everybody
        self._members = 0
        self._untold: int | None = None  # the end of the window, on our clock, that others have not heard of
        self._telling: int | None = None  # the one that the pending question tells
        self._generation = 0  # of the window, as last heard
        window = gate.window._window
        self.window_told = (window.generation, window.until)
        self._hearing = False
        self._taken = [0] * len(rates)  # of each rate when last looked, and when
        self._looked_at = gate._now()
        self._ahead = [0] * len(rates)  # how much stock to keep
        self._used_at = gate._now()
        self._owed: list[int] = [0] * len(rates)  # given out while the store was lost
        self._places = limits[0]
        self._bytes = limits[2]
        self.valid_until = 0  # after that, what was granted may have gone to others
        self.crowded = False
        self._turn = 0  # how long others are given a default_random, when they want places too
        self._again = 0  # when it is worth asking again, on our clock
        self._provided_until = 0  # the last start of what was given
        self.asked = 0  # questions, for those who measure
        self.wish: tuple[int, ...] | None = None  # the cost of one who did not wait, and may come again
        self._pending: Question | None = None  # asked, and not answered yet
        self._pending_since = 0
        self.lost = False
        self._returns_at: int | None = None  # when a store that is back is taken from again
        self._curious = False  # somebody has changed something
        self._working = False
        self._news: asyncio.Event | None = None
        self._closed = False

    # -- from the gate's side: any thread, never waiting

    def nudge(self) -> None:
        """Something is wanted, or goes back."""
        if not self._closed:
            COURIER.soon(self._stir)

    def low(self) -> bool:
        """Is there less stock than should be kept?"""
        return any(
            rule.units * 2 < ahead
            for rule, ahead in zip(self._gate._rules.rates, self._ahead, strict=False)
            if isinstance(rule, LeasedRate)
        )

    def signal(self, until: int | None) -> None:
        """The window now ends then, or was cleared: everybody is to hear it."""

        def note(_now: int) -> None:  # under the lock, as `_question_locked` takes it away
            self._untold = CLEARED if until is None else until

        self._gate._under_lock(note)
        self.nudge()

    def hears_of_it(self) -> bool:
        """Is it this very thread that brings the news? Others may have some of their own meanwhile."""
        return self._hearing and COURIER.here

    def set_rates(self, rates: Sequence[Rate]) -> None:
        if [rate.unit for rate in rates] != [rate.unit for rate in self.rates]:
            raise InvalidConfig(
                "the rates of a shared Dispatch may change, but not what they count; write them alike"
            )
        self.rates = tuple(rates)
        self._set = [self._terms(), self._limits]
        self._install(leased=not self.lost)
        self._tell_retuned()
        self.nudge()

    def learn(self, before: tuple[Rate, ...], rates: tuple[Rate, ...]) -> None:
        """Responses state other limits: they are everybody's. Only whoever lowered them raises them again."""
        if rates == before or [rate.unit for rate in rates] != [rate.unit for rate in self.rates]:
            return
        if self.rates != self._learnt:
            rates = tuple(
                new if new.amount * now.per_ns < now.amount * new.per_ns else now
                for new, now in zip(rates, self.rates, strict=True)
            )
        if rates != self.rates:
            self._learnt = rates
            self.set_rates(rates)

    def start(self, timeout: float) -> None:
        """Go by the pool from now on. Asks once and waits: is there a store at all?"""
        self._install(leased=True)

        async def greet() -> None:
            question = self._gate._under_lock(self._question_locked)
            self._pending_since = self._gate._now()
            assert question is not None  # there are limits to be agreed on
            given = await asyncio.wait_for(self._store.ask(self._key, question), timeout)
            ours = [rate.unit for rate in self.rates]
            theirs = given.get("units", ours)
            if theirs != ours:
                said = ", ".join(theirs) or "none"
                raise InvalidConfig(
                    f"{self._key!r} is shared by others, whose rates are of {said}; write rates of the same"
                )
            self._take(question, given)
            await self._listen()

        try:
            COURIER.wait_for(greet, timeout + 1)
        except Exception as error:
            if isinstance(self._where, str):
                COURIER.send_last(self._store.close)  # it was opened for this one alone
            if isinstance(error, TimeoutError):
                raise StoreError(f"{self._name} did not answer within {timeout:g} s") from None
            raise
        self.nudge()

    def after_fork(self) -> None:
        """In a forked child: another member, with nothing in its hands and a connection of its own."""
        self._member = _new_member()
        self._store = open_store(self._where, self._gate._clock)
        self._pending = self._news = None
        self._working = self.crowded = self.lost = False
        self._again = self._provided_until = 0
        self._install(leased=True)
        self._owed = [0] * len(self.rates)  # the parent says what it owes
        self.have_none_locked()  # nobody else is here yet
        if not self._closed:
            COURIER.send(self._listen)

    async def _listen(self) -> None:
        link = ref(self)  # a gate that nobody uses any more goes, whoever still has news for it

        def heard() -> None:
            this = link()
            if this is not None:
                this._hear()

        await self._store.listen(self._key, heard)

    def close(self) -> None:
        """Say goodbye, if there is time."""
        if not self._closed:
            self._closed = True
            COURIER.send_last(self._farewell)

    # -- on the courier's loop

    def _hear(self) -> None:
        self._again = 0
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
                    await asyncio.wait_for(self._news.wait(), _IDLE / SECOND if delay is None else delay)
                if delay is None and not self._news.is_set() and self._gate._under_lock(self._let_go_locked):
                    return
                # Whoever comes in the same instant is asked for together.
                await asyncio.sleep(0)
        finally:
            self._working = False
            self._news = None

    async def _exchange(self) -> float | None:
        """One question, if there is any. Answers in how many seconds to look again; None: no need to."""
        gate = self._gate
        if self._pending is not None and gate._now() - self._pending_since > _LEASE // 3:
            gate._under_lock(self._give_up_locked)
        question = self._pending
        if question is None:
            question = gate._under_lock(self._question_locked)
            self._pending_since = gate._now()
        else:
            question["window"] = window_left(self._telling, gate._now())  # less than when it was first asked
        if question is None:
            return self._next_look()
        self._pending = question
        self.asked += 1
        answering = asyncio.ensure_future(self._store.ask(self._key, question))
        try:
            # In two halves: when this process was stopped in the first, the answer may be waiting for it.
            await asyncio.wait({answering}, timeout=_PROMPT / 2)
            done, _ = await asyncio.wait({answering}, timeout=_PROMPT / 2)
            if not done:
                self._lose(f"no answer within {_PROMPT:g} s")  # and it may still come
            given = await asyncio.wait_for(answering, _PATIENCE)
        except (StoreError, TimeoutError) as error:
            self._lose(str(error) or "no answer")
            return _TRY_AGAIN
        finally:
            answering.cancel()
        self._pending = None
        self._take(question, given)
        return self._next_look()

    def _give_up_locked(self, _now: int) -> None:
        """The pool may have forgotten whether it answered: what we owe we say once more, nothing else."""
        assert self._pending is not None
        question, self._pending = self._pending, None
        if len(question["owed"]) == len(self._owed):
            self._owed = [owed + extra for owed, extra in zip(self._owed, question["owed"], strict=True)]
        self._set = self._set or question["set"]
        if self._untold is None:
            self._untold = self._telling

    def _next_look(self) -> float | None:
        now = self._gate._now()
        delays = []
        if self.crowded:
            delays.append(self._turn / SECOND)
        if self._again > now:
            delays.append((self._again - now) / SECOND)
        if self._gate._under_lock(self._holds_locked):
            delays.append(min(_IDLE, _HEARTBEAT) / SECOND)
        return min(delays, default=None)

    async def _farewell(self) -> None:
        """What calls still use is theirs until they are over; then the rest is free."""
        while self._gate._under_lock(self._inside_locked):
            await self._say(self._gate._under_lock(lambda now: self._question_locked(now, resting=True)))
            await asyncio.sleep(_IDLE / SECOND)
        await self._say(self._gate._under_lock(lambda now: self._question_locked(now, bye=True)))
        if isinstance(self._where, str):
            await self._store.close()

    async def _say(self, question: Question | None) -> None:
        if question is not None:
            with suppress(StoreError, TimeoutError):  # what was held runs out by itself
                await asyncio.wait_for(self._store.ask(self._key, question), _PATIENCE)

    def _let_go_locked(self, now: int) -> bool:
        """Nothing has been used for a while: what was granted goes back. True: and all is said."""
        if self._holds_locked(now):
            return False
        if not self.lost:
            self._pending = self._question_locked(now, resting=True)
            self._pending_since = now
            self.have_none_locked()
        return self._pending is None

    def have_none_locked(self) -> None:
        """No place and no byte is ours to use before the next answer."""
        rules = self._gate._rules
        self._places = self._bytes = 0
        if rules.places is not None and self._limits[0]:
            rules.places.limit = 0
        if rules.weight is not None and self._limits[2]:
            rules.weight.budget = 0

    def drop_batches_locked(self, now: int) -> None:
        """Into a window nobody takes anything: what is needed after it is asked for anew."""
        rules = self._gate._rules
        until = None if rules.window is None else rules.window.until
        if rules.reentry is not None and until is not None and now < until:
            for rule in rules.rates:
                if isinstance(rule, LeasedRate):
                    rule.hold_until(until, now)

    # -- questions

    def _terms(self) -> list[list[int]]:
        return [[rate.amount, rate.per_ns // NS_PER_US, rate.burst] for rate in self.rates]

    def _holds_locked(self, now: int) -> bool:
        rules = self._gate._rules.rates
        stock = any(rule.units or rule.scheduled() for rule in rules if isinstance(rule, LeasedRate))
        return bool(stock or self._gate._line.waiting) or self._inside_locked(now)

    def _inside_locked(self, _now: int) -> bool:
        places, weight = self._gate._rules.places, self._gate._rules.weight
        return bool((places and places.in_flight) or (weight and weight.in_flight))

    def _question_locked(self, now: int, *, bye: bool = False, resting: bool = False) -> Question | None:
        gate = self._gate
        rules = gate._rules
        stocks = [rule for rule in rules.rates if isinstance(rule, LeasedRate)]
        costs = [
            ticket.cost for band in gate._line._bands for ticket in islice(band.tickets(), _MOST_TICKETS)
        ]
        wish, self.wish = self.wish, None
        if wish is not None and not costs:
            costs = [gate._at_full_length(wish)]
        batches = [] if bye or resting or self.lost else self._batches_locked(stocks, costs, now)
        if bye:
            for rule in stocks:
                rule.return_unused(0, now)
        places, weight = rules.places, rules.weight
        uses = [0 if places is None else places.in_flight, 0 if weight is None else weight.in_flight]
        penalty = weight.penalty if weight is not None and rules.throttled(now) else 1
        wants = [len(costs), sum(cost[BYTES] for cost in costs) * penalty]
        spare = [max(4, uses[0] // 4), max(1 << 20, uses[1] // 4)]  # for those who come
        if self.crowded or bye or resting:
            spare = [0, 0]
        reports = [rule.report() for rule in stocks] or [([], 0)] * len(self.rates)
        extra = [debt + owed for (_, debt), owed in zip(reports, self._owed, strict=True)]
        back = [units for units, _ in reports]
        due = now - self._looked_at >= _HEARTBEAT
        limited = [bool(self._limits[0]), bool(self._limits[2])]
        granted = [self._places, self._bytes]
        wanting = any(
            limit and use + want > grant
            for limit, use, want, grant in zip(limited, uses, wants, granted, strict=True)
        )
        leaving = (self.crowded or resting) and any(
            limit and grant > use for limit, use, grant in zip(limited, uses, granted, strict=True)
        )
        if self.crowded and now - self._looked_at < self._turn:
            wanting = leaving = False  # the others take turns too
        pause = window_left(self._untold, now)
        telling = any(extra) or any(back) or pause or self._set or self.lost or self._curious
        if not (batches or wanting or leaving or telling or bye or (due and self._holds_locked(now))):
            return None
        self._owed = [0] * len(self.rates)
        self._looked_at = now
        question = empty_question(
            self._member,
            next(self._numbers),
            lease=_LEASE // NS_PER_US,
            rates=self._terms(),
            units=[rate.unit for rate in self.rates],
            limits=self._limits,
        )
        question |= {
            "version": self._version,
            "set": self._set,
            "batches": batches,
            "returned": back,
            "owed": extra,
            "spare": spare,
            "waits_for_window": rules.reentry is not None,
            "window": pause,
            "leaves": bye,
        }
        if not bye:
            question |= {
                "uses": uses,
                "wants": wants,
                "next_bytes": costs[0][BYTES] * penalty if costs else 0,
                "waiting": gate._line.waiting,
            }
        self._telling, self._untold = self._untold, None
        self._set = None
        self._curious = False
        return question

    def _batches_locked(
        self, stocks: list[LeasedRate], costs: list[tuple[int, ...]], now: int
    ) -> list[list[int]]:
        """What those who wait need beyond what is there or coming, and what will be wanted next."""
        if not stocks or now < self._again:
            return []
        self._foresee(stocks, now)
        needs = []
        for rule, ahead in zip(stocks, self._ahead, strict=True):
            rule.release_due(now)
            wanted = sum(cost[rule.column] for cost in costs)
            needs.append(max(0, max(wanted, ahead) - rule.units - rule.scheduled()))
        if not any(needs):
            return []
        if now < self._provided_until - _EARLY:
            self._again = self._provided_until - _EARLY  # there is enough on its way until then
            return []
        heaviest = [max((cost[rule.column] for cost in costs), default=1) for rule in stocks]
        caps = [
            max(1, least, min(rule.rate.amount * _BATCH // rule.rate.per_ns, rule.rate.burst // 20))
            for rule, least in zip(stocks, heaviest, strict=True)
        ]
        pieces = min(8, max(-(-need // cap) for need, cap in zip(needs, caps, strict=True)))
        return [
            [
                min(cap, need // pieces + (piece < need % pieces))
                for need, cap in zip(needs, caps, strict=True)
            ]
            for piece in range(pieces)
        ]

    def _foresee(self, stocks: list[LeasedRate], now: int) -> None:
        """How much is used in the time that stock is kept for."""
        elapsed = max(now - self._used_at, 1)
        if elapsed < _AHEAD // 5:
            return
        for i, rule in enumerate(stocks):
            used = rule.taken - self._taken[i]
            self._taken[i] = rule.taken
            speed = used * _AHEAD // elapsed
            # Only a small part of the burst, shared with the others, may lie about unused.
            most = rule.rate.burst // 10 // max(1, self._members)
            self._ahead[i] = min(most, (self._ahead[i] + 2 * speed) // 2 if used else self._ahead[i] // 2)
        self._used_at = now

    # -- answers

    def _take(self, question: Question, given: Answer) -> None:
        """Bring it to the gate."""
        batches = question["batches"]
        if self.lost:
            # What was given to a question from before is not used: the pool did not know yet what we used.
            batches = []
            if not self._returned(given):
                return
        retuned = "rates" in given and self._follow(given)

        def take(now: int) -> None:
            gate = self._gate
            rules = gate._rules
            self._version = given["version"]
            self._members = given["members"]
            self.crowded = given["crowded"]
            short = given["places"] < sum(asked[0] for asked in (question["uses"], question["wants"]))
            self._vain = self._vain + 1 if short and given["places"] <= question["uses"][0] else 0
            turn = self._pace.delay_ns(max(0, self._vain - 1), gate._random(), self._turn)
            self._turn = max(turn, _AT_ONCE)
            self._again = now + given["ask_again_in"] * NS_PER_US if given["ask_again_in"] else 0
            for stamp, (start, batch) in enumerate(
                zip(given["starts"], batches, strict=False), given["first_stamp"]
            ):
                for rule, units in zip(rules.rates, batch, strict=False):
                    if units and isinstance(rule, LeasedRate):
                        rule.grant(units, now + start * NS_PER_US, stamp)
                self._provided_until = now + start * NS_PER_US
            self._places, self._bytes = given["places"], given["bytes"]
            self.valid_until = self._pending_since + _LEASE * 9 // 10
            if rules.places is not None and self._limits[0]:
                rules.places.limit = self._places
            if rules.weight is not None and self._limits[2]:
                rules.weight.budget, rules.weight.whole = self._bytes, self._limits[2]
            for rule, ahead in zip(rules.rates, self._ahead, strict=False):
                if isinstance(rule, LeasedRate) and now - self._used_at > _IDLE and not gate._line.waiting:
                    rule.return_unused(ahead, now)

        if retuned:
            self._install(leased=True)
            self._tell_retuned()
        self._gate._change(take)
        self._hear_window(given["window_left"], given["window_generation"])

    def _follow(self, given: Answer) -> bool:
        """Somebody set other limits."""
        rates = tuple(
            Rate(amount, period * NS_PER_US / SECOND, burst=burst, unit=ours.unit)
            for (amount, period, burst), ours in zip(given["rates"], self.rates, strict=False)
        )
        changed = self._version != 0 and (rates != self.rates or given["limits"] != self._limits)
        if len(rates) == len(self.rates) and rates != self.rates:
            self.rates = rates
        self._limits = PoolLimits(*given["limits"])
        return changed

    def _hear_window(self, remaining: int, generation: int) -> None:
        if generation != self._generation:
            self._generation = generation
            self._hearing = True
            try:
                self._gate._hear_of_window(remaining * NS_PER_US)
            finally:
                self._hearing = False

    # -- without the store

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        logging.getLogger("headgate").warning(
            "%s cannot be asked (%s); %r goes on by on_loss=%r", self._name, why, self._key, self._on_loss
        )
        self._install(leased=False)
        self._tell(events.StoreLost, why)

    def _returned(self, given: Answer) -> bool:
        """The store answers again. Nobody takes anything before everybody has told what was used."""
        now = self._gate._now()
        self._owe()
        if self._returns_at is None:
            self._returns_at = now + _REUNION
            self._members = max(self._members, given["members"])
        if now < self._returns_at:
            self._again = self._returns_at
            return False
        self.lost = False
        self._returns_at = None
        self._install(leased=True)
        self._tell(events.StoreRegained, "")
        return True

    def _owe(self) -> None:
        """While it was away the pool has filled up, though we all went on: of that, our part."""
        for i, rule in enumerate(self._gate._rules.rates):
            if isinstance(rule, CountedRate):
                self._owed[i] += min(rule.taken, -(-self.rates[i].burst // max(1, self._members)))
                rule.taken = 0

    def _tell(self, kind: type[events.Event], reason: str) -> None:
        gate = self._gate
        facts: dict[str, Any] = {"key": self._key, "at": gate._now() / SECOND}
        if kind is events.StoreLost:
            facts["reason"] = reason
        events.tell(gate._observer, kind(**facts))

    def _tell_retuned(self) -> None:
        gate = self._gate
        names = tuple(str(rate) for rate in self.rates)
        events.tell(gate._observer, events.Retuned(key=self._key, at=gate._now() / SECOND, rates=names))

    def _install(self, *, leased: bool) -> None:
        """The rules to go by: what the pool gives, or a part of the limits."""

        def install(now: int) -> None:
            gate = self._gate
            columns = gate._columns
            rules = gate._rules
            if not leased:
                self.valid_until = FAR_OFF
                part = self._members or 2
                if rules.places is not None and self._limits[0]:
                    rules.places.limit = max(1, self._limits[0] // part)
                if rules.weight is not None and self._limits[2]:
                    rules.weight.budget = self._limits[2] // part
            if leased:
                rates: list[Any] = [LeasedRate(rate, columns[rate.unit]) for rate in self.rates]
            elif self._on_loss == "open":
                rates = []
            elif self._on_loss == "closed":
                rates = [LeasedRate(rate, columns[rate.unit]) for rate in self.rates]
            else:
                rates = [CountedRate(share_of(rate, part), columns[rate.unit]) for rate in self.rates]
                for rule in rates:
                    rule.lower(0, now)  # what there was is unknown: nothing is saved up
            for i, old in enumerate(rules.rates):
                if isinstance(old, LeasedRate) and i < len(self._owed):
                    self._owed[i] += old.owed
            rules.set_rates(rates)
            gate._follow_rules()
            self._taken = [0] * len(self.rates)
            self._ahead = [0] * len(self.rates)

        self._gate._change(install)
