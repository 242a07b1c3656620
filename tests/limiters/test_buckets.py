"""A MemoryLimiter with a template: a bucket for each of a million keys."""

import asyncio
import random
import time
from collections.abc import Mapping
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import (
    Capacity,
    CapacityExhausted,
    CostTooLarge,
    HeadgateError,
    MemoryLimiter,
    Rate,
    Refused,
    events,
)
from headgate.limiters.resource import Resource
from headgate.testing import ManualClock, Recorder, run
from limiters.crowd import InThreads, race
from limiters.looking import available, waiting
from limiters.model import Bucket, amounts, bursts, windows

SECOND = 1_000_000_000


@pytest.mark.parametrize("ask", ["acquire", "try_acquire", "slot"])
@pytest.mark.parametrize("resource", [None, ["api"]])
def test_a_resource_that_is_not_a_name_is_refused_on_first_use(ask, resource, clock):
    """Otherwise all callers whose user was not looked up would share one bucket, called None."""
    limiter = MemoryLimiter(rates="10/s", clock=clock)

    def asking():
        if ask == "slot":
            with limiter.slot(resource):
                pass
        else:
            getattr(limiter, ask)(resource)

    with pytest.raises(HeadgateError) as caught:
        asking()
    assert repr(resource) in str(caught.value)


# Gaps are told in 12ths of what one token takes, so that they fall around the edges.
gaps = st.tuples(st.integers(0, 40), st.integers(-1, 1))


a_look = st.tuples(gaps, st.sampled_from(["try", "try", "try", "look", "slot", "many"]), st.integers(0, 4))


