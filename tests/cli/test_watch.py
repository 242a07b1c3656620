"""`headgate watch`: what people and programs see of a shared store."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from rich.console import Console

from headgate import Dispatch
from headgate.cli.app import main
from headgate.cli.picture import store_picture, who
from headgate.cli.watch import StoreView
from headgate.sharing.pool.question import PoolLimits
from headgate.sharing.pool.rate import PoolRate
from headgate.sharing.pool.state import MemberState, Pool, PoolWindow
from headgate.sharing.pool.view import view_of
from patience import eventually

SECOND = 1_000_000


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path / 'limits.db'}"


@pytest.fixture
def gate(store):
    gate = Dispatch(
        "api.openai.com", rates=["60/minute burst 10", "6000 tokens/minute"], concurrency=4, store=store
    )
    yield gate
    gate.close()


def watch(*args):
    done = CliRunner().invoke(main, ["watch", *map(str, args)], env={"COLUMNS": "120"})
    assert done.exception is None or isinstance(done.exception, SystemExit)
    return done


def told(done):
    assert done.exit_code == 2, done.output
    assert done.stderr.count("error: ") == 1
    error, _, hint = done.stderr.partition("hint: ")
    return error, hint


# -- once


def test_once_prints_one_plain_picture(store, gate):
    looks = []

    def named():
        looks.append(watch(store, "--once"))
        return "api.openai.com   no call has to wait\n" in looks[-1].stdout

    with gate.admit(tokens=50, timeout=5):
        eventually(named, "no call has to wait")  # its batches take a moment to come and go
    done, shown = looks[-1], looks[-1].stdout
    assert done.exit_code == 0
    assert shown.startswith(store)
    assert re.search(r"requests +━.*60 a minute", shown)
    assert re.search(r"tokens +━.*6,000 tokens a minute", shown)
    assert re.search(r"places .*of 4 in flight", shown)
    assert str(os.getpid()) in shown
    assert "\x1b" not in shown


def test_the_picture_names_an_active_window(store, gate):
    gate.set_backoff(60)
    shown = []

    def named():
        shown.append(watch(store, "--once").stdout)
        return "window: " in shown[-1]

    eventually(named, "the window is named")
    assert re.search(r"no (call waits|process is here).* window: (60 s|1:00) left", shown[-1])


def test_once_with_json_prints_one_object(store, gate):
    looks = []

    def seen():
        (line,) = watch(store, "--once", "--json").stdout.splitlines()
        looks.append(json.loads(line))
        return looks[-1]["pools"]["api.openai.com"]["waits"] == []

    with gate.admit(timeout=5):
        eventually(seen, "no call has to wait")  # as above
    facts = looks[-1]
    assert datetime.fromisoformat(facts["at"]).tzinfo is not None
    assert facts["error"] is None
    pool = facts["pools"]["api.openai.com"]
    assert pool["rates"][0] | {"level": 0, "next": 0} == {
        "name": "requests/minute", "unit": "requests", "limit": 60, "per": 60.0, "burst": 10,
        "level": 0, "next": 0,
    }  # fmt: skip
    assert pool["places"]["limit"] == 4
    assert pool["members"][0]["name"].rsplit("-", 2)[1] == str(os.getpid())
    assert 0 < pool["members"][0]["lease"] <= 3


def test_only_the_given_keys_are_shown(store, gate):
    other = Dispatch("other", rates="1/s", store=store)
    assert set(json.loads(watch(store, "--once", "--json").stdout)["pools"]) == {"api.openai.com", "other"}
    facts = json.loads(watch(store, "other", "none", "--once", "--json").stdout)
    assert list(facts["pools"]) == ["other", "none"]
    assert facts["pools"]["none"] is None
    assert "no process has shared it yet" in watch(store, "none", "--once").stdout
    other.close()


def test_an_empty_store_is_shown_as_empty(store, gate, tmp_path):
    import sqlite3

    with sqlite3.connect(tmp_path / "limits.db") as connection:
        connection.execute("DELETE FROM pools")
    connection.close()
    done = watch(store, "--once")
    assert done.exit_code == 0
    assert "nothing is shared here yet" in done.stdout


def test_a_database_is_shown_as_a_file_is(postgres_server):
    with Dispatch("postgres watched", rates="60/minute burst 10", store=postgres_server.url) as gate:
        with gate.admit(timeout=5):
            done = watch(postgres_server.url, "postgres watched", "--once")
        assert done.exit_code == 0
        assert re.search(r"requests +━.*60 a minute", done.stdout)
        assert str(os.getpid()) in done.stdout


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("sqlite:///no-such.db", "no-such.db does not exist"),
        ("memory:", "inside one process"),
        ("limits.db", "'limits.db' is not the URL of a store; for a file write sqlite:///limits.db"),
        ("redis://:sesame@127.0.0.1:1/0", "redis://127.0.0.1:1/0 cannot be reached"),
        ("redis://:sesame@127.0.0.1:port/0", "cannot be read"),
        ("postgresql://:sesame@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db cannot be reached"),
        ("postgresql://:sesame@127.0.0.1:port/db", "cannot be read"),
    ],
)
def test_a_store_that_cannot_be_read_is_an_error(url, error):
    done = watch(url)
    said, hint = told(done)
    assert error in said
    assert "store=" not in said
    assert "sqlite:///limits.db" in hint
    assert "sesame" not in done.output


def test_the_address_of_a_gateway_leads_to_its_page():
    for url in ("http://127.0.0.1:8429", "http://127.0.0.1:8429/.headgate/ui"):
        said, hint = told(watch(url))
        assert f"error: {url} is the address of a server, and `headgate watch` shows a store" in said
        assert "open http://127.0.0.1:8429/.headgate/ui in a browser" in hint


# -- until Ctrl-C


def start(*args, **pipes):
    command = [sys.executable, "-m", "headgate", "watch", *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **pipes)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_ctrl_c_ends_watch_with_status_130_and_sigterm_with_0_and_no_words(store, gate, number, status):
    process = start(store, "--json", "--every", "0.05")
    looks = [json.loads(process.stdout.readline()) for _ in range(3)]
    assert looks[0]["at"] < looks[1]["at"] < looks[2]["at"]
    process.send_signal(number)
    _, words = process.communicate(timeout=10)
    assert (process.returncode, words) == (status, "")


def test_watch_ends_quietly_if_the_reader_of_its_output_ends(store, gate):
    command = f"{sys.executable} -m headgate watch {store} --every 0.05 | head -n 2"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=30, check=False)
    assert len(done.stdout.splitlines()) == 2
    assert done.stderr == ""


def test_watch_shows_that_a_store_is_lost_and_back(store, tmp_path):
    path, aside = tmp_path / "limits.db", tmp_path / "aside.db"
    Dispatch("api.openai.com", rates="60/minute", store=store).close()
    # A gate that still uses the file would make it again.
    eventually(lambda: not (tmp_path / "limits.db-wal").exists(), "the gate has let the file go")
    process = start(store, "--json", "--every", "0.05")
    looks = (json.loads(process.stdout.readline()) for _ in range(400))
    assert next(looks)["error"] is None
    path.rename(aside)
    facts = next(look for look in looks if look["error"] is not None)
    assert "does not exist" in facts["error"]
    assert facts["pools"] == {}
    aside.rename(path)
    assert any(look["error"] is None for look in looks)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def on_a_terminal(*args, until, env=None):
    """What a terminal is sent, until something is there; then Ctrl-C."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30", **(env or {})}
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate", "watch", *map(str, args)],
        stdin=theirs, stdout=theirs, stderr=theirs, env=environment,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    while select.select([ours], [], [], 20)[0]:
        try:
            chunk = os.read(ours, 65_536)
        except OSError:
            break
        shown += chunk
        if shown.count(until) >= 3:
            process.send_signal(signal.SIGINT)
            until = b"never again"
    os.close(ours)
    return process.wait(timeout=10), shown.decode()


