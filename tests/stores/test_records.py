"""Records: texts of one group, written together if none was changed meanwhile. Every store does the same."""

import asyncio
import json
import re
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from faults.rig import Proxy
from headgate import CircuitBreaker, CircuitState
from headgate.errors import StoreError
from headgate.sharing import redis as redis_room
from headgate.sharing import sqlite as sqlite_room
from headgate.sharing.memory import MemoryStore
from headgate.sharing.records.client import OpenStore, RecordClient
from headgate.sharing.redis import RedisStore
from headgate.sharing.sqlite import SqliteStore
from headgate.testing import ManualClock
from patience import PATIENCE, News, eventually

MINUTE = 60_000_000
LUA = (Path(redis_room.__file__).parent / "scripts" / "records.lua").read_text()


@pytest.fixture
def group():
    return f"group {uuid4().hex}"


def on(opened, scenario, stores=1):
    async def main():
        many = [opened() for _ in range(stores)]
        try:
            return await asyncio.wait_for(scenario(*many), PATIENCE)
        finally:
            for store in many:
                await store.close()

    return asyncio.run(main())


def put(seen, text, keep=MINUTE):
    return (seen, text, keep)


LOOK = ("", None, 0)


def test_a_new_record_is_written_and_read_by_others(opened, group):
    async def scenario(one, other):
        wrote = await one.swap(group, {"a": put("", "first"), "b": put("", "second")}, "m1")
        assert (wrote.swapped, wrote.current) == (True, {"a": ("m1", "first"), "b": ("m1", "second")})
        seen = await other.swap(group, {"a": LOOK, "b": LOOK, "c": LOOK}, "unused")
        assert not seen.swapped  # two of them are not as seen, and nothing was to be written
        assert seen.current == {"a": ("m1", "first"), "b": ("m1", "second"), "c": ("", "")}
        assert wrote.now <= seen.now < wrote.now + PATIENCE * 1_000_000

    on(opened, scenario, stores=2)


def test_a_swap_that_has_not_seen_the_latest_mark_writes_no_record(opened, group):
    """All records are written or none, also if only one of several was changed."""

    async def scenario(one, other):
        await one.swap(group, {"a": put("", "a1"), "b": put("", "b1")}, "m1")
        await other.swap(group, {"b": put("m1", "b2")}, "m2")
        late = await one.swap(group, {"a": put("m1", "a3"), "b": put("m1", "b3"), "c": put("", "c3")}, "m3")
        assert not late.swapped
        assert late.current == {"a": ("m1", "a1"), "b": ("m2", "b2"), "c": ("", "")}
        assert (await other.swap(group, {"c": LOOK}, "")).current == {"c": ("", "")}
        again = await one.swap(group, {"a": put("m1", "a4"), "b": put("m2", "b4")}, "m4")
        assert again.swapped

    on(opened, scenario, stores=2)


def test_a_record_that_is_only_looked_at_must_have_the_mark_that_was_seen(opened, group):
    async def scenario(store):
        await store.swap(group, {"a": put("", "a1"), "b": put("", "b1")}, "m1")
        refused = await store.swap(group, {"a": put("m1", "a2"), "b": ("m0", None, 0)}, "m2")
        assert not refused.swapped
        done = await store.swap(group, {"a": put("m1", "a2"), "b": ("m1", None, 0)}, "m2")
        assert (done.swapped, done.current) == (True, {"a": ("m2", "a2"), "b": ("m1", "b1")})

    on(opened, scenario)


def test_a_swap_repeated_with_the_same_mark_is_made_once(opened, group):
    """A client repeats its question because the reply was lost."""

    async def scenario(store):
        changes = {"a": put("", "text"), "b": LOOK}
        for _ in range(2):
            done = await store.swap(group, changes, "m1")
            assert (done.swapped, done.current["a"]) == (True, ("m1", "text"))
        await store.swap(group, {"a": put("m1", "other")}, "m2")
        late = await store.swap(group, changes, "m1")
        assert (late.swapped, late.current["a"]) == (False, ("m2", "other"))

    on(opened, scenario)


def test_groups_are_independent_of_each_other_and_of_pools(opened, group):
    async def scenario(store):
        await store.swap(group, {"a": put("", "mine"), "}": put("", "too")}, "m1")
        assert (await store.swap(f"{group}!", {"a": LOOK}, "")).current == {"a": ("", "")}
        assert not [key for key in await store.keys() if group in key]

    on(opened, scenario)


def test_any_name_is_a_name_and_a_text_may_be_long(opened, group):
    names = ["a", "Ünï ☃", "a\nb", "a b 'c' \"d\"", "\ud800", "x" * 10_000, "nul\0inside", "{x}:y", ""]
    text = json.dumps([list(range(5_000)), "☃"])

    async def scenario(one, other):
        changes = {name: put("", text) for name in names}
        assert (await one.swap(group, changes, "m1")).swapped
        seen = await other.swap(group, dict.fromkeys(names, LOOK), "")
        assert seen.current == dict.fromkeys(names, ("m1", text))

    on(opened, scenario, stores=2)


