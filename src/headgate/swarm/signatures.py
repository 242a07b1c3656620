"""Pure. Signed messages of a swarm: which of them a member wrote, and which are news.

Rules of this room: a signature covers the subject, so a message counts on no other one; a number, so it
counts once; and a time, so it does not count long afterwards. Everything wrong with a message is a ValueError
and nothing else.
"""

from __future__ import annotations

import hmac
import re
from typing import NamedTuple

from ..arguments import SECOND

# An older message is not news, however the clocks of machines may differ.
STALE = 600 * SECOND
# How many numbers behind the latest one a message may be that others have overtaken.
_OVERTAKEN = 64
# For how many senders it is remembered which numbers were heard.
_MOST_SENDERS = 100_000

_SIGNED = re.compile(rb',"signed":\["([0-9a-z]{1,64})",(\d{1,19}),(\d{1,19})\](,"sig":"([0-9a-f]{64})"\})\Z')
_LONGEST_SIGNATURE = 250


class Unsigned(ValueError):
    """Not signed with the secret of this swarm."""


class Expired(ValueError):
    """Signed too long ago, or by a machine whose clock is far ahead."""


class Replayed(ValueError):
    """Heard before."""


class Stamp(NamedTuple):
    """The run that signed a message, the message's number on its subject, and when it was, since 1970."""

    run: str
    number: int
    at: int


def sign(data: bytes, subject: str, secret: bytes, stamp: Stamp) -> bytes:
    """The same object with a stamp and a signature as its last fields."""
    stamped = data[:-1] + b',"signed":["%b",%d,%d]' % (stamp.run.encode(), stamp.number, stamp.at)
    return stamped + b',"sig":"' + _signature(stamped, subject, secret) + b'"}'


def verified(data: bytes, subject: str, secret: bytes) -> tuple[bytes, Stamp]:
    """The object as it was before it was signed, and its stamp. Raises Unsigned."""
    match = _SIGNED.search(data[-_LONGEST_SIGNATURE:])
    if match is None:
        raise Unsigned("it is not signed")
    run, number, at, end, signature = match.groups()
    if not hmac.compare_digest(signature, _signature(data[: len(data) - len(end)], subject, secret)):
        raise Unsigned("it is signed with another secret")
    return data[: len(data) - len(match[0])] + b"}", Stamp(run.decode(), int(number), int(at))


def check_age(stamp: Stamp, wall: int) -> None:
    """Raise Expired if a stamp is not of the last ten minutes. `wall` is the time since 1970."""
    if abs(wall - stamp.at) > STALE:
        raise Expired("it was signed too long ago, or the clocks of the machines differ")


class HeardNumbers:
    """Which numbers were heard, by sender and subject: the highest, and which of those just before it."""

    def __init__(self) -> None:
        self._heard: dict[tuple[str, str], tuple[int, int]] = {}

    def note(self, stamp: Stamp, subject: str) -> None:
        """Note the number of a message. Raises Replayed if it was heard before, or may have been."""
        sender, number = (stamp.run, subject), stamp.number
        highest, before = self._heard.get(sender, (number, 0))
        behind = highest - number
        if behind < 0:
            moved = before << -behind if -behind < _OVERTAKEN else 0
            self._heard[sender] = number, (moved | 1) & ((1 << _OVERTAKEN) - 1)
        elif behind >= _OVERTAKEN or before >> behind & 1:
            raise Replayed("it was heard before")
        else:
            self._heard[sender] = highest, before | 1 << behind
        while len(self._heard) > _MOST_SENDERS:
            del self._heard[next(iter(self._heard))]


def _signature(data: bytes, subject: str, secret: bytes) -> bytes:
    return hmac.digest(secret, subject.encode() + b"\n" + data, "sha256").hex().encode()
