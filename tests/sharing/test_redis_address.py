"""Which servers a URL or a ready client means. Nothing is connected."""

import logging
from types import SimpleNamespace

import pytest
import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.sentinel
import valkey
import valkey.asyncio.sentinel
import valkey.sentinel
from redis.asyncio.connection import Connection, SSLConnection, UnixDomainSocketConnection

from headgate.errors import InvalidConfig
from headgate.sharing.redis import RedisStore
from headgate.sharing.redis_address import address_of
from headgate.sharing.redis_cluster import slot_of
from headgate.sharing.store import open_store, plain_name


def read(where):
    return address_of(where, "store", timeout=1, connect_timeout=2)


def class_of(address):
    return address.settings.get("connection_class", Connection)


@pytest.mark.parametrize("name", ["redis", "valkey"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_url_of_a_cluster_names_several_servers(name, tls):
    url = f"{name}{'s' * tls}+cluster://me:s3%40cret@one:7000,two,[::1]:7002?client_name=jobs"
    address = read(url)
    assert address.kind == "cluster"
    assert address.hosts == (("one", 7000), ("two", 6379), ("::1", 7002))
    assert class_of(address) is (SSLConnection if tls else Connection)
    assert {key: address.settings[key] for key in ("username", "password", "client_name")} == {
        "username": "me",
        "password": "s3@cret",
        "client_name": "jobs",
    }
    assert "cret" not in address.shown
    assert "cret" not in repr(address)
    assert address.client(("one", 7000)).connection_pool.connection_kwargs["host"] == "one"


@pytest.mark.parametrize("name", ["redis", "valkey"])
@pytest.mark.parametrize("tls", [False, True])
def test_a_url_of_sentinels_names_the_primary_and_the_passwords_of_both(name, tls):
    options = "sentinel_username=watch&sentinel_password=w%20d&socket_timeout=3"
    address = read(f"{name}{'s' * tls}+sentinel://:pw@one,two:26380/the%20limits/2?{options}")
    assert address.kind == "sentinel"
    assert address.hosts == (("one", 26379), ("two", 26380))
    assert address.primary == "the limits"
    assert (address.settings["db"], address.settings["password"]) == (2, "pw")
    assert address.settings["socket_timeout"] == 3
    assert (address.sentinel_settings["username"], address.sentinel_settings["password"]) == ("watch", "w d")
    pool = address.client().connection_pool
    assert pool.service_name == "the limits"
    assert ("SSL" in pool.connection_class.__name__) is tls
    sentinel = pool.sentinel_manager.sentinels[1].connection_pool
    assert (sentinel.connection_kwargs["host"], sentinel.connection_kwargs["port"]) == ("two", 26380)
    assert ("SSL" in sentinel.connection_class.__name__) is tls


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis://one:1,two:2", "several servers"),
        ("redis+cluster://:s3cret@one:port,two", "host or port"),
        ("redis+cluster://one,,two", "names no server"),
        ("redis+cluster://one/1", "database other than 0"),
        ("redis+cluster://one/limits", "not the number"),
        ("redis+cluster://one?protokol=2", "options"),
        ("redis+sentinel://one:26379", "does not name the primary"),
        ("redis+sentinel://one:26379/limits/first", "not the number"),
        ("redis+sentinel://one/limits?sentinel_pasword=s3cret", "options"),
        ("redis+replica://one", "not the URL"),
        ("unix+cluster:///run/valkey.sock", "not the URL"),
    ],
)
def test_a_url_of_several_servers_that_cannot_work_is_refused_at_once(url, why):
    with pytest.raises(InvalidConfig, match=why) as caught:
        RedisStore(url)
    assert "cret" not in str(caught.value)
    assert "; write e.g. redis" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis+cluster://:s3cret@one:1,two:2", "redis+cluster://one:1,two:2"),
        (
            "rediss+sentinel://me:s3cret@one:1,two:2/limits?sentinel_password=s3cret",
            "rediss+sentinel://one:1,two:2/limits",
        ),
    ],
)
def test_a_url_of_several_servers_is_shown_without_its_password(url, shown):
    assert plain_name(url) == open_store(url, None).url == shown


