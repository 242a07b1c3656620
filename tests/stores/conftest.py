"""Stores of every kind: their URLs, and opened. One server serves all tests of a file."""

from contextlib import closing

import pytest

from faults.rig import Cluster, Server
from headgate.sharing.memory import MemoryStore
from headgate.sharing.postgres import PostgresStore
from headgate.sharing.redis import RedisStore
from headgate.sharing.sqlite import SqliteStore
from patience import PATIENCE


@pytest.fixture(scope="module")
def server():
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    """A plain client of redis-py, to look at the server from outside."""
    with closing(server.client()) as client:
        yield client


@pytest.fixture
def memory(tmp_path):
    return f"memory:{tmp_path}"


@pytest.fixture
def sqlite(tmp_path):
    return f"sqlite:///{tmp_path / 'limits.db'}"


@pytest.fixture
def valkey(server):
    return server.url


@pytest.fixture(scope="session")
def cluster():
    """A cluster of three primaries, for all tests of this process."""
    with Cluster() as cluster:
        yield cluster


@pytest.fixture
def valkey_cluster(cluster):
    return cluster.url


@pytest.fixture
def postgres(postgres_server):
    return postgres_server.url


@pytest.fixture(params=["sqlite", "valkey", "postgres"])
def store(request):
    """The URL of a store that processes can share."""
    return request.getfixturevalue(request.param)


@pytest.fixture(params=["memory", "sqlite", "valkey", "postgres"])
def any_store(request):
    return request.getfixturevalue(request.param)


def in_memory(request):
    store = MemoryStore()
    return lambda: store


def in_a_file(request):
    url = request.getfixturevalue("sqlite")
    return lambda: SqliteStore(url)


def on_a_server(request):
    url = request.getfixturevalue("valkey")
    return lambda: RedisStore(url)


def on_a_cluster(request):
    url = request.getfixturevalue("cluster").url
    return lambda: RedisStore(url)


def in_a_database(request):
    url = request.getfixturevalue("postgres")
    return lambda: PostgresStore(url, timeout=PATIENCE, connect_timeout=PATIENCE)  # the machine may be busy


PLACES = {
    "memory": in_memory,
    "sqlite": in_a_file,
    "redis": on_a_server,
    "cluster": on_a_cluster,
    "postgres": in_a_database,
}


@pytest.fixture(params=PLACES)
def opened(request):
    """Return a function that opens a store of one kind, as another process would."""
    return PLACES[request.param](request)
