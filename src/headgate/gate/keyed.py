"""Objects by key, for as long as there is a reason to keep them.

One lock, held while an object is found or made and for nothing else. `make` is called under it, so that an
object is made once even if several callers ask first at the same time: it must be plain construction. A
function of the user is called without the lock, by one caller, for which the others wait. `idle` is called
without it too, and may take the object's own lock.

Ctrl-C may raise at any call: a thread that is interrupted while it makes an object leaves no trace of it, and
the next caller makes the object at once.
"""

from __future__ import annotations

from _thread import allocate_lock, get_ident
from weakref import WeakValueDictionary

from ..hints import Callable, Hashable, T
from ..light import Generic, LazyModule
from .forks import reset_in_child
from .guard import Guard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import parking
else:
    parking = LazyModule("headgate.gate.parking")

# With fewer objects than this, none is asked whether it is idle.
_FEW = 64

# How many seconds a caller waits for the object that another one makes, before it makes one by itself. That
# costs a second object for a while, and less than a caller that stands still.
_PATIENCE = 1.0


class _Making:
    """A function of the user makes an object, for which other threads wait."""

    __slots__ = ("latch", "over")

    def __init__(self) -> None:
        self.over = False
        self.latch = allocate_lock()  # open once it is over
        self.latch.acquire()

    def wait(self) -> None:
        """Until it is over, or the patience of the caller."""
        try:
            self.latch.acquire(timeout=_PATIENCE)
        finally:
            if self.over:
                try:  # noqa: SIM105 - contextlib would double the time of importing headgate
                    self.latch.release()  # for the next thread that waits, even if this one was interrupted
                except RuntimeError:
                    pass  # it is open


class KeyedObjects(Generic[T]):
    """Objects by key: every caller that asks for a key gets the same one. An object that has nothing to
    remember and that no caller holds is forgotten.

    Each time the number of objects has doubled, those that are idle are let go: only callers that hold one
    keep it alive then, and a caller that asks for its key then gets that same one. An object that was
    let go does not notice. If it comes to have something to remember, it must say so by `keep`.
    """

    def __init__(
        self, make: Callable[[Hashable], T], idle: Callable[[T], bool], *, by_user: bool = False
    ) -> None:
        """`by_user` says that `make` calls a function of the user."""
        self._make = make
        self._by_user = by_user
        self._idle = idle
        self._kept: dict[Hashable, T] = {}
        self._let_go: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._sweep_at = _FEW
        self._being_made: dict[Hashable, _Making] = {}  # by functions of the user
        self._makers: set[int] = set()  # the threads that make them
        self._guard = Guard(lambda: 0, self._keep_again)
        reset_in_child(self)

    def get(self, key: Hashable) -> T:
        """The object of that key: found, or made."""
        known = self._kept.get(key)  # one step, and nearly always all there is to do
        if known is None:
            known = self._find(key, (lambda _key: None) if self._by_user else self._make)
        return self._make_by_user(key) if known is None else known

    def _make_by_user(self, key: Hashable) -> T:
        """Have a function of the user make the object, once for all callers that ask meanwhile.

        A thread that makes one object never waits for another: two of them might wait for each other. Nor
        does a thread that runs an event loop, which the thread that makes the object may be waiting for. Of
        two objects that are made for one key nevertheless one is kept.
        """
        me, mine = get_ident(), _Making()
        outermost = me not in self._makers
        try:
            known = self._wait_for_others(key, mine) if outermost else None
            if known is None:
                self._being_made.setdefault(key, mine)
                self._makers.add(me)
                made = self._make(key)
                known = self._find(key, lambda _key: made)
                assert known is not None
            return known
        finally:
            # Each step even if Ctrl-C raises in the one before it.
            try:
                if self._being_made[key] is mine:  # without a call, so that it is not torn apart
                    del self._being_made[key]
            except KeyError:
                pass
            finally:
                mine.over = True
                try:
                    mine.latch.release()
                except RuntimeError:
                    pass  # a thread whose patience ended just now has opened it
                finally:
                    if outermost:
                        self._makers.discard(me)

    def _wait_for_others(self, key: Hashable, mine: _Making) -> T | None:
        """The object that another thread made; None if this one is to make it."""
        while True:
            first = self._being_made.setdefault(key, mine)
            if first is mine or parking.runs_event_loop():
                return None
            first.wait()
            known = self._find(key, lambda _key: None)
            if known is not None or not first.over:
                return known
            # It could not be made: the next caller tries. It is still noted here if a key raised meanwhile.
            if self._being_made.get(key) is first:
                self._being_made.pop(key, None)

    def _find(self, key: Hashable, make: Callable[[Hashable], T | None]) -> T | None:
        def find(_now: int) -> tuple[T | None, bool]:
            known = self._kept.get(key)
            if known is not None:
                return known, False
            thing = self._let_go.get(key)
            if thing is None:
                thing = make(key)
            if thing is None:
                return None, False
            # First kept, then no longer let go: there is no moment at which it is neither.
            self._kept[key] = thing
            self._let_go.pop(key, None)
            sweep = len(self._kept) > self._sweep_at
            if sweep:
                self._sweep_at = 2 * len(self._kept)  # no other thread sweeps until this one has
            return thing, sweep

        thing, sweep = self._guard.run(find)
        if sweep:
            self._sweep()
        return thing

    def keep(self, key: Hashable, thing: T) -> None:
        """The object has something to remember: if it was let go, keep it again. Never waits."""
        if self._kept.get(key) is not thing:
            self._guard.leave((key, thing))

    def peek(self, key: Hashable) -> T | None:
        """The object of that key if there is one. Makes nothing and keeps nothing."""

        def look(_now: int) -> T | None:
            known = self._kept.get(key)
            return self._let_go.get(key) if known is None else known

        return self._guard.run(look)

    def forget(self, key: Hashable) -> None:
        """Make a new object when this key is asked for again. Callers that hold the old one keep it."""

        def drop(_now: int) -> None:
            self._kept.pop(key, None)
            self._let_go.pop(key, None)

        self._guard.run(drop)

    def items(self) -> list[tuple[Hashable, T]]:
        """Every key and its object, as of now."""
        return self._guard.run(lambda _now: [*self._kept.items(), *self._let_go.items()])

    def __len__(self) -> int:
        """How many objects there are, those included that only callers hold."""
        return self._guard.run(lambda _now: len(self._kept) + len(self._let_go))

    def _keep_again(self, left: tuple[Hashable, T], _now: int) -> None:
        key, thing = left
        if self._let_go.get(key) is thing:  # if not, it was kept again or forgotten
            self._kept[key] = thing
            del self._let_go[key]

    def _sweep(self) -> None:
        """Let go of what is idle. Once for every doubling: each new object pays for two that are asked."""
        kept = self._guard.run(lambda _now: list(self._kept.items()))
        idle = [(key, thing) for key, thing in kept if self._idle(thing)]

        def let_go(_now: int) -> None:
            for key, thing in idle:
                if self._kept.get(key) is thing:
                    self._let_go[key] = thing
                    del self._kept[key]
            self._sweep_at = max(_FEW, 2 * len(self._kept))

        self._guard.run(let_go)
        for key, thing in idle:
            if not self._idle(thing):  # a moment ago it found itself kept, and did not ask for it
                self.keep(key, thing)

    def after_fork(self) -> None:
        """In a forked child: the lock is free, and no other thread makes an object."""
        self._guard.after_fork()
        self._being_made = {}
        self._makers = set()

    def __repr__(self) -> str:
        return f"<KeyedObjects of {len(self)}>"
