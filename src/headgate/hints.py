"""Names for annotations, found only when `typing.get_type_hints` asks for them.

`typing` and `datetime` take longer to load than all of headgate, so the modules that `import headgate` loads
do not import them: they take the names that their annotations need from here. A class of headgate that is
loaded later, or that is defined in a module that imports the annotated one, is named by `later`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import (
        Awaitable,
        Callable,
        Generator,
        Hashable,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from typing import Any, ClassVar, Literal, NoReturn, Self, Unpack

    from .gate.any_rate import AnyRate
    from .typing import AnyStore, Bus, Clock, Jitter, Observer, P, R, Rates, Seconds, Store, T, Timer
    from .verdict import Verdict

__all__ = [
    "Any",
    "AnyRate",
    "AnyStore",
    "Awaitable",
    "Bus",
    "Callable",
    "ClassVar",
    "Clock",
    "Generator",
    "Hashable",
    "Iterable",
    "Iterator",
    "Jitter",
    "Literal",
    "Mapping",
    "NoReturn",
    "Observer",
    "P",
    "R",
    "Rates",
    "Seconds",
    "Self",
    "Sequence",
    "Store",
    "T",
    "Timer",
    "Unpack",
    "Verdict",
    "later",
]

# Where the names are; all others are in headgate.typing.
_MODULES = {
    "typing": ("Any", "ClassVar", "Literal", "NoReturn", "Self", "Unpack"),
    "collections.abc": (
        *("Awaitable", "Callable", "Generator", "Hashable"),
        *("Iterable", "Iterator", "Mapping", "Sequence"),
    ),
    "headgate.gate.any_rate": ("AnyRate",),
    "headgate.verdict": ("Verdict",),
}


class Later(str):
    """The name of something in a module that need not be loaded yet: a forward reference.

    `typing.get_type_hints` evaluates the strings that it meets. Inside `Name | None`, `Name[int]` and
    `Name.args` it would not meet one, so these operations find the named object themselves.
    """

    __slots__ = ()

    def found(self) -> Any:
        return eval(self)  # noqa: S307 - an import that `later` wrote

    def __or__(self, other: Any) -> Any:
        return self.found() | _found(other)

    def __ror__(self, other: Any) -> Any:
        return other | self.found()

    def __getitem__(self, parameters: Any) -> Any:
        if isinstance(parameters, int):
            return super().__getitem__(parameters)  # typing looks at the first letter
        return self.found()[_found(parameters)]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found(), name)


def later(module: str, name: str) -> Any:
    """Stands in the annotations of a module for `name` of another `module`."""
    return Later(f"__import__({module!r}, fromlist=[{name!r}]).{name}")


def _found(parameters: Any) -> Any:
    if isinstance(parameters, Later):
        return parameters.found()
    if isinstance(parameters, (tuple, list)):
        return type(parameters)(map(_found, parameters))
    return parameters


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = next((module for module, names in _MODULES.items() if name in names), "headgate.typing")
    found = globals()[name] = later(module, name)
    return found
