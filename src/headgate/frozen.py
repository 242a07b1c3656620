"""Frozen: records that cannot change, for limits, events and snapshots.

They are not dataclasses, because importing `dataclasses` takes longer than importing all of headgate.
"""

from __future__ import annotations

from .hints import Any, ClassVar, NoReturn

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_options):  # noqa: ANN003, ANN201 - the type checker sees typing's
        return lambda cls: cls


@dataclass_transform(frozen_default=True, kw_only_default=True, eq_default=True)
class Frozen:
    """A frozen record. Subclasses list their fields in `__slots__` and annotate them."""

    __slots__ = ()

    _names: ClassVar[dict[str, None]] = {}  # of the fields

    def __init_subclass__(cls) -> None:
        cls._names = {**cls._names, **dict.fromkeys(cls.__dict__.get("__slots__", ()))}

    def __init__(self, **fields: Any) -> None:
        if fields.keys() != self._names.keys():
            wrong = sorted(fields.keys() ^ self._names.keys())
            raise TypeError(
                f"{type(self).__name__} takes exactly {', '.join(self._names)}; wrong: {', '.join(wrong)}"
            )
        write = object.__setattr__
        for name, value in fields.items():
            write(self, name, value)

    @classmethod
    def _fields(cls) -> tuple[str, ...]:
        return tuple(cls._names)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot change; make a new one")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"{type(self).__name__} cannot change; make a new one")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __repr__(self) -> str:
        pairs = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._fields())
        return f"{type(self).__name__}({pairs})"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), dict(zip(self._fields(), self._values(), strict=True)))


def _rebuild(kind: type[Frozen], fields: dict[str, Any]) -> Frozen:
    return kind(**fields)
