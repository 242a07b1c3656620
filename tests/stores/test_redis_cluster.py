"""The store on a real cluster of three primaries; and ready clients, users with few rights, warnings."""

import asyncio
import json
import logging
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path

import pytest
import redis
import redis.asyncio
import valkey
from click.testing import CliRunner
from redis.cluster import ClusterNode

from faults.rig import Server, free_port
from headgate import BackoffWindow, Dispatch, TokenBudget
from headgate.cli.app import main
from headgate.errors import StoreError
from headgate.sharing import redis_connection
from headgate.sharing.redis import RedisStore
from patience import News, eventually, happens
from stores.on_redis import DAY, SECOND, on, question

KEYS = [f"spread {n}" for n in range(30)] + ["", "}", "}b", "\0", "a}b", "{", "ключ"]


def on_all(cluster, command):
    """What each server of the cluster replies."""
    replies = []
    for server in cluster.servers:
        with closing(server.client()) as client:
            replies.append(client.execute_command(*command.split()))
    return replies


def test_pools_lie_on_all_primaries_and_are_found_there(cluster):
    async def scenario(store):
        before = set(await store.keys())
        answers = await asyncio.gather(*(store.ask(key, question("a", wants=[3, 0])) for key in KEYS))
        assert [given["places"] for given in answers] == [3] * len(KEYS)
        assert set(await store.keys()) - before == set(KEYS)
        assert [(await store.look(key)).members["a"].wants[0] for key in KEYS] == [3] * len(KEYS)

    on(cluster, scenario)
    for keys in on_all(cluster, "KEYS headgate:{spread*"):
        assert 3 < len(keys) < 30


def test_all_records_of_a_group_lie_on_one_primary(cluster):
    """Groups whose names have braces, too."""

    async def scenario(store):
        for group in ("plain", "", "}", "a}b", "\0"):
            changes = {name: ("", f"text of {name}", DAY) for name in ("one", "two", "}")}
            written = await store.swap(group, changes, "mark")
            assert written.swapped
            assert written.current["two"] == ("mark", "text of two")

    on(cluster, scenario)


def test_news_go_to_the_listeners_of_one_shard_only(cluster):
    async def scenario(store):
        events = {key: News() for key in KEYS}
        for key, event in events.items():
            await store.listen(key, event.set)
        for event in events.values():
            await happens(event)
        for key, event in events.items():
            await store.ask(key, question("b", window=60 * SECOND))
            await happens(event)
            assert not any(other.is_set() for other in events.values())
        channels = on_all(cluster, "PUBSUB SHARDCHANNELS headgate:*")
        assert sum(map(len, channels)) == len(KEYS)
        assert all(channels)
        assert not any(on_all(cluster, "PUBSUB CHANNELS headgate:*"))

    on(cluster, scenario)


def test_a_listener_to_a_key_of_another_primary_is_added_while_others_listen(cluster):
    async def scenario(store):
        for key in KEYS[:6]:
            event = News()
            await store.listen(key, event.set)
            await happens(event)
            await store.ask(key, question("late", window=90 * SECOND))
            await happens(event)

    on(cluster, scenario)


def test_a_cluster_without_channels_of_shards_tells_news_by_ordinary_ones():
    """As Redis 6.2 is. A cluster of one server, which has all slots."""
    commands = [option for name in ("SSUBSCRIBE", "SPUBLISH") for option in ("--rename-command", name, "")]
    with Server("--cluster-enabled", "yes", "--cluster-port", str(free_port()), *commands) as server:
        with closing(server.client()) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")
        server.url = f"redis+cluster://127.0.0.1:{server.port}"

        async def scenario(store):
            news = News()
            await store.listen("k", news.set)
            await happens(news)
            await store.ask("k", question(window=60 * SECOND))
            await happens(news)

        on(server, scenario)


def test_a_url_of_one_server_of_a_cluster_says_what_to_write_instead(cluster):
    async def main():
        store = RedisStore(cluster.servers[0].url)
        asks = [store.ask(key, question()) for key in KEYS]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        await store.close()
        (why,) = {str(error) for error in answers if isinstance(error, StoreError)}
        assert "is one server of a cluster, and another has this key; write redis+cluster://" in why
        assert any(not isinstance(given, StoreError) for given in answers)

    asyncio.run(main())


def test_a_server_that_is_not_a_cluster_says_so_under_the_url_of_one(server):
    async def main():
        store = RedisStore(f"redis+cluster://127.0.0.1:{server.port}")
        try:
            with pytest.raises(StoreError, match="cluster support disabled"):
                await store.ask("k", question())
        finally:
            await store.close()

    asyncio.run(main())


