"""What callers hold: an admission that is entered, and the permit it gives.

A permit is settled once, whichever thread does it and however often it is asked. The gate writes its
fields one after the other without a call in between, so that no interrupt can fall between taking
what a call costs and writing it down.
"""

from __future__ import annotations

from sys import getrefcount

from ..hints import Any, Callable, Hashable, Mapping, Self, Verdict, later
from ..light import ref
from ..limits import read_actual_cost
from .decision import THROTTLED
from .line import WAITING, Ticket
from .pickling import only_here

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .gate import Gate
else:
    Gate = later("headgate.gate.gate", "Gate")

_ADMIT_THERE = "admit in the process that makes the call"

# The mode of a permit that holds nothing. A running one has the mode it was admitted in, ADMITTED or
# THROTTLED, and a settled one the negative of that.
SETTLED = 0


class Permit:
    """The right to run now. Settle it when the call is over; a `with` block does it for you.

    `admit` and `try_admit` of a gate make permits. A permit is settled once; later calls of `settle` and
    `cancel` do nothing.

    >>> from headgate import Dispatch
    >>> api = Dispatch("api", rates="200_000 tokens/minute")
    >>> with api.admit(tokens=1200) as permit:
    ...     permit.settle(tokens=900)
    >>> permit.waited, permit.throttled
    (0.0, False)
    """

    __slots__ = ("cost", "generation", "mode", "taken_at", "ticket", "wait_ns")
    cost: tuple[int, ...]
    generation: ForkGeneration
    mode: int
    taken_at: int
    # These two are only there if the call waited: most do not, and writing them would take time.
    ticket: Ticket
    wait_ns: int

    __reduce__ = only_here(_ADMIT_THERE)

    @property
    def waited(self) -> float:
        """How many seconds the caller waited for this permit."""
        return getattr(self, "wait_ns", 0) / 1e9

    @property
    def gate(self) -> Gate | None:
        """The gate that gave this permit; None if that is gone. It tells which gate of a FirstFree it was."""
        return self.generation.gate()

    @property
    def throttled(self) -> bool:
        """Whether the permit was given under the tighter rules that follow a backoff signal."""
        return abs(self.mode) == THROTTLED

    def settle(
        self,
        *,
        tokens: int | None = None,
        bytes: int | None = None,
        cost: int | Mapping[str, int] | None = None,
        verdict: Verdict | None = None,
    ) -> None:
        """End the call: give the place back, and replace estimates by facts.

        `tokens` and `bytes` are what the call really used; `cost` is for how many requests it counted, or
        amounts by unit, e.g. `{"images": 1}`. What is not given is taken to have cost what was estimated: a
        call that cost less gets the rest back, and one that cost more brings the rate into debt. `verdict`
        says what the API answered: `headgate.verdict.throttled(retry_after)` starts the gate's backoff
        window.

        >>> from headgate import Dispatch
        >>> from headgate.verdict import throttled
        >>> api = Dispatch("api", rates="200_000 tokens/minute")
        >>> with api.admit(tokens=1200) as permit:
        ...     permit.settle(tokens=300, verdict=throttled(30))
        >>> api.snapshot().backoff_active
        True

        Only the first call does anything. Raises InvalidCapacity or InvalidLimit for what is not a cost.
        """
        find_gate = self.generation.gate  # by a local name, as in `Gate.take`
        gate = find_gate()
        if gate is None:
            return  # the gate is gone, and so is what the permit held
        actual = None
        if tokens is not None or bytes is not None or cost is not None:
            actual = read_actual_cost(gate.columns, self.cost, tokens, bytes, cost)
        if self.mode > SETTLED:
            gate.settle(self, actual)
            if verdict is not None:
                gate.learn(verdict, self.taken_at)

    def cancel(self) -> None:
        """End a call that was never sent: it cost nothing in any unit. After `settle` this does nothing.

        >>> from headgate import Dispatch
        >>> api = Dispatch("api", rates="600/minute burst 10")
        >>> with api.admit() as permit:
        ...     permit.cancel()
        >>> api.snapshot().rates[0].level
        10
        """
        gate = self.generation.gate()
        if gate is not None and self.mode > SETTLED:
            gate.settle(self, (0,) * len(self.cost))

    def leave(self, costs: Mapping[str, int] | None = None) -> None:
        """Settle from a finalizer: never waits, and leaves telling the observer to the next caller."""
        gate = self.generation.gate()
        if gate is not None and self.mode > SETTLED:
            actual = None if costs is None else read_actual_cost(gate.columns, self.cost, None, None, costs)
            gate.leave(self, actual)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        if kind is GeneratorExit:
            self.leave()
        elif self.mode > SETTLED:
            self.settle()

    def __repr__(self) -> str:
        state = "running" if self.mode > SETTLED else "settled"
        gate = self.generation.gate()
        return f"<Permit of {None if gate is None else gate.key!r}, {state}, waited {self.waited:.3f} s>"


class HoldingPermit(Permit):
    """A permit that keeps others out while it is held: a dropped one gives its place back.

    It is dropped if Ctrl-C strikes on the way into or out of a `with` block, if an asynchronous
    generator or exit stack is abandoned inside its block, or if the caller forgets to settle it.
    """

    __slots__ = ()

    def __del__(self) -> None:
        try:
            mode = self.mode
        except AttributeError:
            return  # never given out: asking the rules was broken off
        if mode > SETTLED:
            self.found(getrefcount(self))

    def found(self, references: int) -> None:
        """A finalizer found it unsettled, and saw this many references to it."""
        if references > _DROPPED:
            # The collector found it, with objects that still refer to it. One of them may be a block
            # that ends by itself when the collector comes to it, and gives the place back then.
            _collected(self)
        else:
            self.recover()

    def recover(self) -> None:
        """Give the place of a dropped permit back, unless its block has done so."""
        gate = self.generation.gate()
        if gate is not None and self.mode > SETTLED:
            gate.recover(self)


