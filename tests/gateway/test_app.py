"""The gateway as a whole: what it answers by itself, and what goes to the API."""

import pytest

from gateway.rig import Rig, reply
from patience import eventually

BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'


@pytest.fixture(scope="module")
def rig():
    with Rig() as rig:
        yield rig


def test_health_answers_without_asking_the_api(rig):
    before = len(rig.api.requests)
    response = rig.ask("GET", "/.headgate/health")
    assert (response.status, response.json()) == (200, {"status": "ok"})
    assert len(rig.api.requests) == before


def test_a_page_that_does_not_exist_is_not_sent_to_the_api(rig):
    before = len(rig.api.requests)
    assert rig.ask("GET", "/.headgate/other").status == 404
    assert len(rig.api.requests) == before


def test_a_call_goes_to_the_api_and_its_answer_comes_back(rig):
    rig.api.answer = lambda request: reply(
        b'{"id": "1", "usage": {"prompt_tokens": 9, "completion_tokens": 3}}'
    )
    tokens = rig.gateway.snapshot()["counts"]["tokens"]
    response = rig.ask("POST", "/v1/chat/completions?x=%20y", ["X-Given: A b"], BODY)
    assert (response.status, response.json()["id"]) == (200, "1")
    assert rig.last.line == "POST /v1/chat/completions?x=%20y HTTP/1.1"
    assert rig.last.headers["x-given"] == "A b"
    assert rig.last.body == BODY
    eventually(lambda: rig.gateway.snapshot()["counts"]["tokens"] - tokens == 12, "they are counted")


def test_the_snapshot_is_plain_data_about_gates_and_counts(rig):
    rig.api.answer = lambda request: reply()
    rig.ask("POST", "/v1/chat/completions", (), BODY)
    state = rig.ask("GET", "/.headgate/state").json()
    assert state["counts"]["calls"] >= 1
    assert state["draining"] is False
    assert [gate["key"] for gate in state["gates"]] == [f"127.0.0.1:{rig.api.port}"]
    assert state["gates"][0]["rates"][0]["unit"] == "requests"


def test_metrics_are_those_of_the_gates(rig):
    rig.api.answer = lambda request: reply()
    rig.ask("POST", "/v1/chat/completions", (), BODY)
    response = rig.ask("GET", "/.headgate/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    gate = f'gate="127.0.0.1:{rig.api.port}"'
    text = response.body.decode()
    assert f'headgate_requests_total{{{gate},result="admitted",rule="none"}}' in text
    assert f"headgate_in_flight{{{gate}}} 0.0" in text


def test_gateways_in_one_process_have_metrics_of_their_own(rig):
    with Rig() as other:
        assert b"headgate_requests_total{" not in other.ask("GET", "/.headgate/metrics").body
