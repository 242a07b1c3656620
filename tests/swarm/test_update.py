"""Updates as agents write and read them, against literal JSON of Go's encoding/json, and hostile messages.

The Go agent is modelled here: `read_as_go` does with bytes of this library what a Go agent would, and the
messages that are received are written out as it writes them.
"""

import json
import re
import string
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headgate import CapacityUpdate, DistributedLimiter, events
from headgate.swarm import SUBJECT_PREFIX
from headgate.testing import ManualClock, Recorder

CAPACITY = "ratelimit.capacity"


# -- a model of the Go agent


class WrongType(Exception):
    """json.Unmarshal would return an error."""


class _Real(str):
    """A number that is not written as a whole one."""

    __slots__ = ()


STRICT_RFC3339 = re.compile(
    r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])T([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d+)?"
    r"(Z|[+-]([01]\d|2[0-3]):[0-5]\d)",
    re.ASCII,
)
ZERO = {
    "resource": "",
    "agent_id": "",
    "new_capacity": 0,
    "reason": "",
    "timestamp": "0001-01-01T00:00:00Z",
}


def read_as_go(data):
    """What Go's struct has after json.Unmarshal: keys in any case, null and absent are zero, rest ignored."""

    def refuse(constant):
        raise WrongType(constant)

    pairs = json.loads(data.decode("utf-8"), object_pairs_hook=list, parse_float=_Real, parse_constant=refuse)
    struct = dict(ZERO)
    for key, value in pairs:
        name = key.casefold()
        if name not in struct or value is None:
            continue
        kind = int if name == "new_capacity" else str
        if isinstance(value, (bool, _Real)) or not isinstance(value, kind):
            raise WrongType(name)
        if kind is int and not -(2**63) <= value < 2**63:
            raise WrongType(name)
        if name == "timestamp" and not STRICT_RFC3339.fullmatch(value):
            raise WrongType(name)
        struct[name] = value
    return struct


def now_as_go(digits="", zone="Z", *, ago=0.0):
    """The present, as time.Time is marshalled: with these digits, in that zone."""
    moment = datetime.now(UTC) - timedelta(seconds=ago)
    if zone != "Z":
        sign = 1 if zone[0] == "+" else -1
        offset = timedelta(hours=int(zone[1:3]), minutes=int(zone[4:]))
        moment = moment.astimezone(timezone(sign * offset))
    return moment.strftime("%Y-%m-%dT%H:%M:%S") + (f".{digits}" if digits else "") + zone


# -- a bus to write on and to listen to


class Message:
    """What a bus delivers."""

    def __init__(self, subject, data):
        self.subject = subject
        self.data = data


class Wire:
    """A bus that records what is published, and on which a test can publish anything."""

    def __init__(self):
        self.said = []
        self.listening = []

    def publish(self, subject, data, *, retain=False):
        self.said.append((subject, data))
        self.say(data, subject)

    def subscribe(self, subject, deliver):
        wire, place = self, (subject, deliver)

        class Subscribed:
            def close(self):
                if place in wire.listening:
                    wire.listening.remove(place)

        self.listening.append(place)
        return Subscribed()

    def say(self, data, subject=CAPACITY):
        for where, deliver in list(self.listening):
            if where == subject:
                deliver(Message(subject, data))

    def updates(self):
        return [data for subject, data in self.said if subject == CAPACITY]

    def subjects(self):
        return {subject for subject, _ in self.said}


class Agent:
    """One agent with a resource of 100 a minute, alone on a wire."""

    def __init__(self, resource="shared-api", **options):
        self.clock = ManualClock()
        self.wire = Wire()
        self.seen = Recorder()
        self.heard = []
        self.resource = resource
        self.limiter = DistributedLimiter(
            bus=self.wire,
            agent_id=options.pop("agent_id", "agent-1"),
            observer=self.seen,
            clock=self.clock,
            **options,
        )
        self.limiter.set_capacity(resource, 100, 60)
        self.limiter.on_capacity_change(self.heard.append)
        self.clock.advance(30)

    def total(self):
        return self.limiter.get_capacity(self.resource).total

    def ignored(self):
        """How many messages were dropped and counted."""
        return sum(self.limiter.ignored.values())


