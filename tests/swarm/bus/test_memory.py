"""MemoryBus: the bus of one process."""

import threading

import pytest

from headgate.errors import Closed, InvalidConfig
from headgate.swarm.bus.memory import MemoryBus


def test_a_message_published_by_a_receiver_is_delivered_after_the_current_one():
    """An answer cannot overtake its question."""
    bus, heard = MemoryBus(), []

    def answer(message):
        heard.append(("one", message.data))
        if message.data == b"question":
            bus.publish("talk", b"answer")

    bus.subscribe("talk", answer)
    bus.subscribe("talk", lambda message: heard.append(("two", message.data)))
    bus.publish("talk", b"question")
    assert heard == [("one", b"question"), ("two", b"question"), ("one", b"answer"), ("two", b"answer")]


def test_a_receiver_that_raises_does_not_keep_others_from_hearing(caplog):
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


def test_a_message_reaches_every_subscription_of_exactly_its_subject():
    bus, heard = MemoryBus(), ([], [])
    for each in heard:
        bus.subscribe("a.b", lambda message, each=each: each.append(message.data))
    for other in ("a", "a.b.c", "a.*", ">", "A.B"):
        bus.publish(other, b"elsewhere")
    for n in range(4):
        bus.publish("a.b", b"%d" % n)
    assert heard == ([b"0", b"1", b"2", b"3"], [b"0", b"1", b"2", b"3"])


def test_an_empty_subject_is_refused():
    bus = MemoryBus()
    with pytest.raises(InvalidConfig):
        bus.publish("", b"")
    with pytest.raises(InvalidConfig):
        bus.subscribe("", print)


def test_nothing_arrives_after_close_and_closing_twice_does_nothing():
    bus, heard = MemoryBus(), []
    subscription = bus.subscribe("a", heard.append)
    subscription.close()
    subscription.close()
    bus.publish("a", b"too late")
    bus.subscribe("a", heard.append)
    bus.close()
    bus.close()
    assert heard == []
    for forbidden in (lambda: bus.publish("a", b""), lambda: bus.subscribe("a", heard.append)):
        with pytest.raises(Closed):
            forbidden()


def test_messages_published_while_one_is_delivered_arrive_in_order_and_once():
    bus = MemoryBus()
    heard = []

    def hear(message):
        heard.append(message.data)
        if len(heard) < 5:
            bus.publish("a", b"%d" % len(heard))
            assert len(heard) <= 5

    bus.subscribe("a", hear)
    bus.publish("a", b"0")
    assert heard == [b"0", b"1", b"2", b"3", b"4"]
