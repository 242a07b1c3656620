"""In place of modules that take long to load: `typing`, `collections`, and those that few programs need."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections import OrderedDict, deque
    from operator import length_hint
    from typing import Generic, NamedTuple
    from weakref import ref
else:
    # What `collections`, `operator` and `weakref` take them from; these load five further modules.
    from _collections import OrderedDict, deque
    from _operator import length_hint
    from _weakref import ref

    class Generic:
        """In place of `typing.Generic`: `Generic[T]` and `Kind[int]` are the classes themselves."""

        __slots__ = ()

        def __class_getitem__(cls, _parameters):  # noqa: ANN001, ANN204 - the type checker sees typing's
            return cls

    class _Record(type):
        """Makes the class of a named tuple from fields that are annotated, as `typing.NamedTuple` does."""

        def __new__(cls, name, _bases, namespace):  # noqa: ANN001, ANN204
            from collections import namedtuple  # noqa: PLC0415 - for records only

            fields = namespace["__annotations__"]
            defaults = [namespace.pop(field) for field in fields if field in namespace]
            made = namedtuple(name, fields, defaults=defaults, module=namespace["__module__"])  # noqa: PYI024
            for key, value in namespace.items():
                setattr(made, key, value)
            return made

    class NamedTuple:
        """In place of `typing.NamedTuple`."""

        def __mro_entries__(self, _bases):  # noqa: ANN001, ANN204
            return (type.__new__(_Record, "Record", (), {}),)

    NamedTuple = NamedTuple()

__all__ = ["Generic", "LazyModule", "NamedTuple", "OrderedDict", "deque", "length_hint", "load_all", "ref"]


_lazy: list[str] = []


def load_all() -> None:
    """Load all modules that were to be loaded later.

    Before a fork: if another thread is loading one at that moment, a forked child would wait for it for ever.
    """
    for name in _lazy:
        __import__(name)


class LazyModule:
    """A module that is loaded when a name in it is first asked for. Not under a lock: loading reads files."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        _lazy.append(name)

    def __getattr__(self, name: str) -> object:
        found = getattr(__import__(self.__name__, fromlist=[name]), name)
        setattr(self, name, found)
        return found