def message(**fields):
    """As encoding/json writes a CapacityUpdate of another agent; None leaves a field out, Raw is verbatim."""
    written = {
        "resource": '"shared-api"',
        "agent_id": '"agent-go"',
        "new_capacity": "50",
        "reason": '"received 429 from API"',
        "timestamp": f'"{now_as_go("123456789")}"',
        **fields,
    }
    return (
        "{" + ",".join(f'"{key}":{text}' for key, text in written.items() if text is not None) + "}"
    ).encode()


# -- writing


def announced(reason="received 429 from API", resource="shared-api", agent_id="agent-1"):
    agent = Agent(resource, agent_id=agent_id)
    agent.limiter.announce_reduced(resource, reason)
    (data,) = agent.wire.updates()
    return data


def test_updates_of_all_resources_go_to_the_subject_ratelimit_capacity():
    agent = Agent()
    agent.limiter.set_capacity("other.api >", 10, 60)
    agent.clock.advance(30)
    for resource in ("shared-api", "other.api >"):
        agent.limiter.announce_reduced(resource, "429")
    assert SUBJECT_PREFIX == "ratelimit."
    assert len(agent.wire.updates()) == 2
    assert all(subject.startswith(SUBJECT_PREFIX) for subject in agent.wire.subjects())


def test_an_announcement_begins_byte_for_byte_as_go_writes_it():
    data = announced()
    literal = re.compile(
        rb'\{"resource":"shared-api","agent_id":"agent-1","new_capacity":50,'
        rb'"reason":"received 429 from API","timestamp":"'
        rb'\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{0,8}[1-9])?Z"[,}]'
    )
    assert literal.match(data), data
    assert data.endswith(b"}")
    assert b": " not in data
    assert b", " not in data


def test_a_go_agent_reads_our_announcement_and_ignores_the_extra_fields():
    struct = read_as_go(announced())
    moment = datetime.fromisoformat(struct.pop("timestamp"))
    assert struct == {
        "resource": "shared-api",
        "agent_id": "agent-1",
        "new_capacity": 50,
        "reason": "received 429 from API",
    }
    assert abs((datetime.now(UTC) - moment).total_seconds()) < 60


def test_no_extra_field_has_a_name_that_go_takes_for_its_own():
    """Go matches keys in any case, and the last one wins."""
    keys = [key for key, _ in json.loads(announced(), object_pairs_hook=list)]
    assert keys[:5] == list(ZERO)
    folded = [key.casefold() for key in keys]
    assert len(set(folded)) == len(folded)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("plain", rb'"plain"'),
        ("<b>&</b>", rb'"\u003cb\u003e\u0026\u003c/b\u003e"'),
        ('say "no"', rb'"say \"no\""'),
        ("a\\b", rb'"a\\b"'),
        ("line\nfeed\rreturn\ttab", rb'"line\nfeed\rreturn\ttab"'),
        ("\x00\x01\x1f", rb'"\u0000\u0001\u001f"'),
        ("\x7f", b'"\x7f"'),
        ("\u2028\u2029", rb'"\u2028\u2029"'),
        ("größe ∞ 🚦", '"größe ∞ 🚦"'.encode()),
        ("a/b", rb'"a/b"'),
        ("", rb'""'),
    ],
)
def test_strings_are_escaped_as_encoding_json_does(text, written):
    """HTML characters and line separators by number, everything printable as it is."""
    data = announced(reason=text)
    assert b'"reason":' + written + b',"timestamp":' in data
    if text:
        data = announced(resource=text)
        assert data.startswith(b'{"resource":' + written + b',"agent_id":')


