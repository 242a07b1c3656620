"""What callers hold: an admission that is entered, and the permit it gives.

Rules of this room: a permit is settled once, whoever does it and however often; every field is
written without a call in between, so that nothing can come between taking and writing down.
"""

from __future__ import annotations

from weakref import ref

from ..limits import read_cost
from .decision import THROTTLED
from .line import Ticket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping
    from types import TracebackType
    from typing import Self

    from ..verdict import Verdict
    from .gate import Gate

SETTLED = 0


class Permit:
    """The right to run now. Settle it when the call is over; a `with` block does it for you.

    `waited` is how many seconds it took to get it, `throttled` whether it was given under the
    tighter rules that follow a backoff signal.
    """

    __slots__ = ("_cost", "_era", "_mode", "_scoped", "_taken_at", "_ticket", "_waited")
    _cost: tuple[int, ...]
    _era: ForkGeneration
    _mode: int
    _taken_at: int
    # Only there while a task's ticket or `async with` block answers for the permit.
    _scoped: bool
    # Only there if the call had to wait: most do not, and storing takes time.
    _ticket: Ticket
    _waited: int

    @property
    def waited(self) -> float:
        return getattr(self, "_waited", 0) / 1e9

    @property
    def throttled(self) -> bool:
        return abs(self._mode) == THROTTLED

    def settle(
        self,
        *,
        tokens: int | None = None,
        bytes: int | None = None,
        cost: int | Mapping[str, int] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """The call is over: give the place back, and replace estimates by facts.

        What is not given is taken to have cost what was estimated. Only the first call does
        anything. A verdict of `throttled(retry_after)` opens the gate's backoff window.
        """
        gate = self._era.gate()
        if gate is None:
            return  # nobody is left to give it back to
        actual = None
        if tokens is not None or bytes is not None or cost is not None:
            actual = gate._actual_cost(self._cost, tokens, bytes, cost)
        if self._mode > SETTLED:
            gate._settle(self, actual)
            if verdict is not None:
                gate._learn(verdict, self._taken_at)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        if self._mode > SETTLED:
            self.settle()

    def __repr__(self) -> str:
        state = "running" if self._mode > SETTLED else "settled"
        gate = self._era.gate()
        return f"<Permit of {None if gate is None else gate._key!r}, {state}, waited {self.waited:.3f} s>"


class HoldingPermit(Permit):
    """A permit that keeps others out as long as it is held, and so must not be lost.

    Not even if Ctrl-C strikes on the way into or out of a `with` block. A task is cancelled
    instead of interrupted, so an `async with` answers for its permit by itself; and it must,
    for the collector may come to the permit of an abandoned task before it ends the block.
    """

    __slots__ = ()

    def __del__(self) -> None:
        try:
            mode = self._mode
        except AttributeError:
            return  # never given out: asking the rules was broken off
        if mode > SETTLED and not hasattr(self, "_scoped"):
            gate = self._era.gate()
            if gate is not None:
                gate._recover(self)


_ON_ITS_WAY = Permit()  # stands for the permit that somebody waits for
_ON_ITS_WAY._mode = SETTLED

_IN_USE = "this admission is in use already; call admit() once for every call"


class Admission:
    """What `admit()` returns: enter it with `with` in a thread, with `async with` in a task."""

    __slots__ = ("_bytes", "_cost", "_gate", "_permit", "_priority", "_tenant", "_timeout", "_tokens")
    _bytes: int
    _cost: int | Mapping[str, int] | None
    _gate: Gate
    _permit: Permit | None
    _priority: int
    _tenant: Hashable
    _timeout: int | None
    _tokens: int

    def __enter__(self) -> Permit:
        if self._permit is not None:
            raise RuntimeError(_IN_USE)
        gate = self._gate
        permit = gate.try_admit(None, self._bytes, self._tokens, self._cost, self._priority, self._tenant)
        if permit is None:
            ticket = self._take_ticket()
            parker = ticket.parker = gate._clock.thread_parker(gate._ring, ticket)
            self._permit = _ON_ITS_WAY
            try:
                gate._join(ticket, self._timeout)
                parker.park()
                parker.retire()
                permit = gate._claim(ticket)
            except BaseException:
                self._permit = None
                gate._give_back(ticket)
                parker.retire()
                raise
        self._permit = permit
        return permit

    async def __aenter__(self) -> Permit:
        if self._permit is not None:
            raise RuntimeError(_IN_USE)
        gate = self._gate
        permit = gate.try_admit(None, self._bytes, self._tokens, self._cost, self._priority, self._tenant)
        if permit is None:
            ticket = self._take_ticket()
            parker = ticket.parker = gate._clock.loop_parker(gate._ring, ticket)
            self._permit = _ON_ITS_WAY
            try:
                gate._join(ticket, self._timeout)
                await parker
                parker.retire()
                permit = gate._claim(ticket)
            except BaseException:
                self._permit = None
                gate._give_back(ticket)
                parker.retire()
                raise
        self._permit = permit
        permit._scoped = True
        return permit

    def _take_ticket(self) -> Ticket:
        gate = self._gate
        cost = gate._one
        if self._bytes or self._tokens or self._cost is not None:
            cost = read_cost(gate._columns, self._bytes, self._tokens, self._cost)
        share = 1 if gate._weights is None else gate._weights.get(self._tenant, 1)
        return Ticket(cost, priority=self._priority, tenant=self._tenant, share=share)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        permit = self._permit
        self._permit = None
        if permit is not None and permit._mode > SETTLED:
            self._gate._settle(permit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        permit = self._permit
        self._permit = None
        if permit is not None and permit._mode > SETTLED:
            self._gate._settle(permit)


class ForkGeneration:
    """The life of a gate in one process. A fork begins another: earlier permits no longer count."""

    __slots__ = ("gate",)

    def __init__(self, gate: Gate) -> None:
        self.gate = ref(gate)  # a gate that nobody uses any more goes, without waiting for the collector