def test_watch_on_a_terminal_has_colours_except_with_no_color(store, gate):
    with gate.admit(timeout=5):
        status, shown = on_a_terminal(store, "--every", "0.1", until=b"api.openai.com")
    assert status == 130
    assert re.search(r"\x1b\[[0-9;]*3[0-9]", shown)
    assert shown.endswith("\x1b[?25h")  # the cursor is back
    assert "Traceback" not in shown
    status, plain = on_a_terminal(store, "--every", "0.1", until=b"api.openai.com", env={"NO_COLOR": "1"})
    assert status == 130
    assert not re.search(r"\x1b\[[0-9;]*(3[0-9]|38;)[0-9;]*m", plain)


# -- the picture


def many(count):
    """A pool with `count` members, one without members, and a key that has no pool."""
    now = 1_000 * SECOND
    idle, busy = Pool(), Pool()
    for pool in (idle, busy):
        pool.rates = [PoolRate(600, 60 * SECOND, 100, full_at=now + 20 * SECOND)]
        pool.units = ["requests"]
        pool.limits = PoolLimits(places=64, bytes=5 << 20)
        pool.now = now
    busy.members = {
        f"host-{n:03}-{n}-ff": MemberState(
            now + SECOND, holds=[2, 9_999], wants=[5, 0], in_flight=1, waiting=3
        )
        for n in range(count)
    }
    pools = {"busy": view_of(busy), "idle": view_of(idle), "never": None}
    return StoreView("redis://limits.internal/0", datetime.now(UTC), pools)


