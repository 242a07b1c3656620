"""Pure. CapacityUpdate: the message of a reduction, byte for byte as a Go agent writes and reads it.

Rules of this room: an update is read whole or not at all. Everything it says is checked here, and everything
wrong with it is a ValueError and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from ..arguments import SECOND
from ..frozen import Frozen
from .messages import read_level, read_number, read_object, read_text
from .recovery import Level, Total
from .signatures import STALE

# Longer updates are refused: one is a line.
_LONGEST_UPDATE = 16 * 1024
# For how many senders it is remembered what they sent last.
_MOST_SENDERS = 10_000

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)", re.ASCII
)
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
    """What one agent tells all others: the total of a `resource` should be `new_capacity`.

    `agent_id` is the agent that says so, and `reason` why. `timestamp_ns` counts from 1970; `timestamp` is
    the same as a datetime. `retry_after` is for how many seconds no agent should call at all, None if the
    sender did not say.
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
        """When the update was sent, as a datetime in UTC."""
        return _EPOCH + timedelta(microseconds=self.timestamp_ns // 1000)

    def to_json(self, extra: Mapping[str, Any] | None = None) -> bytes:
        """The update as Go's encoding/json writes it. Fields in `extra` come last, and Go ignores them.

        >>> CapacityUpdate(
        ...     resource="api", agent_id="a", new_capacity=50, reason="429", timestamp_ns=0, retry_after=None
        ... ).to_json()
        b'{"resource":"api","agent_id":"a","new_capacity":50,"reason":"429","timestamp":"1970-01-01T00:00:00Z"}'
        """
        fields: dict[str, Any] = {
            "resource": self.resource,
            "agent_id": self.agent_id,
            "new_capacity": self.new_capacity,
            "reason": self.reason,
            "timestamp": write_moment(self.timestamp_ns),
        }
        if self.retry_after is not None:
            fields["retry_after"] = self.retry_after
        text = json.dumps({**fields, **(extra or {})}, separators=(",", ":"), ensure_ascii=False)
        return _NOT_TEXT.sub(r"\\ufffd", text.translate(_FOR_WEB_PAGES)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> tuple[CapacityUpdate, dict[str, Any]]:
        """The update in `data`, and all fields it came with. Raises ValueError if Go would not have read it.

        >>> sent = b'{"resource":"api","new_capacity":50,"timestamp":"2026-11-16T12:00:00Z"}'
        >>> update, fields = CapacityUpdate.from_json(sent)
        >>> update.resource, update.new_capacity
        ('api', 50)
        """
        read = read_object(data, _LONGEST_UPDATE)
        # Go ignores the case of a name; the last field of a name counts, unless it is null.
        fields = {name.casefold(): value for name, value in read.items() if value is not None}
        timestamp = _field(fields, "timestamp", str, None)
        retry_after = _field(fields, "retry_after", (int, float), None)
        if retry_after is not None and not 0 <= retry_after <= 86_400:
            raise ValueError(f"retry_after {retry_after!r} is not from 0 to a day")
        update = cls(
            resource=_field(fields, "resource", str, ""),
            agent_id=_field(fields, "agent_id", str, ""),
            new_capacity=_field(fields, "new_capacity", int, 0),
            reason=_field(fields, "reason", str, ""),
            timestamp_ns=_NO_TIME if timestamp is None else read_moment(timestamp),
            retry_after=None if retry_after is None else float(retry_after),
        )
        if not -(1 << 63) <= update.new_capacity < 1 << 63:
            raise ValueError("new_capacity is not a 64-bit number")
        return update, fields


class ReceivedUpdate(NamedTuple):
    """An update of another agent, with what agents of this library add to it."""

    update: CapacityUpdate
    run: str  # tells runs of one agent apart; "" for a Go agent
    sequence: int
    level: Level | None

    @classmethod
    def from_json(cls, data: bytes) -> ReceivedUpdate:
        update, fields = CapacityUpdate.from_json(data)
        run = read_text(fields.get("run", ""), longest=64)
        sequence, level = read_number(fields.get("sequence", 0)), fields.get("level")
        return cls(update, run, sequence, None if level is None else read_level(level))

    @property
    def name(self) -> str:
        """The name of the pause that the update asks for."""
        return f"{self.run or self.update.agent_id}.{self.sequence or self.update.timestamp_ns}"

    def cut(self, total: Total, now: int) -> bool:
        """Apply the update to a total. True: it is less now."""
        before = total.amount
        if self.level is not None:
            total.hear_cut(self.level, now)
        elif self.update.new_capacity < before and not total.same_episode(None, now):
            total.cut_to(self.update.new_capacity, now)
        return total.amount < before


def is_possible(level: Level, wall: int) -> bool:
    """Whether a swarm can have cut so often: at most once a second, since 1970.

    After a higher number no later cut could be told, for the largest that can be written is reached some day.
    """
    return level.epoch * SECOND <= wall + STALE


class UpdateFilter:
    """Decides which updates are applied: each once, in order, and never one that would raise the total."""

    def __init__(self) -> None:
        # By sender and resource: up to which stamp all others are late, and that of the last update.
        self._latest: dict[tuple[str, str, str], tuple[int, int]] = {}

    def why_not(self, received: ReceivedUpdate, total: Total, wall: int, now: int) -> str:
        """Why an update is not to be applied, "" if it is. `wall` is the time since 1970."""
        update, run, sequence, level = received
        if update.new_capacity < 1 or (level is not None and not is_possible(level, wall)):
            return "out of range"
        sender = (update.agent_id, run, update.resource)
        stamp = sequence if run else update.timestamp_ns
        if run or update.timestamp_ns > 0:  # an update without a time cannot be late
            late, last = self._latest.get(sender, (-1, -1))
            if stamp <= late or stamp == last or wall - update.timestamp_ns > STALE:
                return "stale"
            # A time of the future, by a clock that is ahead or by a stranger, keeps no later cut out.
            self._latest[sender] = stamp if run else min(stamp, wall), stamp
        while len(self._latest) > _MOST_SENDERS:
            del self._latest[next(iter(self._latest))]
        if level is not None:
            if level.epoch < total.epoch:
                return "stale"
            # A reduction never raises: the leader tells what this agent has missed.
            return "not lower" if total.would_raise(level) else ""
        if update.retry_after:
            return ""
        if update.new_capacity >= total.amount:
            return "not lower"
        return "same episode" if total.same_episode(None, now) else ""


# -- moments


def write_moment(ns: int) -> str:
    """Nanoseconds since 1970 as RFC 3339 in UTC, with as many digits as needed, as Go writes it.

    >>> write_moment(1_700_000_000_120_000_000)
    '2023-11-14T22:13:20.12Z'
    """
    seconds, fraction = divmod(ns, SECOND)
    moment = (_EPOCH + timedelta(seconds=seconds)).replace(tzinfo=None).isoformat()
    return moment + f".{fraction:09}".rstrip("0").rstrip(".") + "Z"


def read_moment(text: str) -> int:
    """Nanoseconds since 1970 of a time in RFC 3339. ValueError: it is something else."""
    match = _MOMENT.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a moment")
    seconds, fraction, zone = match.groups("0")
    since = datetime.fromisoformat(seconds + zone) - _EPOCH
    return (since.days * 86_400 + since.seconds) * SECOND + int(fraction[:9].ljust(9, "0"))


def _field(fields: dict[str, Any], name: str, kind: type | tuple[type, ...], default: Any) -> Any:
    value = fields.get(name)
    if value is None:  # absent, or null: Go leaves the zero value
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} {value!r} is of the wrong kind")  # noqa: TRY004
    return value