@pytest.mark.parametrize("kind", ["configured", "template"])
@given(amount=amounts, window=windows, burst=bursts, looks=st.lists(a_look, max_size=60))
@settings(max_examples=150, deadline=None)
def test_a_bucket_grants_exactly_what_it_earned_under_any_pattern_of_polling(
    kind, amount, window, burst, looks
):
    """Compared with a bucket in fractions: looking, trying in vain and other keys change nothing."""
    window_ns = window * 1_000_000
    rate = Rate(amount, timedelta(milliseconds=window), burst=amount if burst is None else burst)
    assert rate.per_ns == window_ns
    clock = ManualClock()
    limiter = MemoryLimiter(rates=rate if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_capacity("api", amount, window / 1000, burst=burst)
    model = Bucket(amount, window_ns, rate.burst)
    for (parts, little), what, cost in looks:
        clock.advance_to_ns(clock.now() + max(0, parts * window_ns // (12 * amount) + little))
        model.pass_to(clock.now())
        if kind == "template":
            limiter.try_acquire(f"other {parts}")
        if what == "look":
            assert available(limiter) == max(0, model.level // 1)
            continue
        cost = min(cost if what == "many" else 1, max(amount, rate.burst))
        fits = model.fits(cost)
        if what == "slot":
            try:
                with limiter.slot("api", cost=cost, timeout=0):
                    admitted = True
            except CapacityExhausted:
                admitted = False
        else:
            admitted = limiter.try_acquire("api", cost=cost)
        assert admitted == fits
        if admitted:
            model.take(cost)
    assert available(limiter) == max(0, model.level // 1)


@pytest.mark.parametrize("kind", ["configured", "template"])
@pytest.mark.parametrize("every", [0.15, 0.199, 0.05, 0.0999999, 0.3, 1.9])
def test_ten_a_second_are_ten_a_second_however_they_are_polled(kind, every):
    """The tokens granted by the time t are floor(rate · t)."""
    clock = ManualClock()
    limiter = MemoryLimiter(rates="10/s burst 100" if kind == "template" else (), clock=clock)
    if kind == "configured":
        limiter.set_capacity("api", 10, 1, burst=100)
    limiter.acquire("api", cost=10)
    while limiter.try_acquire("api"):
        pass
    granted = 0
    for _ in range(200):
        clock.advance(every)
        while limiter.try_acquire("api"):
            granted += 1
        assert granted == clock.now() * 10 // SECOND


def test_a_template_without_a_burst_gives_one_seconds_worth_at_once(clock):
    """The default burst of a rate that is written as a string."""
    limiter = MemoryLimiter(rates="600/minute", clock=clock)
    assert sum(limiter.try_acquire("user") for _ in range(100)) == 10


def test_a_resource_of_the_template_is_made_on_first_use(clock):
    limiter = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    assert len(limiter) == 0
    assert [limiter.try_acquire("ann") for _ in range(3)] == [True, True, False]
    assert limiter.try_acquire("bob")
    assert len(limiter) == 2
    assert limiter.get_capacity("ann").available == 0
    assert limiter.get_capacity("carol") == Capacity(
        resource="carol", available=2, total=2, window=60.0, in_flight=0, share=2
    )


def test_looking_at_a_resource_does_not_make_it(clock):
    limiter = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    for i in range(100):
        limiter.get_capacity(f"user {i}")
        limiter.release(f"user {i}")
    assert len(limiter) == 0


@pytest.mark.parametrize("rates", ["2/minute strict", ["2/minute strict", "10/s"]])
def test_a_strict_resource_of_the_template_is_made_on_first_use(rates, clock):
    """By looking, by trying and by waiting."""
    limiter = MemoryLimiter(rates=rates, clock=clock)
    assert limiter.get_capacity("ann").available == 2
    assert [limiter.try_acquire("ann") for _ in range(3)] == [True, True, False]
    limiter.acquire("bob")
    assert limiter.try_acquire("bob")
    assert not limiter.try_acquire("bob")


def test_a_resource_that_was_configured_goes_by_its_own_rates(clock):
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.set_capacity("vip", 5, 60)
    assert limiter.get_capacity("vip").total == 5
    assert limiter.get_capacity("user").total == 1
    limiter.remove("vip")
    assert limiter.get_capacity("vip").total == 1


def test_a_resource_configured_before_its_first_use_starts_full(clock):
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.set_capacity("vip", 1000, 60)
    assert limiter.get_capacity("vip").available == 1000


def test_configuring_a_template_resource_in_use_keeps_what_it_has_left(clock):
    limiter = MemoryLimiter(rates="4/minute burst 4", clock=clock)
    limiter.acquire("user", cost=3)
    limiter.set_capacity("user", 100, 60)
    assert limiter.get_capacity("user").available == 1


@pytest.mark.parametrize("waited", [False, True])
def test_removing_a_resource_of_the_template_makes_it_new(waited):
    """Whether or not a call ever waited there: the caller cannot know."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    limiter.acquire("user")
    if waited:
        limiter.acquire("user")
    assert limiter.get_capacity("user").available == 0
    limiter.remove("user")
    assert limiter.get_capacity("user").available == 1
    assert limiter.try_acquire("user")


def test_a_task_that_waits_at_a_removed_template_resource_goes_on_at_a_new_one():
    async def main(clock):
        limiter = MemoryLimiter(rates="1/hour", clock=clock)
        limiter.acquire("user")
        waiter = asyncio.ensure_future(limiter.acquire_async("user"))
        await asyncio.sleep(5)
        limiter.remove("user")
        await waiter
        return clock.seconds()

    assert run(main) == 5.0


def test_a_hundred_thousand_keys_touched_once_are_forgotten_when_they_are_full_again(clock):
    limiter = MemoryLimiter(rates="10/minute", clock=clock)
    for i in range(100_000):
        assert limiter.try_acquire(f"user {i}")
    assert len(limiter) == 100_000
    clock.advance(120)
    limiter.try_acquire("another")
    clock.advance(120)
    limiter.try_acquire("another")
    assert len(limiter) <= 2


def test_a_steady_stream_of_new_keys_takes_bounded_memory(clock):
    """Twenty keys a second, each full again after six seconds: never more than a few windows of them."""
    limiter = MemoryLimiter(rates="10/minute", clock=clock)
    most = 0
    for second in range(400):
        for i in range(20):
            limiter.try_acquire(f"user {second} {i}")
        clock.advance(1)
        most = max(most, len(limiter))
    assert most <= 20 * 60 * 3


def test_a_key_that_is_not_full_is_never_forgotten(clock):
    """One token comes back after an hour, not before."""
    limiter = MemoryLimiter(rates="1/hour burst 1", clock=clock)
    assert limiter.try_acquire("user")
    for i in range(3599):
        clock.advance(1)
        limiter.try_acquire(f"other {i}")
        assert not limiter.try_acquire("user")
    clock.advance(1)
    assert limiter.try_acquire("user")


def test_keys_whose_callers_waited_are_forgotten_when_they_are_idle_and_full():
    """A wait gives the key a gate of its own, which must go again."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="60/minute", clock=clock)
    for i in range(300):
        for _ in range(2):
            with limiter.slot(f"user {i}"):
                pass
        assert len(limiter) <= 10


def test_keys_whose_callers_waited_are_forgotten_although_nothing_was_released():
    """Release is optional, so a limiter must not keep a gate for each call that was never released."""
    clock = ManualClock(auto_advance=True)
    limiter = MemoryLimiter(rates="60/minute", clock=clock)
    for i in range(300):
        limiter.acquire(f"user {i}")
        limiter.acquire(f"user {i}")
    clock.advance(86400)
    for i in range(300):
        limiter.acquire(f"late {i}")
        limiter.acquire(f"late {i}")
    assert len(limiter) <= 310


def test_a_key_is_not_forgotten_while_a_call_waits_or_runs():
    async def main(clock):
        limiter = MemoryLimiter(rates="1/minute", clock=clock)
        waiters = []
        for i in range(5):
            limiter.acquire(f"busy {i}")
            waiters.append(asyncio.ensure_future(limiter.acquire_async(f"busy {i}")))
        async with limiter.slot("inside"):
            await asyncio.sleep(0)
            for i in range(50):  # every new key looks for keys to forget
                async with limiter.slot(f"other {i}"):
                    pass
            assert limiter.get_capacity("inside").in_flight == 1
            for i in range(5):
                assert waiting(limiter, f"busy {i}") == 1
            await asyncio.sleep(3600)
            for i in range(50):
                async with limiter.slot(f"later {i}"):
                    pass
            in_flight_after_an_hour = limiter.get_capacity("inside").in_flight
        await asyncio.gather(*waiters)
        return in_flight_after_an_hour

    assert run(main) == 1


def test_try_acquire_succeeds_while_its_full_key_is_being_forgotten(clock):
    """The caller found the old gate just before it was closed."""
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)

    class Meanwhile(Mapping):
        """A cost; while it is first read, another thread (in effect) makes the limiter forget the user."""

        read = False

        def __iter__(self):
            return iter(["requests"])

        def __len__(self):
            return 1

        def __getitem__(self, unit):
            if not self.read:
                self.read = True
                with limiter.slot("another"):
                    pass
            return 1

    assert limiter.try_acquire("user", cost=Meanwhile())


def test_a_refused_try_gives_a_key_no_gate(clock):
    """Only waiting takes a gate: the callers that are refused most often must not cost most memory."""
    limiter = MemoryLimiter(rates="1/minute", clock=clock)
    for i in range(1000):
        assert limiter.try_acquire(f"user {i}")
        assert not limiter.try_acquire(f"user {i}")
        with pytest.raises(CapacityExhausted):
            limiter.acquire(f"user {i % 10}", timeout=0)
    assert len(limiter._resources) <= 10


def test_a_key_that_is_configured_while_it_is_being_forgotten_keeps_its_configuration(clock, monkeypatch):
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    crowd = InThreads()
    retire = Resource.retire

    def retire_and_be_late(self):
        retired = retire(self)
        crowd.start(limiter.set_capacity, "user", 100, 60)
        crowd.threads[-1].join(0.2)  # as far as it gets, in between
        return retired

    monkeypatch.setattr(Resource, "retire", retire_and_be_late)
    with limiter.slot("another"):  # looks for keys to forget
        pass
    monkeypatch.undo()
    assert crowd.join() == [None]
    assert limiter.get_capacity("user").total == 100
    assert limiter.try_acquire("user", cost=50)


@pytest.mark.parametrize("ask", ["try_acquire", "acquire"])
def test_ctrl_c_while_a_key_is_being_forgotten_leaves_it_usable(ask, clock, monkeypatch):
    limiter = MemoryLimiter(rates="1/s", clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    retire = Resource.retire

    def interrupted(self):
        retire(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Resource, "retire", interrupted)
    with pytest.raises(KeyboardInterrupt), limiter.slot("another"):
        pass
    monkeypatch.undo()
    crowd = InThreads()
    crowd.start(getattr(limiter, ask), "user")
    crowd.threads[0].join(1)
    spinning = crowd.threads[0].is_alive()
    limiter.close()  # ends it
    crowd.join()
    assert not spinning


TEMPLATES = {
    "a bucket": "10/minute burst 3",
    "a fast bucket": "7/s burst 7",
    "no burst": "4/minute",
    "two windows": ["5/s burst 5", "12/minute burst 12"],
    "two units": ["6/minute burst 6", "9 tokens/minute burst 4"],
    "strict": "3/minute strict",
}


a_visit = st.tuples(
    st.sampled_from(["ann", "bob", "carol"]),
    st.sampled_from(["try", "try", "try", "acquire", "enter", "leave", "look"]),
    st.sampled_from([0, 0, 0, 1, 100, 999, 6000, 20_000, 60_000, 70_000, 400_000]),  # milliseconds
    st.integers(0, 3),
)


@pytest.mark.parametrize("name", TEMPLATES)
@given(visits=st.lists(a_visit, max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_resource_of_the_template_behaves_like_a_configured_one(name, visits):
    """On any timeline: admissions, levels and the moments at which to try again."""
    clock = ManualClock()
    template = MemoryLimiter(rates=TEMPLATES[name], clock=clock)
    configured = MemoryLimiter(clock=clock)
    for user in ("ann", "bob", "carol"):
        configured.set_rates(user, TEMPLATES[name])
    inside = {template: [], configured: []}

    def visit(limiter, user, what, cost):
        if what == "try":
            return limiter.try_acquire(user, cost=cost)
        if what == "look":
            seen = limiter.get_capacity(user)
            return seen.available, seen.total, seen.window, seen.share
        if what == "leave":
            if inside[limiter]:
                inside[limiter].pop(0).__exit__(None, None, None)
            return None
        try:
            if what == "acquire":
                return limiter.acquire(user, cost=cost, timeout=0)
            slot = limiter.slot(user, cost=cost, timeout=0)
            slot.__enter__()
            inside[limiter].append(slot)
        except Refused as refused:
            return type(refused), refused.rule, refused.retry_after
        return "inside"

    try:
        for user, what, gap, cost in visits:
            clock.advance_to_ns(clock.now() + gap * 1_000_000)
            assert visit(template, user, what, cost) == visit(configured, user, what, cost)
    finally:
        for slots in inside.values():
            for slot in slots:
                slot.__exit__(None, None, None)


@pytest.mark.parametrize("waited", [False, True])
def test_acquire_and_release_at_a_template_resource_do_what_they_do_at_a_configured_one(waited):
    """The call runs until it is released, and its token comes back."""
    clock = ManualClock(auto_advance=True)
    template = MemoryLimiter(rates="2/minute burst 2", clock=clock)
    configured = MemoryLimiter(clock=clock)
    configured.set_rates("user", "2/minute burst 2")
    seen = []
    for limiter in (template, configured):
        if waited:
            for _ in range(3):
                with limiter.slot("user"):
                    pass
            clock.advance(60)
        limiter.acquire("user")
        during = limiter.get_capacity("user")
        limiter.release("user")
        seen.append((during, limiter.get_capacity("user")))
        clock.advance(600)
    assert seen[0] == seen[1]


def test_an_observer_hears_of_admissions_at_template_resources_as_at_configured_ones(clock):
    heard = []
    for rates in ("10/s", ()):
        seen = Recorder()
        limiter = MemoryLimiter(rates=rates, observer=seen, clock=clock)
        if not rates:
            limiter.set_rates("user", "10/s")
        limiter.acquire("user")
        limiter.try_acquire("user")
        with pytest.raises(CostTooLarge):
            limiter.try_acquire("user", cost=11)
        heard.append([type(event).__name__ for event in seen.events])
    assert heard[0] == heard[1]


def test_an_observer_is_never_called_under_the_lock_of_the_limiter(clock):
    """Here a slot ended while its gate was being looked at."""
    locked = []

    def observer(event):
        locked.append((type(event).__name__, limiter._lock.locked()))

    limiter = MemoryLimiter(rates="1/s", observer=observer, clock=clock)
    slot = limiter.slot("user")
    slot.__enter__()
    with limiter._resources["user"].gate._lock:  # another thread holds it for a moment
        slot.__exit__(None, None, None)
    with limiter.slot("another"):  # looks for keys to forget
        pass
    assert ("Settled", True) not in locked
    assert ("Admitted", True) not in locked


def test_a_call_that_goes_on_at_a_new_gate_is_not_reported_as_refused(clock):
    """That a gate was forgotten inside the limiter does not concern the observer."""
    seen = Recorder()
    limiter = MemoryLimiter(rates="1/s", observer=seen, clock=clock)
    with limiter.slot("user"):
        pass
    clock.advance(10)
    slot = limiter.slot("user")
    found = limiter._find("user")  # a caller is about to enter its gate ...
    with limiter.slot("another"):  # ... when the gate is closed, because the key is forgotten
        pass
    assert found.gate.closed
    gates = iter([found, limiter._find("user")])
    slot.find = lambda _resource, _again: next(gates)
    with slot:
        pass
    assert seen.of(events.Refused) == []


@pytest.mark.parametrize("rates", ["5/hour burst 5", ["5/hour burst 5", "100/s"], "5/hour strict"])
@pytest.mark.parametrize("ask", ["try", "acquire", "slot", "all"])
def test_eight_threads_at_one_template_key_never_take_more_than_there_is(rates, ask):
    """On the real clock, at a key that is being made, given a gate and made again."""
    for turn in range(5):
        limiter = MemoryLimiter(rates=rates)

        def visit(i, limiter=limiter, turn=turn):
            dice = random.Random(i + 100 * turn)
            admitted = 0
            for _ in range(60):
                how = dice.choice(["try", "acquire", "slot"]) if ask == "all" else ask
                try:
                    if how == "try":
                        admitted += limiter.try_acquire("key")
                    elif how == "acquire":
                        limiter.acquire("key", timeout=0)
                        admitted += 1
                    else:
                        with limiter.slot("key", timeout=0):
                            admitted += 1
                except CapacityExhausted:
                    pass
            return admitted

        assert sum(race(8, visit)) == 5


def test_eight_threads_at_keys_that_come_and_go_never_get_more_than_the_rate():
    """Buckets of a millisecond, so that keys are forgotten and made all the time."""
    limiter = MemoryLimiter(rates="1000/s burst 1")
    keys = [f"key {i}" for i in range(6)]
    began = time.monotonic_ns()

    def visit(i):
        dice = random.Random(i)
        admitted = dict.fromkeys(keys, 0)
        for _ in range(400):
            key = dice.choice(keys)
            try:
                if dice.random() < 0.5:
                    with limiter.slot(key, timeout=0):
                        admitted[key] += 1
                else:
                    admitted[key] += limiter.try_acquire(key)
            except CapacityExhausted:
                pass
        return admitted

    results = race(8, visit)
    allowed = 1 + (time.monotonic_ns() - began) // 1_000_000
    for key in keys:
        assert sum(admitted[key] for admitted in results) <= allowed


def test_threads_that_wait_at_template_keys_are_all_admitted():
    """On the real clock: no waiter is lost when a key gets a gate."""
    limiter = MemoryLimiter(rates="500/s burst 1")

    def visit(i):
        for turn in range(10):
            limiter.acquire(f"key {(i + turn) % 3}")
        return 10

    began = time.monotonic_ns()
    assert sum(race(8, visit)) == 80
    allowed = 3 * (1 + (time.monotonic_ns() - began) * 500 // SECOND)
    assert allowed >= 80
