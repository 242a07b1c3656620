"""For boto3: a client that waits at a gate before each attempt to send.

    obey(boto3.client("bedrock-runtime"), dispatch)

By the client's own events. The wait comes before a request is signed, so that no signature gets old, and once
for each attempt, also those of botocore's own retries. The response, or its stream, settles it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from botocore.eventstream import EventStream
from botocore.response import StreamingBody

from ..errors import InvalidConfig
from ..typing import Seconds
from .call import Call
from .exchange import Estimate, GatedSender
from .gates import Gates
from .response import Answer, OpenResponse

C = TypeVar("C")

_CALL = "headgate call"


def obey(
    client: C,
    gate: Gates = None,
    *,
    estimate: Estimate | None = None,
    lease: Seconds = 600.0,
    timeout: Seconds | None = None,
) -> C:
    """Make a `client` of boto3 send no faster than the gate admits. Returns the same client.

    `gate` is that of `headgate.http.httpx.Transport`; `estimate`, `lease` and `timeout` are those of
    `headgate.http.exchange.SendOptions`. botocore retries, not headgate. Leave its retries at
    `Config(retries={"mode": "standard"})`: its adaptive mode limits the rate by itself, and sleeps after the
    request has been signed. Raises InvalidConfig if it is not such a client, and for arguments that cannot
    work.

    >>> import boto3
    >>> place = {"region_name": "eu-west-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    >>> bedrock = obey(boto3.client("bedrock-runtime", **place))
    """
    meta: Any = getattr(client, "meta", None)
    if meta is None or not hasattr(meta, "events"):
        raise InvalidConfig(f"{client!r} is not a client of boto3; write obey(boto3.client(...), dispatch)")
    if any(each.__module__.startswith("aiobotocore.") for each in type(client).__mro__):
        raise InvalidConfig(
            "a client of aiobotocore would block its event loop at the gate; "
            "write `async with dispatch.admit(): await client.converse(...)` around its calls"
        )
    service = meta.service_model.service_id.hyphenize()
    retries = getattr(meta.config, "retries", None) or {}
    if retries.get("mode") == "adaptive":
        raise InvalidConfig(
            'the retries of this client are adaptive, which limits the rate by itself; use mode "standard"'
        )
    sender = GatedSender(gate, estimate=estimate, lease=lease, timeout=timeout)

    def admit(request: Any, **_event: Any) -> None:
        call = Call(sender, request.method, request.url, dict(request.headers.items()), _body_of(request))
        try:
            if call.budget is not None:
                call.reserve(call.budget)
            call.begin(call.take() or call.next_admission().enter())
        except BaseException as error:
            call.failed(error)
            raise
        request.context[_CALL] = call

    def settle(response_dict: Any, parsed_response: Any, context: Any, exception: Any, **_event: Any) -> None:
        call: Call | None = context.pop(_CALL, None)
        if call is None:
            return
        if response_dict is None:
            call.failed(exception or ConnectionError())
        else:
            answer = _Answer(response_dict, parsed_response)
            call.answered(answer, answer.read_error() if answer.status >= 400 else None)

    meta.events.register_first(f"request-created.{service}", admit)
    meta.events.register_last(f"response-received.{service}", settle)
    return client


def _body_of(request: Any) -> bytes | None:
    """The body, if it is in memory."""
    body = request.body if request.body is not None else request.data
    if isinstance(body, str):
        return body.encode("utf-8")
    return bytes(body) if isinstance(body, (bytes, bytearray)) and body else None


class _Answer(Answer):
    """The response as botocore's parsers see it, and what they made of it, which the caller gets."""

    def __init__(self, response: Any, parsed: Any) -> None:
        super().__init__(response)
        self._parsed: dict[str, Any] = parsed if isinstance(parsed, dict) else {}
        kinds = (EventStream, StreamingBody)
        self._stream = next((name for name, value in self._parsed.items() if isinstance(value, kinds)), None)

    @property
    def status(self) -> int:
        return int(self.response["status_code"])

    @property
    def headers(self) -> Mapping[str, str]:
        return {name.lower(): value for name, value in self.response["headers"].items()}

    @property
    def header_pairs(self) -> object:
        headers = dict(self.headers)
        if self._stream is not None and isinstance(self._parsed[self._stream], EventStream):
            headers["content-type"] = "application/json"  # its usage is passed on as that
        return headers

    def read_error(self) -> bytes | None:
        body = self.response["body"]
        return body if isinstance(body, bytes) else None

    def watch(self, reading: OpenResponse) -> None:
        if self._stream is None:
            body = self.response["body"]
            reading.chunk(body if isinstance(body, bytes) else b"")
            reading.end(whole=True)
            return
        reading.keep()
        stream = self._parsed[self._stream]
        if isinstance(stream, EventStream):
            self._parsed[self._stream] = _Events(stream, reading)
        else:
            self._parsed[self._stream] = StreamingBody(_Raw(stream, reading), content_length=None)

    def forbid_retries(self) -> None:
        """No header stops botocore's retries."""

    def drop(self) -> None:
        """Nothing of it is open: headgate does not retry here."""


class _Events:
    """An event stream that tells when it ends, and what its metadata say was used."""

    def __init__(self, stream: Any, reading: OpenResponse) -> None:
        self._stream = stream
        self._reading = reading

    def __iter__(self) -> Iterator[Any]:
        reading = self._reading
        try:
            for event in self._stream:
                usage = event.get("metadata", {}).get("usage") if isinstance(event, dict) else None
                reading.chunk(b"" if usage is None else json.dumps({"usage": usage}).encode())
                yield event
            reading.end(whole=True)
        finally:
            reading.end()

    def close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._reading.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Raw:
    """A body that tells what is read of it, and when that ends."""

    def __init__(self, body: Any, reading: OpenResponse) -> None:
        self._body = body
        self._reading = reading

    def read(self, amount: int | None = None) -> bytes:
        data: bytes = self._body.read(amount)
        self._reading.chunk(data)
        if amount is None or not data:
            self._reading.end(whole=True)
        return data

    def close(self) -> None:
        try:
            self._body.close()
        finally:
            self._reading.end()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._body, name)
