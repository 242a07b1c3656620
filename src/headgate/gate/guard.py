"""One lock with all that a lock needs: returns left by finalizers, repair after interrupts, effects.

Under the lock there is only arithmetic. What follows from it (waking, timers) happens in `effects`,
after the lock is free. A finalizer may run at any call, also while its own thread holds the lock; so
giving something back never waits: it is appended, and taken back under the lock as soon as that is
free, at the latest by the thread that holds it now. Ctrl-C may raise at any call; a change that was
broken off is repaired before the next one.
"""

from __future__ import annotations

from _thread import allocate_lock
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    T = TypeVar("T")


class Guard:
    """Guards one object's state.

    `take_back(item, now)` is called under the lock for each item that was left. `repair()` puts the
    state in order, under the lock, after a change that an interrupt broke off. `effects()` is called
    after the lock, also from finalizers: it may wake and set timers, but run no user code.
    """

    __slots__ = ("_effects", "_now", "_repair", "_take_back", "interrupted", "lock", "pending")

    def __init__(
        self,
        now: Callable[[], int],
        take_back: Callable[[Any, int], object],
        *,
        repair: Callable[[int], object] | None = None,
        effects: Callable[[], object] | None = None,
    ) -> None:
        self._now = now
        self._take_back = take_back
        self._repair = repair
        self._effects = effects
        self.lock = allocate_lock()
        self.pending: deque[Any] = deque()  # items that were left and not taken back yet
        self.interrupted = False  # a change was broken off, and the state is not repaired yet

    def run(self, act: Callable[[int], T]) -> T:
        """Do it under the lock, with the time; then carry out what follows."""
        try:
            with self.lock:
                if self.interrupted:
                    self._repair_locked()
                result = act(self._now())
        except BaseException:
            self.interrupted = True  # if the stack is full, the next caller has to repair
            self._mend()
            raise
        finally:
            self.finish()
        return result

    def leave(self, item: Any) -> None:
        """Give an item back. Never waits for the lock: finalizers may call it."""
        self.pending.append(item)
        self.finish()

    def finish(self) -> None:
        """Carry out effects and take back what was left, until there is neither."""
        while True:
            if self._effects is not None:
                self._effects()
            # A thread that holds the lock comes here when it has released it.
            if not self.pending or self.lock.locked():
                return
            self._take_all_back()

    def take_back_pending(self, now: int) -> None:
        """Under the lock: take back what was left so far, for an act of `run` that depends on it."""
        pending = self.pending
        while pending:
            self._take_back(pending[0], now)
            pending.popleft()  # only now: an item whose return was interrupted is taken back again

    def _take_all_back(self) -> None:
        try:
            # A thread that takes the lock between the look and this line holds it for arithmetic only,
            # and waits for another guard's lock only if that was free when it looked: no deadlock.
            with self.lock:
                if self.interrupted:
                    self._repair_locked()
                self.take_back_pending(self._now())
        except BaseException:
            self.interrupted = True
            self._mend()
            raise

    def _mend(self) -> None:
        with self.lock:
            self._repair_locked()

    def _repair_locked(self) -> None:
        if self._repair is not None:
            self._repair(self._now())
        self.interrupted = False

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and what was left before the fork is the parent's."""
        self.lock = allocate_lock()
        self.pending.clear()
        self.interrupted = False
