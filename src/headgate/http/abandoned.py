"""Until when an answer that nobody reads keeps its place.

Rules of this room: what is given back here may be wanted by a finalizer at any moment, so nothing waits for a
lock: the leases are one dictionary, changed in single steps. Renewing one is writing a number. There is one
thread for a clock, while anything is on lease, and none for a clock that keeps appointments by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..arguments import SECOND
from ..gate.forks import reset_in_child

if TYPE_CHECKING:
    from typing import Protocol
    from weakref import ref

    from ..typing import Clock

    class RunsOut(Protocol):
        def run_out(self) -> None: ...


# How long the thread stays when there is nothing to look after, rather than be started again at once.
_LINGER = SECOND


class Lease:
    """One answer under way. It is over when `until` has passed, on its clock, in nanoseconds."""

    __slots__ = ("_clock", "_keeper", "_length", "_of", "until")

    def __init__(self, clock: Clock, length: int, of: ref[RunsOut]) -> None:
        self._clock = clock
        self._length = length
        self._of: ref[RunsOut] | None = of
        self._keeper: _Keeper | None = None
        self.until = clock.now() + length
        appoint = getattr(clock, "at", None)  # a clock for tests does things when its time has come
        if appoint is not None:
            appoint(self.until / SECOND, self._look)
        else:
            keeper = _keepers.get(clock)
            self._keeper = keeper if keeper is not None else _keepers.setdefault(clock, _Keeper(clock))
            self._keeper.watch(self)

    def renew(self) -> None:
        """It is being read."""
        self.until = self._clock.now() + self._length

    def end(self) -> None:
        """Nobody needs it any longer."""
        self._of = None
        if self._keeper is not None:
            self._keeper.let_go(self)

    def _look(self) -> None:
        if self._of is None:
            return
        if self._clock.now() < self.until:
            self._clock.at(self.until / SECOND, self._look)  # type: ignore[attr-defined]  # it has one
        else:
            self.run_out()

    def run_out(self) -> None:
        """It has not been renewed in time."""
        of = self._of
        self.end()
        answer = None if of is None else of()
        if answer is not None:
            answer.run_out()


class _Keeper:
    """Looks after the leases of one clock, by a thread that lives as long as there are any."""

    __slots__ = ("__weakref__", "_clock", "_on_duty", "_parker", "leases")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.leases: dict[int, Lease] = {}
        # Who writes the first entry starts the thread.
        self._on_duty: dict[str, object] = {}
        self._parker = clock.thread_parker(_ignore, None)
        reset_in_child(self)

    def watch(self, lease: Lease) -> None:
        self.leases[id(lease)] = lease
        if not self._on_duty:
            self._take_turns()
        self._parker.alarm(lease.until)  # does nothing unless this one ends before all others

    def let_go(self, lease: Lease) -> None:
        self.leases.pop(id(lease), None)
        if not self.leases:  # others will probably come; if none does, there is nothing to stay for
            self._parker.alarm(self._clock.now() + _LINGER)

    def _take_turns(self) -> None:
        mine = object()
        if self._on_duty.setdefault("thread", mine) is mine:
            from threading import Thread  # noqa: PLC0415 - only who streams needs it

            try:
                Thread(target=self._keep, name="headgate leases", daemon=True).start()
            except RuntimeError:  # the interpreter is shutting down, or there are too many: it goes without
                self._on_duty.pop("thread", None)

    def _keep(self) -> None:
        while True:
            while self._sleep():
                pass
            # Whoever came before this line was seen, or sees that nobody is on duty; or it is seen now.
            self._on_duty.pop("thread", None)
            mine = object()
            if not self.leases or self._on_duty.setdefault("thread", mine) is not mine:
                return

    def _sleep(self) -> bool:
        """Sleep until the first lease may have run out, and end those that have. False: there are none."""
        parker = self._parker = self._clock.thread_parker(lambda _ticket: parker.wake(), None)
        self._end_those_over()
        earliest = self._earliest()
        if earliest is None:
            return False
        while True:
            parker.alarm(max(earliest, self._clock.now() + self._clock.quantum))
            # One that ends earlier may have come meanwhile, and its alarm have been written over.
            newer = self._earliest()
            if newer is None or newer >= earliest:
                break
            earliest = newer
        parker.park()
        parker.retire()
        return True

    def _earliest(self) -> int | None:
        return min((lease.until for lease in list(self.leases.values())), default=None)

    def _end_those_over(self) -> None:
        now = self._clock.now()
        for lease in list(self.leases.values()):
            if lease.until <= now:
                lease.run_out()

    def after_fork(self) -> None:
        self.leases.clear()
        self._on_duty.clear()
        self._parker = self._clock.thread_parker(_ignore, None)


def _ignore(_ticket: object) -> None:
    """Nobody is on duty yet."""


_keepers: dict[Clock, _Keeper] = {}
