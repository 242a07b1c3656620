"""A real server that is killed, stopped, emptied and flushed, and a line that loses, doubles and cuts.

Time is the server's own here, so nothing is said about how fast. What is counted is counted on a rate that
gives back one unit in 86 seconds: whatever is charged stays charged for as long as a test takes.
"""

import asyncio
import json
import threading
from contextlib import asynccontextmanager, closing, suppress
from functools import partial

import pytest

import pool_questions
from faults.rig import Proxy, Server, free_port
from headgate.errors import StoreError
from headgate.sharing import redis as room
from headgate.sharing.redis import RedisStore
from patience import eventually, happens

SECOND = 1_000_000
DAY = 86_400 * SECOND
SLOW = [[1_000, DAY, 1_000]]  # of which 900 may be booked at once


@pytest.fixture
def server():
    with Server() as server:
        yield server


@pytest.fixture
def line(server):
    with Proxy(server.port) as line:
        yield line


question = partial(pool_questions.question, rates=SLOW)


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


async def charged(url, key="k"):
    """How many units of the slow rate are gone, asked over a line of its own. Takes the rest."""
    async with opened(url) as store:
        given = await store.ask(key, question("auditor", 1, batches=[[1]] * 1_000))
        return 900 - given["starts"].count(0)


EVER = 1 << 52  # a stamp that is later than any


async def take(store, member, numbers, key="k"):
    """One unit by each question; what could not be asked is asked again, by the same number."""
    for number in numbers:
        asked = question(member, number, batches=[[1]])
        for _ in range(200):
            try:
                given = await store.ask(key, asked)
            except StoreError:
                await asyncio.sleep(0.01)
            else:
                assert given["starts"] == [0]
                break
        else:
            raise AssertionError("never answered")


# -- the line


@pytest.mark.parametrize("fault", ["lose", "twice", "pass"])
def test_a_reply_lost_after_the_decision_is_asked_for_again_and_decided_once(server, line, fault):
    """B14: exactly once by id, without anybody above the store noticing."""

    async def main():
        async with opened(line.url) as store:
            for number in range(100):
                line.faults.extend([fault, "pass"] if fault == "lose" else [fault])
                assert (await store.ask("k", question("a", number, batches=[[1]])))["starts"] == [0]
        assert await charged(server.url) == 100

    asyncio.run(main())


def test_when_the_second_reply_is_lost_too_it_is_an_error_and_still_decided_once(server, line):
    """B14: the outcome was unknown; by the same id it is the same answer."""

    async def main():
        async with opened(line.url) as store:
            asked = question("a", 1, batches=[[5]])
            line.faults.extend(["lose", "lose"])
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.ask("k", asked)
            assert (await store.ask("k", asked))["starts"] == [0]
        assert await charged(server.url) == 5

    asyncio.run(main())


def test_a_reply_that_never_comes_is_an_error_in_time(server, line):
    """B14, B16: the line is up and silent. Asked again, over a new line: decided once."""

    async def main():
        async with opened(line.url, timeout=0.1) as store:
            asked = question("a", 1, batches=[[5]])
            line.faults.append("mute")
            with pytest.raises(StoreError, match="does not answer in time"):
                await store.ask("k", asked)
            assert (await store.ask("k", asked))["starts"] == [0]
        assert await charged(server.url) == 5

    asyncio.run(main())


def test_a_goodbye_whose_reply_was_lost_gives_back_once(server, line):
    """B14, B19: what a member gives back as it leaves must not be given back again by the retry."""

    async def main():
        async with opened(line.url) as store:
            await take(store, "a", range(10))
            line.faults.append("lose")
            await store.ask("k", question("a", 10, returned=[[[3, EVER]]], leaves=True))
        assert await charged(server.url) == 7

    asyncio.run(main())


