"""The store in a file: many processes, kills, forks, restarts of the machine, idle pools, and errors."""

import asyncio
import gc
import json
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

import pool_questions
from forks import in_a_child, needs_fork
from headgate import BackoffWindow, CircuitBreaker, CircuitBreakerOpen, CircuitState, Dispatch, events
from headgate.errors import InvalidConfig, StoreError
from headgate.sharing import sqlite
from headgate.sharing.courier import COURIER
from headgate.sharing.pool.state import Pool
from headgate.sharing.sqlite import SqliteStore
from headgate.testing import Recorder
from patience import PATIENCE, News, eventually

SECOND = 1_000_000
YEAR = 365 * 86_400 * SECOND
SLOW = [[1_000_000, YEAR, 1_000_000]]  # as the asker's

# A process with the arguments URL MEMBER COUNT asks for one unit COUNT times (0: until it is killed), and
# prints a line for each answer. URL MEMBER window: starts a window of a minute.
ASKER = """
import asyncio, sys
from headgate.sharing.pool.question import empty_question
from headgate.sharing.sqlite import SqliteStore

async def main(url, member, what):
    store, number = SqliteStore(url), 0
    year = 365 * 86_400 * 1_000_000
    asked = empty_question(member, 0, lease=600_000_000, rates=[[1_000_000, year, 1_000_000]])
    asked |= {"batches": [[1]], "window": 60_000_000 if what == "window" else None}
    most = 1 if what == "window" else int(what)
    while not most or number < most:
        number += 1
        given = await store.ask("key", {**asked, "id": number})
        print(number, len(given["starts"]), flush=True)
    await store.close()

asyncio.run(main(*sys.argv[1:]))
"""


question = partial(pool_questions.question, rates=SLOW, lease=600 * SECOND)


def read(state):
    """Return the pool that the file keeps as a text."""
    return Pool.unpacked(json.loads(state))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "limits.db"


def url_of(path):
    return f"sqlite:///{path}"


def ask(path, *questions, key="key"):
    """Put questions to the store in that file, by a connection of their own, and return the last answer."""

    async def main():
        store = SqliteStore(url_of(path))
        try:
            for asked in questions:
                given = await store.ask(key, asked)
            return given
        finally:
            await store.close()

    return asyncio.run(main())


def missing(path):
    """Return how many units of the slow rate are gone, read from the file without the store."""
    with sqlite3.connect(path) as connection:
        pool = read(connection.execute("SELECT state FROM pools WHERE key = 'key'").fetchone()[0])
        ahead = connection.execute("SELECT ahead FROM clock").fetchone()[0]
    connection.close()
    rate, now = pool.rates[0], time.monotonic_ns() // 1000 + ahead + pool.ahead
    return round((rate.full_at - now) * rate.amount / rate.period)


def check(path):
    """Check that no page of the file is broken."""
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def start(path, member, what):
    return subprocess.Popen(
        [sys.executable, "-c", ASKER, url_of(path), member, str(what)], stdout=subprocess.PIPE, text=True
    )


# -- many processes


def test_four_processes_at_once_count_every_unit_once(path):
    """Two hundred questions each, into one file, and no error that it is busy."""
    askers = [start(path, f"m{n}", 200) for n in range(4)]
    for asker in askers:
        output, _ = asker.communicate(timeout=60)
        assert asker.returncode == 0
        assert output.splitlines() == [f"{n} 1" for n in range(1, 201)]
    assert missing(path) == 800
    check(path)


def test_a_file_whose_writer_is_killed_is_not_broken_and_counts_every_unit(path):
    """kill -9, ten times, while others go on. One answer more may have been decided than read."""
    dice = random.Random(6)
    bystander = start(path, "bystander", 0)
    answered = 0
    victims = 10
    try:
        running = [start(path, f"v{n}", 0) for n in range(2)]
        for n in range(victims):
            victim = running.pop(0)
            lines = [victim.stdout.readline() for _ in range(dice.randint(1, 60))]
            victim.kill()
            lines += victim.stdout.readlines()
            victim.wait(PATIENCE)
            victim.stdout.close()
            answered += sum(line.endswith(" 1\n") for line in lines)
            if n + 2 < victims:
                running.append(start(path, f"v{n + 2}", 0))
            assert ask(path, question("reader"))["version"] > 0
        bystander.kill()
        lines = bystander.stdout.readlines()
        answered += sum(line.endswith(" 1\n") for line in lines)
    finally:
        bystander.kill()
        bystander.wait(PATIENCE)
        bystander.stdout.close()
    assert lines, "the others went on"
    assert answered <= missing(path) <= answered + victims + 1
    check(path)


