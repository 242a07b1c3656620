"""The loop of every adapter: wait at the gate, send, learn from the response, perhaps send again.

No client library is known here: an adapter says how to send, and shows its responses as `Answer`. Requests
and responses are never changed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar, Unpack

from ..gate.clock import sleep, sleep_async
from ..responses.estimate import RequestShape, TokenStats
from .answers import Answer, AsyncAnswer
from .call import Call
from .gates import Gates
from .options import SendOptions, SendSettings

S = TypeVar("S", bound=Answer)
A = TypeVar("A", bound=AsyncAnswer)


class GatedSender:
    """Sends requests as the gate of each admits them, with the options of one adapter."""

    __slots__ = ("_settings", "_warned")

    def __init__(self, gate: Gates = None, **options: Unpack[SendOptions]) -> None:
        self._settings = SendSettings.read(gate, **options)
        self._warned = False

    @property
    def stats(self) -> TokenStats:
        """What is known about the tokens of the requests so far."""
        return self._settings.stats

    def run(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, send: Callable[[], S]
    ) -> S:
        """Call `send` when the gate admits it, and again for each retry; raises what it raised last."""
        call = self._checked(Call(self._settings, method, url, headers, body))
        while True:
            answer = None
            try:
                call.begin(call.admission().enter())
                answer = send()
                error_body = answer.read_error() if answer.status >= 400 else None
                delay = call.answered(answer, error_body)
                if delay is None:
                    return answer
                answer.drop()
            except BaseException as error:
                delay = call.failed(error)
                if answer is not None:
                    with suppress(Exception):  # the first error is the one that matters
                        answer.drop()
                if delay is None:
                    raise
            if delay:
                sleep(call.gate.clock, delay)

    async def run_async(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | None,
        send: Callable[[], Awaitable[A]],
        shape: RequestShape | None = None,
    ) -> A:
        """Await `send` when the gate admits it, and again for each retry; raises what it raised last.

        `shape` is what the body asks for, if it has been read already.
        """
        call = self._checked(Call(self._settings, method, url, headers, body, shape))
        while True:
            answer = None
            try:
                call.begin(await call.admission().enter_async())
                answer = await send()
                error_body = await answer.read_error() if answer.status >= 400 else None
                delay = call.answered(answer, error_body)
                if delay is None:
                    return answer
                await answer.drop()
            except BaseException as error:
                delay = call.failed(error)
                if answer is not None:
                    with suppress(Exception):
                        await answer.drop()
                if delay is None:
                    raise
            if delay:
                await sleep_async(call.gate.clock, delay)

    def _checked(self, call: Call) -> Call:
        """The same call. The first one that shows that two layers retry is reported."""
        if call.retried_above and not self._warned:
            self._warned = True
            logging.getLogger("headgate").warning(
                "%s: the client above retries too, on top of our %d; it is sent once. "
                "Set the client's max_retries=0, or retries=0 here",
                call.name,
                self._settings.policy.max_retries,
            )
        return call

    def __repr__(self) -> str:
        gate = self._settings.gate
        described = "a gate for every host" if gate is None else repr(gate)
        return f"<{described}, {self._settings.policy.max_retries} retries>"
