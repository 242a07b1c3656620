"""URLs of Valkey and Redis, and the errors of a server that cannot be used."""

import asyncio
import subprocess
import sys

import pytest

from faults.rig import Server, free_port
from headgate.errors import InvalidConfig, StoreError
from headgate.gate.clock import SYSTEM
from headgate.sharing.redis import RedisStore
from headgate.sharing.store import open_store, plain_name
from stores.on_redis import on, question


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://limits.internal/0", "redis://limits.internal/0"),
        ("redis://:s3cret@host:6380/1", "redis://host:6380/1"),
        ("rediss://me:s3cret@host/1?password=s3cret", "rediss://host/1"),
        ("redis://host/0?password=s3cret", "redis://host/0"),
        ("redis://:s3/cret@host/0", "redis://…"),
        ("redis://:s3#cret@host/0", "redis://…"),
        ("redis://:s3?cret@host/0", "redis://…"),
        ("redis://:s3@cret@host/0", "redis://host/0"),
        ("unix://me:s3cret@/run/valkey.sock?db=1", "unix:///run/valkey.sock"),
        ("redis://s3cret@host/0", "redis://host/0"),
        ("s3cret", "…"),
        ("sqlite:////var/tmp/a@b.db", "sqlite:////var/tmp/a@b.db"),
        ("memory:x", "memory:x"),
    ],
)
def test_the_password_is_never_shown(url, shown):
    assert plain_name(url) == shown


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://:s3cret@host:port/0", "host or port"),
        ("redis://:s3#cret@host/0", "host or port"),
        ("redis://[::1/0", "host or port"),
        ("redis://:s3cret@host:99999/0", "host or port"),
        ("redis:///0", "names no server"),
        ("redis://host/limits", "not the number of a database"),
        ("redis://host/0?socket_timeout=s3cret", "options"),
        ("redis://host/0?pasword=s3cret", "options"),
        ("redis://host/0?protocol=9", "options"),
        ("redis:host", "not the URL"),
        ("http://s3cret@host", "not the URL"),
    ],
)
def test_a_url_that_cannot_work_is_refused_at_once(url, why):
    """The error says what was given, why it cannot work and what to write instead."""
    with pytest.raises(InvalidConfig, match=why) as caught:
        RedisStore(url)
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "redis://user:password@host:6379/0" in str(caught.value)


def why_not(url, **options):
    async def main():
        store = RedisStore(url, **options)
        try:
            with pytest.raises(StoreError) as caught:
                await store.ask("k", question())
        finally:
            await store.close()
        return str(caught.value)

    return asyncio.run(main())


def test_a_wrong_password_port_or_database_is_named_without_the_password():
    with Server("--requirepass", "right") as guarded:
        where = f"127.0.0.1:{guarded.port}"
        for credentials in (":wr0ng@", "unknown:wr0ng@", ""):
            why = why_not(f"redis://{credentials}{where}/0")
            assert f"{where}/0 does not let us in" in why
            assert "wr0ng" not in why
        why = why_not(f"redis://:right@{where}/999")
        assert f"redis://{where}/999 cannot answer: DB index is out of range" in why
    unused = free_port()
    assert f"redis://127.0.0.1:{unused} cannot be reached" in why_not(f"redis://:wr0ng@127.0.0.1:{unused}")


def test_a_key_of_another_program_is_not_overwritten(server, client):
    client.rpush("headgate:{list}", "theirs")
    client.set("headgate:{text}", "theirs")
    client.set("headgate:{layout}", b"\x91\x63")  # an array that says it is of layout 99

    async def scenario(store):
        for key in ("list", "text", "layout"):
            with pytest.raises(StoreError, match="cannot answer"):
                await store.ask(key, question())

    on(server, scenario)
    assert client.get("headgate:{text}") == b"theirs"


def test_redis_and_valkey_urls_open_the_same_store_with_and_without_tls(server):
    for scheme in ("redis", "valkey"):
        store = open_store(f"{scheme}://127.0.0.1:{server.port}/0", SYSTEM)
        assert isinstance(store, RedisStore)

        async def scenario(store=store):
            assert await store.ask("schemes", question())
            await store.close()

        asyncio.run(scenario())
    for scheme in ("rediss", "valkeys"):  # with TLS, which this server does not speak
        assert f"{scheme}://127.0.0.1" in why_not(
            f"{scheme}://127.0.0.1:{server.port}/0", timeout=0.1, connect_timeout=0.1
        )


def test_a_unix_socket_url_opens_a_store(tmp_path):
    path = tmp_path / "valkey.sock"
    with Server("--unixsocket", str(path)):
        store = RedisStore(f"unix://{path}?db=0")

        async def scenario():
            assert await store.ask("socket", question())
            await store.close()

        asyncio.run(scenario())


def test_without_the_client_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "redis.asyncio", None)
    with pytest.raises(InvalidConfig, match=r'pip install "headgate\[redis\]"'):
        RedisStore("redis://host/0")


def test_importing_the_store_does_not_import_redis_py():
    program = "import sys, headgate.sharing.redis; print('redis' in sys.modules)"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