def test_a_listener_hears_of_a_change_by_another_process(path):

    async def main():
        store = SqliteStore(url_of(path))
        news = News()
        try:
            await store.ask("key", question())
            await store.listen("key", news.set)
            await asyncio.sleep(0.15)  # what it says by itself at first
            news.clear()
            other = await asyncio.create_subprocess_exec(
                sys.executable, "-c", ASKER, url_of(path), "b", "window", stdout=subprocess.DEVNULL
            )
            await asyncio.wait_for(news.wait(), PATIENCE)
            assert await other.wait() == 0
            assert 0 < (await store.ask("key", question()))["window_left"] <= 60 * SECOND
        finally:
            await store.close()

    asyncio.run(main())


def test_a_listener_that_comes_while_the_file_is_looked_at_hears_of_changes_and_so_do_the_others(
    path, monkeypatch
):
    """The look reads the file on another thread, one key after the other."""

    async def main():
        loop = asyncio.get_running_loop()
        store, other, early, late = SqliteStore(url_of(path)), SqliteStore(url_of(path)), News(), []
        blob_of = sqlite._blob

        def blob_while_another_listens(name):
            if threading.current_thread() is not threading.main_thread() and not late:
                late.append(News())
                asyncio.run_coroutine_threadsafe(store.listen("late", late[0].set), loop).result(PATIENCE)
            return blob_of(name)

        try:
            await store.ask("key", question())
            await store.listen("key", early.set)
            monkeypatch.setattr(sqlite, "_blob", blob_while_another_listens)
            await asyncio.wait_for(early.wait(), PATIENCE)
            await asyncio.wait_for(late[0].wait(), PATIENCE)  # once, although nothing has changed
            for number, (key, event) in enumerate([("key", early), ("late", late[0])], 1):
                event.clear()
                await other.ask(key, question("b", number, window=60 * SECOND))
                await asyncio.wait_for(event.wait(), PATIENCE)
        finally:
            await store.close()
            await other.close()

    asyncio.run(main())


def test_a_listener_that_comes_when_the_only_other_one_goes_is_called_at_its_first_look(path):
    """A look for the one that has gone is still to be made, after a question that takes long."""

    async def main():
        store, early, late, over = (
            SqliteStore(url_of(path)),
            News(),
            News(),
            threading.Event(),
        )
        try:
            await store.listen("key", early.set)
            await asyncio.wait_for(early.wait(), PATIENCE)
            question = asyncio.ensure_future(store._in_thread(over.wait, PATIENCE))
            await asyncio.sleep(2 * sqlite._LOOK)
            await store.unlisten("key", early.set)
            await store.listen("late", late.set)
            over.set()
            assert await question
            await asyncio.wait_for(late.wait(), PATIENCE)
        finally:
            await store.close()

    asyncio.run(main())


def test_a_change_is_told_at_the_next_look_if_a_look_at_the_file_fails(path, monkeypatch):
    async def main():
        store, other, news = SqliteStore(url_of(path)), SqliteStore(url_of(path)), News()
        blob_of, failures = sqlite._blob, []

        def blob_of_a_bad_moment(name):
            if news.is_set() or failures:
                return blob_of(name)
            failures.append(name)
            raise sqlite3.OperationalError("disk I/O error")

        try:
            await store.ask("key", question())
            await store.listen("key", news.set)
            await asyncio.wait_for(news.wait(), PATIENCE)
            news.clear()
            monkeypatch.setattr(sqlite, "_blob", blob_of_a_bad_moment)
            await other.ask("key", question("b", 1, window=60 * SECOND))
            await asyncio.wait_for(news.wait(), PATIENCE)
            assert failures
        finally:
            await store.close()
            await other.close()

    asyncio.run(main())