CLIENTS = {
    "redis": redis.Redis,
    "redis asyncio": redis.asyncio.Redis,
    "valkey": valkey.Valkey,
    "valkey asyncio": valkey.asyncio.Valkey,
}


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_a_ready_client_tells_its_server_and_its_password(make):
    address = read(make(host="one", port=7000, db=3, username="me", password="s3cret", decode_responses=True))
    assert (address.kind, address.hosts, address.shown) == ("", (("one", 7000),), "redis://one:7000/3")
    kept = {key: address.settings[key] for key in ("username", "password", "db", "socket_timeout")}
    assert kept == {"username": "me", "password": "s3cret", "db": 3, "socket_timeout": 1}
    assert "decode_responses" not in address.settings
    assert class_of(address) is Connection


@pytest.mark.parametrize("make", CLIENTS.values(), ids=CLIENTS)
def test_a_ready_client_tells_its_certificates_or_its_socket(make):
    tls = read(
        make(host="one", ssl=True, ssl_ca_certs="/ca.crt", ssl_certfile="/own.crt", ssl_cert_reqs="none")
    )
    assert class_of(tls) is SSLConnection
    kept = {key: tls.settings[key] for key in ("ssl_ca_certs", "ssl_certfile", "ssl_cert_reqs")}
    assert kept == {"ssl_ca_certs": "/ca.crt", "ssl_certfile": "/own.crt", "ssl_cert_reqs": "none"}
    assert tls.shown == "rediss://one:6379/0"
    socket = read(make(unix_socket_path="/run/valkey.sock"))
    assert class_of(socket) is UnixDomainSocketConnection
    assert socket.client().connection_pool.connection_kwargs["path"] == "/run/valkey.sock"


@pytest.mark.parametrize(
    "room", [redis.sentinel, redis.asyncio.sentinel, valkey.sentinel, valkey.asyncio.sentinel]
)
def test_a_ready_client_of_sentinels_tells_them_and_the_primary(room):
    sentinels = room.Sentinel(
        [("one", 26379), ("two", 26380)], sentinel_kwargs={"password": "w"}, password="pw", db=1
    )
    address = read(sentinels.master_for("limits"))
    assert (address.kind, address.primary) == ("sentinel", "limits")
    assert address.hosts == (("one", 26379), ("two", 26380))
    assert (address.settings["password"], address.settings["db"]) == ("pw", 1)
    assert address.sentinel_settings["password"] == "w"
    assert address.shown == "redis+sentinel://one:26379,two:26380/limits"


@pytest.mark.parametrize("room", [redis.asyncio.cluster, valkey.asyncio.cluster])
@pytest.mark.parametrize("tls", [False, True])
def test_a_ready_client_of_a_cluster_tells_its_first_servers(room, tls):
    make = room.RedisCluster if room is redis.asyncio.cluster else room.ValkeyCluster
    nodes = [room.ClusterNode("one", 7000), room.ClusterNode("two", 7001)]
    address = read(make(startup_nodes=nodes, password="pw", ssl=tls, address_remap=lambda _: ("here", 1)))
    assert (address.kind, address.hosts) == ("cluster", (("one", 7000), ("two", 7001)))
    assert address.settings["password"] == "pw"
    assert class_of(address) is (SSLConnection if tls else Connection)
    assert address.remap(("10.0.0.1", 6379)) == ("here", 1)


def test_a_client_whose_settings_cannot_be_taken_over_is_refused():
    with pytest.raises(InvalidConfig, match="ssl_validate_ocsp"):
        open_store(redis.Redis(host="one", ssl=True, ssl_validate_ocsp=True), None)

    pool = SimpleNamespace(connection_kwargs={}, connection_class=object)
    with pytest.raises(InvalidConfig, match="does not tell where its server is"):
        open_store(SimpleNamespace(execute_command=None, connection_pool=pool), None)


@pytest.mark.parametrize(
    "key", ["plain", "{tag}rest", "headgate:{a}b}", "headgate:{}x", "x{", "}{", "", "ключ"]
)
def test_the_slot_of_a_key_is_that_of_redis_py(key):
    assert slot_of(key.encode()) == redis.crc.key_slot(key.encode())


def test_no_password_is_logged(caplog):
    caplog.set_level(logging.DEBUG)
    open_store("redis+cluster://:s3cret@one", None)
    assert "cret" not in caplog.text
