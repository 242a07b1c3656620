"""A client of the records of one group in a store: records that are read, changed and written back.

A caller that has something to tell leaves it here and goes on; only one that asks for something waits. One
exchange with the store goes on at a time, and takes along all changes that were left. A change is made
to the records as last heard; if another member was faster, it is made again to what that one wrote.
"""

from __future__ import annotations

import asyncio
import logging
from _thread import allocate_lock, get_ident
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from random import SystemRandom
from secrets import token_hex
from typing import Any, Self

from ...arguments import NS_PER_US, SECOND
from ...errors import StoreError
from ...events import StoreForgot
from ...gate.forks import reset_in_child
from ...telling import tell
from ...typing import Clock, Observer
from ..courier import COURIER
from ..store import AnyStore, Changes, Records, kind_of, plain_name
from .open_store import OpenStore, drive, hold
from .record import Record, Times, Turn, attempt_made, rewrite

# A record that was heard longer ago is looked at again before it is changed: nearly always another member
# has changed it since.
_STALE = SECOND
# How long to wait for an answer until the store counts as lost, and how often a lost store is tried again.
_PATIENCE = 2.0
_TRY_AGAIN = 0.25
# A member that was too late this often takes a turn. The others look again after a pause, until it is over.
_TOO_OFTEN = 3
_PAUSE = 0.002
# How many changes one exchange takes along.
_MOST = 64
# Clocks drift: two of them may differ by one part in this many.
_DRIFT = 1_000

# Randomness that no program has seeded, and that a forked child does not share with its parent.
_random = SystemRandom().random


@dataclass(eq=False)
class Change:
    """A change to some records. `act` is given their states and the time, and answers what came of it and
    whether it changed anything. It may be called more than once, each time with other states.
    """

    records: Sequence[Record]
    act: Callable[[Sequence[Any], Times], tuple[Any, bool]]
    done: Callable[[Any], object] | None = None  # called with what came of it
    undo: Callable[[Any], object] | None = None  # called instead if the caller that asked has gone
    answer: Future[Any] | None = None  # where a caller waits for it
    failed: bool = False
    sum_key: Hashable = None  # changes of equal keys can be added up

    @property
    def wanted(self) -> bool:
        """Whether it is to be made: a caller that asked may have gone."""
        return self.answer is None or not (self.failed or self.answer.cancelled())

    def add(self, other: Self) -> None:
        """Do what the other change would do, too."""
        raise NotImplementedError

    def deliver(self, outcome: Any) -> None:
        """The change was made, or cannot be made because a record makes no sense."""
        answer = self.answer
        if answer is None:
            if isinstance(outcome, StoreError):
                logging.getLogger("headgate").error("what was used or decided cannot be kept: %s", outcome)
            elif self.done is not None:
                self.done(outcome)
        elif isinstance(outcome, StoreError):
            self.fail(outcome)
        elif not self.failed and answer.set_running_or_notify_cancel():
            answer.set_result(outcome)
        elif self.undo is not None:
            self.undo(outcome)

    def fail(self, error: StoreError) -> None:
        """The store is lost. A caller that waits is told; a change that is only to be told can wait."""
        if self.answer is None or self.failed:
            return
        self.failed = True
        if self.answer.set_running_or_notify_cancel():
            again = StoreError(*error.args)  # one for each caller: a traceback grows where it is raised
            again.__cause__ = error.__cause__
            self.answer.set_exception(again)


def look(records: Sequence[Record]) -> Change:
    """A change that changes nothing: it only hears what the records say."""
    return Change(records, lambda _states, _times: (None, False))


