"""Gates that share one key, over every kind of store: rates, limits, windows, places and bytes.

Stores have their own clocks, so the rates here are slow: a unit takes an hour and more.
"""

import threading
from contextlib import ExitStack
from uuid import uuid4

import pytest

from headgate import Backoff, CapacityExhausted, Dispatch, InvalidConfig, Rate, WaitTimeout, events
from headgate.http import read_signal
from headgate.sharing.courier import COURIER
from headgate.sharing.memory import MemoryStore
from headgate.sharing.pool import member
from headgate.sharing.pool.member import PoolMember
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE, eventually


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


@pytest.fixture
def gates(opened):
    made, stores = [], []

    def make(key, **options):
        options = {"concurrency": None, "throttled_concurrency": None, "byte_budget": None, **options}
        stores.append(opened())
        made.append(Dispatch(key, store=stores[-1], **options))
        return made[-1]

    yield make
    for gate in made:
        gate.close()
    for store in stores:
        COURIER.wait_for(store.close, PATIENCE)


def test_two_gates_share_one_burst(gates, key):
    """Nine tenths of it, and then no more for days."""
    pair = [gates(key, rates=Rate(100, 365 * 86_400, burst=20)) for _ in range(2)]
    got, full = 0, set()
    for n in range(60):
        gate = pair[n % 2]
        if gate in full:
            continue
        try:
            with gate.admit(timeout=0.7):
                got += 1
        except WaitTimeout:
            full.add(gate)
    assert len(full) == 2
    assert 18 <= got <= 20


def test_try_admit_is_granted_units_although_it_never_waits(gates, key):
    """There is no other gate, and the burst is untouched."""
    gate = gates(key, rates="1000/s burst 1000")
    tick = threading.Event()
    assert any(gate.try_admit() or tick.wait(0.002) for _ in range(300))


def test_admit_that_does_not_wait_is_granted_units_for_its_next_try(gates, key):
    gate = gates(key, rates="1000/s burst 1000")
    tick = threading.Event()

    def admitted():
        try:
            gate.admit(timeout=0).enter().settle()
        except CapacityExhausted:
            return False
        return True

    assert any(admitted() or tick.wait(0.002) for _ in range(300))


def test_a_window_set_at_one_gate_is_active_at_the_other_until_it_is_cleared(gates, key):
    one, other = (gates(key, rates="1000/day", pause=True) for _ in range(2))
    one.set_backoff(60)
    eventually(other.window.should_backoff, "the other hears of it")
    one.window.clear()
    eventually(lambda: not other.window.should_backoff(), "the other hears that it is over")


def test_rates_set_at_one_gate_hold_for_the_other(gates, key):
    one, other = (gates(key, rates="1000/day") for _ in range(2))
    one.set_rates("77/day")
    eventually(lambda: other.snapshot().rates[0].limit == 77, "the other hears of it")


def test_an_event_tells_of_rates_that_another_gate_has_set(gates, key):
    recorder = Recorder()
    one, _other = gates(key, rates="1000/day"), gates(key, rates="1000/day", observer=recorder)
    one.set_rates("77/day")
    eventually(lambda: recorder.of(events.Retuned), "the other's observer hears of it")
    assert recorder.of(events.Retuned)[-1].rates == (str(Rate.parse("77/day")),)


def stated(limit):
    headers = {"x-ratelimit-limit-requests": str(limit), "x-ratelimit-remaining-requests": str(limit - 1)}
    return read_signal(200, headers)


def test_a_limit_stated_to_one_gate_holds_for_all(gates, key):
    """A lower one is shared too. The gate that lowered it raises it again, up to what was set."""
    one, other = (gates(key, rates="6000/minute") for _ in range(2))
    one.observe(stated(600))
    eventually(lambda: other.snapshot().rates[0].limit == 600, "the other goes by it")
    assert one.snapshot().rates[0].level <= 60  # what was granted to this gate, not all of it
    one.observe(stated(9000))
    eventually(lambda: other.snapshot().rates[0].limit == 6000, "it is raised again")


def test_a_response_does_not_raise_a_rate_that_another_gate_has_set(gates, key):
    one, other = (gates(key, rates="6000/minute") for _ in range(2))
    other.set_rates("60/minute")
    eventually(lambda: one.snapshot().rates[0].limit == 60, "it was lowered by hand")
    one.observe(stated(600))
    one.observe(stated(5000))
    assert one.snapshot().rates[0].limit == 60


def test_gates_whose_rates_count_different_units_cannot_share_a_key(gates, key):
    one = gates(key, rates="500/minute")
    with one.admit(timeout=PATIENCE), pytest.raises(InvalidConfig, match=r"rates are of requests"):
        gates(key, rates="200_000 tokens/minute")
    assert one.snapshot().rates[0].limit == 500


def test_calls_in_flight_keep_their_places_after_their_gate_was_closed(gates, key):
    one, other = (gates(key, concurrency=1) for _ in range(2))
    permit = one.admit(timeout=PATIENCE).__enter__()
    one.close()
    with pytest.raises(WaitTimeout), other.admit(timeout=0.4):
        pass
    permit.settle()
    with other.admit(timeout=PATIENCE):
        pass


# -- a Dispatch, where the time of the store can be moved


@pytest.fixture
def clock():
    return ManualClock(1_000)


