"""Stores that answer and cannot write: full disks, a full memory, servers that may only be read.

Two processes share a limit by each of them, all at the same time, and a referee counts what they do: never
above, on by their parts while the store cannot write, and by the store again afterwards.
"""

from contextlib import ExitStack, closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from faults.at_once import places
from faults.disk import SmallDisk
from faults.postgres import PostgresServer, folder_of_its_own
from faults.rig import Cluster, Server
from faults.team import PLACES, RATE, Team, calmly
from faults.wire import Wire


class Place(NamedTuple):
    """Stores by name, and how they cease to write and begin again."""

    stores: dict[str, Any]
    break_: Any
    mend: Any


@contextmanager
def a_file_on_a_full_disk():
    with SmallDisk() as disk:
        yield Place({"file": f"sqlite:///{disk.folder}/limits.db"}, disk.fill, disk.make_room)


def each_of(servers, *command):
    for server in servers:
        with closing(server.client()) as client:
            client.execute_command(*command)


@contextmanager
def servers_of_a_full_memory():
    with Server() as server, Cluster() as cluster:
        servers = [server, *cluster.servers]

        def limit(size):
            each_of(servers, "CONFIG", "SET", "maxmemory", size)

        stores = {"valkey, memory": server.url, "cluster, memory": cluster.url}
        yield Place(stores, lambda: limit(1), lambda: limit(0))


@contextmanager
def servers_on_a_full_disk():
    """Their logs of what was written cannot grow."""
    with (
        SmallDisk() as disk,
        Server(under=disk.folder) as server,
        Cluster(under=disk.folder) as cluster,
    ):
        stores = {"valkey, disk": server.url, "cluster, disk": cluster.url}
        yield Place(stores, disk.fill, disk.make_room)


@contextmanager
def a_server_that_becomes_a_replica():
    with Server() as server:
        yield Place(
            {"valkey, replica": server.url},
            lambda: each_of([server], "REPLICAOF", "127.0.0.1", "1"),
            lambda: each_of([server], "REPLICAOF", "NO", "ONE"),
        )


@contextmanager
def a_database_whose_standby_takes_over():
    """The primary is killed. The standby may only be read, until it is promoted.

    One limit by an address that leads to the standby afterwards, and one by the addresses of both.
    """
    with PostgresServer() as primary, primary.standby() as standby, Wire(primary.port) as wire:

        def fail():
            primary.kill()
            wire.to = standby.port

        names = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
        both = f"postgresql://headgate@{names}/postgres?target_session_attrs=read-write"
        stores = {"postgres, standby": wire.through(primary.url), "postgres, two addresses": both}
        yield Place(stores, fail, standby.promote)


@contextmanager
def a_database_on_a_full_disk():
    """The table cannot grow, and has to: a reader that began before still needs all rows as they were."""
    with ExitStack() as stack:
        disk = stack.enter_context(SmallDisk())
        folder = folder_of_its_own("tablespace", disk.folder)
        server = stack.enter_context(PostgresServer())
        server.query(f"CREATE TABLESPACE small LOCATION '{folder}'")
        server.query("ALTER DATABASE postgres SET default_tablespace = small")
        reader = psycopg.connect(server.url)
        stack.callback(reader.close)

        def fill():
            reader.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            reader.execute("SELECT FROM headgate_state")
            disk.fill()

        def make_room():
            disk.make_room()
            reader.rollback()

        yield Place({"postgres, disk": server.url}, fill, make_room)


MAKERS = [
    a_file_on_a_full_disk,
    servers_of_a_full_memory,
    servers_on_a_full_disk,
    a_server_that_becomes_a_replica,
    a_database_whose_standby_takes_over,
    a_database_on_a_full_disk,
]
# What members are told, of each store.
SAYS = {
    "file": "the disk is full",
    "valkey, memory": "maxmemory",
    "cluster, memory": "maxmemory",
    "valkey, disk": "No space left on device",
    "cluster, disk": "No space left on device",
    "valkey, replica": "read only replica",
    "postgres, standby": "cannot set transaction read-write mode during recovery",
    "postgres, two addresses": "session is read-only",
    "postgres, disk": "cannot answer: could not extend file",
}
BROKEN, MENDED, END = 1.0, 3.2, 7.6


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    def run():
        with places({maker.__name__: maker for maker in MAKERS}) as found:
            skipped.update(found.skipped)
            stores = {name: store for place in found.made.values() for name, store in place.stores.items()}
            limits = {name: {"store": store} for name, store in stores.items()}
            with Team(tmp_path_factory.mktemp("logs"), limits, many=2) as team:
                team.begin(END)
                team.wait_until(BROKEN)
                found.all(lambda place: place.break_())
                team.wait_until(MENDED)
                found.all(lambda place: place.mend())
                return team, team.ends()

    skipped = {}
    return skipped, *calmly(run)


@pytest.mark.parametrize("name", SAYS)
def test_processes_go_on_by_their_parts_while_a_store_cannot_write_and_by_it_when_it_can(name, run):
    skipped, team, said = run
    if name not in team.logs:
        pytest.skip(" ".join(skipped.values()))
    verdict = team.judge(name)
    assert verdict.excess <= 0
    assert verdict.most_inside <= PLACES
    assert all(each[name]["lost"] and each[name]["regained"] for each in said)
    reasons = [why for each in said for why in each[name]["reasons"]]
    assert any(SAYS[name] in why for why in reasons), reasons
    for begin, end in ((0, BROKEN), (BROKEN + 0.8, MENDED), (END - 1, END)):
        assert verdict.between(begin, end) >= 0.3 * RATE * (end - begin)