@settings(max_examples=40)
@given(reason=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
@example(reason="\b\f\x7f\x80\uffff\U0010ffff")
def test_go_reads_any_reason_as_it_was_given(reason):
    assert read_as_go(announced(reason=reason))["reason"] == reason


def test_a_reason_with_a_lone_surrogate_is_sent():
    """A lone surrogate is not UTF-8: something readable is sent, and the cut stands."""
    struct = read_as_go(announced(reason="\ud800"))
    assert struct["new_capacity"] == 50


@pytest.mark.parametrize(
    ("nanoseconds", "written"),
    [
        (1_700_000_000_000_000_000, "2023-11-14T22:13:20Z"),
        (1_700_000_000_100_000_000, "2023-11-14T22:13:20.1Z"),
        (1_700_000_000_120_000_000, "2023-11-14T22:13:20.12Z"),
        (1_700_000_000_000_000_001, "2023-11-14T22:13:20.000000001Z"),
        (1_700_000_000_000_001_000, "2023-11-14T22:13:20.000001Z"),
        (1_700_000_000_999_999_999, "2023-11-14T22:13:20.999999999Z"),
        (951_782_400_000_000_000, "2000-02-29T00:00:00Z"),
        (0, "1970-01-01T00:00:00Z"),
        (-1, "1969-12-31T23:59:59.999999999Z"),
    ],
)
def test_a_timestamp_is_rfc_3339_with_as_many_digits_as_needed(nanoseconds, written):
    update = update_of(timestamp_ns=nanoseconds)
    assert update.to_json() == (
        b'{"resource":"shared-api","agent_id":"agent-1","new_capacity":50,"reason":"429",'
        b'"timestamp":"' + written.encode() + b'"}'
    )
    read, _ = CapacityUpdate.from_json(update.to_json())
    assert read == update


def update_of(**fields):
    return CapacityUpdate(
        **{
            "resource": "shared-api",
            "agent_id": "agent-1",
            "new_capacity": 50,
            "reason": "429",
            "timestamp_ns": 0,
            "retry_after": None,
            **fields,
        }
    )


def test_only_a_known_resource_is_announced_and_after_its_cut():
    agent = Agent()
    agent.limiter.announce_reduced("never heard of it", "429")
    assert agent.wire.updates() == []
    agent.limiter.announce_reduced("shared-api", "429")
    assert agent.total() == 50
    assert [read_as_go(data)["new_capacity"] for data in agent.wire.updates()] == [50]


def test_a_bus_that_fails_does_not_undo_the_cut():
    agent = Agent()

    def publish(subject, data, *, retain=False):
        raise ConnectionError("the bus is down")

    agent.wire.publish = publish
    agent.limiter.announce_reduced("shared-api", "429")
    assert agent.total() == 50
    agent.clock.advance(30)
    agent.limiter.close()


def test_nothing_is_published_after_close():
    agent = Agent()
    agent.limiter.close()
    before = len(agent.wire.said)
    agent.limiter.announce_reduced("shared-api", "429")
    agent.clock.advance(300)
    assert len(agent.wire.said) == before
    assert agent.wire.listening == []


# -- reading


@pytest.mark.parametrize(
    ("digits", "zone"),
    [
        ("", "Z"),
        ("1", "Z"),
        ("123", "Z"),
        ("123456", "Z"),
        ("123456789", "Z"),
        ("", "+02:00"),
        ("5", "-07:30"),
        ("000000001", "+14:00"),
    ],
)
def test_every_timestamp_that_go_writes_is_read(digits, zone):
    timestamp = now_as_go(digits, zone)
    agent = Agent()
    agent.wire.say(message(timestamp=f'"{timestamp}"'))
    assert agent.total() == 50
    (update,) = agent.heard
    assert update.timestamp == datetime.fromisoformat(timestamp)


def test_nine_digits_of_a_second_are_kept_though_a_datetime_has_six():
    update, _ = CapacityUpdate.from_json(message(timestamp='"2026-03-12T12:00:00.123456789Z"'))
    assert update.timestamp_ns % 1_000_000_000 == 123_456_789
    assert update.timestamp == datetime(2026, 3, 12, 12, 0, 0, 123_456, tzinfo=UTC)


def test_an_update_as_go_writes_it_is_applied():
    agent = Agent()
    agent.wire.say(message(reason=r'"got 429 \u003cRetry-After: 5\u003e \u0026 more"'))
    assert agent.total() == 50
    (update,) = agent.heard
    assert (update.resource, update.agent_id, update.new_capacity, update.reason) == (
        "shared-api",
        "agent-go",
        50,
        "got 429 <Retry-After: 5> & more",
    )
    assert agent.ignored() == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"reason": None},
        {"timestamp": None},
        {"reason": "null"},
        {"timestamp": "null"},
        {"agent_id": None},
        {"priority": "7", "nested": '{"a":[1,2,{"b":null}]}', "Ünknown": '"field"'},
    ],
    ids=str,
)
def test_missing_fields_are_zero_and_unknown_ones_are_ignored(fields):
    agent = Agent()
    agent.wire.say(message(**fields))
    assert agent.total() == 50
    assert read_as_go(message(**fields))["new_capacity"] == 50


