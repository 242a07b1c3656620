"""The store in PostgreSQL: poolers, processes that are stopped or killed, forks, and errors."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from functools import partial
from uuid import uuid4

import pytest

import pool_questions
from faults.postgres import PgBouncer, PostgresServer
from forks import in_a_child, needs_fork
from headgate import BackoffWindow, Dispatch
from headgate.errors import InvalidConfig, StoreError
from headgate.sharing import postgres as postgres_store
from headgate.sharing import postgres_connection
from headgate.sharing.pool.state import Pool
from headgate.sharing.postgres import PostgresStore
from patience import PATIENCE, News, eventually, happens

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
SLOW = [[1_000_000, YEAR, 1_000_000]]

question = partial(pool_questions.question, rates=SLOW, lease=600 * SECOND)


@pytest.fixture(scope="module")
def pgbouncer(postgres_server):
    with PgBouncer(postgres_server) as pooler:
        yield pooler


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


def on(url, scenario, stores=1, **options):
    async def main():
        many = [PostgresStore(url, **options) for _ in range(stores)]
        try:
            return await asyncio.wait_for(scenario(*many), 3 * PATIENCE)
        finally:
            for store in many:
                await store.close()

    return asyncio.run(main())


def missing(server, key):
    """Return how many units of the slow rate are gone, read from the table without the store."""
    query = "SELECT text, extract(epoch FROM clock_timestamp()) FROM headgate_state WHERE name = %s"
    ((text, now),) = server.query(query, key.encode())
    rate = Pool.unpacked(json.loads(text)).rates[0]
    return round((rate.full_at - float(now) * SECOND) * rate.amount / rate.period)


@pytest.fixture
def named(postgres):
    """The URL of the server, with a name for its connections."""
    return f"{postgres}?application_name={uuid4().hex}"


def connections(server, url):
    """Return how many connections of that name the server has."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"
    return server.query(query, url.rpartition("=")[2])[0][0]


# -- a pooler


def test_behind_pgbouncer_questions_are_decided_once_and_news_are_looked_for(pgbouncer, postgres_server, key):
    """In transaction mode: nothing is prepared, no lock outlives its transaction, and LISTEN is not used."""

    async def scenario(one, other):
        news = News()
        await other.listen(key, news.set)
        for number in range(20):
            await asyncio.gather(
                one.ask(key, question("a", number, batches=[[1]])),
                other.ask(key, question("b", number, batches=[[1]])),
            )
        async with asyncio.timeout(PATIENCE):
            while not other.polls:  # noqa: ASYNC110 - the store says it nowhere else
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        news.clear()
        await one.ask(key, question("a", 20, window=60 * SECOND))
        await happens(news)
        group = f"group {key}"
        await other.listen(group, news.set)
        await asyncio.sleep(0.1)
        news.clear()
        await one.swap(group, {"n": ("", "text", 60 * SECOND)}, "m1")
        await happens(news)

    on(pgbouncer.url, scenario, stores=2)
    assert missing(postgres_server, key) == 40


def test_behind_pgbouncer_a_listener_that_comes_while_another_one_listens_is_called_once(pgbouncer, key):
    """A member asks, then listens. What changed in between was told to the earlier listeners only."""

    async def scenario(store):
        earlier, later = News(), News()
        await store.ask(key, question("a", 1, window=60 * SECOND))
        await store.listen(key, earlier.set)
        await happens(earlier)
        await store.listen(key, later.set)
        await happens(later)

    on(pgbouncer.url, scenario)


def test_gates_behind_pgbouncer_share_their_window(pgbouncer, key):
    one, other = (BackoffWindow(store=pgbouncer.url, key=key) for _ in range(2))
    try:
        one.set(60)
        eventually(other.should_backoff, "the other hears of it")
    finally:
        one.close()
        other.close()


def test_without_a_pooler_news_are_sent_and_not_looked_for(postgres, key):
    async def scenario(one, other):
        news = News()
        await other.listen(key, news.set)
        await happens(news)  # it listens
        assert not other.polls
        for end in (60, 90):
            await one.ask(key, question(window=end * SECOND))
            await happens(news)

    on(postgres, scenario, stores=2)


# -- processes


