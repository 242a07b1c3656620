"""publish: how the gates of this process stand, for people on the same machine."""

import json
import os
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

import headgate
from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch, InvalidConfig, MemoryLimiter, publishing
from headgate.testing import ManualClock

MOST_GATES = publishing.MOST_GATES


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A publication that shows all gates, because earlier tests have left many."""
    monkeypatch.setattr(publishing, "MOST_GATES", 10_000)
    with headgate.publish(tmp_path / "here.sock") as publication:
        yield publication


def read(publication):
    with socket.socket(socket.AF_UNIX) as reader:
        reader.settimeout(5)
        reader.connect(str(publication.path))
        with reader.makefile() as lines:
            return json.loads(lines.read())


def gates(publication):
    return {gate["key"]: gate for gate in read(publication)["gates"]}


def test_a_reader_is_told_how_every_gate_stands(published):
    clock = ManualClock()
    api = Dispatch("the api", rates="10/s burst 4", concurrency=8, clock=clock)
    limiter = MemoryLimiter(clock=clock)
    limiter.set_capacity("a limiter's", 5, 60)
    limiter.acquire("a limiter's")
    window = BackoffWindow(clock=clock)  # it has a gate inside, which is not shown
    window.set(9)
    api.set_backoff(6)
    with api.admit():
        told = gates(published)
    gate = told["the api"]
    assert (gate["kind"], gate["in_flight"], gate["concurrency"], gate["waiting"]) == ("Dispatch", 1, 8, 0)
    assert gate["rates"] == [
        {"name": "requests/second", "unit": "requests", "limit": 10, "per": 1.0, "burst": 4, "level": 3}
    ]
    assert gate["window"] == 6
    assert gate["totals"]["admitted"] == gate["totals"]["windows"] == 1
    assert told["a limiter's"]["totals"]["admitted"] == 1
    assert "window" not in told
    assert read(published)["process"] == os.getpid()


def test_only_the_same_user_can_look(published):
    mode = published.path.stat().st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


def test_the_socket_has_its_mode_from_the_first_moment(tmp_path, monkeypatch):
    modes = []
    bind = socket.socket.bind

    class Socket(socket.socket):
        def bind(self, address):
            bind(self, address)
            modes.append(stat.S_IMODE(Path(address).stat().st_mode))

    monkeypatch.setattr("headgate.publishing.socket.socket", Socket)
    before = os.umask(0)
    try:
        headgate.publish(tmp_path / "here.sock").close()
    finally:
        os.umask(before)
    if sys.platform == "linux":
        assert modes == [0o600]


def test_close_takes_the_socket_away_and_may_be_called_twice(tmp_path):
    publication = headgate.publish(tmp_path / "here.sock")
    publication.close()
    publication.close()
    assert not publication.path.exists()
    assert repr(publication) == f"<Publication unix://{tmp_path}/here.sock, closed>"


def test_a_reader_that_hangs_up_at_once_does_no_harm(published):
    for _ in range(20):
        with socket.socket(socket.AF_UNIX) as reader:
            reader.connect(str(published.path))
    assert "gates" in read(published)


def test_a_socket_that_a_killed_process_left_behind_is_replaced(tmp_path):
    path = tmp_path / "here.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with headgate.publish(path) as publication:
        assert "gates" in read(publication)


def test_a_socket_in_use_and_other_files_are_left_alone(published, tmp_path):
    with pytest.raises(InvalidConfig, match="a process publishes there already"):
        headgate.publish(published.path)
    precious = tmp_path / "precious.txt"
    precious.write_text("kept")
    with pytest.raises(InvalidConfig, match="not a socket"):
        headgate.publish(precious)
    with pytest.raises(InvalidConfig, match="give another path"):
        headgate.publish(tmp_path / "nowhere" / "here.sock")
    assert precious.read_text() == "kept"
    assert "gates" in read(published)


def test_at_most_two_hundred_gates_are_shown(published, monkeypatch):
    monkeypatch.setattr(publishing, "MOST_GATES", MOST_GATES)
    clock = ManualClock()
    many = [Dispatch(f"gate {number:03}", clock=clock) for number in range(230)]
    told = read(published)
    assert len(told["gates"]) == 200
    assert told["more"] >= 30
    assert len(many) == 230


def test_a_reader_that_asks_for_nonsense_gets_no_second_line_and_does_no_harm(published, monkeypatch):
    monkeypatch.setattr(publishing, "MOST_GATES", 1)
    gates = [Dispatch(f"gate {number}", clock=ManualClock()) for number in range(3)]
    for nonsense in (b"[\n", b"7\n", b"\xff\n", b"[" * 100_000, b"{}"):
        with socket.socket(socket.AF_UNIX) as reader:
            reader.settimeout(5)
            reader.connect(str(published.path))
            reader.sendall(nonsense)
            reader.shutdown(socket.SHUT_WR)
            with reader.makefile() as lines:
                assert json.loads(lines.readline())["more"] >= 2
                with suppress(ConnectionResetError):  # it has not read all of it
                    assert lines.readline() == ""
    assert read(published)["more"] >= 2
    assert len(gates) == 3


@needs_fork
def test_a_reader_that_sends_single_bytes_does_not_keep_the_others_waiting(published, monkeypatch):
    monkeypatch.setattr("headgate.publishing._PATIENCE", 0.3)
    monkeypatch.setattr("headgate.publishing.facts_of_process", lambda _keys=None: {"more": 1})
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as reader, ThreadPoolExecutor(1) as threads:
        reader.connect(str(published.path))
        other = threads.submit(read, published)
        for _ in range(60):
            if other.done():
                break
            with suppress(OSError):
                reader.sendall(b"[")
            threading.Event().wait(0.1)
        assert other.done()
        assert other.result(0)


def test_a_forked_child_does_not_publish(published):
    def close_in_child():
        published.close()

    assert in_a_child(close_in_child) == 0
    assert "gates" in read(published)  # the parent goes on


def test_without_a_path_it_is_in_the_directory_of_the_user_and_goes_with_the_process(tmp_path):
    program = "import headgate; print(headgate.publish().url)"
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    assert done.stdout.startswith(f"unix://{tmp_path}/headgate-")
    assert list(tmp_path.iterdir()) == []
