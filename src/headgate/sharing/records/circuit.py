"""What ties a circuit breaker to the record that it shares: carries its letters there, and the news back.

Rules of this room: it decides nothing. Letters are written and read by `rules.shared_circuit`; what the
record says goes to the breaker, through its own lock.
"""

from __future__ import annotations

import asyncio
from secrets import token_hex
from typing import TYPE_CHECKING
from weakref import ref

from ...arguments import SECOND
from ..courier import COURIER
from .client import DAMAGE, Entry, Ledger, Page, contents, look
from .shared_circuit import UNUSED, CircuitRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from ...breaker.breaker import _SharedBreaker
    from ...typing import Clock
    from ..store import Store
    from .shared_circuit import Letter

_NAME = "circuit"


class CircuitPage(Page):
    """The record of one circuit, and the breaker that goes by it."""

    __slots__ = ("_breaker",)

    def __init__(self, breaker: _SharedBreaker | None) -> None:
        super().__init__(_NAME)
        # A breaker that nobody uses any more goes, whoever still has news for it.
        self._breaker = (lambda: None) if breaker is None else ref(breaker)

    def read(self, written: Any, late: int) -> CircuitRecord:  # noqa: ARG002 - the question of every page
        return CircuitRecord() if written is None else CircuitRecord.read(written)

    def write(self, state: CircuitRecord, late: int) -> tuple[Any, int]:
        return state.written(), state.worth_keeping(late)

    def heard(self, early: int) -> None:
        breaker = self._breaker()
        if breaker is None or not self.text:
            return
        try:
            record = CircuitRecord.read(contents(self.text)[1])
        except DAMAGE:
            return  # whoever has a letter for it will be told
        breaker._hear(record, early - breaker._now())


class CircuitLink:
    """One breaker's tie to the record of its key."""

    __slots__ = ("_begun", "_breaker", "_ledger", "_page")

    def __init__(self, breaker: _SharedBreaker, store: Store | str, key: str) -> None:
        self._breaker = ref(breaker)
        self._page = CircuitPage(breaker)
        self._ledger = Ledger(store, f"breaker {key}", breaker._clock, lost=self._store_lost)
        self._begun = False

    def begin(self, *, wait: bool = False) -> None:
        """Hear how things stand, and of every change. With `wait`, StoreError if there is no store."""
        if self._begun:
            return
        self._begun = True
        if wait:
            self._ledger.ask(look([self._page]))
        else:
            self._ledger.tell(look([self._page]))
        self._ledger.listen([self._page])

    def post(self, letters: Iterable[Letter]) -> None:
        """Have these told to the record, in this order."""
        for letter in letters:
            self._ledger.tell(self._entry(*letter))

    def _entry(self, what: str, seen: int, more: Any) -> Entry:
        who = token_hex(4) if what == "lend" else ""

        def act(records: Sequence[CircuitRecord], early: int, late: int) -> tuple[Any, bool]:
            (record,) = records
            if what == "open":
                lasting, reopened, reason = more
                return None, record.trip(seen, lasting, reopened, reason, late)
            if what == "close":
                return None, record.close(seen)
            if what == "reset":
                return None, record.reset()
            if what == "take back":
                return None, record.take_back(seen, more)
            most, lease = more
            due = record.lend(seen, who, most, lease, early)
            return due, due is not None

        return Entry([self._page], act, done=(lambda due: self._lent(seen, who, due)) if who else None)

    def _lent(self, seen: int, who: str, due: int | None) -> None:
        breaker = self._breaker()
        if breaker is None:
            if due is not None:
                self.post([("take back", seen, who)])
            return
        early, _ = self._ledger.times()
        breaker._hear_of_probe(seen, who, None if due is None else due - early + breaker._now())
        if due is not None and COURIER.here:
            asyncio.get_running_loop().call_later(UNUSED / SECOND, _hand_back, self._breaker, who)

    def _store_lost(self, why: str | None) -> None:
        breaker = self._breaker()
        if breaker is not None:
            breaker._hear_of_store(why)

    def after_fork(self) -> None:
        self._ledger.after_fork()


def _hand_back(breaker: ref[_SharedBreaker], who: str) -> None:
    known = breaker()
    if known is not None:
        known._hand_back_probe(who)


def greet(store: Store | str, clock: Clock) -> None:
    """Is there a store at all? StoreError if it does not answer."""
    Ledger(store, "breaker", clock).ask(look([CircuitPage(None)]))
