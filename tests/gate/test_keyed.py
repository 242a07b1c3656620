"""KeyedObjects: one object for each key, for as long as there is a reason to keep it."""

import gc
import threading

import pytest

from forks import in_a_child, needs_fork
from headgate.gate.keyed import KeyedObjects
from patience import PATIENCE


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


def test_a_function_of_the_user_makes_objects_without_the_lock():
    """It may ask for other keys, and of two objects made for one key at the same time one is kept."""
    both = threading.Barrier(2)

    def make(key):
        if key == "outer":
            keeper.get("inner")
            both.wait(PATIENCE)
        return Thing(key)

    keeper = KeyedObjects(make, Thing.idle, by_user=True)
    got = []
    threads = [threading.Thread(target=lambda: got.append(keeper.get("outer"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert got == [keeper.get("outer")] * 2
    assert len(keeper) == 2


@needs_fork
def test_a_child_that_is_forked_while_the_lock_is_held_gets_a_free_one(keeper):
    thing = keeper.get("a")

    def check():
        assert keeper.peek("a") is thing
        assert keeper.get("b").key == "b"

    with keeper._guard.lock:
        assert in_a_child(check) == 0
