"""A real server that is killed, stopped, emptied and flushed, and a proxy that loses, doubles and cuts.

The time is that of the server, so no speed is asserted. Units are counted on a rate that earns one in 86
seconds: what is charged stays charged for as long as a test takes.
"""

import asyncio
import json
import threading
from contextlib import closing, suppress

import pytest

from faults.rig import Proxy, Server, free_port
from faults.units import SECOND, charged, opened, question, take
from headgate import Dispatch
from headgate.errors import StoreError
from headgate.events import StoreLost, StoreRegained
from headgate.sharing import redis as redis_store
from headgate.testing import Recorder
from patience import News, eventually, happens


@pytest.fixture
def server():
    with Server() as server:
        yield server


@pytest.fixture
def proxy(server):
    with Proxy(server.port) as proxy:
        yield proxy


LATEST = 1 << 52  # a stamp that is later than any


# -- the connection


@pytest.mark.parametrize("fault", ["lose", "twice", "pass"])
def test_a_question_whose_reply_is_lost_is_sent_again_and_decided_once(server, proxy, fault):
    """The caller of the store notices nothing."""

    async def main():
        async with opened(proxy.url) as store:
            for number in range(100):
                proxy.faults.extend([fault, "pass"] if fault == "lose" else [fault])
                assert (await store.ask("k", question("a", number, batches=[[1]])))["starts"] == [0]
        assert await charged(server.url) == 100

    asyncio.run(main())


def test_a_question_whose_reply_is_lost_twice_is_an_error_and_decided_once(server, proxy):
    """Whether it was decided is unknown; asked again by the same id, it gets the same answer."""

    async def main():
        async with opened(proxy.url) as store:
            asked = question("a", 1, batches=[[5]])
            proxy.faults.extend(["lose", "lose"])
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.ask("k", asked)
            assert (await store.ask("k", asked))["starts"] == [0]
        assert await charged(server.url) == 5

    asyncio.run(main())


def test_a_reply_that_never_comes_is_an_error_within_the_timeout(server, proxy):
    """The connection is there and silent. Asked again over a new one, the question is decided once."""

    async def main():
        async with opened(proxy.url, timeout=0.1) as store:
            asked = question("a", 1, batches=[[5]])
            proxy.faults.append("mute")
            with pytest.raises(StoreError, match="does not answer in time"):
                await store.ask("k", asked)
            assert (await store.ask("k", asked))["starts"] == [0]
        assert await charged(server.url) == 5

    asyncio.run(main())


def test_a_last_question_whose_reply_is_lost_returns_units_once(server, proxy):

    async def main():
        async with opened(proxy.url) as store:
            await take(store, "a", range(10))
            proxy.faults.append("lose")
            await store.ask("k", question("a", 10, returned=[[[3, LATEST]]], leaves=True))
        assert await charged(server.url) == 7

    asyncio.run(main())


