"""Pure. What members of a swarm send to each other: the grammar of their messages.

Rules of this room: a message is read whole or not at all. Everything it says is checked here, and everything
wrong with it is a ValueError and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias

from ..arguments import SECOND
from .recovery import Level
from .rules import ROUND
from .shares import WHOLE
from .signatures import STALE

# Where a message goes: to all members, to the leader and candidates, to members that answer newcomers; or to
# one member, by its key.
ALL, LEADERS, GREETERS = "all", "leaders", "greeters"

# Limits beyond which a message was not written by this library.
MOST_MEMBERS = 100_000
_LONGEST_MESSAGE = 8 * 1024 * 1024  # a handover lists all members
_DEEPEST = 100  # lists and objects inside each other
_LONGEST_KEY = 256
_LONGEST_PAUSE = 86_400 * SECOND
_LARGEST = 1 << 62

# A number that grows with every change of the leader, and the key of the leader or candidate.
Term: TypeAlias = tuple[int, str]
NO_TERM: Term = (0, "")


def names_in(kind: type) -> tuple[str, ...]:
    """The names of what a message, an envelope or a level consists of, in order."""
    return kind.__match_args__  # type: ignore[attr-defined, no-any-return]  # every NamedTuple has them


# -- the messages


class Report(NamedTuple):
    """A member to the leader: what it holds and what it wants. To itself: does the bus carry its messages?"""

    key: str
    term: Term  # the term of the leader it follows
    seq: int
    wants: int
    weight: int
    granted: int  # number of the last grant it has received
    share: int
    safe: int
    heartbeat: int  # number of the last heartbeat it has received


class Hello(Report):
    """A newcomer to the greeters: is there a swarm?"""


class Here(NamedTuple):
    """A greeter to a newcomer: there is a swarm, do not found another."""

    to: str


class Heartbeat(NamedTuple):
    """The leader, or a candidate, to all. `successor` is the key of the member that leads next, or ""."""

    term: Term
    number: int
    is_leader: bool
    size: int  # how many members there are
    successor: str


class Grant(NamedTuple):
    """The leader to a member, in answer to its report `seq`: the share it may use, its place in a round."""

    to: str
    term: Term
    seq: int
    number: int
    share: int
    safe: int
    size: int
    place: int | None


class Bye(NamedTuple):
    """A member that leaves for good, to the leader; a leader that leaves, to all."""

    key: str
    term: Term


class StepDown(NamedTuple):
    """A leader to all: it follows another one. `void` says that what it granted does not count there."""

    term: Term
    void: bool


class Handover(NamedTuple):
    """A leader that leaves, to its successor: the share and the safe share each member may be using."""

    to: str
    term: Term
    unknown: int
    held: dict[str, tuple[int, int]]


Message: TypeAlias = Report | Here | Heartbeat | Grant | Bye | StepDown | Handover


class Envelope(NamedTuple):
    """A message, and what travels with it of one resource.

    `level` is how far the total was cut, `pause` how many nanoseconds a pause goes on and its name.
    `admitted` and `succeeded` count calls since the last report. `duplicate` says that the agent runs twice.
    """

    resource: str
    message: Message
    level: Level | None = None
    pause: tuple[int, str] | None = None
    admitted: int = 0
    succeeded: int = 0
    duplicate: bool = False

    def to_json(self) -> bytes:
        message = self.message
        fields = {"resource": self.resource, "kind": _KIND_OF[type(message)]}
        fields |= {name: getattr(message, name) for name in names_in(type(message))}
        fields |= {name: getattr(self, name) for name in _AROUND if getattr(self, name)}
        return _written(fields)

    @classmethod
    def from_json(cls, data: bytes) -> Envelope:
        fields = read_object(data)
        around = {name: _FIELDS[name](fields[name]) for name in _AROUND if fields.get(name) is not None}
        return cls(read_text(fields.get("resource")), read_message(fields), **around)


# What an envelope may leave out.
_AROUND = names_in(Envelope)[2:]


class Note(NamedTuple):
    """What a leader retains on the bus, for agents that come when no other is there; `at` is since 1970."""

    resource: str
    level: Level
    at: int

    def to_json(self) -> bytes:
        return _written(self._asdict())

    @classmethod
    def from_json(cls, data: bytes) -> Note:
        fields = read_object(data)
        level, at = read_level(fields.get("level")), read_number(fields.get("at"))
        return cls(str(fields.get("resource")), level, at)


def is_possible_term(message: Message, wall: int) -> bool:
    """Whether leaders can have changed so often: at most once a millisecond, since 1970.

    After a higher number no agent could lead: the next term would be more than can be told.
    """
    number = getattr(message, "term", NO_TERM)[0]
    return number * SECOND // 1_000 <= wall + STALE


def read_message(fields: Mapping[str, Any]) -> Message:
    """The message with these fields. ValueError: this library did not write it."""
    kind = fields.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{kind!r} is not a kind of message")
    make = _KINDS[kind]
    message: Message = make(**{name: _FIELDS[name](fields.get(name)) for name in names_in(make)})
    return message


# -- the grammar


def read_number(given: object, *, least: int = 0, most: int = _LARGEST) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
        raise ValueError(f"{given!r} is not a number from {least} to {most}")
    return given


def read_level(given: object) -> Level:
    """The level in a message. ValueError: no cut leaves it."""
    if not isinstance(given, list) or len(given) != len(names_in(Level)):
        raise ValueError("a level is five numbers")
    level = Level(*map(read_number, given))
    if level.epoch < 1 or not 1 <= level.floor <= level.goal <= level.base:
        raise ValueError("no cut leaves this")
    return level


def _key(given: object) -> str:
    if not isinstance(given, str) or not 0 < len(given) <= _LONGEST_KEY:
        raise ValueError("not the key of a member")
    run = given.rpartition("#")[2].replace(".", "")
    if not (run.isascii() and run.isalnum()):  # it becomes part of an address
        raise ValueError("not the run of a member")
    return given


def _flag(given: object) -> bool:
    if not isinstance(given, bool):
        raise ValueError("not true or false")  # noqa: TRY004 - about a message, not about an argument
    return given


def read_text(given: object, longest: int = _LONGEST_MESSAGE) -> str:
    if not isinstance(given, str) or len(given) > longest:
        raise ValueError(f"not a text of at most {longest} characters")
    return given


def _pair(given: object, first: Callable[[object], Any], second: Callable[[object], Any]) -> tuple[Any, Any]:
    if not isinstance(given, list) or len(given) != 2:
        raise ValueError("not a pair")
    return first(given[0]), second(given[1])


def _held(given: object) -> dict[str, tuple[int, int]]:
    if not isinstance(given, dict) or len(given) > MOST_MEMBERS:
        raise ValueError("not the shares of members")
    return {_key(key): _pair(shares, _share, _share) for key, shares in given.items()}


_share = partial(read_number, most=WHOLE)

_KINDS: dict[str, Any] = {
    "hello": Hello,
    "here": Here,
    "report": Report,
    "heartbeat": Heartbeat,
    "grant": Grant,
    "bye": Bye,
    "step down": StepDown,
    "handover": Handover,
}
_KIND_OF = {make: kind for kind, make in _KINDS.items()}

# How a field is read: a name means the same in every message.
_FIELDS: dict[str, Callable[[object], Any]] = {
    **dict.fromkeys(("key", "to"), _key),
    **dict.fromkeys(("seq", "number", "granted", "heartbeat", "admitted", "succeeded"), read_number),
    **dict.fromkeys(("wants", "share", "safe", "unknown"), _share),
    **dict.fromkeys(("is_leader", "void", "duplicate"), _flag),
    "term": lambda given: _pair(given, read_number, read_text),
    "size": partial(read_number, least=1, most=MOST_MEMBERS),
    "weight": partial(read_number, least=1, most=1_000_000),
    "place": lambda given: None if given is None else read_number(given, most=ROUND - 1),
    "successor": read_text,
    "held": _held,
    "level": read_level,
    "pause": lambda given: _pair(
        given, partial(read_number, most=_LONGEST_PAUSE), partial(read_text, longest=_LONGEST_KEY)
    ),
}


# -- JSON


class Oversized(ValueError):
    """Longer than any message of this library."""


def read_object(data: bytes, longest: int = _LONGEST_MESSAGE) -> dict[str, Any]:
    """A JSON object of at most that many bytes. ValueError: it is something else."""
    if len(data) > longest:
        raise Oversized(f"{len(data)} bytes are more than {longest}")
    try:
        read = json.loads(data.decode("utf-8", "replace"), parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(read, dict):
        raise ValueError("it is not an object")  # noqa: TRY004 - about a message, not about an argument
    if data.count(b"[") + data.count(b"{") > _DEEPEST and _is_deeper(read, _DEEPEST):
        raise ValueError("it is nested too deep")
    return read


def _is_deeper(value: object, depth: int) -> bool:
    """Are more than `depth` lists and objects inside each other? Python 3.13 reads thousands of them."""
    level: list[Any] = [value]
    for _ in range(depth):
        inside = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = [value for values in inside for value in values if isinstance(value, (dict, list))]
        if not level:
            return False
    return True


def _written(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
