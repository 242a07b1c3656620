"""Objects by key, for as long as there is a reason to keep them.

One lock, held while a thing is found or made and for nothing else. `make` runs
under it, so that whoever comes first, all get the same thing: it must be plain construction. `idle`
runs under it too: it may take the thing's own lock, and whoever holds that must not come here.
"""

from __future__ import annotations

from _thread import allocate_lock
from weakref import WeakValueDictionary

from .forks import reset_in_child

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Generic, TypeVar

    T = TypeVar("T")

    class _Of(Generic[T]):
        """What the type checker sees, for `KeyedObjects[TokenBudget]`."""

        __slots__ = ()
else:
    T = None

    class _Of:  # importing typing costs more than importing all of headgate
        __slots__ = ()

        def __class_getitem__(cls, _kind):  # noqa: ANN001, ANN204
            return cls


# Below so many, nobody is asked whether it is idle.
_FEW = 64


class KeyedObjects(_Of[T]):
    """Objects by key: the same one for everybody who asks, forgotten when it has nothing to
    remember and nobody holds it.

    Each time the number kept has doubled, those that are idle are let go: only whoever holds one
    keeps it alive then, and whoever asks for it meanwhile gets that same one. A thing that was let
    go does not notice. If it comes to have something to remember, it must say so: `get` its own
    key, which takes it back.
    """

    __slots__ = ("__weakref__", "_idle", "_kept", "_let_go", "_lock", "_make", "_sweep_at")

    def __init__(self, make: Callable[[Hashable], T], idle: Callable[[T], bool]) -> None:
        self._make = make
        self._idle = idle
        self._kept: dict[Hashable, T] = {}
        self._let_go: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._sweep_at = _FEW
        self._lock = allocate_lock()
        reset_in_child(self)

    def get(self, key: Hashable) -> T:
        """The thing of that key: found, or made once, whoever comes first."""
        known = self._kept.get(key)  # one step, and nearly always all there is to do
        if known is not None:
            return known
        with self._lock:
            known = self._kept.get(key)
            if known is not None:
                return known
            thing = self._let_go.get(key)
            if thing is None:
                if len(self._kept) >= self._sweep_at:
                    self._sweep_locked()
                thing = self._make(key)
            # First kept, then no longer let go: there is no moment at which it is neither.
            self._kept[key] = thing
            self._let_go.pop(key, None)
            return thing

    def peek(self, key: Hashable) -> T | None:
        """The thing of that key if there is one. Makes nothing and keeps nothing."""
        with self._lock:
            known = self._kept.get(key)
            return self._let_go.get(key) if known is None else known

    def forget(self, key: Hashable) -> None:
        """Whoever asks next gets a new one. Those who hold the old one keep it."""
        with self._lock:
            self._kept.pop(key, None)
            self._let_go.pop(key, None)

    def items(self) -> list[tuple[Hashable, T]]:
        """Every key and its thing, as of now."""
        with self._lock:
            return [*self._kept.items(), *self._let_go.items()]

    def __len__(self) -> int:
        """How many there are, those included that only their holders keep."""
        with self._lock:
            return len(self._kept) + len(self._let_go)

    def _sweep_locked(self) -> None:
        # Once for every doubling: each newcomer pays for two that are asked.
        for key, thing in list(self._kept.items()):
            if self._idle(thing):
                self._let_go[key] = thing
                del self._kept[key]
                # It may have come to have something to remember just before, and found itself kept.
                if not self._idle(thing):
                    self._kept[key] = thing
                    del self._let_go[key]
        self._sweep_at = max(_FEW, 2 * len(self._kept))

    def after_fork(self) -> None:
        self._lock = allocate_lock()

    def __repr__(self) -> str:
        return f"<KeyedObjects of {len(self)}>"