def drawn(seen, width, height=None):
    console = Console(width=width, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(store_picture(seen, width, height))
    console.file.close()
    return console.export_text()


def test_the_picture_shows_members_and_what_calls_wait_for():
    shown = drawn(many(32), 130)
    held = "processes hold all 64 places, 32 of them in use"
    assert f"busy   96 wait for concurrency: {held}; requests/minute: next in 12 s" in shown
    assert re.search(r"places +━+ +32 of 64 in flight, 64 held", shown)
    assert re.search(r"host-007 +7 +1 +3 +2 +10.0 kB +1.0 s", shown)
    assert "idle   no process uses it now   600 a minute, 64 at once" in shown
    assert "never   no process has shared it yet" in shown


def test_the_picture_says_why_there_are_fewer_places_than_usual():
    """Two seconds after a window, for eight more seconds, the gate is throttled to ten places."""
    seen = many(2)
    pool = Pool()
    pool.now = 1_000 * SECOND
    pool.limits = PoolLimits(places=32, throttled_places=10, throttled_for=10 * SECOND)
    pool.window = PoolWindow(pool.now - 2 * SECOND, 1)
    empty = drawn(seen._replace(pools={"api": view_of(pool)}), 100)
    assert "no process uses it now   10 at once (throttled by a backoff window; 32 places in 8.0 s)" in empty
    pool.members = {"host-1-ff": MemberState(pool.now + SECOND, holds=[3, 0], in_flight=3)}
    shown = drawn(seen._replace(pools={"api": view_of(pool)}), 80)
    assert "3 of 10 in flight\n" in re.sub(" +\n", "\n", shown)
    assert "over; throttled: 32 places in 8.0 s" in shown
    facts = seen._replace(pools={"api": view_of(pool)}).facts()["pools"]["api"]
    assert facts["places"] == {"held": 3, "limit": 10, "usual_limit": 32}
    assert facts["throttled"] == 8.0
    pool.now -= 5 * SECOND
    shown = drawn(seen._replace(pools={"api": view_of(pool)}), 100)
    assert "told to slow down: 3.0 s left; 32 places in 13 s" in shown
    pool.now += 13 * SECOND
    assert "3 of 32 in flight" in drawn(seen._replace(pools={"api": view_of(pool)}), 80)


def test_the_picture_fits_the_terminal():
    for count, width, height in ((2, 60, 20), (40, 100, 24), (400, 80, 50)):
        lines = drawn(many(count), width, height).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines)) <= width
    assert re.search(r"and 3\d\d more", drawn(many(400), 80, 30))


def test_an_error_is_shown_above_the_last_picture():
    seen = many(2)._replace(trouble="redis://limits.internal/0 cannot be reached")
    shown = drawn(seen, 120)
    assert "cannot be reached; trying again" in shown
    assert "host-001" in shown
    assert seen.facts()["pools"] == {}


def test_the_name_of_a_member_may_have_any_form():
    assert who("a-b-c-4711-9f86") == ("a-b-c", "4711")
    assert who("custom") == ("custom", "")


def test_the_help_of_watch_fits_the_line():
    done = CliRunner().invoke(main, ["watch", "--help"])
    assert done.exit_code == 0
    assert "calls headgate.publish(): the URL is the `url` of what that returns" in " ".join(
        done.output.split()
    )
    assert "watch [OPTIONS] STORE [KEY]..." in done.output
    assert max(map(len, done.output.splitlines())) <= 110
