"""The store for Valkey and Redis, on a real server: questions, news, closing, loops and forks."""

import asyncio
import gc
import json
import re
import subprocess
import sys
import textwrap
from contextlib import closing

import pytest

from headgate.errors import StoreError
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from headgate.sharing.redis import SCRIPT, RedisStore
from patience import News, happens
from stores.on_redis import DAY, SECOND, START, on, question


def test_a_pool_remembers_its_members_and_what_they_hold(server):
    async def scenario(store):
        first = await store.ask("kept", question(batches=[[10]] * 8, wants=[4, 0], limits=[10, 0, 0, 0]))
        assert first["starts"][:4] == [0, 0, 0, 0]
        assert 0 < first["starts"][4] <= 50_000
        assert (first["places"], first["members"]) == (4, 1)
        second = await store.ask("kept", question("b", 2, wants=[9, 0], version=first["version"]))
        assert (second["places"], second["members"]) == (6, 2)
        assert "rates" not in second

    on(server, scenario)


def test_keys_do_not_share(server):
    """Keys with braces, colons, spaces and other alphabets."""
    keys = ["plain", "a}b", "{", "}", "a b:c", "ключ", "\ud800", ""]

    async def scenario(store):
        for key in keys:
            assert (await store.ask(key, question()))["members"] == 1

    on(server, scenario)


def test_questions_that_are_sent_together_get_their_own_answers(server):
    async def scenario(store):
        asks = [store.ask(f"together {n % 7}", question(f"m{n}", n, wants=[n, 0])) for n in range(300)]
        answers = await asyncio.gather(*asks)
        assert [given["places"] for given in answers] == list(range(300))

    on(server, scenario)


def test_a_question_that_fails_does_not_fail_those_sent_with_it(server):
    async def scenario(store):
        asks = [store.ask("mixed", question(f"m{n}", batches=[[2**60 if n == 3 else 1]])) for n in range(6)]
        answers = await asyncio.gather(*asks, return_exceptions=True)
        assert [isinstance(given, StoreError) for given in answers] == [n == 3 for n in range(6)]

    on(server, scenario)


def test_a_cancelled_question_does_not_disturb_those_sent_with_it(server):

    async def scenario(store):
        tasks = [asyncio.ensure_future(store.ask("cancelled", question(f"m{n}"))) for n in range(9)]
        await asyncio.sleep(0)
        tasks[4].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers.pop(4), asyncio.CancelledError)
        assert len({given["version"] for given in answers}) == 1

    on(server, scenario)


def test_units_taken_through_two_stores_are_counted_once_each(server):
    """500 units of a slow rate, as two processes would take them."""

    async def scenario(store):
        other = RedisStore(server.url)
        slow = {"rates": [[1_000, DAY, 1_000]]}
        try:
            for n in range(25):
                await asyncio.gather(
                    *(
                        one.ask("two", question(name, n, batches=[[10]], **slow))
                        for one, name in ((store, "a"), (other, "b"))
                    )
                )
            assert await used(store, "two", **slow) == 500
        finally:
            await other.close()

    on(server, scenario)


async def used(store, key, rates):
    """Return how many units of a slow rate of 1,000 are gone, of which 900 fit at once. Takes the rest."""
    given = await store.ask(key, question("auditor", batches=[[1]] * 1_000, rates=rates))
    return 900 - given["starts"].count(0)


def test_only_the_declared_key_and_its_channel_are_touched(server):
    """A user who may touch nothing else can ask and listen."""
    with closing(server.client()) as admin:
        admin.execute_command(
            *("ACL", "SETUSER", "gate", "reset", "on", ">secret", "~headgate:{acl}", "&headgate:{acl}:news"),
            *(
                "+@scripting",
                "+@connection",
                "+get",
                "+set",
                "+time",
                "+publish",
                "+subscribe",
                "+unsubscribe",
                "+ping",
            ),
        )

    async def main():
        store = RedisStore(f"valkey://gate:secret@127.0.0.1:{server.port}/0")
        news = News()
        try:
            await store.listen("acl", news.set)
            await happens(news)
            await store.ask("acl", question(window=SECOND))
            await happens(news)
            with pytest.raises(StoreError):
                await store.ask("another", question())
        finally:
            await store.close()

    asyncio.run(main())
    calls = re.findall(r"redis\.p?call\('(\w+)'(?:, ([^)]*?))?[,)]", SCRIPT)
    assert sorted(command for command, _ in calls) == ["GET", "PUBLISH", "SET", "SPUBLISH", "TIME"]


def test_a_user_who_may_not_publish_is_still_answered(server):
    with closing(server.client()) as admin:
        admin.execute_command(
            "ACL", "SETUSER", "quiet", "reset", "on", ">secret", "~*", "resetchannels", "+@all", "-publish"
        )

    async def main():
        store = RedisStore(f"redis://quiet:secret@127.0.0.1:{server.port}/0")
        try:
            assert (await store.ask("quiet", question(window=SECOND)))["window_left"] == SECOND
        finally:
            await store.close()

    asyncio.run(main())