def test_a_question_that_arrives_after_the_next_one_is_not_decided(server):
    """As when a stopped server goes on, and reads the connection that was given up after the new one."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", range(10))
            given_up = question("a", 10, returned=[[[3, LATEST]]])
            await store.ask("k", given_up)
            await store.ask("k", question("a", 11))
            with closing(server.client()) as client:  # the first copy of it arrives
                client.eval(
                    redis_store.SCRIPT, 1, "headgate:{k}", json.dumps(given_up), redis_store.CONSTANTS
                )
        assert await charged(server.url) == 7

    asyncio.run(main())


def test_connections_that_are_cut_all_the_time_lose_and_double_nothing(server, proxy):
    """Two members, each with its own connection, cut at any moment."""

    async def main():
        async with opened(proxy.url) as one, opened(proxy.url) as two:
            done = News()

            async def cut():
                while not done.is_set():
                    await asyncio.to_thread(proxy.cut)
                    await asyncio.sleep(0.003)

            cutting = asyncio.create_task(cut())
            await asyncio.gather(take(one, "one", range(60)), take(two, "two", range(60)))
            done.set()
            await cutting
        assert await charged(server.url) == 120

    asyncio.run(main())


def test_a_slow_connection_is_not_taken_for_a_broken_one(server, proxy):
    async def main():
        proxy.delay = 0.03
        async with opened(proxy.url) as store:
            await asyncio.gather(*(take(store, f"m{n}", [1]) for n in range(200)))
        assert proxy.asked < 400  # all but the first were sent together
        assert await charged(server.url) == 200

    asyncio.run(main())


def test_a_dead_connection_is_an_error_for_all_questions_that_wait(server, proxy):
    """Questions that came later do not wait for a timeout of their own."""

    async def main():
        async with opened(proxy.url, timeout=0.1, connect_timeout=0.1) as store:
            await take(store, "a", [0])
            proxy.dead = True
            asks = [store.ask("k", question(f"m{n}", 1)) for n in range(300)]
            for reply in await asyncio.gather(*asks, return_exceptions=True):
                assert isinstance(reply, StoreError)
            proxy.dead = False
            await take(store, "a", [1])

    asyncio.run(main())


# -- the server


def test_a_script_that_the_server_forgot_is_sent_again(server):
    """SCRIPT FLUSH every few milliseconds."""

    async def main():
        done = threading.Event()

        def flush():
            with closing(server.client()) as client:
                while not done.wait(0.002):
                    client.script_flush()

        flusher = threading.Thread(target=flush)
        flusher.start()
        try:
            async with opened(server.url) as one, opened(server.url) as two:
                await asyncio.gather(
                    *(take(one, f"one {n}", range(50)) for n in range(4)),
                    *(take(two, f"two {n}", range(50)) for n in range(4)),
                )
        finally:
            done.set()
            flusher.join()
        assert await charged(server.url) == 400

    asyncio.run(main())


def test_a_stopped_server_is_an_error_in_time_and_decides_once_when_it_goes_on(server):
    """SIGSTOP. It reads the question when it goes on, although the connection was closed."""

    async def main():
        async with opened(server.url, timeout=0.15, connect_timeout=0.15) as store:
            await take(store, "a", range(10))
            server.stop()
            asked = question("a", 10, batches=[[1]])
            for _ in range(3):
                with pytest.raises(StoreError, match="does not answer in time"):
                    await store.ask("k", asked)
            server.go_on()
            await take(store, "a", [10])
        assert await charged(server.url) == 11

    asyncio.run(main())


def test_a_server_that_is_stopped_before_the_first_question_is_an_error_in_time(server):
    """The kernel accepts connections for it."""

    async def main():
        async with opened(server.url, timeout=0.1, connect_timeout=0.1) as store:
            server.stop()
            with pytest.raises(StoreError, match="does not answer in time"):
                await store.ask("k", question("a", 1))
            server.go_on()
            await take(store, "a", [1])

    asyncio.run(main())


def test_a_killed_server_that_comes_back_with_its_data_has_counted_every_unit(server):
    """Killed twice between questions."""

    async def main():
        async with opened(server.url) as store:
            taking = asyncio.create_task(take(store, "a", range(300)))
            for _ in range(2):
                await asyncio.sleep(0.03)
                await asyncio.to_thread(server.restart)
            await taking
        assert await charged(server.url) == 300

    asyncio.run(main())


@pytest.mark.parametrize("loss", ["restart", "flushall", "expired"])
def test_a_pool_that_is_lost_begins_anew_with_the_limits_of_the_next_member(server, loss):
    """At most the burst once more, and no error."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", range(50))
            if loss == "restart":
                await asyncio.to_thread(server.restart, data=False)
            else:
                with closing(server.client()) as client:
                    client.flushall() if loss == "flushall" else client.pexpire("headgate:{k}", 1)
                    eventually(lambda: not client.exists("headgate:{k}"), "it is gone")
            given = await store.ask("k", question("b", 1, rates=[[7, SECOND, 7]], batches=[[1]]))
            assert (given["members"], given["rates"]) == (1, [[7, SECOND, 7]])

    asyncio.run(main())


def test_a_pool_that_was_evicted_begins_anew(server):
    """maxmemory, with a policy that evicts any key."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", range(5))
            with closing(server.client()) as client:
                client.config_set("maxmemory-policy", "allkeys-random")
                client.config_set("maxmemory", client.info("memory")["used_memory"] + 200_000)
                for number in range(5_000):
                    client.set(f"other {number}", "x" * 1_000)
                    if not client.exists("headgate:{k}"):
                        break
                else:
                    raise AssertionError("never evicted")
            assert (await store.ask("k", question("a", 6)))["members"] == 1

    asyncio.run(main())


def test_a_server_without_memory_is_an_error_and_changes_nothing(server):
    """noeviction: neither a wrong answer nor a decision that was not kept."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", range(5))
            with closing(server.client()) as client:
                client.config_set("maxmemory", 1)
                with pytest.raises(StoreError, match="cannot answer"):
                    await store.ask("k", question("a", 5, batches=[[1]]))
                client.config_set("maxmemory", 0)
            await take(store, "a", [5])
        assert await charged(server.url) == 6

    asyncio.run(main())