class RecordClient:
    """One member's access to the records of one group.

    `on_loss` is called with the reason when the store cannot be asked, and with None when it can again;
    `on_forgot` when it has lost records that it should have.
    """

    def __init__(self, store: AnyStore, group: str, clock: Clock) -> None:
        self.name = plain_name(store)
        self.clock = clock
        self.on_loss: Callable[[str | None], object] | None = None
        self.on_forgot: Callable[[], object] | None = None
        self._where, self.kind = store, kind_of(store)
        self._group = group
        self._held: OpenStore | None = hold(store, clock)
        self._rests = False  # the store is held only while there is something to tell
        # A store in this process answers at once, in the thread of the caller.
        self._at_once = self._held.at_once
        self.fresh_for = -1 if self._at_once else _STALE  # how old the answer to a question may be
        self._listening: Sequence[Record] = ()
        # The store's, when on our clock it was asked for and heard, and how far the wall clock is ahead.
        self._time = (0, 0, 0, 0)
        self._turn = Turn("turn")
        self._start()
        reset_in_child(self)

    def _start(self) -> None:
        self.member = token_hex(6)
        self.lost = False
        self.exchanges = 0
        self._marks = count()
        self._left: deque[Change] = deque()  # from any thread
        self._backlog: list[Change] = []  # taken over from there, and not on its way yet
        self._sums: dict[Any, Change] = {}  # the changes of the backlog to which more can be added
        self._batch: Sequence[Change] = ()  # on its way
        self._news: deque[Callable[[], object]] = deque()  # to be called when the exchange is over
        self._working = allocate_lock()  # never waited for: held during an exchange by the courier
        self._worker: dict[str, object] = {}  # the same for a store in this process: who exchanges with it

    # -- from any thread

    def tell(self, change: Change) -> None:
        """Have it made. Never waits, and it is made in the end, also if the store is lost now.

        Finalizers may call this. For a store in this process, `flush` makes it at once.
        """
        self._left.append(change)
        if not self._at_once:
            COURIER.soon(self._set_out)

    def flush(self) -> None:
        """The end of a public call: what was left for a store in this process is made now, and heard of."""
        if not self._at_once:
            return
        me = get_ident()
        if me in _flushing:  # a listener or a finalizer within this loop, which goes on with this client
            _flushing[me].append(self)
            return
        clients = _flushing[me] = [self]
        try:
            for client in clients:
                client.work_at_once()
        finally:
            del _flushing[me]
        for client in clients:
            client.hear()

    def work_at_once(self) -> None:
        """Make what was left, if no other thread does so already. Calls no user code."""
        worker = self._worker
        while self._left:
            mine = object()
            try:  # an interrupt comes after a call, so that only the entry itself tells if this thread works
                if worker.setdefault("", mine) is not mine:
                    return
                drive(self._work(self._open()))
            finally:
                try:
                    if worker[""] is mine:
                        del worker[""]
                except KeyError:  # another thread did work, and has ended
                    pass

    def hear(self) -> None:
        """Call what is to be called after exchanges."""
        while self._news:
            try:
                news = self._news.popleft()
            except IndexError:  # another thread was faster
                return
            news()

    def ask(self, change: Change) -> Any:
        """Have it made, and wait for what comes of it. StoreError in time if the store cannot be asked."""
        with self._asking(change) as answer:
            return answer.result(_PATIENCE + 2 * _TRY_AGAIN)

    async def ask_async(self, change: Change) -> Any:
        """Have it made, and await what comes of it. StoreError in time if the store cannot be asked."""
        with self._asking(change) as answer:
            if answer.done():
                return answer.result()
            return await asyncio.wait_for(asyncio.wrap_future(answer), _PATIENCE + 2 * _TRY_AGAIN)

    @contextmanager
    def _asking(self, change: Change) -> Iterator[Future[Any]]:
        """Where the answer comes. If the caller goes without it, what it is given nevertheless goes back."""
        if COURIER.here and not self._at_once:
            raise StoreError(f"{self.name} cannot be asked by an observer: the answer comes by this thread")
        answer: Future[Any] = Future()
        change.answer = answer
        self.tell(change)
        self.flush()
        try:
            yield answer
        except BaseException as error:
            undo = change.undo
            if not answer.cancel() and undo is not None:
                answer.add_done_callback(lambda given: given.exception() or undo(given.result()))
            if isinstance(error, TimeoutError):
                raise self._unanswered() from None
            raise

    def listen(self, records: Sequence[Record]) -> None:
        """From now on, changes that others make to these records are heard of without asking.

        What they are now is asked for after that: what changes in between is heard of in any case.
        """
        self._listening = records
        held = self._open()
        changed = held.add_listener(self._group, self)
        if changed is not None and self._at_once:
            drive(held.store.listen(self._group, changed))
        elif changed is not None:
            COURIER.send(lambda: held.store.listen(self._group, changed))

    def look_again(self) -> None:
        """Another member has changed something."""
        for record in self._listening:
            record.heard_at = None
        self.tell(look(self._listening))
        self.flush()

    def untold(self) -> list[Change]:
        """The changes that have been left here and are not made yet."""
        return [*self._batch, *self._backlog, *self._left.copy()]

    def times(self) -> Times:
        """Between which moments it is now on the store's clock, as of the last answer."""
        store, asked, heard, ahead = self._time
        now = self.clock.now()
        doubt = max(0, now - heard) // _DRIFT
        return Times(store + now - heard - doubt, store + now - asked + doubt, ahead)

    # -- one exchange after the other

    def _set_out(self) -> None:
        if self._left and self._working.acquire(blocking=False):
            COURIER.start(self._travel, last=True)

    async def _travel(self) -> None:
        try:
            await self._work(self._open())
        finally:
            self._working.release()

    async def _work(self, held: OpenStore) -> None:
        """Tell all that was left. The store stays open until then, also if the client rests meanwhile."""
        try:
            while self._left or self._backlog:
                self._gather()
                # A change is always in one of the three: other threads look at what is not told yet.
                self._batch = self._backlog[:_MOST]
                del self._backlog[:_MOST]
                self._sums.clear()
                await self._exchange(held, [change for change in self._batch if change.wanted])
                self._batch = ()
        except Exception as error:
            for change in self._batch:  # a caller must not wait for an answer that will not come
                change.fail(StoreError(f"{self.name}: {error!r}"))
            raise

    async def _exchange(self, held: OpenStore, batch: Sequence[Change]) -> None:
        records = list({record.name: record for change in batch for record in change.records}.values())
        self.exchanges += 1
        # What each attempt comes to, if it turns out to be the one that was made.
        attempts: list[list[Any]] = []
        too_late = 0
        now = self.clock.now()
        stale = any(record.heard_at is None or now - record.heard_at > _STALE for record in records)
        step = "look" if stale else "write"
        while records:
            if step == "write":
                exchange = (self.member, self.exchanges, len(attempts))
                swaps, outcomes = rewrite(batch, records, exchange, self.times())
                swaps["turn"] = self._turn.passed(self.member)
                attempts.append(outcomes)
            else:
                swaps = dict.fromkeys([record.name for record in records], (None, None, 0))
                take = step == "take turn"
                swaps["turn"] = self._turn.take(self.member, self.times().late) if take else (None, None, 0)
            try:
                answer = await self._swap(held, swaps, [*records, self._turn])
            except StoreError as error:
                self._note_loss(str(error))
                self._gather()
                for change in self.untold():
                    change.fail(error)
                if not attempts and not any(change.wanted for change in batch):
                    return  # no caller waits for it any longer, and nothing can have been written
                await asyncio.sleep(_TRY_AGAIN * (0.5 + _random()))
                step = "look"  # the records tell whether it was written
                continue
            written = answer.swapped and step == "write"
            made = len(attempts) - 1 if written else attempt_made(records, self.member, self.exchanges)
            if 0 <= made < len(attempts):
                self._deliver(batch, attempts[made])
                return
            too_late += step == "write"
            if self._at_once:
                step = "write"
            elif self._turn.is_of_another(self.member, self.times().early):
                await asyncio.sleep(_PAUSE * (0.5 + _random()))
                step = "look"
            elif step == "write" and too_late >= _TOO_OFTEN:
                step = "take turn"
            else:
                step = "write"
        self._deliver(batch, [None] * len(batch))

    def _gather(self) -> None:
        """Take over what was left. Changes that can be added up are: while the store is lost, what is to be
        told of one user stays one change."""
        while self._left:
            change = self._left[0]
            known = None if change.sum_key is None else self._sums.get(change.sum_key)
            if known is not None:
                known.add(change)
            else:
                self._backlog.append(change)
                if change.sum_key is not None:
                    self._sums[change.sum_key] = change
            self._left.popleft()

    async def _swap(self, held: OpenStore, swaps: Changes, records: Iterable[Record]) -> Records:
        mark = f"{self.member}.{next(self._marks)}"
        asked = self.clock.now()
        swapping = held.store.swap(self._group, swaps, mark)
        try:
            answer = await (swapping if self._at_once else asyncio.wait_for(swapping, _PATIENCE))
        except TimeoutError:
            raise self._unanswered() from None
        heard, early = self.clock.now(), answer.now * NS_PER_US
        self._time = (early, asked, heard, answer.ahead * NS_PER_US)
        forgot, times = False, Times(early, early, answer.ahead * NS_PER_US)
        for record in records:
            forgot = record.keep(*answer.current[record.name], times) or forgot
            record.heard_at = heard
        self._note_loss(None)
        if forgot:
            self._call(self.on_forgot or self.tell_forgot)
        for record in records:
            self._call(partial(record.heard, early))
        return answer

    def _deliver(self, batch: Sequence[Change], outcomes: Sequence[Any]) -> None:
        for change, outcome in zip(batch, outcomes, strict=True):
            if change.answer is None:
                self._call(partial(change.deliver, outcome))
            else:
                change.deliver(outcome)

    def _call(self, news: Callable[[], object]) -> None:
        """Call it after the exchange where callers make exchanges by themselves, and now on the courier."""
        if self._at_once:
            self._news.append(news)
        else:
            news()

    # -- the store

    def rest(self) -> None:
        """Listen no longer, and let the store go, until there is something to tell again."""
        self._rests = True
        held, self._held, self._listening = self._held, None, ()
        if held is not None:
            held.drop_listener(self._group, self)

    def _open(self) -> OpenStore:
        held = self._held
        if held is None:
            held = hold(self._where, self.clock)
            if not self._rests:
                self._held = held
        return held

    def _note_loss(self, why: str | None) -> None:
        """The store cannot be asked, for this reason; None: it has answered."""
        if self.lost == (why is not None):
            return
        self.lost = not self.lost
        log = logging.getLogger("headgate")
        if why is None:
            log.info("%s answers again", self.name)
        else:
            log.warning("%s cannot be asked (%s)", self.name, why)
        if self.on_loss is not None:
            self.on_loss(why)

    def tell_forgot(self, observer: Observer | None = None, key: Hashable = None) -> None:
        """Tell that the store has lost records. What this process knew of them is written again."""
        of = self._group if key is None else key
        tell(observer, StoreForgot(key=of, at=self.clock.now() / SECOND, store=self.kind))

    def _unanswered(self) -> StoreError:
        return StoreError(f"{self.name} does not answer in time ({_PATIENCE:g} s)")

    def after_fork(self) -> None:
        """In a forked child: another member, with nothing to tell and a connection of its own."""
        self._held = None
        self._start()
        for record in self._listening:
            record.heard_at = None
        if self._listening:
            self.listen(self._listening)


# The threads that flush a client of a store in this process, and the clients each has yet to do.
_flushing: dict[int, list[RecordClient]] = {}
