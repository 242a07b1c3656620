"""How requests are answered, step by step: replies, streams, refusals, and the faults that strike them.

There is no clock and no I/O: `now` is sent back by the server or the test that carries the steps out.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from random import Random
from typing import Any

from ..arguments import SECOND, seconds_to_ns
from .faults import Fault
from .meters import read_rate
from .referee import Customer, Referee
from .steps import Cut, Data, Head, Pause, Scenario, Step, Steps
from .styles.formats import encode, http_date, spans
from .styles.style import Style
from .styles.values import Ask, MeterLevel, Output, Pairs, Refusal, Request

# A long answer that is not streamed is produced in this many slices: its tokens are counted as they come.
_SLICES = 16

# Sent bytes need this long to arrive; only then may the connection be cut.
_ARRIVE = SECOND // 50


@dataclass(slots=True)
class Case:
    """One request with all that was found out about it."""

    request: Request
    ask: Ask
    output: Output
    random: Random
    epoch: int  # the wall clock when `now` was zero
    customer: Customer | None = None  # whose limits the answer states
    fault: Fault | None = None  # that strikes it

    def struck_by(self, kind: str) -> Fault | None:
        return self.fault if self.fault is not None and self.fault.kind == kind else None


@dataclass(slots=True, kw_only=True)
class Answers:
    """Turns cases into steps."""

    style: Style
    referee: Referee
    kind: str
    headers: bool  # do answers state the budgets
    retry_after: bool  # do refusals say when to try again
    first_token: int  # nanoseconds to the first token, the median
    spread: float
    speed: float | None  # tokens a second
    piece_tokens: int

    def say(self, case: Case, status: int, body: Any, extra: Pairs, now: int) -> Steps:
        if isinstance(body, dict) and "request_id" in body:
            body["request_id"] = case.output.name("req_")
        data = encode(body)
        yield self._head(case, status, len(data), now, *extra)
        yield Data(data)

    def refuse(self, case: Case, refusal: Refusal, now: int) -> Steps:
        status, body = self.style.refusal(refusal, case.ask, hint=self.retry_after)
        extra = self.style.advice(refusal.wait) if self.retry_after and refusal.wait is not None else []
        return self.say(case, status, body, extra, now)

    def misbehave(self, case: Case, fault: Fault, now: int) -> Steps:
        """A refusal or an error that the request has not caused."""
        ask, style, advice = case.ask, self.style, fault.retry_after
        wait, extra = None, []
        if isinstance(advice, str):
            extra = [("retry-after", advice)]
        elif advice is not None:
            wait = seconds_to_ns(advice, "retry_after")
            extra = style.advice(wait)
        match fault.kind:
            case "storm":
                status, body = style.refusal(Refusal("storm", wait=wait), ask, hint=True)
            case "too_large":
                most, wants = 1000, 1000 + max(1, ask.input_tokens)
                level = MeterLevel(style.units[1], read_rate("1000/minute", "fault", self.kind), most, 0)
                status, body = style.refusal(Refusal(level.unit, level, wants, most=most), ask, hint=False)
            case "quota" | "overload":
                status, body = style.failure(fault.kind)
            case "html":
                return self._page(case, fault.status or 502, now)
            case _:
                status = fault.status or 500
                body = style.error(status, "The server had an error while processing your request.")
        return self.say(case, status, body, extra, now)

    def serve(self, case: Case, customer: Customer, now: int) -> Steps:
        """An admitted request, from its arrival to the last byte of its answer."""
        if fault := case.struck_by("slow_headers"):
            now = yield Pause(now + fault.pause)
        reset = case.struck_by("reset")
        if reset and reset.at == "before":
            yield Cut(reset=True)
            return
        latency = self.first_token
        if self.spread:
            latency = round(latency * case.random.lognormvariate(0.0, self.spread))
        begun = now + latency
        if latency:
            now = yield Pause(begun)
        yield from (self._stream if case.ask.stream else self._reply)(case, customer, begun, now)

    def _head(self, case: Case, status: int, length: int | None, now: int, *extra: tuple[str, str]) -> Head:
        wall = case.epoch + now
        headers = [
            ("date", http_date(wall // SECOND)),
            ("content-type", "text/event-stream; charset=utf-8" if length is None else "application/json"),
            *self.style.identity(case.output),
        ]
        if case.customer is not None and self.headers:
            headers += self.style.budget([*case.customer.levels(now).values()], wall)
        self.referee.by_status[status] += 1
        return Head(status, [*headers, *extra], length)

    def _page(self, case: Case, status: int, now: int) -> Steps:
        page = f"<html><head><title>{status}</title></head><body><h1>{status}</h1></body></html>\n".encode()
        self.referee.by_status[status] += 1
        date = http_date((case.epoch + now) // SECOND)
        yield Head(status, [("date", date), ("content-type", "text/html")], len(page))
        yield Data(page)

    def _produce(
        self, customer: Customer, start: int, stop: int, begun: int, now: int
    ) -> Generator[Step, int, int]:
        """Wait until the tokens from *start* to *stop* are ready, and count them."""
        ready = begun if self.speed is None else begun + round(stop * SECOND / self.speed)
        if ready > now:
            now = yield Pause(ready)
        customer.produce(stop - start, now)
        return now

    def _reply(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        tokens = case.output.tokens
        width = tokens if self.speed is None else -(-tokens // _SLICES)
        for start, stop in spans(tokens, width):
            now = yield from self._produce(customer, start, stop, begun, now)
        body = encode(self.style.reply(case.ask, case.output))
        if (fault := case.struck_by("truncate")) and fault.clean:
            body = body[: len(body) // 2]
        now = yield self._head(case, 200, len(body), now)
        if case.fault is None:
            yield Data(body)
            return
        width = -(-len(body) // (8 if case.struck_by("slow_body") else 2))
        yield from self._disturb(case, case.fault, _parts(body, width), now, middle=1)

    def _stream(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        now = yield self._head(case, 200, None, now)
        steps = self._pieces(case, customer, begun, now)
        if case.fault is not None:
            pieces = -(-case.output.tokens // self.piece_tokens)
            steps = self._disturb(case, case.fault, steps, now, middle=1 + pieces // 2)
        yield from steps

    def _pieces(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        done = 0
        for tokens, data in self.style.stream(case.ask, case.output, self.piece_tokens):
            if tokens > done:
                now = yield from self._produce(customer, done, tokens, begun, now)
                done = tokens
            now = yield Data(data)

    def _disturb(self, case: Case, fault: Fault, steps: Steps, now: int, *, middle: int) -> Steps:
        """The steps of a body, changed by the fault. *middle* is the number of pieces before the middle."""
        if fault.at == "headers":
            middle = 0
        delivered, body = 0, Scenario(steps)
        while (step := body.step(now)) is not None:
            if isinstance(step, Data):
                if delivered == middle:
                    if fault.kind == "stream_error":
                        yield Data(self.style.stream_error(case.ask, case.output))
                        return
                    if fault.kind == "truncate" and fault.clean and case.ask.stream:
                        return
                    if fault.kind in ("truncate", "reset") and not fault.clean:
                        yield Pause(now + _ARRIVE)
                        yield Cut(reset=fault.kind == "reset")
                        return
                if fault.kind == "slow_body" or (fault.kind == "stall" and delivered == middle):
                    now = yield Pause(now + fault.pause)
                delivered += 1
            now = yield step


def _parts(body: bytes, width: int) -> Steps:
    for start in range(0, len(body), width):
        yield Data(body[start : start + width])
