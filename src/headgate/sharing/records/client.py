"""What the processes of a fleet keep together: records that are read, changed and written back, once each.

Rules of this room: whoever has something to tell leaves it here and goes on; only who asks for something
waits. One exchange with the store is under way at a time and takes all along. A change is made
to what was last heard; if others were faster it is made again, to what they wrote. Every record remembers the
last exchange of each member, so that one whose reply was lost is found there, and never made twice.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from _thread import allocate_lock
from collections import deque
from concurrent.futures import Future
from itertools import count
from random import SystemRandom
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import WeakSet, WeakValueDictionary, finalize

from ...arguments import SECOND
from ...errors import InvalidConfig, StoreError
from ..courier import COURIER
from ..memory import MemoryStore
from ..store import open_store, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence
    from typing import Any, Self, TypeVar

    from ...typing import Clock
    from ..store import Changes, Records, Store

    T = TypeVar("T")

_MICRO = 1_000
# What was heard longer ago is looked at again before it is changed: nearly always somebody has.
_STALE = SECOND
# After so long without an answer the store counts as lost, and how often a lost one is tried again.
_PATIENCE = 2.0
_TRY_AGAIN = 0.25
# Whoever was too late so often takes the next turn; for so many microseconds at most, others wait meanwhile.
_TOO_OFTEN = 3
_TURN = 500_000
_PAUSE = 0.002
# How many entries one exchange takes along.
_MOST = 64
# For so long a record remembers who wrote to it, in microseconds.
_REMEMBERED = 600_000_000
# Of so many nanoseconds, two clocks may differ by one.
_DRIFT = 1_000

# What reading a record may raise that was not written by us.
DAMAGE = (ValueError, TypeError, KeyError, AttributeError, IndexError, OverflowError)

# Dice that nobody has seeded, and that a forked child does not throw alike.
_chance = SystemRandom().random


def contents(text: str) -> tuple[dict[str, Any], Any]:
    """What a record says: the last exchange of each member, and the rest for those who know such a page."""
    members, written = json.loads(text) if text else ({}, None)
    if not isinstance(members, dict):
        raise TypeError("nobody has written it")
    return members, written


class Page:
    """One record, as last heard. What is written there is for those who know this kind of page."""

    __slots__ = ("__weakref__", "heard_at", "name", "record")

    def __init__(self, name: str) -> None:
        self.name = name
        self.record = ("", "")  # mark and text: in one, for whoever looks while they change
        self.heard_at: int | None = None  # on our clock

    @property
    def mark(self) -> str:
        return self.record[0]

    @property
    def text(self) -> str:
        return self.record[1]

    def read(self, written: Any, late: int) -> Any:
        """The state that was written; None: nothing was. ValueError: that was never written."""
        raise NotImplementedError

    def write(self, state: Any, late: int) -> tuple[Any, int]:
        """What to write, as JSON, and for how many nanoseconds it is worth keeping."""
        raise NotImplementedError

    def heard(self, early: int) -> None:
        """There may be news. `early`: it is at least so late on the store's clock."""

    def damaged(self, error: Exception) -> StoreError:
        """What to raise when what is kept makes no sense."""
        return StoreError(f"what the store keeps of {self.name} cannot be read ({error}); delete it there")


class Entry:
    """A change to some pages. `act` is given their states and the time, and answers what came of it, and
    whether it changed anything. It may be asked more than once, each time with other states.

    The time is known within bounds: now is not before `early` and not after `late`, on the store's clock.
    """

    __slots__ = ("act", "answer", "done", "failed", "pages", "undo")

    sum_key: Hashable = None  # entries of one key can be added up

    def __init__(
        self,
        pages: Sequence[Page],
        act: Callable[[Sequence[Any], int, int], tuple[Any, bool]],
        *,
        done: Callable[[Any], object] | None = None,
        undo: Callable[[Any], object] | None = None,
    ) -> None:
        self.pages = pages
        self.act = act
        self.done = done  # told what came of it
        self.undo = undo  # told the same, or None, if whoever asked for it has gone
        self.answer: Future[Any] | None = None  # where somebody waits for it
        self.failed = False

    @property
    def wanted(self) -> bool:
        """Is there anybody who still cares?"""
        return self.answer is None or not (self.failed or self.answer.cancelled())

    def add(self, other: Self) -> None:
        """Do what the other would do, too."""
        raise NotImplementedError

    def deliver(self, outcome: Any) -> None:
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
        """Nobody is left to wait for a store that is lost. What is only told can wait."""
        if self.answer is None or self.failed:
            return
        self.failed = True
        if self.answer.set_running_or_notify_cancel():
            again = StoreError(*error.args)  # each has its own: a traceback grows where it is raised
            again.__cause__ = error.__cause__
            self.answer.set_exception(again)


