"""KeyedObjects: one object for each key, for as long as there is a reason to keep it."""

import asyncio
import gc
import threading

import pytest

from forks import in_a_child, needs_fork
from headgate import Dispatch
from headgate.gate.keyed import KeyedObjects
from headgate.http import Request, per_host
from patience import PATIENCE, eventually
from stress.interrupts import interrupt_everywhere


class Thing:
    """Remembers a number; idle at zero."""

    def __init__(self, key):
        self.key = key
        self.number = 0

    def idle(self):
        return self.number == 0


@pytest.fixture
def keeper():
    return KeyedObjects(Thing, Thing.idle)


def fill(keeper, count, tag="other"):
    """`count` other keys come by once, and leave nothing."""
    for k in range(count):
        keeper.get((tag, k))


def test_every_caller_gets_the_same_object_and_it_is_made_once(keeper):
    assert keeper.get("a") is keeper.get("a")
    assert keeper.get("a") is not keeper.get("b")
    assert keeper.get("a").key == "a"
    assert len(keeper) == 2
    assert repr(keeper) == "<KeyedObjects of 2>"


def test_peek_makes_nothing(keeper):
    assert keeper.peek("a") is None
    assert len(keeper) == 0
    thing = keeper.get("a")
    assert keeper.peek("a") is thing


def test_a_forgotten_object_is_made_anew(keeper):
    old = keeper.get("a")
    keeper.forget("a")
    keeper.forget("never there")

    assert keeper.peek("a") is None
    assert keeper.get("a") is not old


def test_items_lists_every_object(keeper):
    a, b = keeper.get("a"), keeper.get("b")
    assert keeper.items() == [("a", a), ("b", b)]


def test_twenty_thousand_keys_that_came_by_once_leave_almost_nothing(keeper):
    """Memory follows the objects that remember something, not all keys that ever came."""
    fill(keeper, 20_000)
    gc.collect()

    assert len(keeper) <= 64


def test_an_object_with_something_to_remember_is_kept_though_no_caller_holds_it(keeper):
    keeper.get("a").number = 7
    fill(keeper, 1_000)
    gc.collect()

    assert keeper.get("a").number == 7


def test_an_idle_object_that_a_caller_holds_stays_the_same(keeper):
    held = keeper.get("a")
    fill(keeper, 1_000)
    gc.collect()

    assert keeper.peek("a") is held
    assert ("a", held) in keeper.items()
    assert keeper.get("a") is held


def test_an_object_that_was_let_go_is_kept_again_when_it_says_so(keeper):
    held = keeper.get("a")
    fill(keeper, 1_000)
    held.number = 3
    keeper.keep("a", held)
    del held
    fill(keeper, 1_000, "more")
    gc.collect()

    assert keeper.get("a").number == 3


def test_a_forgotten_object_is_not_kept_though_it_says_so(keeper):
    old = keeper.get("a")
    keeper.forget("a")
    old.number = 3
    keeper.keep("a", old)

    assert keeper.peek("a") is None
    assert keeper.get("a") is not old


def test_an_object_may_ask_for_others_while_it_is_asked_whether_it_is_idle():
    def idle(thing):
        assert len(keeper) > 0
        keeper.peek(thing.key)
        return True

    keeper = KeyedObjects(Thing, idle)
    fill(keeper, 1_000)


def test_an_object_that_becomes_idle_later_is_forgotten_later(keeper):
    for k in range(500):
        keeper.get(k).number = 1
    fill(keeper, 2_000)
    assert len(keeper) >= 500
    for k in range(500):
        keeper.get(k).number = 0
    fill(keeper, 5_000, "more")
    gc.collect()

    assert len(keeper) <= 1_000
    assert keeper.peek(7) is None


def test_sweeping_costs_each_new_object_two_questions_at_most():
    """20 000 objects that all stay are asked 40 000 times at most."""
    asked = []

    def idle(thing):
        asked.append(thing)
        return False

    keeper = KeyedObjects(Thing, idle)
    fill(keeper, 20_000)

    assert len(keeper) == 20_000
    assert len(asked) <= 2 * 20_000


