"""Four processes that share a limit by every kind of store, while their stores and they themselves fail.

A referee counts every admission, also those of processes that were killed: never above the rate in any
stretch of time, never above the places, no call inside a backoff window that the store has lost.
"""

import subprocess
import sys
from contextlib import closing, contextmanager

import pytest

from faults.at_once import places
from faults.postgres import PostgresServer
from faults.rig import Cluster, Server
from faults.team import PLACES, RATE, Team, calmly


class File:
    """A file. SIGSTOP of a server has no equal: another process keeps the file locked."""

    def __init__(self, folder):
        self._path = folder / "limits.db"
        self.store = f"sqlite:///{self._path}"
        self._holder = None

    def restart(self):
        self.forget()

    restart_empty = restart

    def forget(self):
        """It is deleted."""
        for each in self._path.parent.glob(f"{self._path.name}*"):
            each.unlink(missing_ok=True)  # its last user deletes some of them too

    def stop(self):
        script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        script += "c.execute('BEGIN IMMEDIATE'); print('held', flush=True); sys.stdin.read()"
        command = [sys.executable, "-c", script, str(self._path)]
        self._holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holder.stdout.readline()

    def go_on(self):
        self._holder.kill()
        self._holder.communicate()


class OnValkey:
    """Every restart is one without data."""

    def __init__(self, server):
        self._server = server
        self.store = server.url
        self.stop, self.go_on = server.stop, server.go_on

    def restart(self):
        self._server.restart(data=False)

    restart_empty = restart

    def forget(self):
        """FLUSHALL."""
        with closing(self._server.client()) as client:
            client.flushall()


class OnACluster:
    """All servers at once. The last restart keeps what they know of each other, or makes another cluster."""

    def __init__(self, cluster, restart_empty):
        self._nodes = [OnValkey(server) for server in cluster.servers]
        self.store = cluster.url
        self.restart_empty = restart_empty

    def forget(self):
        for node in self._nodes:
            node.forget()

    restart = forget  # which takes a cluster two seconds: once is enough

    def stop(self):
        for node in self._nodes:
            node.stop()

    def go_on(self):
        for node in self._nodes:
            node.go_on()


class InADatabase:
    """A restart after kill -9, which loses nothing; TRUNCATE; and a restart with a new database."""

    def __init__(self, server):
        self._server = server
        self.store = server.url
        self.forget, self.stop, self.go_on = server.forget, server.stop, server.go_on
        self.restart_empty = server.restart_empty

    def restart(self):
        self._server.kill()
        self._server.start()


@contextmanager
def on_valkey():
    with Server() as server:
        yield OnValkey(server)


@contextmanager
def on_a_cluster():
    with Cluster() as cluster:
        yield OnACluster(cluster, cluster.restart_empty)


@contextmanager
def on_a_cluster_that_is_made_anew():
    with Cluster() as cluster:
        yield OnACluster(cluster, cluster.make_anew)


@contextmanager
def in_a_database():
    with PostgresServer() as server:
        yield InADatabase(server)


MAKERS = {
    "valkey": on_valkey,
    "cluster": on_a_cluster,
    "another cluster": on_a_cluster_that_is_made_anew,
    "postgres": in_a_database,
}
FIRST, SECOND, END = (1.6, 1.2), (5.2, 2.8), 9.2  # two windows, and the end


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """What happened at every store, from one run of all of them."""

    @contextmanager
    def in_a_file():
        yield File(tmp_path_factory.mktemp("file"))

    def run():
        with places({"file": in_a_file, **MAKERS}) as found:
            skipped.update(found.skipped)
            limits = {name: {"store": place.store} for name, place in found.made.items()}
            with Team(tmp_path_factory.mktemp("logs"), limits) as team:
                team.begin(END, windows=[FIRST, SECOND])
                team.wait_until(0.5)
                found.all(lambda place: place.restart())  # while calls go
                team.wait_until(2.0)
                found.all(lambda place: place.forget())  # inside the first window
                team.wait_until(3.0)
                team.stop(2)
                team.wait_until(3.4)
                team.kill(3)
                team.go_on(2)
                team.wait_until(3.8)
                found.all(lambda place: place.stop())
                team.wait_until(4.5)
                found.all(lambda place: place.go_on())
                team.wait_until(5.4)
                found.all(lambda place: place.restart_empty())  # inside the second window
                return team, team.ends()

    skipped = {}
    return skipped, *calmly(run)


@pytest.mark.parametrize("name", ["file", *MAKERS])
def test_a_limit_holds_while_its_store_forgets_and_stops_and_processes_are_stopped_and_killed(name, run):
    skipped, team, said = run
    if name in skipped:
        pytest.skip(skipped[name])
    verdict = team.judge(name)
    assert verdict.excess <= 0
    assert verdict.most_inside <= PLACES
    for begin, length in (FIRST, SECOND):
        assert verdict.between(begin + 0.3, begin + length) == 0
    assert all(each[name]["forgotten"] >= 2 for each in said)
    # Calls go on: before, after each window, without the store, and when it is back.
    for begin, end in ((0, 0.6), (0.6, 1.6), (2.8, 3.8), (3.8, 5.2), (8.0, END)):
        assert verdict.between(begin, end) >= 0.1 * RATE