def test_the_server_deletes_a_pool_a_minute_after_it_is_idle(server, client):
    """The time to live of the key is `idle_for` and a minute."""
    for number, facts in enumerate(
        [
            {"lease": 5 * SECOND},
            {"rates": [[1, 3_600 * SECOND, 1]], "batches": [[1]]},
            {"window": 600 * SECOND, "limits": [0, 0, 0, 10 * SECOND]},
            {"rates": [[1, 3_600 * SECOND, 1]], "batches": [[1]], "leaves": True},
        ]
    ):
        pool = Pool()
        answer(pool, question(**facts), START)
        expected = pool.idle_for() // 1_000 + 60_000

        async def scenario(store, key=f"ttl {number}", facts=facts):
            await store.ask(key, question(**facts))

        on(server, scenario)
        left = client.pttl(f"headgate:{{ttl {number}}}")
        assert expected - 20_000 < left <= expected


def test_a_window_and_new_limits_reach_every_listener(server):
    async def scenario(store):
        other = RedisStore(server.url)
        ours, theirs = News(), News()
        try:
            await store.listen("news", ours.set)
            await other.listen("news", theirs.set)
            await happens(ours)  # the connection is there
            await happens(theirs)
            for number, change in enumerate(
                [{}, {"window": SECOND}, {"set": [[[5, SECOND, 5]], [1, 1, 1, 1]]}, {"window": -1}]
            ):
                await store.ask("news", question(number=number, **change))
                await happens(theirs)
                await happens(ours)
        finally:
            await other.close()

    on(server, scenario)


def test_a_question_that_changes_neither_window_nor_limits_is_not_published(server):
    async def scenario(store):
        heard = []
        up = News()
        await store.ask("silence", question(number=1))
        await store.listen("silence", lambda _news: (heard.append(1), up.set()))
        await happens(up)
        for number in range(2, 20):
            await store.ask("silence", question(number=number, batches=[[1]]))
        await store.ask("silence", question(number=20, window=SECOND))
        await happens(up)
        assert len(heard) == 2

    on(server, scenario)


def test_listeners_of_many_keys_share_one_connection(server, client):
    async def scenario(store):
        events = {f"shared {n}": News() for n in range(20)}
        before = client.info("clients")["connected_clients"]
        for key, event in events.items():
            await store.listen(key, event.set)
            await asyncio.sleep(0)
        for event in events.values():
            await happens(event)
        late = News()
        await store.listen("shared late", late.set)
        await happens(late)
        for key, event in events.items():
            await store.ask(key, question(window=SECOND))
            await happens(event)
        assert client.info("clients")["connected_clients"] <= before + 2

    on(server, scenario)


def test_a_listener_that_fails_does_not_silence_the_others(server):
    async def scenario(store):
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
        news = News()
        await store.listen("failing", lambda _news: 1 / 0)
        await store.listen("failing", news.set)
        await happens(news)
        await store.ask("failing", question(window=SECOND))
        await happens(news)
        assert {type(error) for error in told} == {ZeroDivisionError}

    on(server, scenario)


def test_after_close_every_question_gets_a_store_error(server):
    async def main():
        store = RedisStore(server.url)
        asks = [asyncio.ensure_future(store.ask("closing", question(f"m{n}"))) for n in range(200)]
        await asyncio.sleep(0)
        await store.close()
        for reply in await asyncio.gather(*asks, return_exceptions=True):
            assert isinstance(reply, StoreError)
        with pytest.raises(StoreError, match="was closed"):
            await store.ask("closing", question())
        with pytest.raises(StoreError, match="was closed"):
            await store.listen("closing", print)
        await store.close()
        assert repr(store) == f"<RedisStore {server.url}, closed>"

    asyncio.run(main())


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_store_used_on_another_loop_connects_again_and_still_listens(server):
    """The courier's loop ends with `retire`, and may begin again without the store being closed."""
    store = RedisStore(server.url)

    async def first():
        up = News()
        heard.append(up.set)
        await store.listen("loops", lambda _news: [act() for act in heard])
        await happens(up)
        assert await store.ask("loops", question(number=1))

    async def second():
        up = News()
        heard[:] = [up.set]
        assert await store.ask("loops", question(number=2))
        await happens(up)
        await store.close()

    heard = []
    asyncio.run(first())
    asyncio.run(second())
    gc.collect()


def test_a_forked_child_has_its_own_connections_and_leaves_those_of_the_parent_alone(server):
    """Also when it drops the store, collects it and ends as usual."""
    program = f"""
        import gc, json, os, sys, threading
        from headgate.sharing.courier import COURIER
        from headgate.sharing.redis import RedisStore

        def ask(member, number, **facts):
            asked = {{**json.loads({json.dumps(question())!r}), "member": member, "id": number, **facts}}
            return COURIER.wait_for(lambda: store.ask("fork", asked), 10)

        store, heard = RedisStore({server.url!r}), threading.Event()
        COURIER.wait_for(lambda: store.listen("fork", lambda _news: heard.set()), 10)
        assert heard.wait(10)
        assert ask("parent", 1)["members"] == 1
        for _ in range(2):
            child = os.fork()
            if not child:
                assert ask("child", os.getpid())["members"] >= 2
                COURIER.wait_for(store.close, 10)
                del store
                gc.collect()
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        lazy = os.fork()
        if not lazy:  # one that never asks
            del store
            gc.collect()
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(lazy, 0)[1]) == 0
        heard.clear()
        assert ask("parent", 2, window=1000000)["members"] == 2
        assert heard.wait(10)
        COURIER.wait_for(store.close, 10)
        print("done")
    """
    done = subprocess.run(
        [sys.executable, "-I", "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
