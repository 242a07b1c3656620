"""A provider with a clock: what the sandbox on a port and the one in virtual time have in common.

Rules of this room: one lock around a pure provider, held for its arithmetic only.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypedDict

from ..errors import InvalidConfig
from ..gate.clock import SYSTEM
from .control import control
from .faults import Fault
from .provider import UNCHANGED, Exchange, Provider

if TYPE_CHECKING:
    from typing import Unpack

    from ..limits import Rate
    from ..typing import Clock, Seconds
    from .provider import Step
    from .referee import Report
    from .styles import Request


class Options(TypedDict, total=False):
    """What a Provider takes besides its style."""

    requests: Rate | str | None
    tokens: Rate | str | None
    input_tokens: Rate | str | None
    output_tokens: Rate | str | None
    concurrency: int | None
    kind: str
    per_key: bool
    per_model: bool
    refusals_count: bool | None
    headers: bool
    retry_after: bool
    first_token: Seconds
    spread: float
    tokens_per_second: float | None
    reply_tokens: int
    piece_tokens: int
    seed: int


class Live:
    """A Provider that knows what time it is, and may be asked from any thread."""

    def __init__(
        self, style: str | Provider = "openai", *, clock: Clock = SYSTEM, **options: Unpack[Options]
    ) -> None:
        if isinstance(style, Provider):
            if options:
                raise InvalidConfig(
                    f"{', '.join(options)}: give options to the Provider you have made, not here"
                )
            self.provider = style
        else:
            self.provider = Provider(style, **options)
        self._clock = clock
        self._lock = threading.Lock()

    def report(self) -> Report:
        """What happened since the start or the last reset."""
        with self._lock:
            work_out = self.provider.account()
        return work_out()

    def reset_report(self) -> None:
        """Count anew. Levels and requests under way stay as they are."""
        with self._lock:
            self.provider.reset_report()

    def limits(self) -> dict[str, str | int | None]:
        """The limits in force."""
        with self._lock:
            return self.provider.limits()

    def set_limits(
        self,
        *,
        requests: Rate | str | None = UNCHANGED,
        tokens: Rate | str | None = UNCHANGED,
        input_tokens: Rate | str | None = UNCHANGED,
        output_tokens: Rate | str | None = UNCHANGED,
        concurrency: int | None = UNCHANGED,
    ) -> None:
        """Other limits from now on. Those left out stay as they are; None takes one away."""
        with self._lock:
            self.provider.set_limits(
                requests=requests,
                tokens=tokens,
                input_tokens=input_tokens,
                output_tokens=output_tokens,
                concurrency=concurrency,
                now=self._clock.now(),
            )

    def fault(self, fault: str | Fault, **details: Any) -> None:
        """Misbehave from now on: `fault("storm", duration=5)`. See Fault for the kinds and their details."""
        if isinstance(fault, Fault):
            if details:
                raise InvalidConfig(
                    f"{', '.join(details)}: give details to the Fault you have made, not here"
                )
            planned = fault
        else:
            planned = Fault(fault, **details)
        with self._lock:
            self.provider.fault(planned, self._clock.now())

    def faults(self) -> list[Fault]:
        """Those that are not over."""
        with self._lock:
            return self.provider.faults(self._clock.now())

    def clear_faults(self) -> None:
        """Behave again."""
        with self._lock:
            self.provider.clear_faults()

    # For those who carry requests here.

    def _open(self, request: Request) -> Exchange:
        with self._lock:
            return self.provider.open(request, self._clock.now())

    def _step(self, exchange: Exchange) -> Step | None:
        with self._lock:
            return exchange.step(self._clock.now())

    def _close(self, exchange: Exchange) -> None:
        with self._lock:
            exchange.close(self._clock.now())

    def _control(self, request: Request) -> tuple[int, bytes]:
        with self._lock:
            return control(self.provider, request, self._clock.now())