def look(pages: Sequence[Page]) -> Entry:
    """An entry that changes nothing: what is there is heard."""
    return Entry(pages, lambda _states, _early, _late: (None, False))


class Ledger:
    """One member's part in the records of one group.

    `lost` is told why the store cannot be asked, and None when it can again.
    """

    def __init__(
        self,
        store: Store | str,
        group: str,
        clock: Clock,
        *,
        lost: Callable[[str | None], object] | None = None,
    ) -> None:
        self.name = plain_name(store)
        self._where = store
        self._group = group
        self._clock = clock
        self._tell_lost = lost
        self._held: _Held | None = _hold(store, clock)
        self._at_once = isinstance(self._held.store, MemoryStore)  # no courier is needed for that
        self.fresh_for = -1 if self._at_once else _STALE  # how old the answer to a question may be
        self._listening: Sequence[Page] = ()
        self._time = (0, 0, 0)  # the store's, and when on our clock it was asked for and heard
        self._turn_page = Page("turn")
        self._start()

    def _start(self) -> None:
        self.member = token_hex(6)
        self.lost = False
        self._number = 0  # of the exchange
        self._marks = count()
        self._backlog: list[Entry] = []  # out of the tray, and not on its way yet
        self._sums: dict[Any, Entry] = {}  # those in it to which more can be added
        self._tray: deque[Entry] = deque()
        self._batch: Sequence[Entry] = ()
        self._working = False
        self._busy = allocate_lock()

    # -- from any thread

    def tell(self, entry: Entry) -> None:
        """Have it written. Never waits, and is told in the end: also by a finalizer, also to a lost store."""
        self._tray.append(entry)
        if not self._at_once:
            COURIER.soon(self._set_out)
            return
        while self._tray and self._busy.acquire(blocking=False):
            try:
                _drive(self._work())
            finally:
                self._busy.release()

    def ask(self, entry: Entry) -> Any:
        """Have it written, and wait for what comes of it. StoreError in time if the store cannot be asked."""
        answer = self._asking(entry)
        try:
            return answer.result(_PATIENCE + 2 * _TRY_AGAIN)
        except BaseException as error:
            self._leave(entry, answer)
            if isinstance(error, TimeoutError):
                raise self._unanswered() from None
            raise

    async def ask_async(self, entry: Entry) -> Any:
        """The same for a task."""
        answer = self._asking(entry)
        if answer.done():
            return answer.result()
        try:
            return await asyncio.wait_for(asyncio.wrap_future(answer), _PATIENCE + 2 * _TRY_AGAIN)
        except BaseException as error:
            self._leave(entry, answer)
            if isinstance(error, TimeoutError):
                raise self._unanswered() from None
            raise

    def _asking(self, entry: Entry) -> Future[Any]:
        if COURIER.here and not self._at_once:
            raise StoreError(f"{self.name} cannot be asked by an observer: the answer comes by this thread")
        answer: Future[Any] = Future()
        entry.answer = answer
        self.tell(entry)
        return answer

    def _leave(self, entry: Entry, answer: Future[Any]) -> None:
        """Whoever asked has gone: what was given nevertheless goes back."""
        undo = entry.undo
        if answer.cancel() or undo is None:
            return

        def too_late(answer: Future[Any]) -> None:
            if answer.exception() is None:
                undo(answer.result())

        answer.add_done_callback(too_late)

    def listen(self, pages: Sequence[Page]) -> None:
        """From now on, changes that others make to these pages are heard of without asking."""
        self._listening = pages
        held = self._open()
        ears = held.ears.get(self._group)
        if ears is None:
            ears = held.ears[self._group] = WeakSet()
            heard = _Ears(ears)
            if self._at_once:
                _drive(held.store.listen(self._group, heard))
            else:
                COURIER.send(lambda: held.store.listen(self._group, heard))
        ears.add(self)

    def look_again(self) -> None:
        """Somebody has changed something."""
        for page in self._listening:
            page.heard_at = None
        self.tell(look(self._listening))

    def untold(self) -> list[Entry]:
        """What has been left here and is not written yet."""
        return [*self._batch, *self._backlog, *self._tray.copy()]

    def times(self) -> tuple[int, int]:
        """Between which moments it is now on the store's clock, in nanoseconds, as of the last answer."""
        store, asked, heard = self._time
        now = self._clock.now()
        doubt = max(0, now - heard) // _DRIFT
        return store + now - heard - doubt, store + now - asked + doubt

    # -- one exchange after the other

    def _set_out(self) -> None:
        if not self._working and self._tray:
            self._working = True
            # The end of the process waits for it, for a moment.
            COURIER.start(self._work, last=True)

    async def _work(self) -> None:
        try:
            while self._tray or self._backlog:
                self._gather()
                # There is no moment at which an entry is nowhere: others look at what is not told yet.
                self._batch = self._backlog[:_MOST]
                del self._backlog[:_MOST]
                self._sums.clear()
                await self._exchange([entry for entry in self._batch if entry.wanted])
                self._batch = ()
        except Exception as error:
            for entry in self._batch:  # nobody should wait for what will not come
                entry.fail(StoreError(f"{self.name}: {error!r}"))
            raise
        finally:
            self._working = False

    async def _exchange(self, batch: Sequence[Entry]) -> None:
        pages = list({page.name: page for entry in batch for page in entry.pages}.values())
        self._number += 1
        tries: list[list[Any]] = []  # what each try would come to, if it was that one that was written
        too_late = 0
        now = self._clock.now()
        stale = any(page.heard_at is None or now - page.heard_at > _STALE for page in pages)
        step = "look" if stale else "write"
        while pages:
            changes: dict[str, tuple[str | None, str | None, int]]
            if step == "write":
                changes, outcomes = self._change(batch, pages, len(tries))
                changes["turn"] = self._pass_turn()
                tries.append(outcomes)
            else:
                changes = dict.fromkeys([page.name for page in pages], (None, None, 0))
                changes["turn"] = self._take_turn() if step == "take turn" else (None, None, 0)
            try:
                records = await self._swap(changes, [*pages, self._turn_page])
            except StoreError as error:
                self._lose(str(error))
                self._gather()
                for entry in self.untold():
                    entry.fail(error)
                if not tries and not any(entry.wanted for entry in batch):
                    return  # nobody waits for it any longer, and nothing can have been written
                await asyncio.sleep(_TRY_AGAIN * (0.5 + _chance()))
                step = "look"  # was it written? The records tell
                continue
            made = len(tries) - 1 if records.swapped and step == "write" else self._made(pages)
            if 0 <= made < len(tries):
                _deliver(batch, tries[made])
                return
            too_late += step == "write"
            if self._at_once:
                step = "write"
            elif self._turn_of_another():
                await asyncio.sleep(_PAUSE * (0.5 + _chance()))
                step = "look"
            elif step == "write" and too_late >= _TOO_OFTEN:
                step = "take turn"
            else:
                step = "write"
        _deliver(batch, [None] * len(batch))

    def _gather(self) -> None:
        """Empty the tray. What can be added to what is there already is: however long nobody can be told,
        it piles up no higher than it must."""
        while self._tray:
            entry = self._tray[0]
            known = None if entry.sum_key is None else self._sums.get(entry.sum_key)
            if known is not None:
                known.add(entry)
            else:
                self._backlog.append(entry)
                if entry.sum_key is not None:
                    self._sums[entry.sum_key] = entry
            self._tray.popleft()

    # -- turns: far from the store one is always too late, unless those who are near let one go first

    def _take_turn(self) -> tuple[str | None, str, int]:
        _, late = self.times()
        return None, json.dumps([self.member, late // _MICRO + _TURN]), 2 * _TURN

    def _pass_turn(self) -> tuple[str, str | None, int]:
        """With what we write our turn is over. If it is not ours, it must be as we have seen it."""
        page = self._turn_page
        return page.mark, json.dumps(["", 0]) if self._turn()[0] == self.member else None, _TURN

    def _turn_of_another(self) -> bool:
        who, until = self._turn()
        return who not in ("", self.member) and until * _MICRO > self.times()[0]

    def _turn(self) -> tuple[str, int]:
        try:
            who, until = json.loads(self._turn_page.text)
            return str(who), int(until)
        except (ValueError, TypeError):
            return "", 0

    def _change(
        self, batch: Sequence[Entry], pages: Sequence[Page], attempt: int
    ) -> tuple[dict[str, tuple[str | None, str | None, int]], list[Any]]:
        """Every entry, one after the other, on what was last heard."""
        early, late = self.times()
        forgotten = early // _MICRO - _REMEMBERED
        told: dict[str, dict[str, Any]] = {}
        states: dict[str, Any] = {}
        changed: set[str] = set()
        for page in pages:
            try:
                members, written = contents(page.text)
                told[page.name] = {who: what for who, what in members.items() if what[2] > forgotten}
                states[page.name] = page.read(written, late)
            except DAMAGE as error:
                states[page.name] = page.damaged(error)
        outcomes = []
        for entry in batch:
            given = [states[page.name] for page in entry.pages]
            outcome: Any = next((state for state in given if isinstance(state, StoreError)), None)
            if outcome is None and entry.wanted:
                outcome, touched = entry.act(given, early, late)
                if touched:
                    changed.update(page.name for page in entry.pages)
            outcomes.append(outcome)
        changes: dict[str, tuple[str | None, str | None, int]] = {}
        for page in pages:
            if page.name not in changed:
                changes[page.name] = (page.mark, None, 0)
                continue
            told[page.name][self.member] = (self._number, attempt, late // _MICRO)
            written, keep = page.write(states[page.name], late)
            text = json.dumps([told[page.name], written], separators=(",", ":"))
            changes[page.name] = (page.mark, text, max(_REMEMBERED, keep // _MICRO + 1))
        return changes, outcomes

    def _made(self, pages: Iterable[Page]) -> int:
        """Which try of this exchange has been written, though nobody said so? -1: none."""
        for page in pages:
            try:
                number, attempt, _ = contents(page.text)[0][self.member]
            except DAMAGE:
                continue
            if number == self._number:
                return int(attempt)
        return -1

    async def _swap(self, changes: Changes, pages: Iterable[Page]) -> Records:
        mark = f"{self.member}.{next(self._marks)}"
        asked = self._clock.now()
        swapping = self._open().store.swap(self._group, changes, mark)
        try:
            records = await (swapping if self._at_once else asyncio.wait_for(swapping, _PATIENCE))
        except TimeoutError:
            raise self._unanswered() from None
        heard = self._clock.now()
        self._time = (records.now * _MICRO, asked, heard)
        for page in pages:
            page.record = records.current[page.name]
            page.heard_at = heard
        if self.lost:
            self.lost = False
            logging.getLogger("headgate").info("%s answers again", self.name)
            if self._tell_lost is not None:
                self._tell_lost(None)
        for page in pages:
            page.heard(records.now * _MICRO)
        return records

    # -- the store

    def rest(self) -> None:
        """Let the store go, for now. Whoever has something to tell finds it again."""
        self._held = None

    def _open(self) -> _Held:
        if self._held is None:
            self._held = _hold(self._where, self._clock)
        return self._held

    def _lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = True
        logging.getLogger("headgate").warning("%s cannot be asked (%s)", self.name, why)
        if self._tell_lost is not None:
            self._tell_lost(why)

    def _unanswered(self) -> StoreError:
        return StoreError(f"{self.name} does not answer in time ({_PATIENCE:g} s)")

    def after_fork(self) -> None:
        """In a forked child: another member, with nothing to tell and a connection of its own."""
        self._held = None
        self._start()
        for page in self._listening:
            page.heard_at = None
        if self._listening:
            self.listen(self._listening)


def _deliver(batch: Sequence[Entry], outcomes: Sequence[Any]) -> None:
    for entry, outcome in zip(batch, outcomes, strict=True):
        entry.deliver(outcome)


def _drive(work: Coroutine[Any, Any, T]) -> T:
    """Run what never has to wait."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # what the coroutine returned
    raise AssertionError("a store in memory does not wait")


# -- stores that are open: one for each place, for as long as somebody uses it


class _Held:
    """A store and who listens there."""

    __slots__ = ("__weakref__", "ears", "pid", "store")

    def __init__(self, store: Store) -> None:
        self.store = store
        self.pid = os.getpid()
        self.ears: dict[str, WeakSet[Ledger]] = {}


class _Ears:
    """Those who want to hear of one group."""

    __slots__ = ("_ledgers",)

    def __init__(self, ledgers: WeakSet[Ledger]) -> None:
        self._ledgers = ledgers

    def __call__(self) -> None:
        for ledger in list(self._ledgers):
            ledger.look_again()


_held: WeakValueDictionary[str, _Held] = WeakValueDictionary()


def _hold(where: Store | str, clock: Clock) -> _Held:
    if not isinstance(where, str):
        store = open_store(where, clock)
        if not hasattr(store, "swap"):
            raise InvalidConfig(f"store={where!r} keeps no records: it has no method `swap`")
        return _Held(store)
    held = _held.get(where)
    if held is None or held.pid != os.getpid():
        held = _held[where] = _Held(open_store(where, clock))
        finalize(held, _let_go, held.store, held.pid).atexit = False
    return held


_parents: list[Store] = []


def _let_go(store: Store, pid: int) -> None:
    if pid == os.getpid():
        COURIER.send_last(store.close)
    else:
        _parents.append(store)  # in a forked child: it is the parent's, and not to be closed here
