"""What an object that belongs to one process says when it is pickled or copied."""

from __future__ import annotations

from ..hints import Any, NoReturn


def only_here(instead: str = "make one per process with store= to share it") -> Any:
    """A `__reduce__` that raises TypeError: a copy would count and wait apart from the original."""

    def reduce(self: object) -> NoReturn:
        kind = next(kind for kind in type(self).__mro__ if not kind.__name__.startswith("_"))
        raise TypeError(f"{kind.__name__} cannot be pickled or copied: it belongs to this process; {instead}")

    return reduce