def test_two_members_with_the_same_store_object_hear_of_each_others_windows(path):
    store = SqliteStore(url_of(path))
    one, two = (BackoffWindow(store=store, key="key") for _ in range(2))
    one.set(60)
    eventually(two.should_backoff, "the other one hears of it")
    two.clear()
    eventually(lambda: not one.should_backoff(), "and of its end")
    COURIER.wait_for(store.close, PATIENCE)


def test_a_file_that_is_locked_for_long_is_an_error_and_nothing_else(path):
    """Within the time that a question waits for the lock. Afterwards all is as before."""
    ask(path, question(batches=[[5]]))
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        with pytest.raises(StoreError, match="locked"):
            ask(path, question(batches=[[7]]))
    finally:
        holder.execute("ROLLBACK")
        holder.close()
    assert ask(path, question(batches=[[1]]))["starts"] == [0]
    assert missing(path) == 6


def test_a_locked_file_does_not_block_the_event_loop(path):
    ask(path, question())
    holder = sqlite3.connect(path, isolation_level=None)

    async def main():
        store = SqliteStore(url_of(path))
        holder.execute("BEGIN IMMEDIATE")
        asking = asyncio.ensure_future(store.ask("key", question(batches=[[1]])))
        turns = 0
        while turns < 50:
            await asyncio.sleep(0.001)
            turns += 1
        assert not asking.done()
        holder.execute("ROLLBACK")
        assert (await asking)["starts"] == [0]
        await store.close()

    asyncio.run(main())
    holder.close()


# -- forks


@needs_fork
def test_parent_and_forked_child_share_one_pool(path):
    """The child has a connection of its own, and is another member."""
    options = {"concurrency": None, "throttled_concurrency": None, "byte_budget": None}
    gate = Dispatch("key", rates="1000000/day", store=url_of(path), **options)
    try:
        for _ in range(3):
            with gate.admit(timeout=PATIENCE):
                pass

        def child():
            for _ in range(5):
                with gate.admit(timeout=PATIENCE):
                    pass
            gate.close()

        assert in_a_child(child) == 0
        assert in_a_child(child) == 0
        for _ in range(3):
            with gate.admit(timeout=PATIENCE):
                pass
    finally:
        gate.close()
    check(path)
    with sqlite3.connect(path) as connection:
        members = read(connection.execute("SELECT state FROM pools").fetchone()[0]).members
    connection.close()
    assert len(members) <= 3


@needs_fork
def test_a_store_made_before_a_fork_answers_in_the_child(path):
    store = SqliteStore(url_of(path))
    asyncio.run(store.ask("key", question()))

    def child():
        async def main():
            await asyncio.wait_for(store.ask("key", question("child")), 2)

        asyncio.run(main())

    assert in_a_child(child) == 0


@needs_fork
def test_a_child_inherits_no_open_file_and_the_parent_opens_its_file_again(path):
    """SQLite keeps a process's locks in its memory, and a child has a copy of that."""
    store = SqliteStore(url_of(path))
    asyncio.run(store.ask("key", question()))
    assert store._connection is not None

    def child():
        assert store._connection is None
        asyncio.run(store.ask("key", question("child")))
        asyncio.run(store.close())

    assert in_a_child(child) == 0
    assert store._connection is None
    asyncio.run(store.ask("key", question()))
    check(path)


def test_news_are_looked_for_after_the_file_was_opened_again(path):
    """Each connection counts the writes of others for itself, so an equal number says nothing."""
    store, other = SqliteStore(url_of(path)), SqliteStore(url_of(path))
    asyncio.run(store.ask("key", question()))
    seen = store._data_version()
    store.disconnect()
    asyncio.run(other.ask("key", question("b")))
    assert store._data_version() != seen


@needs_fork
def test_a_fork_waits_for_threads_inside_sqlite_and_keeps_others_out(path):
    """The child would wait without end for a lock of a thread that it does not have."""
    store, did, inside = SqliteStore(url_of(path)), [], threading.Event()

    def first():
        inside.set()
        eventually(lambda: sqlite._in_use._forking, "a thread forks")
        did.append("first")

    async def both():
        await asyncio.gather(store._in_thread(first), store._in_thread(did.append, "second"))

    thread = threading.Thread(target=asyncio.run, args=(both(),))
    thread.start()
    assert inside.wait(PATIENCE)

    def child():
        assert did == ["first"]
        asyncio.run(store.ask("key", question("child")))

    assert in_a_child(child) == 0
    thread.join(PATIENCE)
    assert did == ["first", "second"]


