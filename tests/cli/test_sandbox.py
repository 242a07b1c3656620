"""`headgate sandbox`: an API with limits on this machine."""

import json
import signal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner

from cli.commands import BODY, headgate, headgate_alone, start, told
from headgate.cli.app import main
from headgate.sandbox import Sandbox


def test_sandbox_serves_until_ctrl_c_and_reports_what_it_saw():
    run = start(
        *("sandbox", "--requests", "2/minute", "--jitter", "0.001", "--kind", "fixed", "--window-age", "30"),
        *("--fault", "error,status=503,count=1", "--seed", "1"),
    )
    url = run.stdout.readline().strip()
    done = headgate_alone(
        "run", "-", "--to", f"{url}/v1/chat/completions", "--retries", "0", stdin=json.dumps(BODY)
    )
    assert done.returncode == 0, done.stderr
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=10)
    assert run.returncode == 130
    assert "openai, requests 2/minute" in words
    assert "2 requests: 1 let through" in words


def test_refusals_of_the_sandbox_are_free_if_that_is_asked_for():
    asked = ("sandbox", "--requests", "60/minute burst 1", "--free-refusals")
    run = start(*asked)
    url = run.stdout.readline().strip()
    statuses = []
    for _ in range(3):
        request = Request(f"{url}/v1/chat/completions", json.dumps(BODY).encode())
        try:
            with urlopen(request, timeout=10) as reply:
                statuses.append(reply.status)
        except HTTPError as refused:
            statuses.append(refused.code)
            waits = int(refused.headers["retry-after-ms"])
            refused.close()
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=10)
    assert statuses == [200, 429, 429]
    assert waits < 1000  # what had been filled in before the first refusal is still there


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--requests", "fast"], "it has no period"),
        (["--input-tokens", "5/s"], "the openai style counts"),
        (["--window-age", "5"], "needs kind='fixed'"),
        (["--fault", "earthquake"], "earthquake"),
        (["--fault", "storm,loud"], "'loud' says nothing"),
        (["--fault", "storm,loud=1"], "a fault has no detail 'loud'; write one of path, model, key,"),
        (["--tokens", "100 requests/minute"], "--tokens '100 requests/minute' is a rate of requests; leave"),
        (["--requests", "90 tpm"], "--requests '90 tpm' is a rate of tokens; leave the unit out"),
        (["--concurrency", "many"], "'many' is not a whole number"),
        (["--jitter", "soon"], "'soon' is not a number"),
        (["--seed", "1.5"], "'1.5' is not a whole number"),
        (["--concurrency", "0"], "0 is not in the range x>=1"),
    ],
)
def test_wrong_options_of_the_sandbox_are_errors(options, why):
    done = CliRunner().invoke(main, ["sandbox", *options])
    assert done.exit_code == 2
    assert why in done.output


def test_a_sandbox_that_cannot_listen_is_an_error_with_a_hint():
    with Sandbox() as api:
        port = api.url.rpartition(":")[2]
        error, hint = told(headgate("sandbox", "--port", port))
    assert error == f"error: cannot listen on 127.0.0.1:{port}: address already in use"
    assert "another --port" in hint
    assert "--host" in told(headgate("sandbox", "--host", "192.0.2.1"))[1]


def test_a_single_request_is_told_in_the_singular():
    run = start("sandbox", "--requests", "60/minute")
    url = run.stdout.readline().strip()
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(BODY).encode())) as reply:
        assert reply.status == 200
    run.send_signal(signal.SIGINT)
    _, words = run.communicate(timeout=10)
    assert "\n1 request: 1 let through, 0 refused; " in words
