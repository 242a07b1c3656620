"""UnreliableBus: delays, losses, repetitions and partitions, the same in every run."""

import random

from headgate.testing import ManualClock, UnreliableBus


def deliver(**knobs):
    clock = ManualClock()
    bus = UnreliableBus(clock, random.Random(1).random)
    heard = {name: [] for name in ("one", "two")}
    endpoints = {}
    for name, ears in heard.items():
        endpoints[name] = bus.endpoint(name)
        endpoints[name].subscribe("talk", lambda message, ears=ears: ears.append(message.data))
    for knob, value in knobs.items():
        setattr(bus, knob, value)
    for n in range(100):
        endpoints["one"].publish("talk", str(n).encode())
    clock.advance(1)
    return heard


def test_messages_overtake_each_other_and_none_is_lost():
    heard = deliver(slowest=0.5)
    in_order = [str(n).encode() for n in range(100)]
    assert sorted(heard["two"]) == sorted(in_order)
    assert heard["two"] != in_order


def test_messages_are_lost_and_come_twice_as_often_as_asked_for():
    assert 50 < len(deliver(loss=0.3)["two"]) < 90
    assert 110 < len(deliver(repeats=0.3)["two"]) < 150


def test_an_endpoint_in_another_partition_or_disconnected_hears_nothing():
    assert deliver(partitions={"two": 1})["two"] == []
    assert deliver(disconnected={"two"})["two"] == []
    assert deliver(disconnected={"one"}) == {"one": [], "two": []}  # not even itself


def test_equal_random_numbers_give_equal_deliveries():
    assert deliver(loss=0.3, repeats=0.3, slowest=0.5) == deliver(loss=0.3, repeats=0.3, slowest=0.5)