def test_a_maker_that_raises_leaves_nothing_and_no_lock_held():
    tries = []

    def make(key):
        tries.append(key)
        if len(tries) == 1:
            raise OSError("not yet")
        return Thing(key)

    keeper = KeyedObjects(make, Thing.idle)
    with pytest.raises(OSError, match="not yet"):
        keeper.get("a")

    assert len(keeper) == 0
    assert keeper.get("a").key == "a"


def test_fifty_threads_that_come_at_once_get_one_object():
    """All threads ask for the same new keys."""
    made = []

    def make(key):
        made.append(key)
        return Thing(key)

    keeper = KeyedObjects(make, Thing.idle)
    start = threading.Barrier(50)
    got = []

    def ask():
        start.wait(PATIENCE)
        got.append([keeper.get(k) for k in range(20)])

    threads = [threading.Thread(target=ask) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert sorted(made) == list(range(20))
    assert len(got) == 50
    assert all(a is b for row in got for a, b in zip(row, got[0], strict=True))


class SlowFunction:
    """A function of the user that makes objects, and goes on when it is allowed to."""

    def __init__(self):
        self.go_on = threading.Event()
        self.made = []
        self.fails = 0

    def __call__(self, key):
        self.made.append(key)
        assert self.go_on.wait(PATIENCE)
        if len(self.made) <= self.fails:
            raise LookupError(key)
        return Thing(key)


def ask_in_threads(keeper, keys):
    """Have a thread ask for each key; returns what they got, and a function that waits for all of them."""
    got = []

    def ask(key):
        try:
            got.append(keeper.get(key))
        except LookupError as error:
            got.append(error)

    threads = [threading.Thread(target=ask, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()

    def join():
        for thread in threads:
            thread.join(PATIENCE)

    return got, join


def test_a_function_of_the_user_makes_one_object_for_all_threads_that_ask_meanwhile():
    make = SlowFunction()
    keeper = KeyedObjects(make, Thing.idle, by_user=True)
    got, join = ask_in_threads(keeper, ["key"] * 8)
    eventually(lambda: make.made, "one thread makes it")
    make.go_on.set()
    join()
    assert got == [keeper.get("key")] * 8
    assert make.made == ["key"]


def test_eight_threads_that_ask_for_the_gate_of_one_host_are_one_member_of_its_pool():
    """Further gates would each have stayed a member for a lease, with a share of the limits."""
    made, go_on = [], threading.Event()

    def shared_gate(host):
        made.append(host)
        assert go_on.wait(PATIENCE)
        return Dispatch(f"eight threads at {host}", rates="100/s", store="memory:")

    keeper = per_host(shared_gate)
    request = Request(
        method="POST",
        url="https://api.example/v1",
        host="api.example",
        headers={},
        body=None,
        model=None,
    )
    got = []
    threads = [threading.Thread(target=lambda: got.append(keeper(request))) for _ in range(8)]
    for thread in threads:
        thread.start()
    eventually(lambda: made, "one thread makes it")
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert made == ["api.example"]
    assert len(got) == 8
    assert set(got) == {keeper(request)}
    got[0].close()


def test_while_one_object_is_made_by_a_function_of_the_user_others_are_found_and_made():
    make = SlowFunction()
    keeper = KeyedObjects(lambda key: make(key) if key == "slow" else Thing(key), Thing.idle, by_user=True)
    got, join = ask_in_threads(keeper, ["slow"])
    eventually(lambda: make.made, "it is being made")
    assert keeper.get("quick") is keeper.get("quick")
    assert got == []
    make.go_on.set()
    join()
    assert got == [keeper.get("slow")]


def test_after_a_function_of_the_user_has_raised_the_next_thread_that_waited_tries():
    make = SlowFunction()
    make.fails = 1
    keeper = KeyedObjects(make, Thing.idle, by_user=True)
    got, join = ask_in_threads(keeper, ["key"] * 3)
    eventually(lambda: make.made, "one thread makes it")
    make.go_on.set()
    join()
    assert sorted(type(one) for one in got if isinstance(one, LookupError)) == [LookupError]
    assert [one for one in got if isinstance(one, Thing)] == [keeper.get("key")] * 2
    assert make.made == ["key"] * 2


def test_a_function_of_the_user_may_ask_for_other_keys_and_two_that_ask_for_each_other_do_not_wait():
    both = threading.Barrier(2)
    other = {"a": "b", "b": "a"}
    depth = threading.local()

    def make(key):
        if not getattr(depth, "inside", False):
            depth.inside = True
            both.wait(PATIENCE)
            assert keeper.get(other[key]).key == other[key]
        return Thing(key)

    keeper = KeyedObjects(make, Thing.idle, by_user=True)
    got, join = ask_in_threads(keeper, ["a", "b"])
    join()
    assert sorted(thing.key for thing in got) == ["a", "b"]
    assert all(thing is keeper.get(thing.key) for thing in got)
    assert len(keeper) == 2


def test_a_caller_does_not_wait_without_end_for_an_object_that_another_one_makes(monkeypatch):
    monkeypatch.setattr("headgate.gate.keyed._PATIENCE", 0.0)
    make = SlowFunction()
    keeper = KeyedObjects(lambda key: Thing(key) if make.made else make(key), Thing.idle, by_user=True)
    got, join = ask_in_threads(keeper, ["key"])
    eventually(lambda: make.made, "it is being made")
    mine = keeper.get("key")
    make.go_on.set()
    join()
    assert got == [mine]


def test_an_interrupt_at_any_moment_leaves_no_object_that_is_still_being_made():
    """Neither for the thread that makes it, nor for one that asks for it within."""

    def scenario(interrupt):
        def make(key):
            return Thing(key if key == "inner" else keeper.get("inner").key)

        keeper = KeyedObjects(make, Thing.idle, by_user=True)
        with interrupt:
            keeper.get("outer")
        assert keeper._being_made == {}
        assert keeper._makers == set()
        assert keeper.get("outer").key == "inner"

    interrupt_everywhere(scenario)


def test_an_interrupt_of_a_thread_that_waits_lets_the_other_threads_that_wait_go_on(monkeypatch):
    monkeypatch.setattr("headgate.gate.keyed._PATIENCE", PATIENCE)

    def scenario(interrupt):
        make = SlowFunction()
        keeper = KeyedObjects(make, Thing.idle, by_user=True)
        got, join = ask_in_threads(keeper, ["key"])
        eventually(lambda: make.made, "one thread makes it")
        making = keeper._being_made["key"]
        make.go_on.set()
        join()
        keeper._being_made["key"] = making  # as this thread found it, a moment before it was over
        keeper.forget("key")
        with interrupt:
            keeper.get("key")
        assert not making.latch.locked()
        assert keeper._being_made.get("key") in (None, making)
        assert keeper.get("key") is not got[0]
        assert keeper._being_made == {}

    interrupt_everywhere(scenario)


def test_a_thread_that_runs_an_event_loop_does_not_wait_for_an_object_that_another_thread_makes(monkeypatch):
    """The other thread needs that loop for what it makes, so both would stand still."""
    monkeypatch.setattr("headgate.gate.keyed._PATIENCE", PATIENCE)
    asked = threading.Event()

    async def key_of(key):
        return key

    async def main():
        loop = asyncio.get_running_loop()

        def make(key):
            if asked.is_set():
                return Thing(key)
            asked.set()
            return Thing(asyncio.run_coroutine_threadsafe(key_of(key), loop).result(PATIENCE / 2))

        keeper = KeyedObjects(make, Thing.idle, by_user=True)
        other = loop.run_in_executor(None, keeper.get, "key")
        assert asked.wait(PATIENCE)  # the loop stands still, so the other thread is not done
        mine = keeper.get("key")
        assert not other.done()
        assert await other is mine is keeper.get("key")

    asyncio.run(main())


@needs_fork
def test_a_child_that_is_forked_while_the_lock_is_held_gets_a_free_one(keeper):
    thing = keeper.get("a")

    def check():
        assert keeper.peek("a") is thing
        assert keeper.get("b").key == "b"

    with keeper._guard.lock:
        assert in_a_child(check) == 0