@pytest.mark.parametrize(
    "fields",
    [
        {"new_capacity": '"50"'},
        {"new_capacity": "50.5"},
        {"new_capacity": "50.0"},
        {"new_capacity": "5e1"},
        {"new_capacity": "true"},
        {"new_capacity": "[50]"},
        {"new_capacity": "{}"},
        {"new_capacity": "9223372036854775808"},
        {"new_capacity": "-9223372036854775809"},
        {"resource": "7"},
        {"resource": '["shared-api"]'},
        {"agent_id": "7"},
        {"agent_id": "false"},
        {"reason": "429"},
        {"reason": "{}"},
        {"timestamp": "1700000000"},
        {"timestamp": '""'},
        {"timestamp": '"yesterday"'},
        {"timestamp": '"2026-02-30T00:00:00Z"'},
        {"timestamp": '"2026-03-12T24:00:00Z"'},
        {"timestamp": '"2026-03-12T12:60:00Z"'},
        {"timestamp": '"2026-03-12T12:00:00"'},
        {"timestamp": '"2026-03-12 12:00:00Z"'},
        {"timestamp": '"2026-03-12T12:00:00+25:00"'},
        {"timestamp": '"2026-03-12T12:00:00.Z"'},
        {"timestamp": '"20260312T120000Z"'},
    ],
    ids=str,
)
def test_a_field_of_the_wrong_type_drops_the_whole_update(fields):
    data = message(**fields)
    agent = Agent()
    agent.wire.say(data)
    assert agent.total() == 100
    assert agent.heard == []
    assert agent.ignored() == 1
    if "2026-02-30" not in str(fields):  # the model does not know how many days a month has
        with pytest.raises(WrongType):
            read_as_go(data)


NOT_MESSAGES = {
    "empty": b"",
    "text": b"reduce!",
    "null": b"null",
    "array": b"[]",
    "string": b'"shared-api"',
    "number": b"50",
    "cut off": message()[:-1],
    "two": message() + message(),
    "trailing": message() + b"x",
    "comma": message()[:-1] + b",}",
    "nan": message(new_capacity="NaN"),
    "infinity": message(new_capacity="-Infinity"),
    "single quotes": message().replace(b'"', b"'"),
    "utf-16": message().decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + message(),
    "control character": message(reason='"a\nb"'),
    "nested deep": b"[" * 100_000,
    "nested objects": b'{"a":' * 50_000,
    "nested in a field": message(extra="[" * 5_000 + "]" * 5_000),
    "a number of a million digits": message(new_capacity="9" * 1_000_000),
    "a megabyte of reason": message(reason='"' + "x" * 2_000_000 + '"'),
    "a megabyte of name": message(resource='"' + "x" * 2_000_000 + '"'),
    "a megabyte of extra": message(extra='"' + "x" * 2_000_000 + '"'),
    "binary": bytes(range(256)) * 10,
}


