"""One request of the caller, from its first attempt to the end of its response.

However it ends (read, closed, broken, dropped or abandoned), the place at the gate is given back once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from weakref import ref

from ..arguments import SECOND
from ..dispatch.dispatch import Dispatch
from ..gate.admission import Admission, Permit
from ..responses import read_signal
from ..responses.estimate import INPUT, OUTPUT, TOKENS, RequestShape, read_shape, reservation, settlement
from ..responses.signals import Signal
from ..responses.usage import Usage, UsageReader, unpacked
from ..retries.call import RetriedCall
from ..retries.classify import SAFE_METHODS, is_permanent, never_sent, verdict_of
from ..retries.state import Stop, Wait
from .abandoned import ReadTimeout
from .answers import Answer, AsyncAnswer
from .gates import DEFAULT, Request, checked
from .options import SendSettings

_COUNTED = (TOKENS, INPUT, OUTPUT)

# A response that asks for a longer wait is returned at once. (The OpenAI SDK draws the same line.)
_LONGEST_RETRY_AFTER = 120 * SECOND

_LOG = logging.getLogger("headgate")


class ErrorResponse(Exception):
    """A response that is retried: logs and observers of the retry see this exception."""


class Call:
    """One request, and the attempt to send it that is being made."""

    __slots__ = (
        "_host",
        "_permit",
        "_repeat",
        "_reserved",
        "_retried",
        "_sent_at",
        "_settings",
        "_shape",
        "_size",
        "gate",
        "name",
        "retried_above",
    )

    def __init__(
        self,
        settings: SendSettings,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        shape: RequestShape | None = None,
    ) -> None:
        self._settings = settings
        parts = urlsplit(url)
        self._host = parts.netloc.rpartition("@")[2].lower()
        self._shape = shape or read_shape(method, self._host, parts.path, body)
        gate, request = settings.gate, None
        if not isinstance(gate, Dispatch) or settings.estimate is not None:
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
        self._size = len(body) if body is not None else _length(headers)
        self._reserved = self._reserve(request)
        # A client that retries on top of the adapter multiplies requests: each of its retries is sent once.
        self.retried_above = bool(settings.policy.max_retries) and _is_a_retry(headers)
        if self.retried_above or (body is None and _has_body(headers)):
            self._repeat = "never"
        elif _may_run_twice(method, headers, self._shape):
            self._repeat = "always"
        else:
            self._repeat = "if refused"
        self._permit: Permit | None = None
        self._sent_at = 0.0
        self._retried = RetriedCall(settings.policy, self.name, clock=gate.clock, on_retry=gate.observer)

    def _reserve(self, request: Request | None) -> dict[str, int]:
        """The estimated cost, in the units that the gate counts."""
        counted = self.gate.largest_cost()
        settings, shape = self._settings, self._shape
        if settings.estimate is not None:
            assert request is not None
            given = settings.estimate(request)
            if not hasattr(given, "items"):
                return {TOKENS: given} if TOKENS in counted else {}
            return {unit: cost for unit, cost in given.items() if unit in counted or unit == "requests"}
        if shape.style == "free" or counted.keys().isdisjoint(_COUNTED):
            return {}
        guess = reservation(
            shape,
            settings.stats.ratio(self._host, shape.model),
            settings.stats.output(self._host, shape.model, shape.max_output),
        )
        # A guess above the largest possible cost is cut to it: the server may decide about such a request.
        return {unit: min(guess[unit], counted[unit]) for unit in _COUNTED if unit in counted}

    # -- one attempt

    def admission(self) -> Admission:
        cost = {unit: cost for unit, cost in self._reserved.items() if unit != TOKENS}
        return self.gate.admit(
            bytes=self._size,
            tokens=self._reserved.get(TOKENS, 0),
            cost=cost or None,
            timeout=self._settings.timeout,
        )

    def begin(self, permit: Permit) -> None:
        """The gate has admitted the request: it is sent now."""
        self._permit = permit
        self._sent_at = self.gate.clock.seconds()

    def answered(self, answer: Answer | AsyncAnswer, error_body: bytes | None) -> int | None:
        """Learn from a response. Returns nanoseconds to wait before a retry, None if the caller gets it."""
        permit = self._permit
        assert permit is not None
        status, headers = answer.status, answer.headers
        if status < 400:
            response = OpenResponse(self, permit, headers)
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
        delay = self._delay_after(signal, status)
        if delay is None and self._settings.policy.max_retries:
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
        if not isinstance(error, Exception) or not self._settings.policy.max_retries:
            return None
        decision = self._retried.decide(
            error,
            again=self._repeat != "never" and verdict_of(error).again and not is_permanent(error),
            may_have_run=sent and self._repeat == "if refused",
        )
        return self._announced(decision)

    def _delay_after(self, signal: Signal, status: int) -> int | None:
        if not self._settings.policy.max_retries:
            return None
        retry_after = None if signal.retry_after is None else round(signal.retry_after * SECOND)
        decision = self._retried.decide(
            ErrorResponse(f"{status}, {signal.reason}"),
            again=signal.should_retry is True
            and self._repeat != "never"
            and (retry_after is None or retry_after <= _LONGEST_RETRY_AFTER),
            may_have_run=not signal.limited and self._repeat == "if refused",
            retry_after=retry_after,
            held=signal.limited and self.gate.pauses,  # until its window ends
        )
        return self._announced(decision)

    def _announced(self, decision: Wait | Stop) -> int | None:
        self._retried.announce(decision)
        return None if isinstance(decision, Stop) else decision.delay

    # -- what its response says

    @property
    def lease(self) -> int:
        return self._settings.lease

    def observe_inside(self, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Learn from an error inside a success."""
        signal = read_signal(200, headers, document)
        if signal.limited:
            self._observe(signal)

    def _observe(self, signal: Signal) -> None:
        self.gate.observe(signal, sent_at=self._sent_at)

    def cost_of(self, usage: Usage | None) -> dict[str, int] | None:
        """The cost of a response by what it says it used, None if the estimate stands."""
        if usage is None:
            return None
        shape = self._shape
        self._settings.stats.learn(self._host, shape.model, shape.input, usage)
        return self._counted(settlement(shape.style, self._reserved, usage))

    def _counted(self, costs: Mapping[str, int]) -> dict[str, int]:
        """Those of the costs that the gate counts."""
        counted = self.gate.largest_cost()
        return {unit: cost for unit, cost in costs.items() if unit in counted}