def test_exactly_one_of_many_simultaneous_swaps_succeeds_each_time(opened, group):
    """Four clients make a hundred increments; none is lost and none is made twice."""

    async def scenario(*stores):
        async def count(store, who):
            mark, text = "", "0"
            for number in range(25):
                for attempt in range(1_000):
                    new = f"{who}.{number}.{attempt}"
                    done = await store.swap(group, {"n": put(mark, str(int(text) + 1))}, new)
                    mark, text = done.current["n"]
                    text = text or "0"
                    if done.swapped:
                        break
                else:
                    raise AssertionError("never first")

        await asyncio.gather(*(count(store, who) for who, store in enumerate(stores)))
        assert (await stores[0].swap(group, {"n": LOOK}, "")).current["n"][1] == "100"

    on(opened, scenario, stores=4)


def test_a_record_expires(opened, group):
    async def scenario(store):
        await store.swap(group, {"short": put("", "x", 30_000), "long": put("", "y")}, "m1")
        await asyncio.sleep(0.06)
        seen = await store.swap(group, {"short": LOOK, "long": LOOK}, "")
        assert seen.current == {"short": ("", ""), "long": ("m1", "y")}
        assert (await store.swap(group, {"short": put("", "anew")}, "m2")).swapped

    on(opened, scenario)


def test_a_listener_hears_what_others_write_and_nothing_else(opened, group):
    async def scenario(one, other):
        news = News()
        await one.listen(group, news.set)
        await one.swap(group, {"a": LOOK}, "")
        await asyncio.sleep(0.15)  # what it says by itself at first
        for number in range(2):
            news.clear()
            seen = (await other.swap(group, {"a": LOOK}, "")).current["a"][0]
            await asyncio.sleep(0.1)
            assert not news.is_set()  # nothing was written
            await other.swap(group, {"a": put(seen, str(number))}, f"m{number}")
            await asyncio.wait_for(news.wait(), PATIENCE)

    on(opened, scenario, stores=2)


# -- the memory of this process


def test_records_whose_time_is_over_do_not_pile_up():
    clock = ManualClock()
    store = MemoryStore(clock)

    async def main():
        for number in range(1_000):
            await store.swap("g", {str(number): put("", "x", 1_000_000)}, f"m{number}")
            clock.advance(0.1)

    asyncio.run(main())
    assert len(store._records) <= 128


# -- a file


def test_the_clock_of_records_goes_on_after_a_restart_of_the_machine(tmp_path, monkeypatch):
    """Records cannot be moved, so the clock goes on. Steps of the wall clock do not matter."""
    path = tmp_path / "limits.db"
    machine = {"monotonic": 5_000 * 10**9, "wall": 1_700_000_000 * 10**9, "boot": "one"}
    monkeypatch.setattr(sqlite_room.time, "monotonic_ns", lambda: machine["monotonic"])
    monkeypatch.setattr(sqlite_room.time, "time_ns", lambda: machine["wall"])
    monkeypatch.setattr(sqlite_room, "_boot", lambda: machine["boot"])

    def now():
        store = SqliteStore(f"sqlite:///{path}")
        try:
            return store._swap("g", {"a": LOOK}, "")[0].now
        finally:
            store._connection.close()

    first = now()
    machine["monotonic"] += 100 * 10**9
    machine["wall"] -= 10**9 * 86_400
    assert now() == first + 100_000_000
    machine.update(monotonic=3 * 10**9, boot="two", wall=machine["wall"] + 50 * 10**9)
    assert now() == first + 150_000_000
    machine["monotonic"] += 10**9
    assert now() == first + 151_000_000
    machine.update(monotonic=10**9, boot="three", wall=0)  # and the wall clock was put back meanwhile
    assert now() == first + 151_000_000


def test_records_whose_time_is_over_leave_the_file(tmp_path, monkeypatch):
    path = tmp_path / "limits.db"
    on(
        lambda: SqliteStore(f"sqlite:///{path}"),
        lambda store: store.swap("g", {str(number): put("", "x", 1) for number in range(50)}, "m"),
    )
    later = time.monotonic_ns() + 10**9
    monkeypatch.setattr(sqlite_room.time, "monotonic_ns", lambda: later)
    on(lambda: SqliteStore(f"sqlite:///{path}"), lambda store: store.swap("g", {"a": LOOK}, ""))
    with closing(sqlite3.connect(path)) as look:
        assert look.execute("SELECT count(*) FROM records").fetchone() == (0,)


KILLED = """
import asyncio, sys
from headgate.sharing.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    seen = await store.swap("g", {"a": ("", None, 0), "b": ("", None, 0)}, "")
    mark, text = seen.current["a"]
    number = int(text or 0)
    while True:
        number += 1
        new = f"{sys.argv[2]}.{number}"
        changes = {name: (mark, str(number), 10**9) for name in "ab"}
        assert (await store.swap("g", changes, new)).swapped
        mark = new
        print(number, flush=True)

asyncio.run(main())
"""