class _Sample(HoldingPermit):
    """Measures how many references the finalizer sees of a permit that was just dropped.

    By the finalizer itself: from Python 3.14 on it depends on the code around whether a call counts as one.
    """

    __slots__ = ()
    count = 0

    def found(self, references: int) -> None:
        _Sample.count = references


_sample = _Sample()
_sample.mode = SETTLED + 1
del _sample
_DROPPED = _Sample.count


_found: list[HoldingPermit] = []  # by the collection that is under way


def _collected(permit: HoldingPermit) -> None:
    """Recover a permit at the end of the collection that found it."""
    from gc import callbacks  # noqa: PLC0415 - only for permits that were lost

    _found.append(permit)
    if _recover_found not in callbacks:
        callbacks.append(_recover_found)


def _recover_found(phase: str, _info: object) -> None:
    from gc import callbacks  # noqa: PLC0415 - as above

    if phase == "stop":
        while _found:
            _found.pop().recover()
        if callbacks[-1] is _recover_found:
            callbacks.pop()  # only if it is the last: the collector would skip the one after it


_ON_ITS_WAY = Permit()  # stands for the permit of an admission whose caller waits
_ON_ITS_WAY.mode = SETTLED

IN_USE = "this admission is in use already; call admit() once for every call"


class Admission:
    """What `admit()` returns: enter it with `with` in a thread, with `async with` in a task.

    >>> from headgate import Dispatch
    >>> admission = Dispatch("api").admit(timeout=5)
    >>> with admission as permit:
    ...     print(permit)
    <Permit of 'api', running, waited 0.000 s>

    It waits and raises when it is entered. Where no block fits, `enter` and `enter_async` give the permit,
    which the caller has to settle. Raises RuntimeError if it is entered while it is in use: call `admit()`
    for each call.
    """

    __slots__ = ("gate", "permit", "price", "priority", "tenant", "timeout")
    gate: Gate
    permit: Permit | None
    price: tuple[int, ...]
    priority: int
    tenant: Hashable
    timeout: int | None

    __reduce__ = only_here(_ADMIT_THERE)

    def __enter__(self) -> Permit:
        if self.permit is not None:
            raise RuntimeError(IN_USE)
        gate = self.gate
        permit = gate.take(self.price, self.tenant)
        if permit is None:
            ticket = gate.ticket(self.price, self.priority, self.tenant)
            parker = ticket.parker = gate.clock.thread_parker(gate.ring, ticket)
            self.permit = _ON_ITS_WAY
            try:
                gate.join(ticket, self.timeout)
                if ticket.state == WAITING:
                    gate.check_may_block()
                parker.park()
                parker.retire()
                permit = gate.claim(ticket)
            except BaseException as error:
                self.permit = None
                gate.abandon(ticket, error)
                parker.retire()
                raise
        self.permit = permit
        return permit

    async def __aenter__(self) -> Permit:
        if self.permit is not None:
            raise RuntimeError(IN_USE)
        gate = self.gate
        permit = gate.take(self.price, self.tenant)
        if permit is None:
            ticket = gate.ticket(self.price, self.priority, self.tenant)
            parker = ticket.parker = gate.clock.loop_parker(gate.ring, ticket)
            self.permit = _ON_ITS_WAY
            try:
                gate.join(ticket, self.timeout)
                await parker
                if parker.alarm_at is not None:
                    parker.retire()
                permit = gate.claim(ticket)
            except BaseException as error:
                self.permit = None
                gate.abandon(ticket, error)
                parker.retire()
                raise
        self.permit = permit
        return permit

    def enter(self) -> Permit:
        """Wait for a place without a block: the caller settles the permit that this returns.

        A permit that is dropped without being settled gives its place back with a ResourceWarning. Raises the
        refusals of `admit`, and RuntimeError if it would wait in a thread that runs an event loop.

        >>> from headgate import Dispatch
        >>> permit = Dispatch("api").admit(timeout=5).enter()
        >>> permit.settle()
        """
        permit = self.__enter__()
        self.permit = None
        return permit

    async def enter_async(self) -> Permit:
        """Wait for a place in a task, without a block: the caller settles the permit that this returns.

        A permit that is dropped without being settled gives its place back with a ResourceWarning. Raises the
        refusals of `admit`.

        >>> import asyncio
        >>> from headgate import Dispatch
        >>> async def call():
        ...     permit = await Dispatch("api").admit(timeout=5).enter_async()
        ...     permit.settle()
        >>> asyncio.run(call())
        """
        permit = await self.__aenter__()
        self.permit = None
        return permit

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: object) -> None:
        permit = self.permit
        self.permit = None
        if permit is not None and permit.mode > SETTLED:
            if kind is GeneratorExit:  # perhaps by the collector, inside the lock of another gate
                self.gate.leave(permit, None)
            else:
                self.gate.settle(permit)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: object
    ) -> None:
        permit = self.permit
        self.permit = None
        if permit is not None and permit.mode > SETTLED:
            if kind is GeneratorExit:  # perhaps by the collector, inside the lock of another gate
                self.gate.leave(permit, None)
            else:
                self.gate.settle(permit)


class ForkGeneration:
    """The life of a gate in one process. A fork begins another one: earlier permits no longer count."""

    __slots__ = ("gate",)

    def __init__(self, gate: Any) -> None:
        # Weakly: a gate that is no longer used goes without waiting for the collector.
        self.gate: Callable[[], Gate | None] = ref(gate)
