"""`keys` and `look` of every kind of store: what they show, and that they change nothing."""

import asyncio
import json
import os
import sqlite3
from contextlib import closing
from uuid import uuid4

import pytest

from faults.rig import Server
from headgate import Dispatch
from headgate.errors import StoreError
from headgate.sharing.memory import MemoryStore
from headgate.sharing.pool.view import view_of
from headgate.sharing.postgres import PostgresStore
from headgate.sharing.redis import LOOK, RedisStore
from headgate.sharing.sqlite import SqliteStore
from patience import eventually

KEYS = ["api.openai.com", "ключ {}", "a:{b}", "it's 100%_*", "line\nbreak"]


class Looker:
    """An onlooker of a store, with an event loop of its own; and gates that share by that store."""

    def __init__(self, store, where=None):
        self._store = store
        self._where = where or store
        self._loop = asyncio.Runner()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._loop.run(self._store.close())
        self._loop.close()

    def keys(self):
        return self._loop.run(self._store.keys())

    def look(self, key):
        return self._loop.run(self._store.look(key))

    def gate(self, key, **options):
        rates = ["600/minute burst 100", "6000 tokens/hour burst 1000"]
        return Dispatch(key, rates=rates, store=self._where, **options)


def in_memory(request):
    return Looker(MemoryStore())


def in_a_file(request):
    return looking_at(request.getfixturevalue("tmp_path") / "limits ?#%.db")


def looking_at(path):
    url = f"sqlite:///{path}"
    return Looker(SqliteStore(url), url)


def on_a_server(request):
    server = request.getfixturevalue("server")
    with closing(server.client()) as client:
        client.flushall()
    return Looker(RedisStore(server.url), server.url)


def in_a_database(request):
    url = request.getfixturevalue("postgres")
    asyncio.run(_make_empty(url))
    return Looker(PostgresStore(url), url)


async def _make_empty(url):
    store = PostgresStore(url)
    await store.swap("group", {}, "")  # makes the table
    await (await store._connected()).execute("TRUNCATE headgate_state")
    await store.close()


@pytest.fixture(params=[in_memory, in_a_file, on_a_server, in_a_database])
def store(request):
    with request.param(request) as looker:
        yield looker


def test_look_shows_what_a_gate_has_told_its_pool(store):
    gate = store.gate("api", concurrency=64, byte_budget=None)
    with gate.admit(tokens=700, timeout=5):
        seen = view_of(store.look("api"))
    assert [str(level.rate) for level in seen.levels] == [
        "600 requests/minute burst 100",
        "6000 tokens/hour burst 1000",
    ]
    assert seen.levels[1].level <= 900 - 700
    assert (seen.places.limit, seen.bytes.limit, seen.window) == (64, 0, 0)
    assert [member.name.split("-")[-2] for member in seen.members] == [str(os.getpid())]
    gate.close()


def test_look_shows_a_window(store):
    gate = store.gate("api", pause=True)
    gate.set_backoff(60)
    eventually(lambda: view_of(store.look("api")).window, "it is told")
    assert 50 < view_of(store.look("api")).window / 1e6 <= 60
    assert view_of(store.look("api")).waits[0].startswith("window: ")
    gate.close()


def test_keys_with_any_characters_are_found(store):
    for key in KEYS:
        store.gate(key).close()
    assert sorted(store.keys()) == sorted(KEYS)
    for key in KEYS:
        assert store.look(key).units == ["requests", "tokens"]
    assert store.look(uuid4().hex) is None


def test_look_changes_nothing(store):
    """Two looks differ by the time alone."""
    gate = store.gate("api", concurrency=5)
    gate.close()
    eventually(
        lambda: not any(any(member.holds) for member in store.look("api").members.values()),
        "it has returned what it held",
    )
    before, after = store.look("api"), store.look("api")
    assert after.now >= before.now
    for seen in (before, after):
        seen.now, seen.members = 0, {}
    assert before == after


# -- in a file


def test_look_makes_no_file(tmp_path):
    with looking_at(tmp_path / "none.db") as store:
        with pytest.raises(StoreError, match="does not exist"):
            store.keys()
        with pytest.raises(StoreError, match="does not exist"):
            store.look("api")
    assert not list(tmp_path.iterdir())


def test_look_leaves_a_file_of_another_program_alone(tmp_path):
    path = tmp_path / "other.db"
    path.write_bytes(b"a diary" * 500)
    with looking_at(path) as store, pytest.raises(StoreError, match="cannot be read as a store"):
        store.keys()
    assert path.read_bytes() == b"a diary" * 500


def test_look_at_a_state_that_cannot_be_read_is_a_store_error(tmp_path):
    path = tmp_path / "limits.db"
    with looking_at(path) as store:
        store.gate("api").close()
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("UPDATE pools SET state = '[]'")
        with pytest.raises(StoreError, match="'api' cannot be read"):
            store.look("api")


# -- on a server


def test_the_script_of_look_only_reads(server):
    """It touches its declared key only."""
    assert "redis.call('TIME')" in LOOK
    assert LOOK.count("redis.") == 2
    assert "redis.pcall('GET', KEYS[1])" in LOOK


def test_keys_of_other_programs_on_the_server_are_not_pools(server):
    with closing(server.client()) as client:
        client.flushall()
        client.set("headgate:{text}", "hello")
        client.rpush("headgate:{list}", 1)
        client.set("headgate:{api}:news", "x")
        client.set("other:{api}", "x")
    with Looker(RedisStore(server.url)) as store:
        assert store.keys() == ["list", "text"]
        assert store.look("text") is None
        assert store.look("list") is None


@pytest.mark.parametrize("password", ["wrong", "s3cret"])
def test_look_at_a_server_with_a_password_does_not_show_it(password):
    with (
        Server("--requirepass", "s3cret") as server,
        Looker(RedisStore(f"redis://:{password}@127.0.0.1:{server.port}/0")) as store,
    ):
        if password == "s3cret":
            assert store.keys() == []
            return
        for ask in (store.keys, lambda: store.look("api")):
            with pytest.raises(StoreError, match="does not let us in") as raised:
                ask()
            assert "wrong" not in str(raised.value)


def test_thousands_of_keys_are_all_found(server):
    with closing(server.client()) as client:
        client.flushall()
        client.mset({f"headgate:{{{number}}}": json.dumps(number) for number in range(3_000)})
    with Looker(RedisStore(server.url)) as store:
        assert len(store.keys()) == 3_000
