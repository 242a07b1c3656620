"""Objects that are closed by leaving a `with` or `async with` block."""

from __future__ import annotations

from ..hints import Self


class Closing:
    """A context manager in both colours for classes that have `close`."""

    __slots__ = ()

    def close(self) -> None:
        """Close it. Closing twice is the same as closing once."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.close()
