"""Pure. What every style has: how it reads requests, and which parts of answers it writes.

A style gives shapes only: it counts nothing and decides nothing. Header names and bodies are those of the
providers, so that their own SDKs see no difference.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ...arguments import SECOND
from .reading import BadRequest
from .values import Ask, Charges, MeterLevel, Output, Pairs, Refusal, Request

MODEL = "sandbox-1"  # the one that GET /models lists; any other name is served too


class Style:
    """The format of one provider's requests and answers."""

    name: ClassVar[str]
    units: ClassVar[tuple[str, ...]]  # the units that a limit may count
    refusals_count: ClassVar[bool]
    # Status, message, kind and code of the faults "quota" (no money is left) and "overload".
    failures: ClassVar[dict[str, tuple[int, str, str, str | None]]]

    def read(self, request: Request) -> Ask:
        path = request.path.partition("?")[0].rstrip("/").removeprefix("/v1")
        try:
            return self._read(request, path)
        except BadRequest as bad:
            return Ask("", answer=(400, self.error(400, str(bad))))

    def _read(self, request: Request, path: str) -> Ask:
        raise NotImplementedError

    def charges(self, ask: Ask) -> Charges:
        tokens = max(ask.most_tokens or 0, ask.input_tokens)
        return {"requests": (1, 1), "tokens": (tokens, tokens)}

    def error(self, status: int, message: str, *, kind: str = "", code: str | None = None) -> Any:
        """The body of an error. *kind* is the provider's word for its type."""
        raise NotImplementedError

    def identity(self, output: Output) -> Pairs:
        """Headers that tell one answer from another."""
        return [("x-request-id", output.name("req_"))]

    def budget(self, levels: Sequence[MeterLevel], wall: int) -> Pairs:
        """Headers that state the limits and what remains of them."""
        raise NotImplementedError

    def advice(self, wait: int) -> Pairs:
        """Headers that say when to try again."""
        return [("retry-after", str(max(1, -(-wait // SECOND))))]

    def refusal(self, refusal: Refusal, ask: Ask, *, hint: bool) -> tuple[int, Any]:
        """Status and body for a request the limits do not allow."""
        raise NotImplementedError

    def failure(self, fault: str) -> tuple[int, Any]:
        """Status and body for a fault that has nothing to do with limits."""
        status, message, kind, code = self.failures[fault]
        return status, self.error(status, message, kind=kind, code=code)

    def stream_error(self, ask: Ask, output: Output) -> bytes:
        raise NotImplementedError

    def reply(self, ask: Ask, output: Output) -> Any:
        """The whole answer."""
        raise NotImplementedError

    def stream(self, ask: Ask, output: Output, width: int) -> Iterator[tuple[int, bytes]]:
        """The pieces of a streamed answer, *width* tokens each, with the tokens that it has by then."""
        raise NotImplementedError
