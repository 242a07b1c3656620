"""A real cluster and a real sentinel whose primaries die, stop, hand over and move their slots."""

import asyncio
import time
from contextlib import closing, suppress

import pytest
import redis

from faults.rig import Cluster, Sentinels
from faults.units import SECOND, charged, opened, question, take
from headgate import Dispatch
from headgate.errors import StoreError
from headgate.events import StoreLost, StoreRegained
from headgate.sharing.redis_cluster import slot_of
from headgate.testing import Recorder
from patience import News, eventually, happens
from stores.processes import Processes
from stores.test_sharing import times_of, worst_excess


@pytest.fixture(scope="module")
def cluster():
    """Three primaries and a replica of the first. Tests bring it back to that before they end."""
    with Cluster("--cluster-require-full-coverage", "no", replica=True) as cluster:
        yield cluster


def keys_of(cluster, server, count=1):
    """Keys of this server that no test has used."""
    found = []
    for n in range(10_000):
        key = f"{server.port} {time.monotonic_ns()} {n}"
        if cluster.owner(f"headgate:{{{key}}}") is server:
            found.append(key)
            if len(found) == count:
                return found
    raise AssertionError("no key of this server")


def pair(cluster):
    """The primary that has a replica, and the replica."""
    for server in cluster.servers:
        with closing(server.client()) as client:
            info = client.info("replication")
        if info["role"] == "slave":
            return next(each for each in cluster.servers if each.port == info["master_port"]), server
    raise AssertionError("there is no replica")


def follows(server):
    """Whether this server is a replica, and has what its primary has."""
    with suppress(redis.ConnectionError), closing(server.client()) as client:  # it cuts connections meanwhile
        info = client.info("replication")
        return info["role"] == "slave" and info["master_link_status"] == "up"
    return False


def test_a_primary_of_a_cluster_that_dies_is_replaced_by_its_replica(cluster):
    """Questions go to the new primary, which does not know the scripts; and so does the listener."""
    primary, replica = pair(cluster)
    (key,) = keys_of(cluster, primary)

    async def main():
        news = News()
        async with opened(cluster.url) as store, opened(cluster.url) as other:
            await store.listen(key, news.set)
            await happens(news)
            await take(store, "a", range(20), key)
            with closing(primary.client()) as client:
                client.wait(1, 1_000)  # until the replica has it
            primary.kill()
            await take(store, "a", range(20, 40), key)
            assert cluster.owner(f"headgate:{{{key}}}") is replica
            await happens(news)  # the listener is there too
            await other.ask(key, question("b", window=60 * SECOND))
            await happens(news)
        assert await charged(cluster.url, key) == 40

    try:
        asyncio.run(main())
    finally:
        primary.start()
        eventually(lambda: follows(primary), "it follows its successor")


def test_a_primary_of_a_cluster_that_hands_over_loses_and_doubles_nothing(cluster):
    """CLUSTER FAILOVER, while two members take units."""
    primary, replica = pair(cluster)
    (key,) = keys_of(cluster, primary)

    async def main():
        async with opened(cluster.url) as one, opened(cluster.url) as two:
            taking = asyncio.gather(take(one, "one", range(200), key), take(two, "two", range(200), key))
            with closing(replica.client()) as client:
                client.execute_command("CLUSTER", "FAILOVER")
            await taking
            await asyncio.to_thread(eventually, lambda: follows(primary), "it has handed over")
            await asyncio.gather(take(one, "one", [200], key), take(two, "two", [200], key))
        assert await charged(cluster.url, key) == 402

    asyncio.run(main())


@pytest.mark.alone
def test_processes_stay_within_the_limit_while_a_primary_dies_and_is_replaced(cluster):
    """Three processes on 200/s. What the primary granted last may not have reached its replica."""
    primary, replica = pair(cluster)
    (key,) = keys_of(cluster, primary)
    options = {"store": cluster.url, "key": key, "rates": ["200/s"], "tasks": 20}
    fleet = Processes("sharer.py", [options] * 3)
    fleet.tell_all(5)
    fleet.wait_until(1.5)
    primary.kill()
    try:
        results = fleet.results()
        times = times_of(results, fleet.begin)
        assert cluster.owner(f"headgate:{{{key}}}") is replica
    finally:
        primary.start()
        eventually(lambda: follows(primary), "it follows its successor")
    assert worst_excess(times, 200, 200) <= 0
    assert sum(4 <= at < 5 for at in times) >= 150  # the new primary is asked


