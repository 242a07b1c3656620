"""Signatures of messages: what they cover, and which signed messages are news."""

import pytest

from headgate.swarm import signatures
from headgate.swarm.messages import Bye, Envelope
from headgate.swarm.signatures import (
    Expired,
    HeardNumbers,
    Replayed,
    Stamp,
    Unsigned,
    check_age,
    sign,
    verified,
)

DATA = Envelope("api", Bye("one#1f.1", (7, "two#2e.1"))).to_json()
STAMP = Stamp("1f2e", 12, 1_800_000_000_000_000_000)
SUBJECT = "ratelimit.swarm.all"
MINUTE = 60 * 10**9


def test_a_signature_covers_the_message_its_subject_and_its_stamp():
    signed = sign(DATA, SUBJECT, b"secret", STAMP)
    assert verified(signed, SUBJECT, b"secret") == (DATA, STAMP)
    for spoiled, subject, secret in (
        (DATA, SUBJECT, b"secret"),
        (signed.replace(b"7", b"8", 1), SUBJECT, b"secret"),
        (signed.replace(b",12,", b",13,"), SUBJECT, b"secret"),
        (signed.replace(b",18000", b",18001"), SUBJECT, b"secret"),
        (signed.replace(b'["1f2e"', b'["1f2f"'), SUBJECT, b"secret"),
        (signed, "ratelimit.swarm.leaders", b"secret"),
        (signed, SUBJECT, b"another"),
    ):
        assert (spoiled, subject, secret) != (signed, SUBJECT, b"secret")
        with pytest.raises(Unsigned):
            verified(spoiled, subject, secret)


def test_a_signature_expires_after_ten_minutes():
    for minutes in (-10, 0, 10):
        check_age(STAMP, STAMP.at + minutes * MINUTE)
    for minutes in (-11, 11, 10_000):
        with pytest.raises(Expired):
            check_age(STAMP, STAMP.at + minutes * MINUTE)


def test_every_number_of_a_sender_counts_once_on_each_subject():
    heard = HeardNumbers()
    order = [5, 3, 4, 9, 200, 150, 199, 10**18, 10**18 - 1]
    for number in order:
        heard.note(Stamp("a", number, 0), SUBJECT)
        heard.note(Stamp("b", number, 0), SUBJECT)
        heard.note(Stamp("a", number, 0), "ratelimit.swarm.leaders")
    for number in [*order, 1, 2, 6, 151]:  # those far behind may have been heard
        with pytest.raises(Replayed):
            heard.note(Stamp("a", number, 0), SUBJECT)
    heard.note(Stamp("a", 10**18 - 2, 0), SUBJECT)


def test_of_too_many_senders_the_one_that_was_heard_first_is_forgotten(monkeypatch):
    monkeypatch.setattr(signatures, "_MOST_SENDERS", 2)
    heard = HeardNumbers()
    for run in "abc":
        heard.note(Stamp(run, 5, 0), SUBJECT)
    for run in "bc":
        with pytest.raises(Replayed):
            heard.note(Stamp(run, 5, 0), SUBJECT)
    heard.note(Stamp("a", 5, 0), SUBJECT)
