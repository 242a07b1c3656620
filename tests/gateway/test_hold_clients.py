"""Real clients are held for twice their patience, and then get an answer, or a refusal that they understand.

All of them wait at the same time, behind one call that holds the only place.
"""

import asyncio
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from gateway import clients
from gateway.answers import answer_to
from gateway.rig import Rig
from headgate.gateway.launch import child_environment, plan
from patience import eventually

PATIENCE = 1.0  # of the clients between two bytes, in seconds
OURS = 0.2  # of the gateway
HOLD = 2 * PATIENCE
GIVEN_UP = 1.5 * PATIENCE

NAMES = [*clients.HERE, "openai_2", "openai_2_stream", "node"]


class Blocked:
    """A gateway with one place, which a call holds until `release`."""

    def __init__(self):
        self.held = asyncio.Event()
        self.rig = Rig(self._answer, concurrency=1, patience=OURS, rates=["100_000/second burst 1000"])
        self.blocker = socket.create_connection(("127.0.0.1", self.rig.port))
        fields = f"Host: 127.0.0.1:{self.rig.port}\r\nAuthorization: Bearer {clients.KEY}"
        self.blocker.sendall(f"GET /block HTTP/1.1\r\n{fields}\r\n\r\n".encode())
        eventually(lambda: self.rig.api.requests, "the blocking call is sent")

    def _answer(self, request):
        return (
            [self.held, b"HTTP/1.1 204 No Content\r\n\r\n"]
            if request.target == "/block"
            else answer_to(request)
        )

    def release(self):
        self.rig.loop.loop.call_soon_threadsafe(self.held.set)

    def close(self):
        self.release()
        self.blocker.close()
        self.rig.close()


@pytest.fixture(scope="module")
def asked():
    """Every client that there is, ready to be asked."""
    elsewhere = {
        "openai_2": clients.openai_2(stream=False),
        "openai_2_stream": clients.openai_2(stream=True),
        "node": clients.node(),
    }
    elsewhere = {name: client for name, client in elsewhere.items() if client is not None}
    for client in elsewhere.values():
        client.ready()
    everyone = {**clients.HERE, **elsewhere}
    with Rig(answer_to, rates=["100_000/second burst 1000"]) as rig:
        for client in everyone.values():
            client(rig.url, 20.0, {})  # the first question takes long: what it needs is loaded
    yield everyone
    for client in elsewhere.values():
        client.close()


def outcomes(asked, headers, *, answered):
    """What each client returns or raises, and the requests that the API got."""
    blocked = Blocked()
    if answered:
        threading.Timer(HOLD, blocked.release).start()

    def ask(client):
        try:
            return client(blocked.rig.url, PATIENCE, headers)
        except Exception as error:  # noqa: BLE001 - it is what the test looks at
            return error

    try:
        with ThreadPoolExecutor(len(asked)) as pool:
            futures = {name: pool.submit(ask, client) for name, client in asked.items()}
            results = {name: future.result(30) for name, future in futures.items()}
        return results, blocked.rig.api.requests
    finally:
        blocked.close()


@pytest.fixture(scope="module")
def answers(asked):
    results, requests = outcomes(asked, {}, answered=True)
    assert min(request.at for request in requests[1:]) - requests[0].at > 0.9 * HOLD, "all were held"
    return results


@pytest.fixture(scope="module")
def refusals(asked):
    return outcomes(asked, {"x-headgate-timeout": str(GIVEN_UP)}, answered=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_was_held_for_twice_its_patience_gets_the_answer(answers, name):
    if name not in answers:
        pytest.skip("node is not installed")
    versions = {"openai_2": " 2", "openai_2_stream": " 2", "node": f" {str(answers[name])[6:]}"}
    assert answers[name] == "hello" + versions.get(name, "")


@pytest.mark.parametrize("name", NAMES)
def test_a_client_that_waited_in_vain_gets_an_error_with_the_rule(refusals, name):
    results, seen = refusals
    if name not in results:
        pytest.skip("node is not installed")
    error = results[name]
    assert isinstance(error, Exception), "an error must not look like an answer"
    assert "headgate waited" in str(error)
    assert "concurrency" in str(error)
    assert [request.target for request in seen] == ["/block"], "a refused call is not sent"


def test_errors_of_sdks_say_503_unless_their_stream_had_begun(refusals):
    results, _seen = refusals
    for name in ("openai", "openai_async", "anthropic", "groq"):
        assert results[name].status_code == 503
    for name in ("genai", "genai_stream"):
        assert results[name].code == 503
    assert type(results["openai_stream"]).__name__ == "APIError"
    assert results["anthropic_stream"].status_code == 200
    assert results["anthropic_stream"].body["error"]["type"] == "overloaded_error"


def test_sdks_find_the_gateway_by_the_variables_of_exec_and_the_api_gets_the_real_keys(monkeypatch):
    from anthropic import Anthropic
    from google import genai
    from groq import Groq
    from openai import OpenAI

    keys = {f"{name}_API_KEY": f"sk-{name.lower()}" for name in ("OPENAI", "ANTHROPIC", "GROQ", "GEMINI")}
    numbers = count(1)
    with Rig() as api:
        api.api.answer = answer_to
        launch = plan(keys, api.api.url, lambda: f"token-of-the-tests-{next(numbers)}")
        with Rig(upstreams=launch.upstreams, keys=launch.keys) as rig:
            for name, value in child_environment(keys, rig.url, launch).items():
                monkeypatch.setenv(name, value)
            with OpenAI() as sdk:
                assert sdk.chat.completions.create(**clients.CHAT).choices[0].message.content == "hello"
                assert sdk.responses.create(model="m", input="hi").output_text == "hello"
            with Anthropic() as sdk:
                assert sdk.messages.create(**clients.CHAT, max_tokens=9).content[0].text == "hello"
            with Groq() as sdk:
                assert sdk.chat.completions.create(**clients.CHAT).choices[0].message.content == "hello"
            with genai.Client() as sdk:
                assert sdk.models.generate_content(model="m", contents="hi").text == "hello"
        seen = [(request.target, key_of(request)) for request in api.api.requests]
    assert seen[:4] == [
        ("/v1/chat/completions", "sk-openai"),
        ("/v1/responses", "sk-openai"),
        ("/v1/messages", "sk-anthropic"),
        ("/openai/v1/chat/completions", "sk-groq"),
    ]
    assert seen[4][0].endswith("/models/m:generateContent")
    assert seen[4][1] == "sk-gemini"


def key_of(request):
    bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
    return bearer or request.headers.get("x-api-key") or request.headers.get("x-goog-api-key")
