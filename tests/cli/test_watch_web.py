"""`headgate watch --web`: the live page of a store."""

import json
import signal
import urllib.error
import urllib.request

import pytest

from cli.commands import headgate, start, told
from headgate import Dispatch


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path / 'limits.db'}"


def test_the_page_of_a_store_shows_its_limits_and_processes(store):
    with Dispatch("api.openai.com", rates="60/minute burst 10", concurrency=4, store=store) as gate:
        permit = gate.admit(timeout=5).__enter__()
        process = start("watch", store, "--web", "--every", "0.1")
        try:
            address = process.stdout.readline().split()[-1]
            with urllib.request.urlopen(address, timeout=10) as page:
                assert b"EventSource" in page.read()
            with urllib.request.urlopen(address.replace("/ui", "/events"), timeout=10) as events:
                documents = (json.loads(line[6:]) for line in events if line.startswith(b"data: "))
                # The store hears a moment later that the call no longer waits.
                document = next(seen for seen in documents if seen["state"] == "busy")
            assert document["sentence"] == "Nothing waits. 1 call in flight."
            assert [row["name"] for row in document["limits"]] == ["60 requests/minute"]
            assert [row["flight"] for row in document["members"]] == ["1"]
            foreign = urllib.request.Request(address, headers={"Origin": "https://evil.example"})
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(foreign, timeout=10)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=20)
        assert process.returncode == 130
        permit.settle()


@pytest.mark.parametrize("option", ["--once", "--json"])
def test_a_page_is_not_shown_once(store, option):
    error, _hint = told(headgate("watch", store, "--web", option))
    assert "--web shows a store" in error


def test_a_page_that_could_be_reached_from_elsewhere_is_refused(store):
    Dispatch("api.openai.com", rates="60/minute", store=store).close()
    error, _hint = told(headgate("watch", store, "--web", "--listen", "0.0.0.0:0"))
    assert "can be reached from elsewhere" in error
