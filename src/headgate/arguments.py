"""Reading the arguments of callers: times, amounts, factors, functions and whether they are async.

A wrong value raises at once, and the error names what was given, why it cannot work and what to write
instead. Seconds become integer nanoseconds here and nowhere else.
"""

from __future__ import annotations

from math import isfinite

from .errors import InvalidCapacity, InvalidConfig, InvalidLimit, InvalidWindow
from .hints import Any, Callable, Hashable, Mapping, Seconds, T

SECOND = 1_000_000_000  # nanoseconds
NS_PER_US = 1_000
US_PER_S = 1_000_000

# The longest duration, some 146 years: a moment plus such a duration is exact in every clock and store.
LONGEST = 1 << 62
_LONGEST_SECONDS = LONGEST / SECOND

# The largest number that says how much a limit holds.
_LARGEST = 1 << 64


async def _started() -> None: ...


_coroutine = _started()
_coroutine.close()
Coroutine = type(_coroutine)  # the class of what an `async def` function returns; `types` takes long to load


def seconds_to_ns(value: Seconds, what: str, *, error: type[InvalidLimit] = InvalidWindow) -> int:
    """A duration of zero or more, given in seconds or as a timedelta, in nanoseconds."""
    seconds = value.total_seconds() if hasattr(value, "total_seconds") else value
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise error(f"{what}={value!r} is not a time; write seconds, e.g. {what}=1.5, or a timedelta")
    if isinstance(seconds, float) and not isfinite(seconds):
        raise error(f"{what}={value!r} would never end; write a finite number of seconds, e.g. {what}=60")
    if seconds < 0:
        raise error(f"{what}={shown(value)} is negative; write zero or more seconds, e.g. {what}=1.5")
    if seconds > _LONGEST_SECONDS:
        raise error(f"{what}={shown(value)} is longer than 146 years; write seconds, e.g. {what}=60")
    return seconds * SECOND if isinstance(seconds, int) else round(seconds * SECOND)


def positive_seconds_to_ns(value: Seconds, what: str, *, error: type[InvalidLimit] = InvalidWindow) -> int:
    """A duration of more than zero, given in seconds or as a timedelta, in nanoseconds."""
    ns = seconds_to_ns(value, what, error=error)
    if ns == 0:
        raise error(f"{what}={value!r} lasts no time; write more than zero seconds, e.g. {what}=60")
    return ns


def moment_to_ns(value: float, what: str) -> int:
    """A moment on the clock of a gate or limiter, given in seconds, in nanoseconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= _LONGEST_SECONDS:
        raise InvalidWindow(
            f"{what}={shown(value)} is not a moment; write clock.seconds(), e.g. {what}=time.monotonic()"
        )
    return round(value * SECOND)


def yes_or_no(value: object, what: str) -> bool:
    """True or False. Of a text such as "no" every one would be true."""
    if not isinstance(value, bool):
        raise InvalidConfig(f"{what}={value!r} is neither True nor False; write e.g. {what}=True")
    return value


def positive_int(value: object, what: str, *, example: int) -> int:
    """A whole number of at least one, e.g. a number of places, bytes or units."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}={example}")
    if value < 1:
        raise InvalidCapacity(
            f"{what}={shown(value)} would let nothing through; write at least 1, e.g. {what}={example}, "
            "or close() to stop everything"
        )
    if value > _LARGEST:
        raise InvalidCapacity(f"{what}={shown(value)} is more than 2**64; write e.g. {what}={example}")
    return value


def shown(value: object) -> str:
    """A value for an error message. Python refuses to print integers of more than 4,300 digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"{'-' if value < 0 else ''}10**{value.bit_length() * 30103 // 100_000} or more"
    return repr(value)


def amount(value: object, what: str) -> int:
    """The cost of one call in one unit: a whole number, zero or more."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidCapacity(f"{what}={value!r} is not a whole number; write e.g. {what}=1200")
    if value < 0:
        raise InvalidCapacity(f"{what}={shown(value)} is negative; a call costs zero or more")
    return value


