"""Guard: one lock, items left by finalizers, repair after interrupts, effects after the lock."""

import threading

import pytest

from headgate.gate.guard import Guard


class Counter:
    """Guarded state: a number that items are subtracted from, and a log of what happened."""

    def __init__(self):
        self.number = 0
        self.log = []
        self.guard = Guard(lambda: 7, self.take_back, repair=self.repair, effects=self.effects)

    def take_back(self, item, now):
        assert self.guard.lock.locked()
        self.log.append(("back", item, now))
        self.number -= item

    def repair(self, now):
        assert self.guard.lock.locked()
        self.log.append(("repair", now))

    def effects(self):
        assert not self.guard.lock.locked() or threading.current_thread() is not threading.main_thread()
        self.log.append(("effects",))


def test_run_gives_the_time_and_carries_out_effects_after_the_lock():
    counter = Counter()

    def add(now):
        assert counter.guard.lock.locked()
        counter.number += 3
        return now

    assert counter.guard.run(add) == 7
    assert counter.number == 3
    assert counter.log == [("effects",)]


def test_an_item_left_while_the_lock_is_free_is_taken_back_at_once():
    counter = Counter()
    counter.guard.leave(2)
    assert counter.number == -2
    assert counter.log == [("effects",), ("back", 2, 7), ("effects",)]
    assert not counter.guard.pending


def test_an_item_left_by_a_finalizer_inside_the_lock_is_taken_back_by_the_thread_that_holds_it():
    counter = Counter()
    counter.effects = lambda: None
    counter.guard = Guard(lambda: 7, counter.take_back)

    def change(_now):
        counter.guard.leave(5)  # as a finalizer would, in the thread that holds the lock: it must not wait
        assert counter.number == 0
        counter.number += 1

    counter.guard.run(change)
    assert counter.number == 1 - 5


def test_a_change_that_raises_is_repaired_before_the_error_leaves():
    counter = Counter()

    def broken(_now):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        counter.guard.run(broken)
    assert ("repair", 7) in counter.log
    assert not counter.guard.interrupted
    counter.log.clear()
    counter.guard.run(lambda _now: None)
    assert counter.log == [("effects",)]


def test_an_item_whose_return_was_interrupted_is_taken_back_again():
    failures = [KeyboardInterrupt()]
    taken = []

    def take_back(item, _now):
        if failures:
            raise failures.pop()
        taken.append(item)

    guard = Guard(lambda: 0, take_back)
    with pytest.raises(KeyboardInterrupt):
        guard.leave("a")
    assert list(guard.pending) == ["a"]
    guard.run(lambda _now: None)
    assert taken == ["a"]


def test_items_left_by_many_threads_are_each_taken_back_once():
    taken = []
    guard = Guard(lambda: 0, lambda item, _now: taken.append(item))

    def leave(start):
        for item in range(start, start + 500):
            guard.leave(item)
            guard.run(lambda _now: None)

    threads = [threading.Thread(target=leave, args=(start,)) for start in range(0, 4000, 500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    guard.finish()
    assert sorted(taken) == list(range(4000))


def test_after_a_fork_the_lock_is_free_and_nothing_is_pending():
    counter = Counter()
    counter.guard.lock.acquire()
    counter.guard.pending.append(3)
    counter.guard.interrupted = True
    counter.guard.after_fork()
    counter.guard.run(lambda _now: None)
    assert counter.number == 0


def test_run_takes_back_first_what_was_left_before():
    counter = Counter()
    counter.guard.pending.append(2)  # left while another thread held the lock
    assert counter.guard.run(lambda _now: counter.number) == -2
    assert not counter.guard.pending