def test_killed_at_any_instant_both_records_were_written_or_neither(tmp_path):
    """The writer is killed three times."""
    url = f"sqlite:///{tmp_path / 'limits.db'}"
    for turn in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", KILLED, url, str(turn)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(3 + 7 * turn):
            said = int(writer.stdout.readline())
        writer.kill()
        said = max([said, *map(int, writer.stdout.read().split())])
        writer.wait(PATIENCE)
        writer.stdout.close()
        seen = on(lambda: SqliteStore(url), lambda store: store.swap("g", {"a": LOOK, "b": LOOK}, ""))
        assert seen.current["a"] == seen.current["b"]
        assert said <= int(seen.current["a"][1]) <= said + 1


# -- a server


def test_the_script_touches_declared_keys_only_and_asks_the_server_for_the_time(group):
    calls = re.findall(r"redis\.p?call\('(\w+)'(?:, (\w+))?", LUA)
    assert calls == [("GET", "key"), ("SET", "key"), ("TIME", "")]
    one, other = redis_room._record(group, "a"), redis_room._record(group, "b}{")
    tag = b"{%b}" % group.encode()
    assert tag in one
    assert tag in other


def test_a_flushed_script_is_loaded_again_and_a_lost_reply_is_asked_for_again(server, group):
    """SCRIPT FLUSH before each swap, and every other reply is lost after the record was written."""

    async def main():
        with Proxy(server.port) as line:
            store, mark = RedisStore(line.url), ""
            for number in range(20):
                with closing(server.client()) as client:
                    client.script_flush()
                line.faults.extend(["pass", "lose"] if number % 2 else ["pass", "pass"])
                try:
                    done = await store.swap(group, {"a": put(mark, str(number))}, f"m{number}")
                except StoreError:
                    done = await store.swap(group, {"a": put(mark, str(number))}, f"m{number}")
                assert (done.swapped, done.current["a"]) == (True, (f"m{number}", str(number)))
                mark = f"m{number}"
                line.faults.clear()
            await store.close()

    asyncio.run(main())


def test_records_expire_by_themselves_on_the_server(server, group):
    on(lambda: RedisStore(server.url), lambda store: store.swap(group, {"a": put("", "x", MINUTE)}, "m"))
    with closing(server.client()) as client:
        assert 0 < client.pttl(redis_room._record(group, "a")) <= 60_000


def test_a_key_of_another_program_is_not_a_record_and_stays_as_it_is(server, group):
    with closing(server.client()) as client:
        client.set(redis_room._record(group, "a"), "diary")
        client.rpush(redis_room._record(group, "b"), "poem")
        changes = {"a": put("", "x"), "b": put("", "x"), "c": put("", "x")}
        seen = on(lambda: RedisStore(server.url), lambda store: store.swap(group, changes, "m"))
        assert not seen.swapped
        assert seen.current == {"a": ("?", "not a record"), "b": ("?", "not a record"), "c": ("", "")}
        assert client.get(redis_room._record(group, "a")) == b"diary"


# -- clients of records


def test_a_breaker_hears_of_a_circuit_that_opens_while_the_breaker_is_made(tmp_path, group, monkeypatch):
    """Another breaker of this process hears of the circuit already, by the same open file."""
    url = f"sqlite:///{tmp_path}/limits.db"
    with (
        CircuitBreaker(1, 60, key=group, store=url) as earlier,
        CircuitBreaker(1, 60, key=group, store=SqliteStore(url)) as elsewhere,
    ):
        ask = RecordClient.ask

        def ask_as_the_circuit_opens(client, change):
            ask(client, change)
            monkeypatch.undo()
            with suppress(ConnectionError):
                elsewhere.call(fail)
            eventually(lambda: earlier.state is CircuitState.OPEN, "the earlier one has heard")

        monkeypatch.setattr(RecordClient, "ask", ask_as_the_circuit_opens)
        with CircuitBreaker(1, 60, key=group, store=url) as new:
            eventually(lambda: new.state is CircuitState.OPEN, "the new one hears of it too")


def fail():
    raise ConnectionError("down")


def test_listeners_are_told_while_other_threads_add_and_drop_some():
    """As breakers do that are made and closed while news come."""

    class Client:
        heard = 0

        def look_again(self):
            self.heard += 1

    opened, first, others = OpenStore(MemoryStore()), Client(), [Client() for _ in range(300)]
    changed = opened.add_listener("group", first)
    assert opened.add_listener("group", others[0]) is None  # the first one has them all told
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            for each in others:
                opened.add_listener("group", each)
            for each in others:
                opened.drop_listener("group", each)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(500):
            changed(None)
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(before)
    assert first.heard == 500
    others[0].heard = 0
    changed(None)
    assert others[0].heard == 0
