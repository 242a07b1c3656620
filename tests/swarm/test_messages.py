"""Messages of members: what is written is read again, and what this library cannot have written is not."""

import json

import pytest

from headgate.swarm.messages import (
    Bye,
    Envelope,
    Grant,
    Handover,
    Heartbeat,
    Hello,
    Here,
    Oversized,
    Report,
    StepDown,
    read_message,
    read_object,
)
from headgate.swarm.recovery import Level
from headgate.swarm.rules import ROUND
from headgate.swarm.shares import WHOLE

REPORT = {
    "key": "one#1f.1",
    "term": (3, "two#2e.1"),
    "seq": 7,
    "wants": WHOLE,
    "weight": 2,
    "granted": 5,
    "share": WHOLE // 2,
    "safe": WHOLE // 4,
    "heartbeat": 12,
}
MESSAGES = [
    Report(**REPORT),
    Hello(**{**REPORT, "term": (0, "")}),
    Here("one#1f.1"),
    Heartbeat((3, "two#2e.1"), number=12, is_leader=True, size=2, successor="one#1f.1"),
    Grant("one#1f.1", (3, "two#2e.1"), 7, 6, WHOLE // 2, WHOLE // 4, size=2, place=ROUND // 2),
    Grant("one#1f.1", (3, "two#2e.1"), 7, 6, WHOLE // 2, WHOLE // 4, size=2, place=None),
    Bye("one#1f.1", (3, "two#2e.1")),
    StepDown((3, "two#2e.1"), void=True),
    Handover("one#1f.1", (3, "two#2e.1"), unknown=0, held={"three#3d.1": (10, 5)}),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_is_read_as_it_was_written(message):
    envelope = Envelope("api", message)
    read = Envelope.from_json(envelope.to_json())
    assert read == envelope
    assert type(read.message) is type(message)


def test_an_envelope_carries_level_pause_and_counts():
    level = Level(epoch=2, base=100, floor=25, goal=50, grown=0)
    envelope = Envelope("api", MESSAGES[0], level, (10**9, "a.1"), admitted=4, succeeded=3, duplicate=True)
    assert Envelope.from_json(envelope.to_json()) == envelope


def without(fields, name):
    return {key: value for key, value in fields.items() if key != name}


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_without_one_of_its_fields_is_malformed(message):
    fields = json.loads(Envelope("api", message).to_json())
    for name in {"kind", *message._fields} - {"place"}:
        with pytest.raises(ValueError):
            read_message(without(fields, name))


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "gossip"},
        {"kind": ["report"]},
        {"key": ""},
        {"key": "one#1 f"},
        {"key": "x" * 257},
        {"term": [3]},
        {"term": [-1, "two"]},
        {"term": [3, 7]},
        {"seq": True},
        {"seq": 1.5},
        {"wants": WHOLE + 1},
        {"weight": 0},
        {"share": -1},
        {"heartbeat": 1 << 63},
    ],
    ids=str,
)
def test_a_report_with_an_impossible_field_is_malformed(wrong):
    fields = json.loads(Envelope("api", MESSAGES[0]).to_json())
    with pytest.raises(ValueError):
        read_message({**fields, **wrong})


def test_a_message_of_more_than_eight_megabytes_is_oversized():
    with pytest.raises(Oversized):
        Envelope.from_json(b" " * (8 * 1024 * 1024 + 1))


def nested(opening, closing, depth):
    return b'{"a":' + opening * (depth - 1) + b"1" + closing * (depth - 1) + b"}"


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_a_message_of_more_than_a_hundred_levels_is_refused(opening, closing):
    assert read_object(nested(opening, closing, 100)).keys() == {"a"}
    for depth in (101, 900, 100_000):
        with pytest.raises(ValueError, match="nested too deep"):
            read_object(nested(opening, closing, depth))


def test_a_message_with_many_lists_that_are_not_inside_each_other_is_read():
    data = json.dumps({"a": [[1]] * 500, "text": "[" * 200}).encode()
    assert len(read_object(data)["a"]) == 500


@pytest.mark.parametrize(
    "data", [b"[]", b"7", b"null", b'"a"', b"", b"{", b'{"a": NaN}', b'{"a": -Infinity}']
)
def test_what_is_not_a_json_object_is_refused(data):
    with pytest.raises(ValueError):
        read_object(data)
