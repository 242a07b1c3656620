"""Which bus an address or an object becomes."""

import logging
import socket
import sys
import time

import pytest

from headgate.errors import InvalidConfig, StoreError
from headgate.swarm.bus.bus import open_bus
from headgate.swarm.bus.memory import MemoryBus
from headgate.swarm.bus.nats import NatsBus
from headgate.swarm.bus.redis import RedisBus


@pytest.mark.parametrize(
    ("opening", "address"),
    [
        (RedisBus, "redis://me:s3cret@127.0.0.1:1/0"),
        (NatsBus, "nats://s3cret@127.0.0.1:1"),
        (NatsBus, "nats://me:s3cret@127.0.0.1:1,nats://me:s3cret@127.0.0.1:2"),
    ],
)
def test_a_bus_that_is_not_there_is_named_without_its_password(opening, address):
    with pytest.raises(StoreError, match=r"bus=.*cannot be reached") as caught:
        opening(address, connect_timeout=0.2)
    assert "cret" not in str(caught.value)


def test_a_bus_that_does_not_answer_is_tried_for_two_seconds_and_said_to_be_missing_meanwhile(caplog):
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING, "headgate"):
        began = time.monotonic()
        with pytest.raises(StoreError, match="cannot be reached"):
            open_bus(f"nats://s3cret@127.0.0.1:{silent.getsockname()[1]}")
        assert 1.5 < time.monotonic() - began < 4
    (warning,) = (record for record in caplog.records if "does not answer yet" in record.message)
    assert "it is tried for 2 s" in warning.message
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize(
    ("address", "why"),
    [("rdis://:s3cret@127.0.0.1:1", "is not a bus"), ("valkey://:s3?cret@127.0.0.1:1/0", "cannot be read")],
)
def test_the_address_of_a_bus_that_cannot_be_read_is_named_without_its_password(address, why):
    with pytest.raises(InvalidConfig, match=why) as caught:
        open_bus(address)
    assert "cret" not in str(caught.value)


def test_the_address_memory_is_one_bus_in_the_whole_process():
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
def test_something_else_than_a_bus_is_refused_with_what_to_write_instead(where):
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
