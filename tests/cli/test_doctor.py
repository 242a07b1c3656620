"""`headgate doctor`: packages, clients that pass the gate or go around it, stores."""

import json
import re
import sys

import anthropic
import groq
import openai
import pytest
from click.testing import CliRunner

from headgate import Dispatch
from headgate.cli.app import main
from headgate.cli.checkup import PACKAGES

PROGRAM = """
import aiohttp, anthropic, httpx, httpx2, openai, requests
from headgate import Dispatch
from headgate.http import aiohttp as by_aiohttp, requests as by_requests
from headgate.http.anthropic import middleware
from headgate.http.httpx import Transport, async_client, client

gate = Dispatch("the gate")
gated = openai.OpenAI(api_key="k", http_client=client(gate))
gated_async = openai.AsyncOpenAI(api_key="k", max_retries=0, http_client=async_client(gate))
bare = openai.OpenAI(api_key="k")
claude = anthropic.Anthropic(api_key="k", middleware=[middleware(gate)])
http = httpx.Client(transport=Transport(gate))
http2 = httpx2.AsyncClient()

session = requests.Session()
session.mount("https://", by_requests.Adapter(gate))
plain = requests.Session()
plain.mount("http://", by_requests.Adapter(gate))  # not for https


async def make():
    return aiohttp.ClientSession(middlewares=(by_aiohttp.middleware(gate),))


class Model:  # as a chat model of LangChain, with one client forgotten
    root_client = gated
    root_async_client = openai.AsyncOpenAI(api_key="k")


def call(url):
    with client(gate) as http:
        http.get(url)


def around(url):
    httpx.get(url)


def broken(url):
    raise KeyError("broken")


def make_nothing():
    raise ValueError("no key in the environment")


learning = openai.OpenAI(api_key="k", http_client=client())


def learning_without_a_model(url):
    with client() as http:
        http.get(url)


unknown = object()
closed = Dispatch("closed")
closed.close()
refused = openai.OpenAI(api_key="k", http_client=client(closed))
"""


@pytest.fixture(scope="module", autouse=True)
def program(tmp_path_factory):
    folder = tmp_path_factory.mktemp("doctor")
    (folder / "program_of_doctor.py").write_text(PROGRAM)
    sys.path.insert(0, str(folder))
    yield
    sys.path.remove(str(folder))


def doctor(*arguments):
    done = CliRunner().invoke(main, ["doctor", *arguments], catch_exceptions=False)
    return done.exit_code, done.output


def checked(*names):
    status, output = doctor(*(f"program_of_doctor:{name}" for name in names), "--json")
    return status, json.loads(output)["clients"]


def test_it_lists_the_installed_packages_and_their_retries():
    status, output = doctor("--json")
    report = json.loads(output)
    assert status == 0
    packages = {it["name"]: it for it in report["packages"]}
    assert packages["openai"]["version"] == openai.__version__
    assert packages["openai"]["retries"] == "2"
    assert packages.keys() <= PACKAGES.keys()
    assert report["aiohttp_parser"] in ("C", "Python")
    assert report["python"] == sys.version.split()[0]
    status, output = doctor()
    assert status == 0
    assert "OpenAI(http_client=headgate.http.httpx.client())" in output


@pytest.mark.parametrize(
    ("name", "make"), [("openai", openai.OpenAI), ("anthropic", anthropic.Anthropic), ("groq", groq.Groq)]
)
def test_the_retries_that_it_states_are_those_of_the_sdk(name, make):
    with make(api_key="k") as sdk:
        assert PACKAGES[name][0] == str(sdk.max_retries)


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_clients_that_pass_the_gate_are_told_from_those_that_go_around_it():
    passing = ["gated", "gated_async", "claude", "http", "session", "make", "call"]
    around = ["bare", "http2", "plain", "around"]
    status, results = checked(*passing, *around)
    assert status == 1
    found = {result["name"].partition(":")[2]: result for result in results}
    assert {name: found[name]["passes"] for name in passing} == dict.fromkeys(passing, True)
    assert {name: found[name]["passes"] for name in around} == dict.fromkeys(around, False)
    assert {gate for name in passing for gate in found[name]["gates"]} == {"the gate"}
    assert (found["gated"]["retries"], found["gated_async"]["retries"]) == (2, 0)
    assert checked("gated")[0] == 0


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_both_clients_of_a_chat_model_are_checked():
    status, results = checked("Model")
    assert status == 1
    assert [result["passes"] for result in results] == [True, False]


