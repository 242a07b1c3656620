"""One request of the caller, from its first attempt to its response.

However it ends (read, closed, broken, dropped or abandoned), the place at the gate is given back once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..arguments import SECOND
from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig
from ..gate.admission import Admission, Permit
from ..responses import read_signal
from ..responses.estimate import INPUT, OUTPUT, TOKENS, RequestShape, read_shape, reservation, settlement
from ..responses.signals import Signal
from ..responses.usage import Usage, unpacked
from ..retries.call import RetriedCall
from ..retries.classify import SAFE_METHODS, is_permanent, never_sent, verdict_of
from ..retries.state import Failure, Stop
from .gates import DEFAULT, Request, checked
from .response import Answer, OpenResponse

if TYPE_CHECKING:
    from .exchange import GatedSender

_COUNTED = (TOKENS, INPUT, OUTPUT)

# A response that asks for a longer wait is returned at once. (The OpenAI SDK draws the same line.)
_LONGEST_RETRY_AFTER = 120 * SECOND


class ErrorResponse(Exception):
    """A response that is retried: logs and observers of the retry see this exception."""


class Call:
    """One request, and the attempt to send it that is being made."""

    def __init__(
        self,
        sender: GatedSender,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        shape: RequestShape | None = None,
    ) -> None:
        self._sender = sender
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2].lower()
        self._shape = shape or read_shape(method, self._host, parts.path, body)
        gate, request = sender.gate, None
        if not isinstance(gate, Dispatch) or sender.estimate is not None:
            request = Request(
                method=method,
                url=url,
                host=self._host,
                headers={name.lower(): value for name, value in headers.items()},
                body=body,
                model=self._shape.model,
            )
            if not isinstance(gate, Dispatch):
                choose = DEFAULT if gate is None else gate
                gate = checked(choose(request), choose)
        self.gate: Dispatch = gate
        self.name = f"{method} {self._host}{parts.path}"
        length = _digits(headers, "content-length")
        self._size = length if body is None else len(body)
        self._reserved = self._reserve(request)
        # A client that retries on top of the adapter multiplies requests: each of its retries is sent once.
        # The OpenAI and Anthropic SDKs count their attempts in this header.
        self.retried_above = bool(sender.policy.max_retries and _digits(headers, "x-stainless-retry-count"))
        if self.retried_above or (body is None and (length or "transfer-encoding" in headers)):
            self._repeat = "never"
        elif method.upper() in SAFE_METHODS or self._shape.generates or "idempotency-key" in headers:
            self._repeat = "always"
        else:
            self._repeat = "if refused"
        self._permit: Permit | None = None
        self._sent_at = 0.0
        self._retried = RetriedCall(sender.policy, self.name, clock=gate.clock, on_retry=gate.observer)

    def _reserve(self, request: Request | None) -> dict[str, int]:
        """The estimated cost, in the units that the gate counts."""
        counted = self.gate.largest_cost()
        stats, shape = self._sender.stats, self._shape
        if self._sender.estimate is not None:
            assert request is not None
            given = self._sender.estimate(request)
            if not hasattr(given, "items"):
                return {TOKENS: given} if TOKENS in counted else {}
            return {unit: cost for unit, cost in given.items() if unit in counted or unit == "requests"}
        unknown = [unit for unit in self.gate.columns.unstated if unit not in _COUNTED]
        if unknown:
            raise InvalidConfig(
                f"a rate counts {unknown[0]}, and a request does not say how many it costs; give the adapter "
                f'a function of one request, e.g. estimate=lambda request: {{"{unknown[0]}": 1}}'
            )
        if shape.style == "free" or counted.keys().isdisjoint(_COUNTED):
            return {}
        output = stats.output(self._host, shape.model, shape.max_output)
        guess = reservation(shape, stats.ratio(self._host, shape.model), output)
        # A guess above the largest possible cost is cut to it: the server may decide about such a request.
        return {unit: min(guess[unit], counted[unit]) for unit in _COUNTED if unit in counted}

    # -- one attempt

    def admission(self) -> Admission:
        cost = {unit: cost for unit, cost in self._reserved.items() if unit != TOKENS}
        tokens = self._reserved.get(TOKENS, 0)
        return self.gate.admit(
            bytes=self._size,
            tokens=tokens,
            cost=cost if cost or self.gate.columns.unstated else None,
            timeout=self._sender.timeout,
        )

    def begin(self, permit: Permit) -> None:
        """The gate has admitted the request: it is sent now."""
        self._permit = permit
        self._sent_at = self.gate.clock.seconds()

    def answered(self, answer: Answer, error_body: bytes | None) -> int | None:
        """Learn from a response. Returns nanoseconds to wait before a retry, None if the caller gets it."""
        permit = self._permit
        assert permit is not None
        status, headers = answer.status, answer.headers
        if status < 400:
            response = OpenResponse(
                permit,
                headers,
                name=self.name,
                clock=self.gate.clock,
                lease=self._sender.lease,
                cost_of=self._cost_of,
                observe_error=lambda document: self._observe_inside(read_signal(200, headers, document)),
            )
            self._permit = None  # from here on the response answers for it
            self._observe(read_signal(status, headers))
            self._retried.succeeded()
            if status == 101:
                response.end()  # from here on it is a conversation of any length
            else:
                answer.watch(response)
            return None
        text = None if error_body is None else unpacked(error_body, headers.get("content-encoding") or "")
        signal = read_signal(status, headers, text)
        self._observe(signal)
        if status >= 500 and not signal.limited:
            permit.settle()  # it may have run, so the estimate stands
        else:
            permit.settle(cost=self._counted(dict.fromkeys(_COUNTED, 0)))
        retry_after = None if signal.retry_after is None else round(signal.retry_after * SECOND)
        is_short = retry_after is None or retry_after <= _LONGEST_RETRY_AFTER
        failure = Failure(
            ErrorResponse(f"{status}, {signal.reason}"),
            again=signal.should_retry is True and is_short and self._repeat != "never",
            may_have_run=not signal.limited and self._repeat == "if refused",
            retry_after=retry_after,
            held=signal.limited and self.gate.pauses,  # until its window ends
        )
        delay = self._delay_after(failure)
        if delay is None and self._sender.policy.max_retries:
            answer.forbid_retries()
        return delay

    def failed(self, error: BaseException) -> int | None:
        """Settle an attempt without a complete response. Returns what `answered` returns."""
        permit, self._permit = self._permit, None
        sent = not never_sent(error)
        if permit is not None and sent:
            permit.settle()
        elif permit is not None:
            permit.cancel()
        if not isinstance(error, Exception):
            return None
        again = self._repeat != "never" and verdict_of(error).again and not is_permanent(error)
        return self._delay_after(Failure(error, again, may_have_run=sent and self._repeat == "if refused"))

    def _delay_after(self, failure: Failure) -> int | None:
        """Nanoseconds to wait before the request is sent again; None if it is not."""
        if not self._sender.policy.max_retries:
            return None
        decision = self._retried.decide(failure)
        self._retried.announce(decision)
        return None if isinstance(decision, Stop) else decision.delay

    # -- what its response says

    def _observe(self, signal: Signal) -> None:
        self.gate.observe(signal, sent_at=self._sent_at)

    def _observe_inside(self, signal: Signal) -> None:
        """Learn from an error inside a success."""
        if signal.limited:
            self._observe(signal)

    def _cost_of(self, usage: Usage | None) -> dict[str, int] | None:
        """The cost of a response by what it says it used, None if the estimate stands."""
        if usage is None:
            return None
        shape = self._shape
        self._sender.stats.learn(self._host, shape.model, shape.input, usage)
        return self._counted(settlement(shape.style, self._reserved, usage))

    def _counted(self, costs: Mapping[str, int]) -> dict[str, int]:
        """Those of the costs that the gate counts."""
        counted = self.gate.largest_cost()
        return {unit: cost for unit, cost in costs.items() if unit in counted}


def _digits(headers: Mapping[str, str], name: str) -> int:
    """The whole number in a header; 0 if there is none, or if it is absurdly long."""
    text = headers.get(name) or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0
