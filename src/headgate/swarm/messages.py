"""What agents of a swarm write to each other: byte for byte what a Go agent writes and reads, and more.

Rules of this room: a letter is read whole or not at all. Whatever it says is checked here; whatever is wrong
with it is a ValueError, and nothing else.
"""

from __future__ import annotations

import hmac
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ..arguments import SECOND
from ..frozen import Frozen

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn

# No letter is longer: an update is a line, and only who inherits a swarm gets a list of its members.
LONGEST_UPDATE = 16 * 1024
LONGEST_LETTER = 8 * 1024 * 1024

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:(Z)|([+-])(\d\d):(\d\d))", re.ASCII
)
_SIGNATURE = re.compile(rb',"sig":"([0-9a-f]{64})"\}\Z')
# What Go's encoding/json escapes beyond what it must, for the sake of web pages.
_FOR_WEB_PAGES = {
    ord("<"): "\\u003c",
    ord(">"): "\\u003e",
    ord("&"): "\\u0026",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}
_NOT_TEXT = re.compile("[\ud800-\udfff]")
# When nothing is said: the zero time of Go, in the year 1.
_NO_TIME = -62_135_596_800 * SECOND


class CapacityUpdate(Frozen):
    """What one agent tells all: the total of a resource should be `new_capacity`.

    `timestamp_ns` counts from 1970; `timestamp` is the same as a datetime. `retry_after` is how many seconds
    nobody should call at all, None if the agent did not say.
    """

    __slots__ = ("agent_id", "new_capacity", "reason", "resource", "retry_after", "timestamp_ns")
    resource: str
    agent_id: str
    new_capacity: int
    reason: str
    timestamp_ns: int
    retry_after: float | None

    @property
    def timestamp(self) -> datetime:
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    def to_json(self, extra: Mapping[str, Any] | None = None) -> bytes:
        """As Go's encoding/json writes it; what is extra comes behind, and Go does not look at it.

        >>> CapacityUpdate(
        ...     resource="api", agent_id="a", new_capacity=50, reason="429", timestamp_ns=0, retry_after=None
        ... ).to_json()
        b'{"resource":"api","agent_id":"a","new_capacity":50,"reason":"429","timestamp":"1970-01-01T00:00:00Z"}'
        """
        fields = [
            f'"resource":{_written(self.resource)}',
            f'"agent_id":{_written(self.agent_id)}',
            f'"new_capacity":{self.new_capacity}',
            f'"reason":{_written(self.reason)}',
            f'"timestamp":"{write_moment(self.timestamp_ns)}"',
        ]
        if self.retry_after is not None:
            fields.append(f'"retry_after":{json.dumps(self.retry_after)}')
        for name, value in (extra or {}).items():
            fields.append(f"{_written(name)}:{_written(value)}")
        return ("{" + ",".join(fields) + "}").encode()

    @classmethod
    def from_json(cls, data: bytes) -> tuple[CapacityUpdate, dict[str, Any]]:
        """The update, and all the fields it came with. ValueError: not one that Go would have read."""
        fields = _folded(read_object(data, LONGEST_UPDATE))
        retry_after = fields.get("retry_after")
        if retry_after is not None and (
            isinstance(retry_after, bool)
            or not isinstance(retry_after, (int, float))
            or not 0 <= retry_after <= 86_400
        ):
            raise ValueError(f"retry_after {retry_after!r} is not from 0 to a day")
        update = cls(
            resource=_field(fields, "resource", str, ""),
            agent_id=_field(fields, "agent_id", str, ""),
            new_capacity=_field(fields, "new_capacity", int, 0),
            reason=_field(fields, "reason", str, ""),
            timestamp_ns=_moment(fields),
            retry_after=None if retry_after is None else float(retry_after),
        )
        if not -(1 << 63) <= update.new_capacity < 1 << 63:
            raise ValueError("new_capacity is not a 64-bit number")
        return update, fields


class Oversized(ValueError):
    """Longer than any letter."""


def read_object(data: bytes, longest: int) -> dict[str, Any]:
    """A JSON object of at most that many bytes. ValueError: it is none."""
    if len(data) > longest:
        raise Oversized(f"{len(data)} bytes are more than {longest}")
    try:
        read = json.loads(data.decode("utf-8", "replace"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(read, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - of a letter, not of a call
    return read


def write_object(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def write_moment(ns: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 in UTC, with as many digits as it takes, as Go does.

    >>> write_moment(1_700_000_000_120_000_000)
    '2023-11-14T22:13:20.12Z'
    """
    seconds, fraction = divmod(ns, SECOND)
    moment = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    digits = f"{fraction:09}".rstrip("0")
    return f"{moment}.{digits}Z" if digits else f"{moment}Z"


def read_moment(text: str) -> int:
    """RFC 3339 with any number of digits, as nanoseconds since 1970. ValueError: it is not."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a moment")
    *date, fraction, _zulu, sign, hours, minutes = match.groups()
    moment = datetime(*(int(part) for part in date), tzinfo=UTC)  # type: ignore[misc, arg-type]
    if sign:
        if int(hours) > 23 or int(minutes) > 59:
            raise ValueError(f"{text!r} has no such zone")
        offset = (int(hours) * 3600 + int(minutes) * 60) * (1 if sign == "+" else -1)
    else:
        offset = 0
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds - offset) * SECOND + int((fraction or "0")[:9].ljust(9, "0"))


# -- signing


def sign(data: bytes, subject: str, secret: bytes) -> bytes:
    """The same object with a signature as its last field."""
    return data[:-1] + b',"sig":"' + _signature(data, subject, secret) + b'"}'


def verified(data: bytes, subject: str, secret: bytes) -> bytes:
    """The object as it was before it was signed. ValueError: not by one who knows the secret."""
    match = _SIGNATURE.search(data[-100:])
    if match is None:
        raise ValueError("it is not signed")
    unsigned = data[: len(data) - len(match[0])] + b"}"
    if not hmac.compare_digest(match[1], _signature(unsigned, subject, secret)):
        raise ValueError("it is signed by somebody else")
    return unsigned


def _signature(data: bytes, subject: str, secret: bytes) -> bytes:
    # The subject is signed too: a letter cannot be posted elsewhere.
    return hmac.digest(secret, subject.encode() + b"\n" + data, "sha256").hex().encode()


# -- the grammar


def _written(value: object) -> str:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).translate(_FOR_WEB_PAGES)
    return text if text.isascii() else _NOT_TEXT.sub(r"\\ufffd", text)


def _folded(fields: dict[str, Any]) -> dict[str, Any]:
    """Go does not tell capitals apart in names; the last one counts, unless it is null."""
    folded: dict[str, Any] = {}
    for name, value in fields.items():
        if value is not None:
            folded[name.casefold()] = value
    return folded


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _field(fields: dict[str, Any], name: str, kind: type[Any], default: Any) -> Any:
    value = fields.get(name)
    if value is None:  # absent, or null: Go leaves the zero value
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} {value!r} is of the wrong kind")  # noqa: TRY004
    return value


def _moment(fields: dict[str, Any]) -> int:
    text = _field(fields, "timestamp", str, None)
    return _NO_TIME if text is None else read_moment(text)
