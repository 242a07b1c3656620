"""Gates that headgate makes because the user gave none have the settings that APIs of language models want.

docs/settings.md says so in a table.
"""

import asyncio
from pathlib import Path

import pytest

from headgate import Dispatch, ResilientClient
from headgate.cli.run.options import RunOptions
from headgate.cli.run.preflight import make_gate
from headgate.gateway.gates import Gates, gate_of
from headgate.gateway.settings import Settings
from headgate.gateway.upstreams import upstream
from headgate.http.gates import default_gate
from headgate.testing import ManualClock


def gate_of_the_adapters():
    return default_gate("made-gates.example")


def gate_of_headgate_run():
    return make_gate(RunOptions(jobs=(Path("-"),), to="x"), "api.example").gate


def gate_of_the_gateway():
    openai = upstream("openai")
    gates = Gates(Settings(upstreams=(openai,)), None, ManualClock())
    return gate_of(asyncio.run(gates.sender(openai, "")))


@pytest.mark.parametrize(
    ("make", "places"), [(gate_of_the_adapters, 400), (gate_of_headgate_run, 200), (gate_of_the_gateway, 400)]
)
def test_a_gate_made_for_the_user_learns_pauses_keeps_most_of_its_places_and_limits_no_bytes(make, places):
    gate = make()
    usual = gate.snapshot()
    assert (usual.concurrency, usual.byte_budget) == (places, None)
    assert [rate.unit for rate in usual.rates] == ["requests"]  # found by trying until a response states more
    gate.set_backoff(60)
    assert gate.pauses
    assert gate.try_admit() is None
    assert gate.snapshot().throttled_concurrency == places * 7 // 10
    gate.window.clear()


def test_a_resilient_client_pauses():
    assert ResilientClient().dispatch.pauses


def test_a_bare_dispatch_keeps_the_defaults_of_its_design():
    gate = Dispatch("bare")
    gate.set_backoff(60)
    state = gate.snapshot()
    assert not gate.pauses
    assert (state.concurrency, state.throttled_concurrency) == (400, 10)
    assert (state.byte_budget, state.rates) == (5 * 1024 * 1024, ())
