"""One lock with all that a lock needs: returns left by finalizers, repair after interrupts, effects.

Under the lock there is only arithmetic. What follows from it (waking, timers) happens in `effects`,
after the lock is free. A finalizer may run at any call, also while its own thread holds the lock; so
giving something back never waits: it is appended, and taken back under the lock as soon as that is
free, at the latest by the thread that holds it now. Ctrl-C may raise at any call; a change that was
broken off is repaired before the next one.

The lock is taken by taking an item of an iterator: `for _ in locking: break`. A signal handler runs at calls,
and there is none between the lock and the `try` after it. In `with lock:` there is one in Python 3.14, where
Ctrl-C can leave the lock taken for ever. It is also quicker.
"""

from __future__ import annotations

from _thread import allocate_lock
from itertools import repeat, starmap

from ..hints import Any, Callable, Iterator, T
from ..light import deque, ref


def _nothing() -> None:
    return None


def _unbound(call: Any, owner: object) -> Any:
    """A function that takes the owner first, of a method of the owner or of anything else."""
    if call is None:
        return None
    if owner is not None and getattr(call, "__self__", None) is owner:
        return call.__func__
    return lambda _owner, *arguments: call(*arguments)


class Guard:
    """Guards one object's state.

    `take_back(item, now)` is called under the lock for each item that was left, then `taken_back(now)`
    once for all of them. `repair(now)` puts the state in order, under the lock, after a change that an
    interrupt broke off. `effects()` is called after the lock, also from finalizers: it may wake and set
    timers, but run no user code. An object that has `take_back` as its method is held weakly.
    """

    __slots__ = (
        "_effects",
        "_now",
        "_owner",
        "_repair",
        "_take_back",
        "_taken_back",
        "interrupted",
        "lock",
        "locking",
        "pending",
        "unlock",
    )

    def __init__(
        self,
        now: Callable[[], int],
        take_back: Callable[[Any, int], object],
        *,
        taken_back: Callable[[int], object] | None = None,
        repair: Callable[[int], object] | None = None,
        effects: Callable[[], object] | None = None,
    ) -> None:
        self._now = now
        # Weakly, by the object whose methods they are: an object that is no longer used, and its guard,
        # go at once, without waiting for the collector.
        owner = getattr(take_back, "__self__", None)
        self._owner = _nothing if owner is None else ref(owner)
        self._take_back = _unbound(take_back, owner)
        self._taken_back = _unbound(taken_back, owner)
        self._repair = _unbound(repair, owner)
        self._effects = _unbound(effects, owner)
        self._make_lock()
        self.pending: deque[Any] = deque()  # items that were left and not taken back yet
        self.interrupted = False  # a change was broken off, and the state is not repaired yet

    def _make_lock(self) -> None:
        self.lock = allocate_lock()
        self.unlock = self.lock.release
        self.locking: Iterator[object] = starmap(self.lock.acquire, repeat(()))

    def run(self, act: Callable[[int], T]) -> T:
        """Do it under the lock, with the time, after what was left so far; then carry out what follows."""
        read_clock = self._now  # Python calls it quicker by a local name than as `self._now()`
        try:
            for _ in self.locking:  # takes the lock
                break
            try:
                if self.interrupted:
                    self.repair_locked()
                now = read_clock()
                if self.pending:
                    self._take_back_locked(now)
                result = act(now)
            finally:
                self.unlock()
        except BaseException:
            self.broken_off()
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
        effects, find_owner, read_clock = self._effects, self._owner, self._now
        while True:
            owner = find_owner()
            if owner is None and find_owner is not _nothing:
                return  # it is being collected, together with what was left for it
            if effects is not None:
                effects(owner)
            # A thread that holds the lock comes here when it has released it.
            if not self.pending or self.lock.locked():
                return
            try:
                # A thread that takes the lock between the look and this line holds it for arithmetic only,
                # and waits for another guard's lock only if that was free when it looked: no deadlock.
                for _ in self.locking:
                    break
                try:
                    if self.interrupted:
                        self.repair_locked()
                    self._take_back_locked(read_clock())
                finally:
                    self.unlock()
            except BaseException:
                self.broken_off()
                raise

    def _take_back_locked(self, now: int) -> None:
        pending, take_back, find_owner = self.pending, self._take_back, self._owner
        owner = find_owner()
        while pending:
            take_back(owner, pending[0], now)
            pending.popleft()  # only now: an item whose return was interrupted is taken back again
        if self._taken_back is not None:
            self._taken_back(owner, now)

    def broken_off(self) -> None:
        """A change raised half-way: put the state in order, or have the next caller do it."""
        self.interrupted = True  # it stays so if nothing can be called here because the stack is full
        for _ in self.locking:
            break
        try:
            self.repair_locked()
        finally:
            self.unlock()

    def repair_locked(self) -> None:
        """Under the lock: put in order what was broken off."""
        if self._repair is not None:
            self._repair(self._owner(), self._now())
        self.interrupted = False

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and what was left before the fork is the parent's."""
        self._make_lock()
        self.pending.clear()
        self.interrupted = False
