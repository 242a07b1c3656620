"""This process's end of a shared circuit: takes its commands to the record, and the record to the breaker.

It decides nothing: commands are made and carried out in `circuit`, and news goes through the breaker's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from secrets import token_hex
from typing import Any, Protocol
from weakref import ref

from ...arguments import SECOND
from ...events import StoreLost, StoreRegained
from ...telling import tell
from ...typing import Clock, Observer
from ..store import AnyStore
from .circuit import UNUSED_FOR, CircuitRecord, Command, SharedCircuit
from .client import Change, RecordClient, look
from .record import DAMAGE, Record, Times, contents

_News = Callable[[SharedCircuit, int], bool | None]  # changes the circuit. True: that changed its state


class Breaker(Protocol):
    def apply(self, news: _News) -> None: ...


class _KeptCircuit(Record):
    """The record of a circuit."""

    def __init__(self, hear: Callable[[CircuitRecord, int], object] | None = None) -> None:
        super().__init__("circuit")
        self._hear = hear

    def read(self, written: Any, times: Times) -> CircuitRecord:  # noqa: ARG002 - as of every record
        return CircuitRecord() if written is None else CircuitRecord.read(written)

    def write(self, state: CircuitRecord, times: Times) -> tuple[Any, int]:
        if not self.mark:  # the store has none, though this process may know the one before
            state.born = max(1, times.late)
        return state.written(), state.worth_keeping(times.late)

    def heard(self, early: int) -> None:
        if self._hear is None or not self.text:
            return
        try:
            record = CircuitRecord.read(contents(self.text)[1])
        except DAMAGE:
            return  # a command that cannot be carried out is reported
        self._hear(record, early)


@dataclass(eq=False)
class CircuitMember:
    """One breaker's membership in the circuit of a group.

    The breaker is held weakly: it may be forgotten while a change is on its way.
    """

    breaker: ref[Breaker]
    circuit: SharedCircuit
    client: RecordClient
    key: Hashable
    observer: Observer | None

    def __post_init__(self) -> None:
        self._record = _KeptCircuit(self._heard)
        self._begun = self._closed = False
        self.client.on_loss = self._store_lost
        self.client.on_forgot = self._store_forgot

    def begin(self, *, wait: bool = False) -> None:
        """Hear the record and its changes from now on. With `wait`, StoreError if there is no store."""
        if self._begun:
            return
        self._begun = True
        self.client.listen([self._record])
        hear = self.client.ask if wait else self.client.tell
        hear(look([self._record]))
        self.client.flush()

    def send(self) -> None:
        """Take the commands of the circuit on their way. Never waits: finalizers may call this."""
        commands = self.circuit.commands
        while commands:
            try:
                command = commands.popleft()
            except IndexError:  # another thread was faster
                return
            if not self._closed:
                self.client.tell(self._change(command))

    def flush(self) -> None:
        """The end of a public call: a store in this process answers now."""
        self.client.flush()

    def close(self) -> None:
        """Hand back what the record has lent, and let the store go. From now on the circuit is alone."""
        if not self._closed:
            self._apply(lambda circuit, _now: circuit.go_alone())
            self._closed = True
            self.client.rest()

    def _change(self, command: Command) -> Change:
        done = None
        if command.what == "lend":
            who = token_hex(4)
            command = command.to(who)
            done = partial(self._lent, command, who)
        return Change(
            [self._record],
            lambda states, times: states[0].carry_out(command, times.early, times.late),
            done,
        )

    # -- what comes back

    def _heard(self, record: CircuitRecord, early: int) -> None:
        self._apply(lambda circuit, now: circuit.follow(record, early - now, now))

    def _lent(self, command: Command, who: str, due: int | None) -> None:
        early = self.client.times().early
        heard = self._apply(
            lambda circuit, now: circuit.lent(command.seen, who, None if due is None else due - early + now)
        )
        if due is None:
            return
        if heard:
            hand_back = partial(self._apply, lambda circuit, _now: circuit.hand_back(who))
            self.client.clock.call_at(self.client.clock.now() + UNUSED_FOR, hand_back)
        else:
            self.client.tell(self._change(command._replace(what="take back", more=(who,))))

    def _store_lost(self, why: str | None) -> None:
        def note(circuit: SharedCircuit, _now: int) -> None:
            circuit.alone = why is not None

        if self._apply(note):
            now = self.client.clock.now()
            facts: dict[str, Any] = {"key": self.key, "at": now / SECOND, "store": self.client.kind}
            tell(self.observer, StoreRegained(**facts) if why is None else StoreLost(**facts, reason=why))

    def _store_forgot(self) -> None:
        if not self._closed:
            self.client.tell_forgot(self.observer, self.key)

    def _apply(self, news: _News) -> bool:
        """Have the breaker change its circuit. False: the breaker is gone or closed."""
        breaker = self.breaker()
        if breaker is None or self._closed:
            return False
        breaker.apply(news)
        return True


def greet(store: AnyStore, clock: Clock) -> None:
    """StoreError if the store does not answer."""
    RecordClient(store, "breaker", clock).ask(look([_KeptCircuit()]))
