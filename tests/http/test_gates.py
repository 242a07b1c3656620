"""Which gate a request waits at."""

import gc
import threading
from weakref import WeakSet

import pytest

from far_side import FarSide, Reply, levels
from headgate import Dispatch, InvalidConfig
from headgate.http import Request, per_credential, per_host, per_model
from headgate.http import gates as gates_module
from headgate.http.exchange import GatedSender
from headgate.http.gates import default_gate


def request(host="api.example", model=None, **headers):
    return Request(method="POST", url=f"https://{host}/", host=host, headers=headers, body=None, model=model)


def test_gates_by_host_model_and_credential_are_made_once_for_each():
    made = []

    def make(key):
        made.append(key)
        return Dispatch(key)

    hosts, models, credentials = per_host(make), per_model(make), per_credential(make)
    assert hosts(request("a")) is hosts(request("a"))
    assert hosts(request("a")) is not hosts(request("b:8080"))
    assert models(request(model="m")) is models(request("other", model="m"))
    assert models(request()) is models(request("other"))
    blue = credentials(request(authorization="Bearer blue-secret"))
    assert blue is credentials(request(authorization="Bearer blue-secret"))
    assert blue is not credentials(request(**{"x-api-key": "red-secret"}))
    assert made[:4] == ["a", "b:8080", "m", "default"]
    assert not any("secret" in key for key in made)
    assert "secret" not in repr(request(authorization="Bearer blue-secret"))


@pytest.mark.parametrize("by", [per_host, per_model, per_credential])
def test_a_gate_that_is_given_in_the_place_of_a_function_is_refused_at_once(by):
    for wrong in (Dispatch("one"), "500/minute", None):
        with pytest.raises(InvalidConfig, match="cannot be called; write a function that makes a gate"):
            by(wrong)


def test_making_a_gate_may_choose_another():
    def make(host):
        return Dispatch(host) if host == "a" else hosts(request("a"))

    hosts = per_host(make)
    assert hosts(request("b")) is hosts(request("a"))


def test_threads_that_ask_for_a_new_key_together_get_the_same_gate():
    gates = per_host(Dispatch)
    barrier = threading.Barrier(16)
    found = []

    def ask():
        barrier.wait()
        found.append(gates(request("a")))

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(map(id, found))) == 1


def test_gates_that_have_nothing_to_remember_are_forgotten(world):
    made = WeakSet()

    def make(key):
        gate = world.gate("5/minute burst 5")
        made.add(gate)
        return gate

    gates = per_credential(make)
    busy = gates(request(authorization="busy"))
    held = busy.try_admit()
    address = id(busy)
    del busy
    for i in range(1_000):
        gates(request(authorization=f"key {i}"))
    gc.collect()
    assert len(made) < 500
    assert id(gates(request(authorization="busy"))) == address
    held.settle()


def test_a_function_may_choose_the_gate(world):
    small, large = world.gate("5/minute burst 5"), world.gate("7/minute burst 7")
    asking = GatedSender(lambda request: large if request.model == "m" else small)
    world.ask(asking, FarSide(world.clock, Reply()))
    assert (levels(small), levels(large)) == ({"requests": 5}, {"requests": 6})


def test_adapters_without_a_gate_share_one_for_every_host_and_model(world):
    places = [
        ("shared.example", "m"),
        ("shared.example", "n"),
        ("shared.example", None),
        ("other.example", "m"),
    ]
    before = [admitted(*place) for place in places]
    for _ in range(2):
        world.ask(GatedSender(), FarSide(world.clock, Reply()), "https://shared.example/v1/chat/completions")
    assert [admitted(*place) - each for place, each in zip(places, before, strict=True)] == [2, 0, 0, 0]


def test_a_request_that_names_no_model_waits_at_the_gate_of_its_host(world):
    before = admitted("shared.example")
    world.ask(GatedSender(), FarSide(world.clock, Reply()), "https://shared.example/files", body=b"not JSON")
    assert admitted("shared.example") == before + 1


def admitted(host, model=None):
    return default_gate(host, model).snapshot().totals.admitted


def test_a_function_that_does_not_return_a_gate_is_refused(world):
    with pytest.raises(InvalidConfig, match="not a Dispatch"):
        world.ask(GatedSender(lambda request: None), FarSide(world.clock, Reply()))


def test_text_named_model_at_other_apis_is_not_a_language_model(world):
    before = admitted("shop.example")
    world.ask(
        GatedSender(),
        FarSide(world.clock, Reply()),
        "https://shop.example/devices",
        body=b'{"model": "phone 15"}',
    )
    assert admitted("shop.example") == before + 1


def test_models_beyond_a_number_share_the_gate_of_their_host(monkeypatch):
    monkeypatch.setattr(gates_module, "_MOST_MODELS", 2)
    first, second, third = (default_gate("many.example", f"model {n}") for n in range(3))
    assert third is default_gate("many.example")
    assert len({id(gate) for gate in (first, second, third)}) == 3
    assert default_gate("many.example", "model 0") is first
    assert default_gate("long.example", "m" * 1_000) is default_gate("long.example")
