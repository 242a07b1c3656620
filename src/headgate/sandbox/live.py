"""A provider with a clock, under the sandbox on a port and the one in virtual time.

One lock guards the provider and is held for its arithmetic only.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Unpack

from ..errors import InvalidConfig
from ..gate.clock import SYSTEM, read_clock
from ..typing import Clock, Seconds
from .control import control
from .faults import Fault
from .provider import Change, Limits, Provider
from .referee import Report
from .steps import Scenario, Step
from .styles.values import Request


class Options(Limits, total=False):
    """The options of a Provider, besides its style."""

    kind: str
    per_key: bool
    per_model: bool
    start_empty: bool
    window_age: Seconds | None
    jitter: Seconds
    refusals_count: bool | None
    headers: bool
    retry_after: bool
    first_token: Seconds
    spread: float
    tokens_per_second: float | None
    reply_tokens: int
    piece_tokens: int
    seed: int


@dataclass(frozen=True, slots=True)
class LiveScenario:
    """A scenario on a clock. Any thread may step it."""

    scenario: Scenario
    provider: Provider
    clock: Clock
    lock: threading.Lock

    def step(self) -> Step | None:
        """The next step; None when there is no more."""
        with self.lock:
            now = self.clock.now()
            self.provider.catch_up(now)
            return self.scenario.step(now)

    def close(self) -> None:
        with self.lock:
            self.scenario.close()


class Live:
    """A Provider on a clock, which any thread may use."""

    def __init__(
        self, style: str | Provider = "openai", *, clock: Clock = SYSTEM, **options: Unpack[Options]
    ) -> None:
        if not isinstance(style, Provider):
            style = Provider(style, **options)
        elif options:
            raise InvalidConfig(f"{', '.join(options)}: give options to the Provider you have made, not here")
        self.provider = style
        self._clock = read_clock(clock)
        self._lock = threading.Lock()

    def report(self) -> Report:
        """What happened since the start or the last reset, as a `Report`."""
        with self._lock:
            work_out = self.provider.account()
        return work_out()

    def reset_report(self) -> None:
        """Start counting again. Levels and requests in flight stay as they are."""
        with self._lock:
            self.provider.reset_report()

    def limits(self) -> dict[str, str | int | None]:
        """The limits in force, by name, as they could be written."""
        with self._lock:
            self.provider.catch_up(self._clock.now())
            return self.provider.limits()

    def set_limits(self, **change: Unpack[Change]) -> None:
        """Set other limits. Those left out stay as they are; None removes a limit.

        They are written as for `Provider`. They hold from now on or from `after` seconds on, and with
        `duration` for that many seconds only: `set_limits(requests="300/minute", after=4, duration=10)`.
        Raises InvalidConfig for what is not a limit.

        >>> from headgate.sandbox import FakeProvider
        >>> api = FakeProvider("plain", requests="60/minute")
        >>> api.set_limits(requests="30/minute burst 5")
        >>> api.limits()["requests"]
        '30/minute burst 5'
        """
        with self._lock:
            self.provider.set_limits(now=self._clock.now(), **change)

    def fault(self, fault: str | Fault, **details: Any) -> None:
        """Misbehave from now on by this `fault`: a `Fault`, or its kind and its options.

        For example `fault("storm", duration=5)`; `Fault` explains the options. Raises InvalidConfig for what
        is not a fault.

        >>> from headgate.sandbox import FakeProvider
        >>> api = FakeProvider("plain")
        >>> api.fault("overload", count=1)
        >>> [api.call("GET", "/").status for _ in range(2)]
        [503, 200]
        """
        if not isinstance(fault, Fault):
            fault = Fault(fault, **details)
        elif details:
            raise InvalidConfig(f"{', '.join(details)}: give details to the Fault you have made, not here")
        with self._lock:
            self.provider.fault(fault, self._clock.now())

    def faults(self) -> list[Fault]:
        """The faults that are not over, as `Fault` objects."""
        with self._lock:
            return self.provider.faults(self._clock.now())

    def clear_faults(self) -> None:
        """End all faults."""
        with self._lock:
            self.provider.clear_faults()

    def open(self, request: Request) -> LiveScenario:
        """Decide about a request; the caller carries out the steps of its scenario and closes it."""
        with self._lock:
            scenario = self.provider.open(request, self._clock.now())
        return self.on_clock(scenario)

    def on_clock(self, scenario: Scenario) -> LiveScenario:
        return LiveScenario(scenario, self.provider, self._clock, self._lock)

    def control(self, request: Request) -> tuple[int, bytes]:
        """Status and body for a request to the control plane."""
        with self._lock:
            return control(self.provider, request, self._clock.now())