@pytest.mark.parametrize("data", NOT_MESSAGES.values(), ids=NOT_MESSAGES)
def test_malformed_and_oversized_messages_change_nothing_and_are_counted(data):
    agent = Agent()
    agent.wire.say(data)
    agent.clock.advance(1)
    assert agent.total() == 100
    assert agent.heard == []
    assert agent.ignored() == 1
    assert len(agent.seen.of(events.UpdateIgnored)) == 1
    assert agent.limiter.try_acquire("shared-api")


@pytest.mark.parametrize("capacity", ["0", "-1", "-9223372036854775808", None, "null"])
def test_an_update_without_a_capacity_of_at_least_one_is_ignored(capacity):
    agent = Agent()
    agent.wire.say(message(new_capacity=capacity))
    assert agent.total() == 100
    assert agent.limiter.ignored == {"out of range": 1}
    (event,) = agent.seen.of(events.UpdateIgnored)
    assert (event.agent_id, event.reason) == ("agent-go", "out of range")
    assert agent.limiter.try_acquire("shared-api")


@pytest.mark.parametrize("capacity", [100, 101, 10**9, 2**63 - 1])
def test_an_update_that_is_not_lower_changes_nothing(capacity):
    agent = Agent()
    agent.wire.say(message(new_capacity=str(capacity)))
    assert agent.total() == 100


def test_a_reduction_never_raises_a_total_that_was_cut_further():
    agent = Agent()
    agent.wire.say(message(new_capacity="25"))
    agent.clock.advance(0.1)
    agent.wire.say(message(new_capacity="50", agent_id='"agent-other"'))
    assert agent.total() == 25


def test_a_reduction_that_claims_growth_does_not_raise_the_total():
    """Neither for a cut that the agent knows nor for one that it has missed."""
    for epoch in (1, 2, 7, 2**61):
        agent = Agent()
        agent.limiter.announce_reduced("shared-api", "429")
        level = f"[{epoch},100,50,100,{10**17}]"
        agent.wire.say(message(run='"r1"', sequence="1", epoch=str(epoch), level=level))
        assert agent.total() == 50, epoch
        agent.limiter.close()


def test_updates_of_its_own_id_and_of_unknown_resources_change_nothing():
    agent = Agent()
    agent.wire.say(message(agent_id='"agent-1"'))
    agent.wire.say(message(resource='"another-api"'))
    assert agent.total() == 100
    assert agent.limiter.get_capacity("another-api") is None


def test_an_older_update_of_the_same_sender_is_ignored():
    agent = Agent()
    agent.wire.say(message(new_capacity="50", timestamp=f'"{now_as_go(ago=1)}"'))
    agent.wire.say(message(new_capacity="30", timestamp=f'"{now_as_go(ago=60)}"'))
    assert agent.total() == 50
    assert agent.ignored() == 1


def test_a_replayed_update_is_ignored_after_recovery():
    agent = Agent()
    data = message()
    agent.wire.say(data)
    while agent.total() < 100:
        while agent.limiter.get_capacity("shared-api").available:
            with agent.limiter.slot("shared-api", timeout=0):
                pass
        agent.clock.advance(1)
        assert agent.clock.seconds() < 3600
    agent.wire.say(data)
    assert agent.total() == 100


def test_an_update_with_field_names_in_capitals_is_read_as_go_does_or_dropped():
    """Go takes keys in any case; none of its agents writes capitals."""
    agent = Agent()
    agent.wire.say(
        message().replace(b'"resource"', b'"Resource"').replace(b'"new_capacity"', b'"NEW_CAPACITY"')
    )
    assert agent.total() in (50, 100)


