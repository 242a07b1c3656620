"""`headgate watch unix:///...`: the gates of one process."""

import json
import re

import pytest
from click.testing import CliRunner
from rich.console import Console

import headgate
from headgate import Dispatch, publishing
from headgate.cli.app import main
from headgate.cli.published import ProcessView, process_picture
from headgate.testing import ManualClock


@pytest.fixture
def url(tmp_path, monkeypatch):
    monkeypatch.setattr(publishing, "MOST_GATES", 10_000)  # earlier tests have left many
    with headgate.publish(tmp_path / "here.sock") as published:
        yield published.url


@pytest.fixture
def api():
    clock = ManualClock(auto_advance=True)
    gate = Dispatch("published api", rates="10/s burst 1", concurrency=5, clock=clock)
    for _ in range(3):
        with gate.admit():
            pass
    gate.set_backoff(90)
    yield gate
    gate.close()  # a gate that is closed is not shown


def watch(*args):
    done = CliRunner().invoke(main, ["watch", *map(str, args)], env={"COLUMNS": "120"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def test_once_prints_the_gates_of_the_process(url, api):
    done = watch(url, api.key, "--once")
    assert done.exit_code == 0, done.output
    assert re.search(r"^process \d+ on \S+", done.output)
    assert "published api   no call waits" in done.output
    assert re.search(r"requests .* 10 requests/second   0 of 1 could go now", done.output)
    assert re.search(r"places .* 0 of 5 in flight", done.output)
    assert re.search(r"window .* told to slow down: 1:30 left", done.output)
    assert "since the start: 3 admitted; 2 of them waited, 0.10 s on average" in done.output


def test_json_is_one_object(url, api):
    done = watch(url, "published api", "--once", "--json")
    told = json.loads(done.output)
    assert [gate["key"] for gate in told["gates"]] == [api.key]
    assert (told["error"], told["url"]) == (None, url)
    assert told["gates"][0]["totals"]["admitted"] == 3


def test_a_key_is_found_among_all_gates_of_the_process(url, monkeypatch):
    monkeypatch.setattr(publishing, "MOST_GATES", 3)
    clock = ManualClock()
    many = [Dispatch(f"zz {number}", clock=clock) for number in range(6)]
    with many[5].admit():
        told = json.loads(watch(url, "zz 5", "zz 4", "--once", "--json").output)
    assert [(gate["key"], gate["totals"]["admitted"]) for gate in told["gates"]] == [("zz 4", 0), ("zz 5", 1)]
    assert told["more"] == 0
    nowhere = json.loads(watch(url, "zz 6", "--once", "--json").output)
    assert (nowhere["gates"], nowhere["more"]) == ([], 0)
    everything = json.loads(watch(url, "--once", "--json").output)
    assert len(everything["gates"]) == 3
    assert everything["more"] >= 3


def test_a_socket_that_is_not_there_is_an_error_with_a_hint(tmp_path):
    done = watch(f"unix://{tmp_path}/gone.sock", "--once")
    assert done.exit_code == 2
    assert "No such file or directory" in done.output
    assert "headgate.publish()" in done.output


def test_waiting_callers_are_shown_with_their_rule_and_time(url, api):
    seen = ProcessView(url, *_look(api))
    text = _drawn(seen)
    assert "2 wait for requests/second, next in 0.5 s" in text
    assert "trying again" not in text
    assert "trying again" in _drawn(seen.failed("gone"))


def test_a_low_terminal_shows_as_many_gates_as_fit(url, api):
    seen = ProcessView(url, *_look(api))
    many = seen._replace(gates=seen.gates * 10)
    assert "and 8 more gates" in _drawn(many, height=14)


def _look(gate):
    from datetime import UTC, datetime

    from headgate.publishing import facts_of_process

    told = facts_of_process()
    (facts,) = [each for each in told["gates"] if each["key"] == gate.key]
    facts |= {"waiting": 2, "binding": "requests/second", "next": 0.45}
    return datetime.now(UTC), {"host": "here", "process": 1, "more": 0}, [facts]


def _drawn(seen, height=None):
    console = Console(width=110, record=True, file=None)
    with console.capture() as captured:
        console.print(process_picture(seen, 110, height))
    return captured.get()
