"""What a forked child must not inherit: locks that another thread held, waiting callers, connections.

The only file that asks Python to be told of forks, so that all of it happens in one order: what must
act before a fork, then the fork, then in the child first what others rely on.
"""

from __future__ import annotations

import os

from ..hints import T
from ..light import load_all, ref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Protocol

    class StartsClean(Protocol):
        def after_fork(self) -> None: ...


_resets: dict[ref[StartsClean], None] = {}
_first: dict[ref[StartsClean], None] = {}


def reset_in_child(what: StartsClean, *, first: bool = False) -> None:
    """Have `what.after_fork()` called in every forked child, for as long as `what` lives.

    With `first=True` it is called before the others: for threads and connections that the others use.
    """
    kept = _first if first else _resets
    kept[ref(what, kept.pop)] = None


def living(kind: type[T]) -> list[T]:
    """All objects of that kind that start clean in a forked child, and so all gates and limiters."""
    while True:
        try:
            found = [weak() for weak in list(_resets)]
        except RuntimeError:  # another thread has just made one
            continue
        return [what for what in found if isinstance(what, kind)]


def around_fork(
    *, before: Callable[[], object], in_parent: Callable[[], object], in_child: Callable[[], object]
) -> None:
    """Have these called around every fork. `in_child` runs before any `after_fork`."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent)
        _children.append(in_child)


def never_free(things: object) -> None:
    """Keep objects of the parent in a forked child, even beyond the end of its interpreter.

    To free an event loop, a connection or a task there would act on the files of the parent.
    """
    _parents.append(things)
    try:
        import ctypes  # noqa: PLC0415 - rarely needed, and not every Python has it

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(things))
    except (ImportError, AttributeError):
        pass  # such a Python frees nothing when it ends


_children: list[Callable[[], object]] = []
_parents: list[object] = []


def after_executors() -> None:
    """From now on start clean after the executors of Python have done so.

    What starts clean may start a thread that submits to an executor. In a forked child an executor makes a
    lock free that such a thread would be waiting for, and it would wait without end.
    """
    import concurrent.futures.thread  # noqa: F401, PLC0415 - asks to be told of forks when it is imported

    if not _late:
        _late.append(True)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_start_clean)


_late: list[bool] = []


def _start_clean_early() -> None:
    if not _late:
        _start_clean()


def _start_clean() -> None:
    for act in _children:
        act()
    for weak in [*_first, *_resets]:
        what = weak()
        if what is not None:
            what.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=load_all, after_in_child=_start_clean_early)
