"""Which circuit breakers the running call is inside.

A call made through a breaker that is already around it belongs to the outer call: it is neither counted
nor refused again. Tasks inherit what their parent was inside of, and may outlive it.
"""

from __future__ import annotations

from contextvars import ContextVar

from ..hints import Any

# One running call: its breaker, None once the call is over, and the call around it. A list, because
# making one takes half as long as making an object.
Inside = list[Any]

INSIDE: ContextVar[Inside | None] = ContextVar("headgate_inside_breakers", default=None)


def still_running(inside: Inside | None) -> Inside | None:
    """This call, or if it is over the innermost one around it that is not."""
    while inside is not None and inside[0] is None:
        inside = inside[1]
    return inside


def is_around(breaker: object, inside: Inside | None) -> bool:
    """Whether the breaker counts this call, or one around it, already."""
    while inside is not None:
        if inside[0] is breaker:
            return True
        inside = inside[1]
    return False


def go_in(breaker: object) -> Inside | None:
    """Calls made from now on belong to this one. None: it belongs to an outer call of the same breaker."""
    outer = still_running(INSIDE.get())
    if is_around(breaker, outer):
        return None
    here: Inside = [breaker, outer]
    INSIDE.set(here)
    return here


def come_out(here: Inside) -> None:
    """The call is over."""
    here[0] = None
    if INSIDE.get() is here:  # a task that is destroyed may end in the context of another
        INSIDE.set(here[1])
    here[1] = still_running(here[1])  # or tasks that start each other would keep every call before them
