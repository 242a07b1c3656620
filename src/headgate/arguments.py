"""Telling sync functions from async ones, where a decorator or `call` must know the colour.

Why not `inspect` at the top: importing it costs more than importing headgate.
"""

from __future__ import annotations

from .errors import InvalidConfig

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


async def _nothing() -> None: ...


_example = _nothing()
Coroutine = type(_example)
_example.close()


def is_async(fn: Callable[..., Any], what: str) -> bool:
    """Does calling it give something to await? Raises for what is not a plain function of either kind."""
    if not callable(fn):
        raise InvalidConfig(f"{what} takes a function, not {fn!r}; write {what}(fn), without calling it")
    from inspect import (  # noqa: PLC0415 - decorating is rare, importing headgate is not
        isasyncgenfunction,
        iscoroutinefunction,
        isgeneratorfunction,
    )

    if isgeneratorfunction(fn) or isasyncgenfunction(fn):
        raise InvalidConfig(
            f"{name_of(fn)} is a generator: its body runs while somebody iterates, out of reach of {what}; "
            "wrap the function that consumes it"
        )
    return iscoroutinefunction(fn) or iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def never_awaited(result: Any, what: str) -> InvalidConfig:
    """The complaint about a sync call that turned out to be async: nothing was run yet."""
    name = getattr(result, "__qualname__", "it")
    result.close()
    return InvalidConfig(f"{name} is async, and {what} does not wait for it; write `await {what}_async(...)`")


def not_awaitable(fn: object, what: str) -> InvalidConfig:
    """The complaint about an async call that turned out to be sync: there is nothing to wait for."""
    plain = what.removesuffix("_async")
    return InvalidConfig(
        f"{name_of(fn)} is not async: what it returns cannot be awaited; write `{plain}(...)`"
    )


def must_be_plain(fn: object, what: str, takes: str) -> None:
    """What is called between two tries cannot be awaited."""
    if not callable(fn):
        raise InvalidConfig(f"{what}={fn!r} cannot be called; give a function of {takes}")
    if is_async(fn, what):
        raise InvalidConfig(
            f"{what}={name_of(fn)} is async, and nobody would await it; give a plain function"
        )


def name_of(fn: object) -> str:
    """How to call a function in messages and events."""
    fn = getattr(fn, "func", fn)  # of a partial
    name = getattr(fn, "__qualname__", None) or getattr(type(fn), "__qualname__", "function")
    return str(name)