def ratio(value: float, what: str, *, low: float, high: float, example: float) -> tuple[int, int]:
    """A factor between two bounds that it must not reach, as a ratio of integers."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low < value < high:
        bounds = f"above {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
        raise InvalidConfig(f"{what}={value!r} is not a factor {bounds}; write e.g. {what}={example}")
    # The decimal digits are exact: 1.1 is eleven tenths, although a float cannot store that.
    digits, _, decimals = f"{value:.9f}".rstrip("0").partition(".")
    return int(digits + decimals), 10 ** len(decimals)


def within_bounds(draw: float) -> float:
    """The result of a `random=` function, cut to 0 to 1 in case it is outside."""
    if 0.0 <= draw <= 1.0:
        return draw
    return 1.0 if draw > 1.0 else 0.0


def is_async(fn: Callable[..., Any], what: str) -> bool:
    """Does calling `fn` give a coroutine? Raises if it is a generator function or cannot be called."""
    if not callable(fn):
        raise not_a_function(fn, what)
    # Decorating a function is rare, so only then are these two loaded.
    import functools  # noqa: PLC0415
    import inspect  # noqa: PLC0415

    while isinstance(fn, functools.partial):
        fn = fn.func
    kinds = (fn, type(fn).__call__)  # a function, or an object that acts as one
    if any(inspect.isgeneratorfunction(kind) or inspect.isasyncgenfunction(kind) for kind in kinds):
        raise InvalidConfig(
            f"{name_of(fn)} is a generator: its body runs while it is iterated, out of reach of {what}; "
            "wrap the function that consumes it"
        )
    return any(inspect.iscoroutinefunction(kind) for kind in kinds)


def not_a_function(fn: object, what: str) -> InvalidConfig:
    """The error for a call of something that cannot be called, often the result of the function."""
    return InvalidConfig(f"{what} takes a function, not {fn!r}; write {what}(fn), without calling it")


def never_awaited(result: Any, what: str, instead: str = "") -> InvalidConfig:
    """The error for a sync call that returned a coroutine, which is closed before any of it ran."""
    name = getattr(result, "__qualname__", "it")
    result.close()
    instead = instead or f"`await {what}_async(...)`"
    return InvalidConfig(f"{name} is async, and {what} does not wait for it; write {instead}")


def not_awaitable(fn: object, what: str) -> InvalidConfig:
    """The error for an async call whose function returned something that cannot be awaited."""
    plain = what.removesuffix("_async")
    return InvalidConfig(
        f"{name_of(fn)} is not async: what it returns cannot be awaited; write `{plain}(...)`"
    )


def must_be_plain(fn: object, what: str, takes: str) -> None:
    """Raise unless `fn` is a sync function: it is called where nothing is awaited, e.g. between two tries."""
    if not callable(fn):
        raise InvalidConfig(f"{what}={fn!r} cannot be called; give a function of {takes}")
    if is_async(fn, what):
        raise InvalidConfig(
            f"{what}={name_of(fn)} is async, and it would not be awaited; give a plain function"
        )


def read_weights(weights: Mapping[Hashable, int]) -> dict[Hashable, int]:
    """How much of what there is each tenant gets."""
    if not hasattr(weights, "items"):
        raise InvalidConfig(f'weights={weights!r} is not a mapping; write e.g. weights={{"gold": 4}}')
    return {
        tenant: positive_int(weight, f"weights[{tenant!r}]", example=4) for tenant, weight in weights.items()
    }


def read_priority(priority: int) -> int:
    """A priority that is not exactly an int, as an int: a member of an IntEnum, for example."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise InvalidConfig(f"priority={priority!r} is not a whole number; higher goes first, 0 is usual")
    return int(priority)


def check_hashable(value: Hashable, what: str) -> None:
    """Raise unless the key or tenant can be told from others: a list or a dict cannot."""
    try:
        hash(value)
    except TypeError:
        raise InvalidConfig(f'{what}={value!r} is not hashable; write e.g. {what}="a" or a tuple') from None


def read_random(random: Callable[[], float]) -> Callable[[], float]:
    """The function that replaces the draws, as it is. Raises unless it can be called."""
    if not callable(random):
        raise InvalidConfig(f"random={random!r} cannot be called; give a function that draws from 0 to 1")
    return random


def read_observer(observer: T, what: str = "observer", takes: str = "one event") -> T:
    """The observer as it is. Raises unless it is None or a sync function, or an object that acts as one."""
    if observer is not None:
        if isinstance(observer, type):
            name = observer.__name__
            raise InvalidConfig(
                f"{what}={name} is a class: each call would only make an object; write {what}={name}()"
            )
        must_be_plain(observer, what, takes)
    return observer


def read_path(path: Any, example: str) -> Any:
    """A path as it is. Raises for what is neither text nor a path."""
    if not isinstance(path, str) and not hasattr(path, "__fspath__"):
        raise InvalidConfig(f'path={path!r} is not a path; write a string or a Path, e.g. "{example}"')
    return path


def name_of(fn: object) -> str:
    """The name of a function for messages and events."""
    fn = getattr(fn, "func", fn)  # the function inside a partial
    name = getattr(fn, "__qualname__", None) or getattr(type(fn), "__qualname__", "function")
    return str(name)
