"""How requests are answered, step by step: replies, streams, refusals, and the faults that strike them.

There is no clock and no I/O: `now` is sent back by the server or the test that carries the steps out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from ..arguments import SECOND
from .faults import Fault
from .meters import read_rate
from .referee import Customer, Referee
from .steps import Cut, Data, Head, Pause, Step, Steps
from .styles.formats import encode, http_date
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
    customer: Customer | None = None  # whose limits it counts against, once it is admitted
    struck: list[Fault] = field(default_factory=list)  # at most one

    def struck_by(self, kind: str) -> Fault | None:
        return self.struck[0] if self.struck and self.struck[0].kind == kind else None


@dataclass(slots=True)
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

    def say(
        self, case: Case, status: int, body: Any, extra: Pairs, now: int, customer: Customer | None = None
    ) -> Steps:
        if isinstance(body, dict) and "request_id" in body:
            body["request_id"] = case.output.name("req_")
        data = encode(body)
        yield self._head(case, status, extra, len(data), now, customer)
        yield Data(data)

    def refuse(self, case: Case, customer: Customer, refusal: Refusal, now: int) -> Steps:
        status, body = self.style.refusal(refusal, case.ask, hint=self.retry_after)
        extra: Pairs = []
        if self.retry_after and refusal.wait is not None:
            extra = self.style.advice(refusal.wait)
        # A refusal for concurrency states no budget: none of them is used up.
        return self.say(case, status, body, extra, now, customer if refusal.level is not None else None)

    def misbehave(self, case: Case, fault: Fault, now: int) -> Steps:
        """A refusal or an error that the request has not caused."""
        ask = case.ask
        advice = fault.retry_after
        wait = round(advice * SECOND) if isinstance(advice, float) else None
        extra: Pairs = []
        if wait is not None:
            extra = self.style.advice(wait)
        elif isinstance(advice, str):
            extra = [("retry-after", advice)]
        match fault.kind:
            case "storm":
                status, body = self.style.refusal(Refusal("storm", wait=wait), ask, hint=True)
            case "too_large":
                most, wants = 1000, 1000 + max(1, ask.input_tokens)
                rate = read_rate("1000/minute", "fault", self.kind)
                level = MeterLevel(self.style.units[1], rate, most, 0)
                refusal = Refusal(level.unit, level, requested=wants, most=most)
                status, body = self.style.refusal(refusal, ask, hint=False)
            case "quota":
                status, body = self.style.quota()
            case "overload":
                status, body = self.style.overload()
            case "html":
                return self._page(case, fault.status, now)
            case _:
                status = fault.status
                body = self.style.error(status, "The server had an error while processing your request.")
        return self.say(case, status, body, extra, now)

    def serve(self, case: Case, customer: Customer, now: int) -> Steps:
        """An admitted request, from its arrival to the last byte of its answer."""
        if fault := case.struck_by("slow_headers"):
            now = yield Pause(now + round(fault.seconds * SECOND))
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

    def _head(
        self, case: Case, status: int, extra: Pairs, length: int | None, now: int, customer: Customer | None
    ) -> Head:
        kind = "text/event-stream; charset=utf-8" if length is None else "application/json"
        wall = case.epoch + now
        headers = [
            ("date", http_date(wall // SECOND)),
            ("content-type", kind),
            *self.style.identity(case.output),
        ]
        if customer is not None and self.headers:
            headers += self.style.budget([customer.level(unit, now) for unit in customer.meters], wall)
        headers += extra
        self.referee.by_status[status] += 1
        return Head(status, headers, length)

    def _page(self, case: Case, status: int, now: int) -> Steps:
        page = f"<html><head><title>{status}</title></head><body><h1>{status}</h1></body></html>\n".encode()
        self.referee.by_status[status] += 1
        date = http_date((case.epoch + now) // SECOND)
        yield Head(status, [("date", date), ("content-type", "text/html")], len(page))
        yield Data(page)

    def _ready_at(self, begun: int, tokens: int) -> int:
        return begun if self.speed is None else begun + round(tokens * SECOND / self.speed)

    def _reply(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        tokens = case.output.tokens
        width = tokens if self.speed is None else -(-tokens // _SLICES)
        for start in range(0, tokens, max(1, width)):
            stop = min(start + width, tokens)
            ready = self._ready_at(begun, stop)
            if ready > now:
                now = yield Pause(ready)
            customer.produce(stop - start, now)
        body = encode(self.style.reply(case.ask, case.output))
        if (fault := case.struck_by("truncate")) and fault.clean:
            body = body[: len(body) // 2]
        now = yield self._head(case, 200, [], len(body), now, customer)
        if not case.struck:
            yield Data(body)
            return
        pieces = 8 if case.struck_by("slow_body") else 2
        width = max(1, -(-len(body) // pieces))
        yield from self._disturb(case, _parts(body, width), now, middle=1)

    def _stream(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        now = yield self._head(case, 200, [], None, now, customer)
        steps = self._pieces(case, customer, begun, now)
        if not case.struck:
            yield from steps
            return
        pieces = -(-case.output.tokens // self.piece_tokens)
        yield from self._disturb(case, steps, now, middle=1 + pieces // 2)

    def _pieces(self, case: Case, customer: Customer, begun: int, now: int) -> Steps:
        ask, output = case.ask, case.output
        now = yield Data(self.style.begin(ask, output))
        for start in range(0, output.tokens, self.piece_tokens):
            stop = min(start + self.piece_tokens, output.tokens)
            ready = self._ready_at(begun, stop)
            if ready > now:
                now = yield Pause(ready)
            customer.produce(stop - start, now)
            now = yield Data(self.style.piece(ask, output, start, stop))
        yield Data(self.style.end(ask, output))

    def _disturb(self, case: Case, steps: Steps, now: int, *, middle: int) -> Steps:
        """The steps of a body, changed by the fault. *middle* is the number of pieces before the middle."""
        fault = case.struck[0]
        if fault.kind == "reset" and fault.at == "headers":
            yield Pause(now + _ARRIVE)
            yield Cut(reset=True)
            return
        delivered = 0
        step = next(steps, None)
        while step is not None:
            if step.__class__ is Data:
                wait = round(fault.seconds * SECOND)
                if delivered == middle:
                    if fault.kind == "stall":
                        now = yield Pause(now + wait)
                    elif fault.kind == "stream_error":
                        yield Data(self.style.stream_error(case.ask, case.output))
                        return
                    elif fault.kind == "truncate" and fault.clean and case.ask.stream:
                        return
                    elif fault.kind in ("truncate", "reset") and not fault.clean:
                        yield Pause(now + _ARRIVE)
                        yield Cut(reset=fault.kind == "reset")
                        return
                if fault.kind == "slow_body":
                    now = yield Pause(now + wait)
                delivered += 1
            now = yield step
            step = _sent(steps, now)


def _parts(body: bytes, width: int) -> Steps:
    for start in range(0, len(body), width):
        yield Data(body[start : start + width])


def _sent(steps: Steps, now: int) -> Step | None:
    try:
        return steps.send(now)
    except StopIteration:
        return None