def test_a_question_that_arrives_after_the_next_one_is_not_decided(server):
    """B14, B16: as when a stopped server goes on, and reads the line that was given up after the new one."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", range(10))
            given_up = question("a", 10, returned=[[[3, EVER]]])
            await store.ask("k", given_up)
            await store.ask("k", question("a", 11))
            with closing(server.client()) as client:  # and now the first copy of it is read
                client.eval(room.SCRIPT, 1, "headgate:{k}", json.dumps(given_up), room.CONSTANTS)
        assert await charged(server.url) == 7

    asyncio.run(main())


def test_a_line_that_is_cut_all_the_time_loses_and_doubles_nothing(server, line):
    """B14: two members, each on its own line, cut at any moment."""

    async def main():
        async with opened(line.url) as one, opened(line.url) as two:
            done = asyncio.Event()

            async def cut():
                while not done.is_set():
                    await asyncio.to_thread(line.cut)
                    await asyncio.sleep(0.003)

            cutting = asyncio.create_task(cut())
            await asyncio.gather(take(one, "one", range(60)), take(two, "two", range(60)))
            done.set()
            await cutting
        assert await charged(server.url) == 120

    asyncio.run(main())


def test_a_slow_line_is_not_a_broken_one(server, line):
    async def main():
        line.delay = 0.03
        async with opened(line.url) as store:
            await asyncio.gather(*(take(store, f"m{n}", [1]) for n in range(200)))
        assert line.asked < 400  # they travelled together, but for the first
        assert await charged(server.url) == 200

    asyncio.run(main())


def test_a_dead_line_is_an_error_for_everyone_who_waits(server, line):
    """B16: whoever came while the first was waiting does not wait for a timeout of its own."""

    async def main():
        async with opened(line.url, timeout=0.1, connect_timeout=0.1) as store:
            await take(store, "a", [0])
            line.dead = True
            asks = [store.ask("k", question(f"m{n}", 1)) for n in range(300)]
            for reply in await asyncio.gather(*asks, return_exceptions=True):
                assert isinstance(reply, StoreError)
            line.dead = False
            await take(store, "a", [1])

    asyncio.run(main())


# -- the server


def test_a_script_that_is_forgotten_is_sent_again(server):
    """B13: SCRIPT FLUSH every few milliseconds."""

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


def test_a_stopped_server_is_an_error_in_time_and_what_it_does_later_is_done_once(server):
    """B16, B14: SIGSTOP. It reads the question when it goes on, whoever has hung up by then."""

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


def test_a_server_stopped_before_the_first_question(server):
    """B16: the kernel accepts connections for it."""

    async def main():
        async with opened(server.url, timeout=0.1, connect_timeout=0.1) as store:
            server.stop()
            with pytest.raises(StoreError, match="does not answer in time"):
                await store.ask("k", question("a", 1))
            server.go_on()
            await take(store, "a", [1])

    asyncio.run(main())


def test_a_server_that_comes_back_with_its_data_has_counted_everything(server):
    """B12: killed in the middle of it, twice."""

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
def test_a_pool_that_is_lost_begins_anew_with_the_limits_of_whoever_asks(server, loss):
    """B12: at most the burst once more, and no error."""

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
    """B12: maxmemory with a policy that throws anything away."""

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


def test_a_server_without_memory_says_so_and_changes_nothing(server):
    """B12: noeviction. Neither a wrong answer nor a decision that was not kept."""

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


def test_a_primary_that_became_a_replica_is_left_for_whoever_has_its_name_now(server):
    """B12: after a failover the old line leads to a server that may not write."""

    async def main():
        async with opened(server.url) as store:
            await take(store, "a", [1])
            with closing(server.client()) as client:
                client.execute_command("REPLICAOF", "127.0.0.1", "1")
                with pytest.raises(StoreError, match="cannot answer"):
                    await store.ask("k", question("a", 2))
                eventually(lambda: len(client.client_list(_type="normal")) == 1, "the line is down")
                client.execute_command("REPLICAOF", "NO", "ONE")
            await take(store, "a", [2])

    asyncio.run(main())


def test_a_cluster_of_one_decides_as_a_single_server():
    """B13: one slot for each key, and nothing undeclared."""
    with (
        Server("--cluster-enabled", "yes", "--cluster-port", str(free_port())) as cluster,
        closing(cluster.client()) as client,
    ):
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: client.cluster("INFO")["cluster_state"] == "ok", "the cluster is up")

        async def main():
            news = asyncio.Event()
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


# -- listening


def test_a_listener_is_told_after_every_loss_of_its_line(server, line):
    """DESIGN rule 7: what happened meanwhile was not heard, so whoever listens has to look."""

    async def main():
        news = asyncio.Event()
        async with opened(line.url) as store, opened(server.url) as other:
            await store.listen("k", news.set)
            await happens(news)
            for number in range(3):
                await asyncio.to_thread(line.cut)
                await happens(news)
                await other.ask("k", question("b", number, window=(number + 1) * SECOND))
                await happens(news)
            line.open = False
            await asyncio.to_thread(line.cut)
            await other.ask("k", question("b", 9, window=60 * SECOND))
            assert not news.is_set()
            line.open = True
            await happens(news)

    asyncio.run(main())


def test_a_listener_survives_a_restart_of_the_server(server):
    async def main():
        news = asyncio.Event()
        async with opened(server.url) as store:
            await store.listen("k", news.set)
            await happens(news)
            await asyncio.to_thread(server.restart)
            await happens(news)
            await store.ask("k", question("a", 1, window=SECOND))
            await happens(news)

    asyncio.run(main())


def test_a_listener_whose_line_died_silently_notices(server, line, monkeypatch):
    """B16: no reset, no end: only silence. It looks after a while, here a shorter one."""
    monkeypatch.setattr(room, "_QUIET", 0.05)

    async def main():
        news = asyncio.Event()
        async with opened(line.url, timeout=0.1, connect_timeout=0.1) as store:
            await store.listen("k", news.set)
            await happens(news)
            line.dead = True
            await asyncio.sleep(0.3)  # it hangs up in the meantime, and finds nobody
            line.dead = False
            await happens(news)

    asyncio.run(main())


def test_a_listener_may_be_there_before_the_server(server):
    server.kill()

    async def main():
        news = asyncio.Event()
        async with opened(server.url) as store:
            await store.listen("k", news.set)
            with pytest.raises(StoreError, match="cannot be reached"):
                await store.ask("k", question("a", 1))
            await asyncio.to_thread(server.start)
            await happens(news)

    asyncio.run(main())


def test_closing_while_the_server_is_stopped_takes_nobody_down(server):
    async def main():
        async with opened(server.url, timeout=0.1, connect_timeout=0.1) as store:
            await store.listen("k", lambda: None)
            await take(store, "a", [1])
            server.stop()
            waiting = asyncio.create_task(store.ask("k", question("a", 2)))
            await asyncio.sleep(0)
            await store.close()
            with suppress(StoreError):
                await waiting
        server.go_on()

    asyncio.run(main())