@pytest.fixture
def shared(clock):
    """Return a function that makes gates which share one key, on a clock that is moved by hand."""
    store, made = MemoryStore(clock), []

    def make(**options):
        options = {"concurrency": None, "throttled_concurrency": None, "byte_budget": None, **options}
        made.append(Dispatch("key", store=store, clock=clock, **options))
        return made[-1]

    yield make
    for gate in made:
        gate.close()


def settle_down(*gates):
    """Wait until no gate has anything to ask."""
    eventually(lambda: not any(gate._member._working for gate in gates), "there is nothing more to ask")


def test_a_gate_that_was_idle_for_longer_than_its_lease_uses_no_place_of_another(shared, clock):
    """Four places in all, and two members; the first did nothing for ten seconds."""
    first = shared(concurrency=4)
    settle_down(first)
    clock.advance(10)
    second = shared(concurrency=4)
    settle_down(second)
    inside = [
        permit for gate in (second, first) for _ in range(4) if (permit := gate.try_admit()) is not None
    ]
    for permit in inside:
        permit.settle()
    assert len(inside) <= 4


def test_bytes_in_flight_at_all_gates_together_are_within_the_budget(shared):
    first, second = shared(byte_budget=1_000), shared(byte_budget=1_000)
    inside = [permit for gate in (first, second) if (permit := gate.try_admit(bytes=900)) is not None]
    for permit in inside:
        permit.settle()
    assert len(inside) == 1


def test_a_waiting_call_starts_when_another_gate_raises_the_rate(shared, clock):
    """The rate would have kept it waiting for an hour."""
    first, second = shared(rates="1/hour burst 1"), shared(rates="1/hour burst 1")
    with first.admit(timeout=PATIENCE):
        pass
    went = threading.Event()

    def wait():
        with first.admit():
            went.set()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: first.snapshot().waiting == 1, "a call waits")
    second.set_rates("3600000/hour burst 1000")

    def goes():
        clock.advance(0.1)
        return went.is_set()

    eventually(goes, "the waiting call starts")
    assert clock.seconds() < 1_000 + 3_000
    thread.join(PATIENCE)


# -- how often a store is asked again


@pytest.mark.parametrize("inside", [1, 3])
def test_acquire_backoff_paces_questions_for_places_that_other_members_hold(inside):
    """Waiting callers are woken at once; only the store is asked again and again."""
    store = MemoryStore()
    options = {"throttled_concurrency": None, "byte_budget": None, "concurrency": inside, "store": store}
    holder = Dispatch("key", **options)
    held = ExitStack()
    for _ in range(inside):
        held.enter_context(holder.admit(timeout=PATIENCE))
    usual = Dispatch("key", **options)
    patient = Dispatch("key", acquire_backoff=Backoff(0.5, strategy="constant"), **options)
    went = []

    def wait(gate):
        with gate.admit(timeout=PATIENCE):
            went.append(gate)

    threads = [threading.Thread(target=wait, args=(gate,)) for gate in (usual, patient)]
    for thread in threads:
        thread.start()
    eventually(lambda: usual._member.questions >= 12, "the usual one has asked often")
    assert patient._member.questions <= 4
    held.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(went) == {usual, patient}
    for gate in (holder, usual, patient):
        gate.close()


@pytest.mark.parametrize(
    "options", [{"acquire_backoff": Backoff(1)}, {"acquire_backoff": 0.5, "store": "memory:pace"}]
)
def test_acquire_backoff_must_be_a_backoff_of_a_shared_gate(options):
    with pytest.raises(InvalidConfig, match="acquire_backoff"):
        Dispatch("key", **options)


def test_no_call_begins_between_the_demand_that_returns_all_places_and_their_return(shared, monkeypatch):
    """Another member is granted the places at once."""
    gate, began = shared(concurrency=4), []
    write = PoolMember._question

    def question(member, demand, **how):
        if how.get("resting") and member is gate.supply:
            began.append(gate.try_admit())
        return write(member, demand, **how)

    monkeypatch.setattr(PoolMember, "_question", question)
    with gate.admit(timeout=PATIENCE):
        pass
    eventually(lambda: began, "the places go back")
    assert began == [None] * len(began)


def test_a_call_that_begins_just_before_all_places_are_returned_is_told(shared, monkeypatch):
    gate, began, told = shared(concurrency=4), [], []
    settle_down(gate)
    write, use_nothing = PoolMember._question, PoolMember._use_nothing

    def begin_a_call(member):
        if not began and member is gate.supply:  # not one that an earlier test has left behind
            began.append(gate.try_admit())
        use_nothing(member)

    def question(member, demand, **how):
        asked = write(member, demand, **how)
        if asked is not None and member is gate.supply:
            told.append(asked["uses"])
        return asked

    with gate.admit(timeout=PATIENCE):
        monkeypatch.setattr(PoolMember, "_use_nothing", begin_a_call)
        monkeypatch.setattr(PoolMember, "_question", question)
    eventually(lambda: began, "the places go back")
    assert began[0] is not None
    eventually(lambda: told and told[-1] == [1, 0], "the call is told")
    began[0].settle()


def test_rates_set_while_a_question_is_written_are_told_with_the_next(shared, monkeypatch):
    first, second = shared(rates="10/day"), shared(rates="10/day")
    settle_down(first, second)

    def set_rates(demand):
        monkeypatch.setattr(member, "spare_for", spare_for)
        first.set_rates("50/day")
        return spare_for(demand)

    spare_for = member.spare_for
    monkeypatch.setattr(member, "spare_for", set_rates)
    first._member._nudge()
    first.try_admit()
    eventually(lambda: second.snapshot().rates[0].limit == 50, "the other gate hears of it")