class OpenResponse:
    """A successful response until its body ends: it holds the permit, and is the `Reading` of its adapter."""

    __slots__ = ("__weakref__", "_call", "_headers", "_open", "_permit", "_reader", "_timeout")

    def __init__(self, call: Call, permit: Permit, headers: Mapping[str, str]) -> None:
        self._open = False
        self._call = call
        self._permit = permit
        self._headers = headers
        self._reader = UsageReader(headers.get("content-type") or "", headers.get("content-encoding") or "")
        self._timeout: ReadTimeout | None = None
        self._open = True

    def keep(self) -> None:
        if self._open and self._timeout is None:
            call = self._call
            self._timeout = ReadTimeout(call.gate.clock, call.lease, ref(self), self._permit)

    def chunk(self, data: bytes) -> None:
        if self._open:
            if self._timeout is not None:
                self._timeout.renew()
            self._reader.feed(data)

    def end(self, *, whole: bool = False) -> None:
        if not self._open:
            return
        if whole:
            self._reader.finish()
        self._permit.settle(cost=self._close())
        if self._reader.error is not None:
            self._call.observe_inside(self._reader.error, self._headers)

    def __del__(self) -> None:
        if self._open:
            self._permit.leave(self._close())

    def _close(self) -> dict[str, int] | None:
        """Count the response as ended. Returns what it cost, None if the estimate stands."""
        self._open = False
        if self._timeout is not None:
            self._timeout.cancel()
        return self._call.cost_of(self._reader.usage)

    def abandon(self) -> None:
        """Give the place back: the caller has neither read nor closed the response for a long time."""
        if not self._open:
            return
        self._permit.settle(cost=self._close())
        _LOG.warning(
            "%s: the response has been neither read nor closed for %g s; its place has been given back. "
            "Close responses, e.g. by `with`, or give the adapter a longer lease=",
            self._call.name,
            self._call.lease / SECOND,
        )


def _length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length") or ""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else 0


def _has_body(headers: Mapping[str, str]) -> bool:
    return bool(_length(headers)) or "transfer-encoding" in headers


def _may_run_twice(method: str, headers: Mapping[str, str], shape: RequestShape) -> bool:
    return method.upper() in SAFE_METHODS or shape.generates or "idempotency-key" in headers


def _is_a_retry(headers: Mapping[str, str]) -> bool:
    """Whether a client above retries, by the header in which the OpenAI and Anthropic SDKs count attempts."""
    count = headers.get("x-stainless-retry-count") or ""
    return count.isascii() and count.isdigit() and int(count) > 0
