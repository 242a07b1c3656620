"""What a gate tells the supply that it is shared through."""

import gc
import threading

from headgate import Dispatch
from headgate.gate.gate import Gate
from patience import PATIENCE


class Supply:
    """Notes what it is told."""

    def __init__(self):
        self.told = []

    def wanted(self, cost):
        self.told.append(("wanted", cost))

    def returned(self, *, corrected):
        self.told.append(("returned", corrected))

    def signalled(self, signal):
        self.told.append(("signalled", signal.until))

    def close(self):
        self.told.append(("closed",))


def shared():
    gate = Dispatch("api", concurrency=4)
    supply = Supply()
    Gate.share(gate, supply)
    return gate, supply


def test_a_call_that_ends_while_another_thread_holds_the_lock_is_told_to_the_supply():
    gate, supply = shared()
    permit = gate.try_admit(tokens=5)

    def settle_in_another_thread(_now):
        thread = threading.Thread(target=lambda: permit.settle(tokens=3))
        thread.start()
        thread.join(PATIENCE)

    gate.look(settle_in_another_thread)
    assert supply.told == [("returned", True)]


def test_a_call_that_a_finalizer_settles_is_told_to_the_supply():
    gate, supply = shared()
    gate.try_admit(tokens=5).leave({"tokens": 3})
    gc.collect()
    assert supply.told == [("returned", True)]


def test_the_supply_hears_only_of_changes_of_the_window_that_this_process_made():
    gate, supply = shared()
    gate.window.signal(10**9, "shared", None, origin=object())
    assert supply.told == []
    gate.window.set(60)
    gate.window.clear()
    assert [kind for kind, _ in supply.told] == ["signalled", "signalled"]
