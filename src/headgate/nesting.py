"""Which breakers and retry budgets the running call is inside of.

A call made through a breaker or a budget that is already around it belongs to the outer call: it is neither
counted nor refused again. Tasks inherit what their parent was inside of, and may outlive it. A generator that
is dropped ends its call in another context than the one that it began in. So a call that is over is marked
as over, and a context that still names it goes by what is around it. So is a call that Ctrl-C broke off just
before its end, as soon as the object that has it is dropped.
"""

from __future__ import annotations

from contextvars import ContextVar

from .hints import Any

# One running call: its breaker or budget, None once the call is over, and the call around it. A list, because
# making one takes half as long as making an object.
Inside = list[Any]


def still_running(inside: Inside | None) -> Inside | None:
    """This call, or if it is over the innermost one around it that is not."""
    while inside is not None and inside[0] is None:
        inside = inside[1]
    return inside


def is_around(counter: object, inside: Inside | None) -> bool:
    """Whether the breaker or budget counts this call, or one around it, already."""
    while inside is not None:
        if inside[0] is counter:
            return True
        inside = inside[1]
    return False


def go_in(running: ContextVar[Inside | None], counter: object) -> Inside | None:
    """Calls made from now on belong to this one. None: it belongs to an outer call of the same counter."""
    outer = still_running(running.get())
    if is_around(counter, outer):
        return None
    here: Inside = [counter, outer]
    try:
        running.set(here)
    except BaseException:  # Ctrl-C just after it: the caller does not get what it would give to `come_out`
        here[0] = None
        raise
    return here


def come_out(running: ContextVar[Inside | None], here: Inside) -> None:
    """The call is over."""
    here[0] = None
    if running.get() is here:  # a task that is destroyed may end in the context of another
        running.set(here[1])
    here[1] = still_running(here[1])  # or tasks that start each other would keep every call before them