ASKER = """
import asyncio, sys
from headgate.sharing.pool.question import empty_question
from headgate.sharing.postgres import PostgresStore

async def main(url, key, member):
    store, number = PostgresStore(url), 0
    year = 365 * 86_400 * 1_000_000
    asked = empty_question(member, 0, lease=600_000_000, rates=[[1_000_000, year, 1_000_000]])
    while True:
        number += 1
        given = await store.ask(key, {**asked, "batches": [[1]], "id": number})
        print(number, len(given["starts"]), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def start(url, key, member):
    return subprocess.Popen(
        [sys.executable, "-c", ASKER, url, key, member], stdout=subprocess.PIPE, text=True
    )


def test_every_unit_is_counted_although_processes_are_killed_and_stopped(postgres_server, named, key):
    """kill -9, and SIGSTOP, also inside a transaction, whose locks the server then takes away."""
    askers = [start(named, key, f"m{n}") for n in range(3)]
    try:
        for asker in askers:
            assert asker.stdout.readline() == "1 1\n"
        answered = 3
        for n in range(6):  # at arbitrary moments
            askers[0].send_signal(signal.SIGSTOP)
            assert askers[1 + n % 2].stdout.readline()
            answered += 1
            askers[0].send_signal(signal.SIGCONT)
            answered += bool(askers[0].stdout.readline())
        for asker in askers:
            asker.kill()
        for asker in askers:
            answered += sum(line.endswith(" 1\n") for line in asker.stdout.readlines())
    finally:
        for asker in askers:
            asker.kill()
            asker.wait(PATIENCE)
            asker.stdout.close()
    # The decision of a transaction that was sent whole counts, although its process is dead.
    eventually(lambda: connections(postgres_server, named) == 0, "the server has ended them")
    assert answered <= missing(postgres_server, key) <= answered + 3


def test_a_process_stopped_inside_a_transaction_holds_up_the_others_for_a_moment_only(postgres, key):
    """As if it were stopped there: it begins, and does not go on."""

    async def scenario(stopped, other):
        await stopped.ask(key, question("a", 1))
        holder = await stopped._connected()
        pool = postgres_store._id("pool", key)
        request = postgres_store._Request(postgres_store._lock(pool), [pool], None, None)
        await stopped._begin(holder, [request])
        began = time.monotonic()
        assert (await other.ask(key, question("b", 1, batches=[[1]])))["starts"] == [0]
        assert time.monotonic() - began < 0.9  # it does not wait until its own time is over
        assert (await stopped.ask(key, question("a", 2, batches=[[1]])))["starts"] == [0]

    on(postgres, scenario, stores=2)


def test_stores_that_are_opened_at_the_same_moment_make_one_table(postgres_server):
    postgres_server.query("CREATE DATABASE empty")
    url = postgres_server.url.rpartition("/")[0] + "/empty"
    with pytest.raises(StoreError, match="no process has used it as a store yet"):
        on(url, lambda store: store.keys())

    async def scenario(*stores):
        given = await asyncio.gather(*(store.ask("k", question(f"m{n}")) for n, store in enumerate(stores)))
        assert max(each["members"] for each in given) == 8

    on(url, scenario, stores=8)
    assert on(url, lambda store: store.keys()) == ["k"]


def test_all_members_of_a_process_have_two_connections_together(postgres_server, named, key):
    gates = [Dispatch(f"{key} {n}", rates="9/s", store=named) for n in range(5)]
    try:
        eventually(lambda: connections(postgres_server, named) == 2, "one asks and one listens")
        gates.pop().close()
        with gates[0].admit(timeout=PATIENCE):
            pass
        assert connections(postgres_server, named) == 2
    finally:
        for gate in gates:
            gate.close()
    eventually(lambda: connections(postgres_server, named) == 0, "the last one closes them")


@needs_fork
def test_parent_and_forked_child_have_connections_of_their_own(postgres, key):
    gate = Dispatch(key, rates="1000000/day", store=postgres)
    try:
        with gate.admit(timeout=PATIENCE):
            pass

        def child():
            with gate.admit(timeout=PATIENCE):
                pass
            gate.close()

        assert in_a_child(child) == 0
        with gate.admit(timeout=PATIENCE):
            pass
    finally:
        gate.close()


# -- the server


@pytest.fixture(scope="module")
def breakable():
    """A server that tests stop and kill."""
    with PostgresServer("max_connections=20") as server:
        yield server


def test_a_stopped_server_is_an_error_in_time_and_decides_once_when_it_goes_on(breakable, key):
    """SIGSTOP. It reads the question when it goes on, although the connection was closed."""

    async def scenario(store):
        await store.listen(key, lambda _news: None)
        for number in range(10):
            await store.ask(key, question("a", number, batches=[[1]]))
        breakable.stop()
        asked = question("a", 10, batches=[[1]])
        try:
            for _ in range(3):
                with pytest.raises(StoreError, match="does not answer in time"):
                    await store.ask(key, asked)
        finally:
            breakable.go_on()
        while True:
            try:
                assert (await store.ask(key, asked))["starts"] == [0]
            except StoreError:
                await asyncio.sleep(0.05)
            else:
                break

    on(breakable.url, scenario, timeout=0.15, connect_timeout=0.15)
    assert missing(breakable, key) == 11


def test_a_store_can_be_closed_while_the_server_is_stopped(breakable, key):
    async def scenario(store):
        await store.listen(key, lambda _news: None)
        await store.ask(key, question())
        breakable.stop()
        try:
            waiting = asyncio.create_task(store.ask(key, question()))
            await asyncio.sleep(0.01)
            await asyncio.wait_for(store.close(), 2)
            with pytest.raises(StoreError, match="was closed"):
                await waiting
        finally:
            breakable.go_on()

    on(breakable.url, scenario)


def test_a_killed_server_that_comes_back_has_counted_every_unit_and_listeners_hear_of_it(breakable, key):
    async def scenario(store, other):
        news = News()
        await other.listen(key, news.set)
        await happens(news)

        async def take():
            for number in range(100):
                for _ in range(2_000):
                    try:
                        await store.ask(key, question("a", number, batches=[[1]]))
                        break
                    except StoreError:
                        await asyncio.sleep(0.01)

        taking = asyncio.create_task(take())
        await asyncio.sleep(0.05)
        await asyncio.to_thread(breakable.kill)
        news.clear()
        await asyncio.to_thread(breakable.start)
        await happens(news)
        await taking

    on(breakable.url, scenario, stores=2)
    assert missing(breakable, key) == 100


def test_a_listener_notices_a_connection_that_died_silently(breakable, key, monkeypatch):
    """It asks the server after a while, here a shorter one."""
    monkeypatch.setattr(postgres_connection, "_QUIET", 0.05)

    async def scenario(store):
        news = News()
        await store.listen(key, news.set)
        await happens(news)
        breakable.stop()
        try:
            await asyncio.sleep(0.4)
        finally:
            breakable.go_on()
        await happens(news)

    on(breakable.url, scenario, timeout=0.1, connect_timeout=0.1)


def test_a_server_that_cannot_answer_is_left_for_the_one_that_has_its_name(breakable, key):
    """As after a failover: the next question connects again, perhaps to another server."""

    async def scenario(store):
        await store.ask(key, question())
        before = (await store._connected()).info.backend_pid
        breakable.query("ALTER TABLE headgate_state RENAME TO away")
        try:
            with pytest.raises(StoreError, match="cannot answer"):
                await store.ask(key, question())
        finally:
            breakable.query("ALTER TABLE away RENAME TO headgate_state")
        assert (await store.ask(key, question()))["members"] == 1
        assert (await store._connected()).info.backend_pid != before

    on(breakable.url, scenario)


def test_a_database_that_is_made_anew_gets_its_table_from_the_processes_that_run(breakable, key):
    """The first question is an error, since what was known is lost; the next one makes the table."""

    async def scenario(store):
        given = await store.ask(key, question())
        breakable.query("DROP TABLE headgate_state")
        with pytest.raises(StoreError, match=r"cannot answer: .*headgate_state.* does not exist"):
            await store.ask(key, question())
        again = await store.ask(key, question())
        assert again["members"] == 1
        assert again["born"] != given["born"]

    on(breakable.url, scenario)


def test_a_user_without_rights_is_told_where_to_read_on(postgres_server):
    postgres_server.query("CREATE DATABASE guarded")
    postgres_server.query("CREATE ROLE guest LOGIN")
    url = postgres_server.url.rpartition("/")[0] + "/guarded"
    on(url, lambda store: store.ask("k", question()))
    with pytest.raises(StoreError, match="permission denied"):
        on(url.replace("headgate@", "guest@"), lambda store: store.ask("k", question()))


@pytest.mark.parametrize("state", ["", "{", "[]", "7", "[4]", "null"])
def test_a_state_that_cannot_be_read_is_a_store_error_and_other_keys_go_on(postgres_server, key, state):
    async def scenario(store):
        await store.ask(key, question())
        postgres_server.query("UPDATE headgate_state SET text = %s WHERE name = %s", state, key.encode())
        asked = [store.ask(key, question()), store.ask(f"{key}/", question(batches=[[1]]))]
        broken, good = await asyncio.gather(*asked, return_exceptions=True)  # in one transaction
        assert isinstance(broken, StoreError)
        assert good["starts"] == [0]

    on(postgres_server.url, scenario)


def test_rows_whose_time_is_over_are_deleted(postgres_server, key, monkeypatch):
    monkeypatch.setattr(postgres_store, "_SWEEP", 0)

    async def scenario(store):
        await store.swap(key, {"n": ("", "text", 1)}, key)
        await store.ask(key, question())
        rows = "SELECT count(*) FROM headgate_state WHERE mark = %s"
        assert postgres_server.query(rows, key) == [(1,)]
        postgres_server.query("UPDATE headgate_state SET minute = minute - 2 WHERE mark = %s", key)
        await store.ask(key, question())
        assert postgres_server.query(rows, key) == [(0,)]
        assert key in await store.keys()

    on(postgres_server.url, scenario)


def test_without_psycopg_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidConfig, match=r'pip install "headgate\[postgres\]"'):
        PostgresStore("postgresql://localhost/x")