def test_a_server_of_a_cluster_that_stops_holds_up_only_its_own_keys(cluster):
    """SIGSTOP for less than the cluster needs to notice it."""
    stopped = cluster.servers[1]
    (stuck,) = keys_of(cluster, stopped)
    (free,) = keys_of(cluster, cluster.servers[2])

    async def main():
        async with opened(cluster.url) as store:
            await asyncio.gather(take(store, "a", [0], stuck), take(store, "a", [0], free))
            stopped.stop()
            try:
                waits = asyncio.create_task(store.ask(stuck, question("a", 1, batches=[[1]])))
                for number in range(1, 21):
                    given = await asyncio.wait_for(store.ask(free, question("a", number)), 0.3)
                    assert given["members"] == 1
                assert not waits.done()
            finally:
                stopped.go_on()
            assert (await waits)["starts"] == [0]

    asyncio.run(main())


def test_slots_that_move_to_another_server_take_their_pools_and_listeners_along(cluster):
    """While a slot moves, servers answer ASK; afterwards MOVED."""
    source, target = cluster.servers[1:3]
    (key,) = keys_of(cluster, source)
    name = f"headgate:{{{key}}}"
    slot = slot_of(name.encode())

    async def main():
        news = News()
        async with opened(cluster.url) as store:
            await store.listen(key, news.set)
            await happens(news)
            await take(store, "a", range(10), key)
            with closing(source.client()) as old, closing(target.client()) as new:
                ids = [client.execute_command("CLUSTER", "MYID") for client in (old, new)]
                new.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
                old.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
                await take(store, "a", range(10, 20), key)  # it is still there
                old.execute_command("MIGRATE", "127.0.0.1", target.port, name, 0, 1_000)
                await take(store, "a", range(20, 30), key)  # ASK
                for client in (new, old):
                    client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
            await take(store, "a", range(30, 40), key)  # MOVED
            await happens(news)
            await store.ask(key, question("a", 50, window=60 * SECOND))
            await happens(news)
        assert await charged(cluster.url, key) == 40

    asyncio.run(main())


def test_a_cluster_is_found_although_the_first_server_of_the_url_is_down(cluster):
    primary, _ = pair(cluster)
    others = [server for server in cluster.servers if server is not primary]
    url = "redis+cluster://127.0.0.1:1," + ",".join(f"127.0.0.1:{server.port}" for server in others[:1])

    async def main():
        async with opened(url) as store:
            await take(store, "a", range(5), *keys_of(cluster, primary))

    asyncio.run(main())


def test_a_cluster_of_which_no_server_answers_is_an_error(cluster):
    async def main():
        async with opened("redis+cluster://127.0.0.1:1,127.0.0.1:2") as store:
            with pytest.raises(
                StoreError, match=r"redis\+cluster://127.0.0.1:1,127.0.0.1:2 cannot be reached"
            ):
                await store.ask("k", question("a", 1))

    asyncio.run(main())


# -- sentinels


@pytest.fixture(scope="module")
def sentinels():
    with Sentinels() as sentinels:
        yield sentinels


def test_a_primary_that_a_sentinel_replaces_is_left_for_the_new_one(sentinels):
    """First by command, when the old primary answers READONLY; then by kill -9. A gate notices the second."""

    async def hand_over():
        news = News()
        async with opened(sentinels.url) as store:
            await store.listen("k", news.set)
            await happens(news)
            await take(store, "a", range(50))
            await asyncio.to_thread(sentinels.hand_over)
            taking = asyncio.create_task(take(store, "a", range(50, 100)))
            await asyncio.to_thread(
                eventually, lambda: sentinels.named() == sentinels.replica.port, "it names the other"
            )
            await taking
            await take(store, "a", range(100, 110))
            await happens(news)
            await store.ask("k", question("a", 200, window=60 * SECOND))
            await happens(news)
        # Those of the last moment may be lost with the old primary.
        assert 100 <= await charged(sentinels.url) <= 110

    asyncio.run(hand_over())
    eventually(lambda: follows(sentinels.primary), "the old primary follows")

    told = Recorder()
    with Dispatch("gate", concurrency=2, store=sentinels.url, observer=told) as gate:
        with gate.admit(timeout=5):
            with closing(sentinels.sentinel.client()) as sentinel:
                # The gate asks once a second, and would not notice a failover in between.
                sentinel.execute_command("SENTINEL", "SET", "limits", "down-after-milliseconds", 2_500)
            sentinels.replica.kill()  # the primary by now
            eventually(lambda: told.of(StoreLost), "the loss is noticed")
        eventually(lambda: told.of(StoreRegained), "the new primary answers")
        assert sentinels.named() == sentinels.primary.port
        with gate.admit(timeout=5):
            pass


def test_sentinels_that_do_not_know_the_name_are_an_error(sentinels):
    async def main():
        async with opened(sentinels.url.replace("/limits", "/others")) as store:
            with pytest.raises(StoreError, match="No master found for 'others'"):
                await store.ask("k", question("a", 1))

    asyncio.run(main())