def test_an_update_with_a_reason_that_is_not_utf_8_is_read_as_go_does_or_dropped():
    """Go replaces bytes that it cannot read; its agents never write such bytes."""
    agent = Agent()
    agent.wire.say(message(reason='"XX"').replace(b"XX", b"\xff\xfe"))
    assert (agent.total(), agent.ignored()) in ((50, 0), (100, 1))


# -- hostile messages


HOSTILE_EXTRAS = ["epoch", "sequence", "factor", "retry_after", "run", "level"]
HOSTILE_VALUES = [
    "null",
    "0",
    "-1",
    "1e400",
    "1.5",
    "18446744073709551616",
    "9" * 400,
    '""',
    '"NaN"',
    "[]",
    "[[[[[]]]]]",
    "[0,0,0,0,0]",
    "[1,-1,-1,-1,-1]",
    "[9223372036854775807,1,1,1,1]",
    "{}",
    "true",
]


@pytest.mark.parametrize("field", HOSTILE_EXTRAS)
def test_hostile_values_of_extra_fields_never_raise_the_total(field):
    """Applied as a plain update, or dropped: never raised, never an exception, never a resource lost."""
    for value in HOSTILE_VALUES:
        agent = Agent()
        agent.wire.say(message(**{field: value}))
        assert agent.total() in (50, 100), value
        agent.wire.say(message(agent_id='"agent-good"', new_capacity="20"))
        agent.clock.advance(1)
        assert 1 <= agent.total() <= 100, value
        assert agent.limiter.get_capacity("shared-api").share <= 100
        agent.limiter.close()


def test_malformed_messages_on_all_other_subjects_change_nothing_and_are_counted():
    agent = Agent()
    subjects = {subject for subject, _ in agent.wire.listening} - {CAPACITY}
    assert subjects
    for data in NOT_MESSAGES.values():
        if len(data) > 500_000:
            continue
        for subject in subjects:
            before = agent.ignored()
            agent.wire.say(data, subject)
            assert agent.ignored() > before or data.startswith(b'{"resource"'), data[:60]
    agent.clock.advance(60)
    standing = agent.limiter.get_capacity("shared-api")
    assert (standing.total, standing.share) == (100, 100)
    assert agent.limiter.try_acquire("shared-api")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=40)
@given(data=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_random_bytes_and_random_json_change_nothing(data):
    agent = Agent()
    for subject in {subject for subject, _ in agent.wire.listening}:
        agent.wire.say(data, subject)
    agent.clock.advance(30)
    standing = agent.limiter.get_capacity("shared-api")
    assert (standing.total, standing.share) == (100, 100)
    agent.limiter.close()


@settings(max_examples=50)
@given(at=st.integers(0, 10**6), byte=st.integers(0, 255), which=st.integers(0, 10**6))
def test_an_own_message_with_one_changed_byte_does_no_harm(at, byte, which):
    """Whatever it becomes: no exception, no resource lost, nothing above what was configured."""
    agent = Agent()
    agent.limiter.announce_reduced("shared-api", "429", retry_after=1)
    agent.clock.advance(5)
    subject, data = agent.wire.said[which % len(agent.wire.said)]
    spoiled = bytearray(data)
    spoiled[at % len(spoiled)] = byte
    other = Agent(agent_id="agent-2")
    other.wire.say(bytes(spoiled), subject)
    other.clock.advance(1)
    standing = other.limiter.get_capacity("shared-api")
    assert 1 <= standing.total <= 100
    assert 0 <= standing.share <= 100
    agent.limiter.close()
    other.limiter.close()


def test_a_flood_of_messages_is_counted_and_adds_no_resources():
    agent = Agent()
    alphabet = string.ascii_letters
    for n in range(3_000):
        name = "".join(alphabet[(n >> (5 * k)) & 31] for k in range(4))
        agent.wire.say(message(resource=f'"{name}"', agent_id=f'"{name}"'))
        agent.wire.say(b"{" * 50)
    assert agent.total() == 100
    assert agent.ignored() >= 3_000
    assert len(agent.limiter) == 1