@needs_fork
def test_children_forked_while_threads_use_sqlite_can_use_it_too(tmp_path):
    stores = [SqliteStore(url_of(tmp_path / f"{n}.db")) for n in range(2)]
    stop = threading.Event()

    async def busy(store):
        while not stop.is_set():
            await store.ask("key", question())

    threads = [threading.Thread(target=asyncio.run, args=(busy(store),)) for store in stores]
    for thread in threads:
        thread.start()

    def child():
        for store in stores:
            asyncio.run(store.ask("key", question("child")))

    try:
        assert [in_a_child(child) for _ in range(20)] == [0] * 20
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    for n in range(2):
        check(tmp_path / f"{n}.db")


@needs_fork
def test_a_forked_child_has_no_place_before_it_was_granted_one(path):
    """The parent holds all four places, and the child has asked for nothing yet."""
    options = {"throttled_concurrency": None, "byte_budget": None}
    gate = Dispatch("key", concurrency=4, store=url_of(path), **options)
    try:
        inside = []
        deadline = time.monotonic() + PATIENCE
        while len(inside) < 4 and time.monotonic() < deadline:
            permit = gate.try_admit()
            inside += [permit] if permit else []
        assert len(inside) == 4

        def child():
            assert gate.try_admit() is None

        assert in_a_child(child) == 0
        for permit in inside:
            permit.settle()
    finally:
        gate.close()


# -- restarts of the machine


def counted_from_another_start(path, by, ago):
    """Change the file as if the machine had been restarted: another boot, and another zero of its clock."""
    connection = sqlite3.connect(path)
    for key, state in connection.execute("SELECT key, state FROM pools").fetchall():
        pool = read(state)
        pool.ahead -= by
        moved = json.dumps(pool.packed())
        connection.execute(
            "UPDATE pools SET state = ?, expires = expires + ? WHERE key = ?", (moved, by, key)
        )
    connection.execute("UPDATE clock SET boot = 'another start', seen = seen + ?, wall = wall - ?", (by, ago))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("by", [-(10**15), -(10**9), 10**9, 10**15])
def test_after_a_restart_of_the_machine_times_go_on_by_the_wall_clock(path, by):
    """Used units, a window and leases."""
    ask(path, question(batches=[[500]], window=3_600 * SECOND, limits=[4, 0, 0, 0], wants=[4, 0]))
    counted_from_another_start(path, by, ago=100 * SECOND)
    given = ask(path, question("b", wants=[4, 0]))
    assert 3_400 * SECOND < given["window_left"] <= 3_500 * SECOND
    assert given["places"] == 0  # of a lease of ten minutes, five hundred seconds are left
    assert 490 <= missing(path) <= 500
    counted_from_another_start(path, by, ago=550 * SECOND)
    assert ask(path, question("b", wants=[4, 0]))["places"] == 4


def test_a_wall_clock_set_back_during_a_restart_counts_as_no_time(path):
    """No unit is earned, and the window does not become shorter."""
    ask(path, question(batches=[[500]], window=3_600 * SECOND))
    counted_from_another_start(path, -(10**12), ago=-3_600 * SECOND)
    assert 3_599 * SECOND < ask(path, question("b"))["window_left"] <= 3_600 * SECOND
    assert missing(path) == 500


# -- idle pools

FAST = [[1_000, SECOND, 1_000]]


def keys_in(path):
    with closing(sqlite3.connect(path)) as connection:
        return [key for (key,) in connection.execute("SELECT key FROM pools")]


@pytest.mark.parametrize(("ago", "left"), [(64 * SECOND, ["busy", "idle"]), (66 * SECOND, ["busy"])])
def test_a_pool_is_deleted_a_minute_after_there_is_nothing_to_remember(path, ago, left):
    """The lease of 5 s is over, no unit is missing, and there is no window."""
    ask(path, question(rates=FAST, lease=5 * SECOND), key="idle")
    counted_from_another_start(path, 0, ago)
    ask(path, question(), key="busy")
    assert keys_in(path) == left


