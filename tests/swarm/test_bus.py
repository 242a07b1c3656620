"""Where a bus comes from, what the one in this process does, and a rough one for tests."""

import random
import sys
import threading

import pytest

from headgate.errors import InvalidConfig, StoreError
from headgate.swarm.bus.bus import MemoryBus, open_bus
from headgate.swarm.bus.nats import NatsBus
from headgate.swarm.bus.redis import RedisBus
from headgate.swarm.bus.unreliable import RoughBus
from headgate.testing import ManualClock

# -- opening


@pytest.mark.parametrize(
    ("opening", "address"),
    [
        (RedisBus, "redis://me:s3cret@127.0.0.1:1/0"),
        (NatsBus, "nats://s3cret@127.0.0.1:1"),
        (NatsBus, "nats://me:s3cret@127.0.0.1:1,nats://me:s3cret@127.0.0.1:2"),
    ],
)
def test_a_bus_that_is_not_there_is_named_without_its_password(opening, address):
    """DESIGN 12: what is wrong is said, and nothing that is nobody's business."""
    with pytest.raises(StoreError, match=r"bus=.*cannot be reached") as caught:
        opening(address, connect_timeout=0.2)
    assert "cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "why"),
    [("rdis://:s3cret@127.0.0.1:1", "is not a bus"), ("valkey://:s3?cret@127.0.0.1:1/0", "cannot be read")],
)
def test_the_address_of_a_bus_that_cannot_be_read_is_named_without_its_password(address, why):
    with pytest.raises(InvalidConfig, match=why) as caught:
        open_bus(address)
    assert "cret" not in str(caught.value)


def test_memory_is_one_bus_for_everybody_in_the_process():
    bus, owned = open_bus("memory:")
    assert open_bus("memory:") == (bus, False)
    assert open_bus("memory:another")[0] is not bus
    assert not owned


def test_a_named_bus_that_was_closed_is_made_anew():
    bus, _ = open_bus("memory:closed")
    bus.close()
    assert open_bus("memory:closed")[0] is not bus


def test_an_object_that_publishes_and_subscribes_is_a_bus():
    bus = MemoryBus()
    assert open_bus(bus) == (bus, False)


@pytest.mark.parametrize("where", ["", "memory", "http://localhost", "amqp://host", 7, None, object()])
def test_what_is_no_bus_is_refused_with_what_to_write_instead(where):
    with pytest.raises(InvalidConfig, match="nats://host:4222"):
        open_bus(where)


@pytest.mark.parametrize(
    ("where", "module", "extra"),
    [("nats://127.0.0.1:1", "nats", "nats"), ("redis://127.0.0.1:1/0", "redis.asyncio", "redis")],
)
def test_a_missing_library_is_named(monkeypatch, where, module, extra):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidConfig, match=rf"headgate\[{extra}\]"):
        open_bus(where)


# -- the bus in this process


def test_what_is_published_while_delivering_is_delivered_after():
    """Nobody is called inside of another's call, so an answer cannot overtake its question."""
    bus, heard = MemoryBus(), []

    def answer(message):
        heard.append(("one", message.data))
        if message.data == b"question":
            bus.publish("talk", b"answer")

    bus.subscribe("talk", answer)
    bus.subscribe("talk", lambda message: heard.append(("two", message.data)))
    bus.publish("talk", b"question")
    assert heard == [("one", b"question"), ("two", b"question"), ("one", b"answer"), ("two", b"answer")]


def test_one_who_raises_keeps_nobody_from_hearing(caplog):
    bus, heard = MemoryBus(), []

    def fail(_message):
        raise RuntimeError("not today")

    bus.subscribe("talk", fail)
    bus.subscribe("talk", heard.append)
    bus.publish("talk", b"hello")
    assert [message.data for message in heard] == [b"hello"]
    assert "not today" in caplog.text


def test_the_last_retained_message_is_recalled():
    bus, heard = MemoryBus(), []
    bus.recall("last", heard.append)
    bus.publish("last", b"one", retain=True)
    bus.publish("last", b"two", retain=True)
    bus.publish("last", b"three")
    bus.recall("last", heard.append)
    assert [message.data for message in heard] == [b"two"]


def test_threads_publish_at_once_and_everything_is_heard_once():
    bus, heard = MemoryBus(), []
    bus.subscribe("talk", lambda message: heard.append(message.data))

    def speak(who):
        for n in range(200):
            bus.publish("talk", f"{who} {n}".encode())

    threads = [threading.Thread(target=speak, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(heard) == sorted(f"{who} {n}".encode() for who in range(4) for n in range(200))


# -- the rough one


def rough(**knobs):
    clock = ManualClock()
    bus = RoughBus(clock, random.Random(1).random)
    heard = {name: [] for name in ("one", "two")}
    seats = {}
    for name, ears in heard.items():
        seats[name] = bus.seat(name)
        seats[name].subscribe("talk", lambda message, ears=ears: ears.append(message.data))
    for knob, value in knobs.items():
        setattr(bus, knob, value)
    for n in range(100):
        seats["one"].publish("talk", str(n).encode())
    clock.advance(1)
    return heard


def test_messages_overtake_each_other_and_none_is_lost():
    heard = rough(slowest=0.5)
    in_order = [str(n).encode() for n in range(100)]
    assert sorted(heard["two"]) == sorted(in_order)
    assert heard["two"] != in_order


def test_messages_are_lost_and_come_twice_as_often_as_asked_for():
    assert 50 < len(rough(loss=0.3)["two"]) < 90
    assert 110 < len(rough(twice=0.3)["two"]) < 150


def test_who_is_apart_or_deaf_hears_nothing():
    assert rough(apart={"two": 1})["two"] == []
    assert rough(deaf={"two"})["two"] == []
    assert rough(deaf={"one"}) == {"one": [], "two": []}  # not even itself


def test_the_same_seed_is_the_same_story():
    assert rough(loss=0.3, twice=0.3, slowest=0.5) == rough(loss=0.3, twice=0.3, slowest=0.5)