def test_a_refusal_of_the_gate_shows_that_the_client_passes_it():
    status, (result,) = checked("refused")
    assert (status, result["passes"], result["sent"]) == (0, True, 0)
    assert "closed" in result["error"]


def test_what_cannot_be_checked_says_so():
    status, (unknown, broken) = checked("unknown", "broken")
    assert status == 1
    assert unknown["passes"] is broken["passes"] is None
    assert "function of a base URL" in unknown["error"]
    assert broken["error"] == "KeyError: 'broken'"


def test_a_function_that_fails_to_make_a_client_is_named_with_its_error():
    status, (result,) = checked("make_nothing")
    assert (status, result["client"], result["passes"], result["sent"]) == (1, "make_nothing", None, 0)
    assert result["error"] == "it raised ValueError: no key in the environment"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('raise ValueError("no key")', "cannot be imported: ValueError: no key"),
        ("import sys; sys.exit(5)", "cannot be imported: SystemExit: 5"),
        ("def", "cannot be imported: SyntaxError: "),
    ],
)
def test_a_module_that_cannot_be_imported_is_a_mistake_without_a_traceback_of_headgate(
    text, why, tmp_path, monkeypatch
):
    (tmp_path / "fails_at_import.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    status, output = doctor("fails_at_import:client")
    assert status == 2
    assert why in output


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_the_answers_are_sentences():
    _, output = doctor(*(f"program_of_doctor:{name}" for name in ("gated", "bare", "unknown")))
    assert "gated (openai.OpenAI) passes the gate the gate; it retries 2 times by itself" in output
    assert "bare (openai.OpenAI) goes around the gate: its call was sent, and no gate saw it" in output
    assert "unknown (builtins.object) could not be checked" in output


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
def test_a_gate_that_headgate_made_is_named_by_its_host_and_model():
    _, output = doctor("program_of_doctor:learning", "program_of_doctor:learning_without_a_model")
    assert re.search(
        r"learning \(openai\.OpenAI\) passes the gate 127\.0\.0\.1:\d+ m \(host and model\);", output
    )
    assert re.search(r"without_a_model\) passes the gate 127\.0\.0\.1:\d+ \(host\)$", output, re.MULTILINE)


def test_what_to_write_needs_no_gate_that_the_reader_has_not_made():
    for name, (_, line) in PACKAGES.items():
        assert "dispatch" not in line, name
    _, output = doctor()
    assert "client() and async_client() are in headgate.http.httpx" in output


def test_the_help_says_that_the_module_is_run():
    _, output = doctor("--help")
    assert "what stands at its top level runs" in " ".join(output.split())


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("client", "names no object"),
        ("no_such_module_here:client", "cannot be imported"),
        ("program_of_doctor:nothing", "the module program_of_doctor has no object 'nothing'"),
    ],
)
def test_a_client_that_does_not_exist_is_a_mistake(name, why):
    status, output = doctor(name)
    assert status == 2
    assert why in output


def test_a_store_says_how_fast_it_answers_and_which_keys_it_has(tmp_path):
    url = f"sqlite:///{tmp_path}/limits.db"
    with Dispatch("openai", rates="600/minute", store=url) as gate, gate.admit():
        pass
    status, output = doctor("--store", url, "--json")
    about = json.loads(output)["store"]
    assert (status, about["keys"], about["error"]) == (0, ["openai"], None)
    assert about["milliseconds"] >= 0
    assert "ms: openai" in doctor("--store", url)[1]
    status, output = doctor("--store", "redis://127.0.0.1:1/0", "--json")
    assert status == 1
    assert json.loads(output)["store"]["error"]
    assert doctor("--store", "carrier-pigeon://")[0] == 1