def test_a_pool_whose_time_is_over_is_not_shown_and_its_limits_are_forgotten(path):
    ask(path, question(rates=FAST, lease=5 * SECOND))
    counted_from_another_start(path, 0, ago=3_600 * SECOND)

    async def look():
        store = SqliteStore(url_of(path))
        try:
            return await store.keys(), await store.look("key")
        finally:
            await store.close()

    assert asyncio.run(look()) == ([], None)
    other = [[5, SECOND, 5]]
    assert ask(path, question("b", rates=other))["rates"] == other


def test_a_pool_with_units_missing_or_an_active_window_is_kept(path):
    ask(path, question(lease=0, batches=[[500]]), key="used")
    ask(path, question(rates=FAST, lease=0, window=7_200 * SECOND), key="window")
    ask(path, question(rates=FAST, lease=0), key="idle")
    counted_from_another_start(path, 0, ago=3_600 * SECOND)
    ask(path, question(lease=0), key="another")
    assert keys_in(path) == ["another", "used", "window"]


# -- what is wrong is said


def test_a_file_of_another_version_of_headgate_is_not_touched(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE pools (key TEXT PRIMARY KEY, state TEXT, boot TEXT)")
    with pytest.raises(StoreError, match="another version of headgate made it"):
        ask(path, question())


@pytest.mark.parametrize("url", ["sqlite:", "sqlite://", "sqlite:///", "sqlite://host/path"])
def test_a_url_without_a_path_says_what_to_write(url):
    with pytest.raises(InvalidConfig, match=r"sqlite:///limits\.db"):
        SqliteStore(url)


def test_paths_may_be_relative_and_have_any_characters(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("limits.db", "mit leerzeichen.db", "ключ 🦆.db", "per%20cent?.db"):
        ask(name, question(batches=[[1]]))
        assert (tmp_path / name).exists()
        assert missing(tmp_path / name) == 1


def test_a_path_that_leads_nowhere_is_a_store_error(tmp_path):
    for path in (tmp_path / "no" / "such" / "folder.db", tmp_path, "/dev/null/limits.db"):
        with pytest.raises(StoreError, match="cannot be opened"):
            ask(path, question())


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may do anything")
def test_a_file_that_may_not_be_written_is_a_store_error(path):
    ask(path, question())
    path.chmod(0o400)
    with pytest.raises(StoreError):
        ask(path, question())


def test_a_file_of_another_program_is_a_store_error_and_stays_as_it_is(path):
    path.write_text("dear diary, " * 500)
    with pytest.raises(StoreError, match="not a database"):
        ask(path, question())
    assert path.read_text() == "dear diary, " * 500


def test_a_table_called_pools_of_another_program_is_a_store_error(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE pools (name TEXT, depth INTEGER)")
    connection.execute("INSERT INTO pools VALUES ('municipal', 2)")
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        ask(path, question())
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT * FROM pools").fetchall() == [("municipal", 2)]
    connection.close()


@pytest.mark.parametrize("state", ["", "{", "[]", "7", '{"rates": []}', "[4]", "[3, []]", "null", None])
def test_a_state_that_cannot_be_read_is_a_store_error_and_other_keys_go_on(path, state):
    """A hostile file never raises anything else."""
    ask(path, question(), key="key")
    ask(path, question(batches=[[3]]), key="other")
    connection = sqlite3.connect(path)
    connection.execute("UPDATE pools SET state = ? WHERE key = 'key'", (state,))
    connection.commit()
    connection.close()
    with pytest.raises(StoreError):
        ask(path, question())
    assert ask(path, question(batches=[[3]]), key="other")["starts"] == [0]


def test_a_broken_page_is_a_store_error(path):
    ask(path, question(), *(question(f"m{n}", batches=[[1]]) for n in range(50)))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096:] = os.urandom(len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError):
        ask(path, question())


def test_a_deleted_file_is_made_anew(path):
    """As a store that lost its memory."""
    ask(path, question(batches=[[3]]))
    for each in path.parent.iterdir():
        each.unlink()
    assert ask(path, question(batches=[[3]]))["version"] > 0
    assert missing(path) == 3


def test_after_closing_a_question_is_a_store_error(path):
    async def main():
        store = SqliteStore(url_of(path))
        await store.ask("key", question())
        await store.close()
        with pytest.raises(StoreError):
            await store.ask("key", question())

    asyncio.run(main())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it is /proc that shows what is open")
def test_close_closes_the_file(path):
    stores = []

    async def main():
        store = SqliteStore(url_of(path))
        stores.append(store)
        await store.ask("key", question())
        await store.close()

    asyncio.run(main())
    tick = threading.Event()
    assert any(not is_open(path) or tick.wait(0.005) for _ in range(100))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it is /proc that shows what is open")
def test_close_closes_the_file_after_questions_that_were_asked_before(path):
    async def main():
        store = SqliteStore(url_of(path))
        asks = [asyncio.ensure_future(store.ask("key", question("a", number))) for number in range(1, 4)]
        await asyncio.sleep(0)
        await asyncio.gather(store.close(), store.close())
        assert [given["members"] for given in await asyncio.gather(*asks)] == [1, 1, 1]

    asyncio.run(main())
    assert not is_open(path)


def is_open(path):
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # of the look itself
            if str(link.readlink()).startswith(str(path)):
                return True
    return False


def test_stores_opened_at_the_same_moment_make_one_file(tmp_path):
    """SQLite does not wait for its own locks while a new file is made: the second store tries again."""

    async def all_at_once(url):
        stores = [SqliteStore(url) for _ in range(8)]
        given = await asyncio.gather(*(store.ask("key", question(f"m{n}")) for n, store in enumerate(stores)))
        for store in stores:
            await store.close()
        return max(each["members"] for each in given)

    for n in range(20):
        assert asyncio.run(all_at_once(url_of(tmp_path / f"{n}.db"))) == 8


# -- a file that is deleted, and disks


@pytest.mark.parametrize("how", ["all files", "the file", "moved"])
def test_stores_whose_file_is_deleted_while_in_use_go_on_together_in_the_new_one(path, how, caplog):
    """Deleted with its side files or without them, or moved away."""

    async def main():
        stores = [SqliteStore(url_of(path)) for _ in range(3)]
        heard = News()
        try:
            for n, store in enumerate(stores):
                await store.ask("key", question(f"m{n}", batches=[[5]]))
            await stores[2].listen("key", heard.set)
            await asyncio.sleep(0.12)  # what it says by itself at first
            heard.clear()
            if how == "moved":
                path.rename(path.with_name("old.db"))
            for each in list(path.parent.iterdir()) if how == "all files" else [path] * (how == "the file"):
                each.unlink()
            await asyncio.wait_for(heard.wait(), PATIENCE)  # one that only listens notices too
            given = [
                await store.ask("key", question(f"m{n}", batches=[[5]])) for n, store in enumerate(stores)
            ]
            assert len({each["born"] for each in given}) == 1
            assert given[-1]["members"] == 3
        finally:
            for store in stores:
                await store.close()

    asyncio.run(main())
    assert missing(path) == 15
    check(path)
    assert f"{path} was deleted or moved while it was in use" in caplog.text


@pytest.mark.parametrize("by", [10**9, 10**15])
def test_the_time_of_a_new_file_goes_on_from_the_deleted_one_of_before_a_restart_of_the_machine(path, by):
    """Otherwise what members know of a circuit or of usage would lie days in the future."""

    async def main():
        store = SqliteStore(url_of(path))
        try:
            await store.swap("group", {"name": (None, None, 0)}, "mark")
            counted_from_another_start(path, by, ago=0)
            before = await store.swap("group", {"name": (None, None, 0)}, "mark")
            for each in path.parent.iterdir():
                each.unlink()
            after = await store.swap("group", {"name": (None, None, 0)}, "mark")
            assert 0 <= after.now - before.now < 60 * SECOND
            assert abs(after.ahead - before.ahead) < 60 * SECOND
        finally:
            await store.close()
        return after.now

    now = asyncio.run(main())
    other = SqliteStore(url_of(path))
    try:
        found = COURIER.wait_for(lambda: other.swap("group", {"name": (None, None, 0)}, "mark"), PATIENCE)
        assert 0 <= found.now - now < 60 * SECOND
    finally:
        COURIER.wait_for(other.close, PATIENCE)


def test_an_open_circuit_is_tried_again_in_time_after_its_file_was_deleted(path):
    """The file is of before a restart of the machine."""
    ask(path, question())
    counted_from_another_start(path, 10**15, ago=0)
    breakers = [CircuitBreaker(1, 0.5, key="key", store=url_of(path)) for _ in range(2)]
    try:
        for breaker in breakers:
            breaker.call(int)
        with pytest.raises(ZeroDivisionError):
            breakers[0].call(lambda: 1 / 0)
        eventually(lambda: breakers[1].state is CircuitState.OPEN, "the other one hears of it")
        for each in path.parent.iterdir():
            each.unlink()

        def answers():
            with suppress(CircuitBreakerOpen):
                return breakers[1].call(lambda: True)

        eventually(answers, "a probe goes")
        eventually(lambda: breakers[0].state is CircuitState.CLOSED, "the other one hears of that")
    finally:
        for breaker in breakers:
            breaker.close()


def test_two_gates_whose_file_is_deleted_share_one_limit_again_and_say_so(path):
    options = {"rates": "1000000/day", "concurrency": 4, "store": url_of(path)}
    gates = [Dispatch("key", observer=(seen := Recorder()), **options) for _ in range(2)]
    try:
        for gate in gates:
            with gate.admit(timeout=PATIENCE):
                pass
        born = ask(path, question("x"))["born"]
        for each in path.parent.iterdir():
            each.unlink()
        eventually(lambda: seen.of(events.StoreForgot), "the loss is told")
        eventually(lambda: ask(path, question("x"))["members"] >= 3, "both are in the new pool")
        assert ask(path, question("x"))["born"] != born
    finally:
        for gate in gates:
            gate.close()


def test_a_full_disk_is_named_as_the_disk_and_the_store_goes_on_when_there_is_room(path):
    """As SQLite reports it when a file may not grow."""

    async def main():
        store = SqliteStore(url_of(path))
        try:
            await store.ask("key", question(batches=[[5]]))
            pages = "PRAGMA max_page_count = {}"
            await store._in_thread(lambda: store._connection.execute(pages.format(1)))
            with pytest.raises(StoreError, match=f"{path}: the disk is full"):
                await asyncio.gather(*(store.ask(f"{n}" * 1_000, question()) for n in range(100)))
            await store._in_thread(lambda: store._connection.execute(pages.format(1_000_000)))
            assert (await store.ask("key", question(batches=[[5]])))["starts"] == [0]
        finally:
            await store.close()

    asyncio.run(main())
    assert missing(path) == 10


def test_a_disk_that_cannot_be_written_is_named_as_the_disk(path):
    """In a process whose files may not grow beyond a few pages."""
    script = f"""
import asyncio, resource, signal
from headgate.errors import StoreError
from headgate.sharing.pool.question import empty_question
from headgate.sharing.sqlite import SqliteStore

async def main():
    store = SqliteStore({url_of(path)!r})
    await store.ask("key", empty_question("m", 1))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, resource.RLIM_INFINITY))
    try:
        for n in range(2, 200):
            await store.ask(f"{{n}}" * 1_000, empty_question("m", n))
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print((await store.ask("key", empty_question("m", 999)))["members"])
    await store.close()

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    said, members = done.stdout.splitlines()
    assert said.startswith(f"{path}: the disk ")
    assert members == "1"


def test_a_pool_of_an_earlier_layout_is_a_store_error_that_says_what_to_do(path):
    ask(path, question())
    connection = sqlite3.connect(path)
    connection.execute("UPDATE pools SET state = '[1, []]'")
    connection.commit()
    connection.close()
    with pytest.raises(
        StoreError, match=r"another version of headgate; end the processes .*, or write another key"
    ):
        ask(path, question())


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="it is /proc that shows what is open")
@pytest.mark.parametrize("kind", [Dispatch, BackoffWindow])
def test_a_gate_or_window_that_is_dropped_without_being_closed_closes_its_file(path, kind):
    shared = kind(key="key", store=url_of(path))
    assert is_open(path)
    del shared
    eventually(lambda: gc.collect() is not None and not is_open(path), "the file is closed")
