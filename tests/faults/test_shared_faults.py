"""Four processes that share one limit, while their store and they themselves fail, on every kind of store.

A referee counts every admission, also those of processes that were killed: never above the rate in any
stretch of time, never above the places, no call inside a backoff window that the store has lost.
"""

import signal
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from functools import partial

import pytest

from faults.postgres import PostgresServer
from faults.referee import judge
from faults.rig import Cluster, Server
from faults.team import BURST, PLACES, RATE, Team

SECONDS = 5.2


@contextmanager
def in_a_file(folder):
    """A file that is deleted. SIGSTOP of a server has no equal: another process keeps the file locked."""
    path = folder / "limits.db"

    def forget():
        for each in folder.glob("limits.db*"):
            each.unlink()

    holder = None

    def stop():
        nonlocal holder
        script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        script += "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", script, str(path)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        holder.stdout.readline()

    def go_on():
        holder.kill()
        holder.communicate()

    yield f"sqlite:///{path}", forget, stop, go_on


@contextmanager
def on_valkey(_folder):
    """FLUSHALL, and the second time a restart without data."""
    with Server() as server, closing(server.client()) as client:
        ways = [partial(server.restart, data=False), client.flushall]
        yield server.url, lambda: ways.pop()(), server.stop, server.go_on


@contextmanager
def on_postgres(_folder):
    """TRUNCATE, and the second time a restart after kill -9, which loses nothing."""

    def restart():
        server.kill()
        server.start()

    with PostgresServer() as server:
        ways = [restart, server.forget]
        yield server.url, lambda: ways.pop()(), server.stop, server.go_on


@contextmanager
def on_a_cluster(_folder):
    """FLUSHALL of three primaries, and all of them stopped."""
    with Cluster() as cluster:

        def each(act):
            for server in cluster.servers:
                act(server)

        def flush(server):
            with closing(server.client()) as client:
                client.flushall()

        yield (
            cluster.url,
            lambda: each(flush),
            lambda: each(Server.stop),
            lambda: each(Server.go_on),
        )


@pytest.mark.parametrize("place", [in_a_file, on_valkey, on_a_cluster, on_postgres])
def test_a_limit_holds_while_its_store_forgets_and_stops_and_processes_are_stopped_and_killed(
    place, tmp_path
):
    with place(tmp_path) as (url, lose, stop, go_on), Team(tmp_path, url) as team:
        team.begin(SECONDS, window_at=0.6, window=1.2)
        team.wait_until(1.0)
        lose()  # inside the window
        lost_at = time.monotonic()
        team.wait_until(1.9)
        team.workers[2].send_signal(signal.SIGSTOP)
        team.wait_until(2.3)
        team.kill(3)
        team.workers[2].send_signal(signal.SIGCONT)
        team.wait_until(2.8)
        stop()
        team.wait_until(3.5)
        go_on()
        team.wait_until(4.1)
        lose()  # while calls go
        said = list(team.ends())
        verdict = judge(team.logs, RATE, BURST, team.deaths)
    begun = team.begun
    assert verdict.excess <= 0
    assert verdict.most_inside <= PLACES
    assert verdict.between(lost_at, begun + 1.8) == 0
    assert all(each["forgotten"] for each in said)
    # Calls go on: before, after the window, without the store, and when it is back.
    assert verdict.between(begun, begun + 0.6) >= 0.2 * RATE
    assert verdict.between(begun + 1.8, begun + 2.8) >= 0.2 * RATE
    assert verdict.between(begun + 2.8, begun + 3.5) >= 1
    assert verdict.between(begun + 3.5, begun + 10) >= 0.2 * RATE