def test_a_primary_that_became_a_replica_is_left_for_the_server_that_has_its_name(server):
    """After a failover the old connection leads to a server that may not write."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", [1])
            with closing(server.client()) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                with pytest.raises(StoreError, match="cannot answer"):
                    await store.ask("k", question("a", 2))
                eventually(lambda: len(client.client_list(_type="normal")) == 1, "the proxy is down")
                client.execute_command("REPLICAOF", "NO", "ONE")
            await take(store, "a", [2])

    asyncio.run(main())


def test_a_cluster_of_one_node_decides_like_a_single_server():
    """All keys of a script are in one slot, and all are declared."""
    with (
        Server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as cluster,
        closing(cluster.client()) as client,
    ):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")

        async def main():
            news = News()
            async with opened(cluster.url) as store:
                for key in ("k", "l", "m"):
                    await take(store, "a", range(5), key)
                await store.listen("k", news.set)
                await happens(news)
                await store.ask("k", question("a", 9, window=SECOND))
                await happens(news)
                client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
                with pytest.raises(StoreError):
                    await store.ask("k", question("a", 10))

        asyncio.run(main())


@pytest.mark.parametrize(("fault", "says"), [("maxmemory", "maxmemory"), ("REPLICAOF", "read only replica")])
def test_a_gate_goes_on_by_its_part_while_the_server_cannot_write(server, fault, says):
    """The loss is told with what the server said, and so is its end."""
    told = Recorder()
    with (
        closing(server.client()) as admin,
        Dispatch("k", rates=["200/s burst 20"], store=server.url, observer=told) as gate,
    ):
        if fault == "maxmemory":
            admin.config_set("maxmemory", 1)
        else:
            admin.execute_command("REPLICAOF", "127.0.0.1", "1")
        for _ in range(60):  # more than the burst
            with gate.admit(timeout=10):
                pass
        (lost,) = told.of(StoreLost)
        assert says in lost.reason
        if fault == "maxmemory":
            admin.config_set("maxmemory", 0)
        else:
            admin.execute_command("REPLICAOF", "NO", "ONE")
        eventually(lambda: told.of(StoreRegained), "its end is told")
        with gate.admit(timeout=10):
            pass


def test_a_gate_at_a_read_only_replica_is_refused_when_it_is_made(server):
    with closing(server.client()) as admin:
        admin.execute_command("REPLICAOF", "127.0.0.1", "1")
    with pytest.raises(StoreError, match=r"127.0.0.1:\d+/0 cannot answer: .*read only replica"):
        Dispatch("k", concurrency=10, store=server.url)


# -- listening


def test_a_listener_is_called_after_every_loss_of_its_connection(server, proxy):
    """What happened in between was not heard, so the listener has to look."""

    async def main():
        news = News()
        async with opened(proxy.url) as store, opened(server.url) as other:
            await store.listen("k", news.set)
            await happens(news)
            for number in range(3):
                await asyncio.to_thread(proxy.cut)
                await happens(news)
                await other.ask("k", question("b", number, window=(number + 1) * SECOND))
                await happens(news)
            proxy.open = False
            await asyncio.to_thread(proxy.cut)
            await other.ask("k", question("b", 9, window=60 * SECOND))
            assert not news.is_set()
            proxy.open = True
            await happens(news)

    asyncio.run(main())


def test_a_listener_survives_a_restart_of_the_server(server):
    async def main():
        news = News()
        async with opened(server.url) as store:
            await store.listen("k", news.set)
            await happens(news)
            await asyncio.to_thread(server.restart)
            await happens(news)
            await store.ask("k", question("a", 1, window=SECOND))
            await happens(news)

    asyncio.run(main())


def test_a_listener_notices_a_connection_that_died_silently(server, proxy, monkeypatch):
    """No reset and no end, only silence. It asks the server after a while, here a shorter one."""
    monkeypatch.setattr(redis_store, "_QUIET", 0.05)

    async def main():
        news = News()
        async with opened(proxy.url, timeout=0.1, connect_timeout=0.1) as store:
            await store.listen("k", news.set)
            await happens(news)
            proxy.dead = True
            await asyncio.sleep(0.3)  # it closes the connection, and finds no server
            proxy.dead = False
            await happens(news)

    asyncio.run(main())


def test_a_listener_may_be_started_before_the_server(server):
    server.kill()

    async def main():
        news = News()
        async with opened(server.url) as store:
            await store.listen("k", news.set)
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.ask("k", question("a", 1))
            await asyncio.to_thread(server.start)
            await happens(news)

    asyncio.run(main())


def test_a_store_can_be_closed_while_the_server_is_stopped(server):
    async def main():
        async with opened(server.url, timeout=0.1, connect_timeout=0.1) as store:
            await store.listen("k", lambda _news: None)
            await take(store, "a", [1])
            server.stop()
            waiting = asyncio.create_task(store.ask("k", question("a", 2)))
            await asyncio.sleep(0)
            await store.close()
            with suppress(StoreError):
                await waiting
        server.go_on()

    asyncio.run(main())