def test_gates_windows_and_budgets_share_over_a_cluster(cluster):
    url = cluster.url
    with (
        Dispatch("over a cluster", rates=["1000/hour burst 100"], concurrency=2, store=url) as one,
        Dispatch("over a cluster", rates=["1000/hour burst 100"], concurrency=2, store=url) as other,
        BackoffWindow(store=url, key="over a cluster") as window,
    ):
        with one.admit(timeout=5), other.admit(timeout=5):
            assert one.snapshot().in_flight == other.snapshot().in_flight == 1
        window.set(60, reason="429")
        eventually(lambda: one.window.remaining and other.window.remaining, "the window is heard")
    with TokenBudget(100, store=url, key="tokens") as mine:
        mine.record_usage(40)
        with TokenBudget(100, store=url, key="tokens") as theirs:
            eventually(lambda: theirs.remaining_budget == 60, "the use is known")


def test_headgate_watch_shows_pools_of_all_primaries(cluster):
    keys = [f"watched {n}" for n in range(9)]  # other tests have made pools without units
    with ExitStack() as stack:
        for n, key in enumerate(keys):
            stack.enter_context(Dispatch(key, concurrency=n + 1, store=cluster.url))
        done = CliRunner().invoke(main, ["watch", cluster.url, *keys, "--once", "--json"])
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)
    assert shown["store"] == cluster.url
    assert [shown["pools"][key]["places"]["limit"] for key in keys] == list(range(1, 10))


# -- ready clients


def ready(cluster, server):
    first = cluster.servers[0].port
    return {
        "redis": redis.Redis(port=server.port),
        "redis asyncio": redis.asyncio.Redis(port=server.port),
        "valkey": valkey.Valkey(port=server.port),
        "valkey asyncio": valkey.asyncio.Valkey(port=server.port),
        "redis cluster": redis.RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", first)]),
        "redis asyncio cluster": redis.asyncio.RedisCluster(host="127.0.0.1", port=first),
        "valkey cluster": valkey.ValkeyCluster(host="127.0.0.1", port=first),
    }


def test_the_store_of_a_ready_client_connects_by_itself_and_leaves_the_client_open(cluster, server):
    """Sync and async clients of redis-py and valkey-py, of one server and of a cluster."""
    clients = ready(cluster, server)
    for name, client in clients.items():
        key = f"ready {name}"
        url = cluster.url if "cluster" in name else server.url
        with (
            Dispatch(key, concurrency=1, store=client) as gate,
            Dispatch(key, concurrency=1, store=url) as other,
        ):
            with gate.admit(timeout=5):
                assert other.try_admit() is None
            with other.admit(timeout=5):
                pass
        if "asyncio" not in name:
            assert client.ping()
            client.close()


def test_breakers_and_budgets_take_a_ready_client(server):
    with closing(redis.Redis(port=server.port)) as client, TokenBudget(100, store=client, key="c") as mine:
        mine.record_usage(40)
        with TokenBudget(100, store=server.url, key="c") as theirs:
            eventually(lambda: theirs.remaining_budget == 60, "the use is known")


# -- users with few rights, and warnings

GUIDE = Path(__file__).parents[2] / "docs" / "sharing.md"
# The rights on a single server, and those that a cluster needs besides.
RIGHTS = [
    line.split()[3:] for line in GUIDE.read_text("utf-8").splitlines() if line.startswith("ACL SETUSER")
]


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_a_user_with_the_rights_of_the_guide_can_do_everything(cluster, server, kind):
    """Ask, listen, keep records, find pools; and nothing else."""
    first, more = RIGHTS
    rights = first if kind == "server" else first + more
    servers = [server] if kind == "server" else cluster.servers
    for each in servers:
        with closing(each.client()) as admin:
            admin.execute_command("ACL", "SETUSER", "few", "reset", *rights)
    url = server.url if kind == "server" else cluster.url
    url = url.replace("://", "://few:password@")
    with (
        Dispatch("few", rates=["1000/hour burst 100"], concurrency=2, store=url) as one,
        Dispatch("few", rates=["1000/hour burst 100"], concurrency=2, store=url) as other,
    ):
        with one.admit(timeout=5), other.admit(timeout=5):
            pass
        other.window.set(60, reason="429")
        eventually(lambda: one.window.remaining, "the window is heard")
        with TokenBudget(100, store=url, key="few") as budget:
            budget.record_usage(40)

    async def look():
        async with AsyncExitStack() as stack:
            store = RedisStore(url)
            stack.push_async_callback(store.close)
            assert "few" in await store.keys()
            assert (await store.look("few")).rates

    asyncio.run(look())
    for each in servers:
        with closing(each.client()) as admin:
            denied = [entry["object"] for entry in admin.acl_log()]
            admin.acl_log_reset()
        assert denied == []


def test_a_server_that_may_delete_pools_is_warned_about_once(server, client, caplog, monkeypatch):
    monkeypatch.setattr(redis_connection, "_warned", set())
    with caplog.at_level(logging.WARNING, "headgate"):
        for policy in ("noeviction", "allkeys-lru", "volatile-ttl"):
            client.config_set("maxmemory-policy", policy)
            try:
                for _ in range(2):
                    on(server, lambda store: store.ask("warned", question()))
            finally:
                client.config_set("maxmemory-policy", "noeviction")
    (message,) = (record.getMessage() for record in caplog.records if "maxmemory" in record.msg)
    assert "allkeys-lru" in message
    assert "set it to noeviction" in message
