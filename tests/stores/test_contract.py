"""What every store does alike. One more store is one more line of PLACES, in conftest.py.

Stores tell time by their own clocks, so the rates here are slow: a unit takes an hour and more.
"""

import asyncio
import json
import threading
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import pytest

import pool_questions
from headgate import Backoff, Dispatch, InvalidConfig, Rate, WaitTimeout, events
from headgate.errors import StoreError
from headgate.http import read_signal
from headgate.sharing.courier import COURIER
from headgate.sharing.memory import MemoryStore
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.state import Pool
from headgate.testing import ManualClock, Recorder
from patience import PATIENCE, eventually, happens

SECOND = 1_000_000
DAY = 86_400 * SECOND
SLOW = [[1_000, 365 * DAY, 1_000]]  # 900 may be booked, and none comes back while a test runs
NO_LIMITS = [0, 0, 0, 0]


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


question = partial(pool_questions.question, rates=SLOW)


def on(opened, scenario, stores=1):
    """Run a scenario with so many stores of one place; close them whatever happens."""

    async def main():
        many = [opened() for _ in range(stores)]
        try:
            return await asyncio.wait_for(scenario(*many), 3 * PATIENCE)
        finally:
            for store in many:
                await store.close()

    return asyncio.run(main())


async def booked(store, key):
    """How many units of SLOW are gone, found by asking: everything tried is given back."""
    low, high = 0, 900
    while low < high:
        middle = (low + high + 1) // 2
        given = await store.ask(key, question("auditor", batches=[[middle]]))
        back = [[middle, given["first_stamp"]]] if given["starts"] else []
        await store.ask(key, question("auditor", returned=[back]))
        if given["starts"] == [0]:
            low = middle
        else:
            high = middle - 1
    return 900 - low


# -- asking


def test_it_answers_as_the_rule_does(opened, key):
    """2b: whatever does not depend on how much time has passed, to the byte."""
    story = [
        question(batches=[[100]] * 9, wants=[3, 50], limits=[10, 2, 100, SECOND]),
        question("b", wants=[9, 99], uses=[0, 0], batches=[[1]]),
        question("b", returned=[[[1, 0]]], owed=[7]),
        question(set=[[[500, 365 * DAY, 400]], [5, 1, 50, SECOND]]),
        question("c", wants=[1, 1], rates=[[500, 365 * DAY, 400]]),
        question("b", leaves=True, rates=[[500, 365 * DAY, 400]]),
    ]

    def timeless(given):
        given = json.loads(json.dumps(given))
        del given["first_stamp"], given["version"]
        return {
            **given,
            "starts": [start == 0 for start in given["starts"]],
            "ask_again_in": bool(given["ask_again_in"]),
        }

    async def scenario(store):
        pool = Pool()
        for asked in story:
            expected = answer(pool, json.loads(json.dumps(asked)), 10**9)
            assert timeless(await store.ask(key, asked)) == timeless(expected)

    on(opened, scenario)


def test_it_counts_every_unit_once(opened, key):
    async def scenario(store):
        for n in range(20):
            await store.ask(key, question(f"m{n % 3}", batches=[[n]]))
        assert await booked(store, key) == sum(range(20))

    on(opened, scenario)


def test_two_of_one_place_decide_as_one(opened, key):
    """B2, M1: as two processes would."""

    async def scenario(one, other):
        for n in range(15):
            await asyncio.gather(
                one.ask(key, question("a", batches=[[10]])), other.ask(key, question("b", batches=[[10]]))
            )
            if n == 7:
                assert await booked(other, key) == 160
        assert await booked(one, key) == await booked(other, key) == 300

    on(opened, scenario, stores=2)


def test_many_ask_at_once_and_each_gets_its_own_answer(opened, key):
    async def scenario(store):
        asks = [store.ask(key, question(f"m{n}", batches=[[1]], wants=[n, 0])) for n in range(60)]
        answers = await asyncio.gather(*asks)
        assert [given["places"] for given in answers] == list(range(60))
        assert await booked(store, key) == 60

    on(opened, scenario)


def test_keys_share_nothing(opened, key):
    """Whatever is in them."""
    keys = [key, f"{key} ", f"{key}:{{}}", f"{key} ключ", f"{key}%_'\"", f"{key}\n"]

    async def scenario(store):
        for each in keys:
            await store.ask(each, question(batches=[[100]], window=60 * SECOND))
            given = await store.ask(f"{each}/", question())
            assert (given["members"], given["window_left"], given["window_generation"]) == (1, 0, 0)
            assert await booked(store, each) == 100

    on(opened, scenario)


def test_a_question_asked_again_gets_the_same_answer_and_is_decided_once(opened, key):
    """B14: by the same store or by another connection to its place."""

    async def scenario(one, other):
        asked = question(batches=[[50]] * 2, returned=[[[1, 0]]], owed=[3], window=60 * SECOND, wants=[3, 3])
        first = json.loads(json.dumps(await one.ask(key, asked)))
        for store in (one, other, one):
            assert json.loads(json.dumps(await store.ask(key, asked))) == first
        assert await booked(one, key) == 103

    on(opened, scenario, stores=2)


def test_a_goodbye_asked_again_gives_back_once(opened, key):
    """B14."""

    async def scenario(store):
        given = await store.ask(key, question(batches=[[100]]))
        goodbye = question(returned=[[[60, given["first_stamp"]]]], leaves=True)
        for _ in range(3):
            await store.ask(key, goodbye)
        assert await booked(store, key) == 40

    on(opened, scenario)


def test_places_and_bytes_of_all_together_are_within_the_limit_and_a_goodbye_frees_them(opened, key):
    limits = [10, 0, 100, 0]

    async def scenario(one, other):
        first = await one.ask(key, question("a", limits=limits, wants=[7, 70]))
        second = await other.ask(key, question("b", limits=limits, wants=[7, 70]))
        assert (first["places"], first["bytes"]) == (7, 70)
        assert (second["places"], second["bytes"]) == (3, 30)
        await one.ask(key, question("a", limits=limits, leaves=True))
        third = await other.ask(key, question("b", limits=limits, uses=[3, 30], wants=[4, 40]))
        assert (third["places"], third["bytes"]) == (7, 70)

    on(opened, scenario, stores=2)


def test_the_places_of_a_member_that_died_come_back_after_its_lease(opened, key):
    """B3: a lease of fifty milliseconds, and somebody who asks until it is over."""

    async def scenario(store):
        await store.ask(key, question("dead", limits=[4, 0, 0, 0], wants=[4, 0], lease=50_000))
        async with asyncio.timeout(PATIENCE):
            while (await store.ask(key, question("b", wants=[4, 0])))["places"] < 4:  # noqa: ASYNC110 - by its clock
                await asyncio.sleep(0.01)

    on(opened, scenario)


def test_time_passes_by_the_store_s_own_clock(opened, key):
    """DESIGN 6: a window of fifty milliseconds is over for everybody, after that and not before."""

    async def scenario(one, other):
        first = await one.ask(key, question(window=60 * SECOND))
        assert first["window_left"] == 60 * SECOND
        left = (await other.ask(key, question("b")))["window_left"]
        assert 30 * SECOND < left <= 60 * SECOND
        await one.ask(key, question(window=-1))
        await one.ask(key, question(window=50_000))
        async with asyncio.timeout(PATIENCE):
            while (await other.ask(key, question("b")))["window_left"]:  # noqa: ASYNC110 - by its clock
                await asyncio.sleep(0.01)

    on(opened, scenario, stores=2)


@pytest.mark.parametrize(
    ("amount", "units"), [(150_000_000, 7), (150_000_000, 149_999_999), (999_999_937, 10**9)]
)
def test_large_numbers_are_exact(opened, key, amount, units):
    """B17: half of the burst at a time of 150 million tokens a day, and more."""
    rates = [[amount, DAY, 2 * amount]]

    async def scenario(store):
        pool = Pool()
        asked = question(rates=rates, batches=[[units], [amount]])
        given, expected = await store.ask(key, asked), answer(pool, asked, 10**9)
        assert [start == 0 for start in given["starts"]] == [start == 0 for start in expected["starts"]]
        assert given["rates"] == rates

    on(opened, scenario)


def test_limits_set_by_one_are_told_to_the_other_until_it_knows(opened, key):
    new = [[[77, DAY, 70]], [3, 2, 1, 0]]

    async def scenario(one, other):
        first = await one.ask(key, question("a"))
        await other.ask(key, question("b", set=new))
        told = await one.ask(key, question("a", version=first["version"]))
        assert (told["rates"], told["limits"]) == tuple(new)
        assert "rates" not in await one.ask(key, question("a", version=told["version"], rates=new[0]))

    on(opened, scenario, stores=2)


def unreadable(**facts):
    asked = question(batches=[[50]], window=60 * SECOND, wants=[5, 5])
    return {name: value for name, value in {**asked, **facts}.items() if value is not ...}


@pytest.mark.parametrize("facts", [{"batches": [["many"]]}, {"wants": ...}, {"uses": [None, None]}])
def test_what_cannot_be_read_is_a_store_error_and_changes_nothing(opened, key, facts):
    """DESIGN 12, B20, P7."""

    async def scenario(store):
        await store.ask(key, question(batches=[[10]]))
        with pytest.raises(StoreError):
            await store.ask(key, unreadable(**facts))
        assert await booked(store, key) == 10
        assert (await store.ask(key, question()))["window_generation"] == 0

    on(opened, scenario)


# -- news


def test_a_window_and_other_limits_are_news_to_the_others(opened, key):
    """D-09: from one process to the next; what is asserted is that it comes."""

    async def scenario(one, other):
        news = asyncio.Event()
        await other.ask(key, question("b"))
        await other.listen(key, news.set)
        for change in (
            {"window": 60 * SECOND},
            {"window": 90 * SECOND},
            {"set": [[[5, DAY, 5]], [1, 1, 1, 1]]},
            {"window": -1},
        ):
            await asyncio.sleep(0.06)  # whatever it says by itself at first
            news.clear()
            rates = [[5, DAY, 5]] if change == {"window": -1} else SLOW
            await one.ask(key, question("a", rates=rates, **change))
            await happens(news)

    on(opened, scenario, stores=2)


def test_news_of_one_key_are_none_of_another_and_every_listener_hears_them(opened, key):
    async def scenario(one, other):
        first, second, elsewhere = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for name in (key, f"{key}/"):
            await one.ask(name, question())
        await other.listen(key, first.set)
        await other.listen(key, second.set)
        await other.listen(f"{key}/", elsewhere.set)
        await asyncio.sleep(0.2)  # what it says by itself at first
        for event in (first, second, elsewhere):
            event.clear()
        await one.ask(key, question(window=60 * SECOND))
        await happens(first)
        await happens(second)
        assert not elsewhere.is_set()

    on(opened, scenario, stores=2)


def test_what_changes_neither_window_nor_limits_is_no_news(opened, key):
    async def scenario(one, other):
        heard = []
        await one.ask(key, question())
        await other.listen(key, lambda: heard.append(1))
        await asyncio.sleep(0.2)
        heard.clear()
        for n in range(20):
            await one.ask(key, question(batches=[[n]], wants=[n, n]))
        await asyncio.sleep(0.15)
        assert not heard

    on(opened, scenario, stores=2)


def test_a_listener_that_fails_neither_silences_the_others_nor_spoils_an_answer(opened, key):
    async def scenario(one, other):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        news = asyncio.Event()
        await one.ask(key, question())
        await other.listen(key, lambda: 1 / 0)
        await other.listen(key, news.set)
        await asyncio.sleep(0.2)
        news.clear()
        given = await one.ask(key, question(window=60 * SECOND))
        assert given["window_left"] == 60 * SECOND
        await asyncio.wait_for(news.wait(), 1)

    on(opened, scenario, stores=2)


# -- closing


def test_closing_twice_or_unused_is_fine(opened):
    async def main():
        store = opened()
        await store.close()
        await store.close()

    asyncio.run(main())


def test_another_of_the_same_place_goes_on_where_a_closed_one_stopped(opened, key):
    async def first(store):
        await store.ask(key, question(batches=[[100]], window=60 * SECOND))

    async def second(store):
        assert await booked(store, key) == 100
        assert 0 < (await store.ask(key, question("b")))["window_left"] <= 60 * SECOND

    on(opened, first)
    on(opened, second)


# -- a Dispatch over any of them


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


def test_two_share_one_burst_and_never_have_more_together(gates, key):
    """M1: nine tenths of the burst, whoever comes; then nobody gets any more for days."""
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


def test_those_who_never_wait_get_something_too(gates, key):
    """DESIGN 2: `try_admit` never waits; nobody else is there, and the burst is untouched."""
    gate = gates(key, rates="1000/s burst 1000")
    tick = threading.Event()
    assert any(gate.try_admit() or tick.wait(0.002) for _ in range(300))


def test_a_window_closed_by_one_holds_the_other(gates, key):
    one, other = (gates(key, rates="1000/day", pause=True) for _ in range(2))
    one.set_backoff(60)
    eventually(other.window.should_backoff, "the other hears of it")
    one.window.clear()
    eventually(lambda: not other.window.should_backoff(), "the other hears that it is over")


def test_rates_set_by_one_are_those_of_the_other(gates, key):
    one, other = (gates(key, rates="1000/day") for _ in range(2))
    one.set_rates("77/day")
    eventually(lambda: other.snapshot().rates[0].limit == 77, "the other hears of it")


def test_everybody_is_told_that_one_has_set_other_rates(gates, key):
    """DESIGN 2: an event says so."""
    recorder = Recorder()
    one, _other = gates(key, rates="1000/day"), gates(key, rates="1000/day", observer=recorder)
    one.set_rates("77/day")
    eventually(lambda: recorder.of(events.Retuned), "the other's observer hears of it")
    assert recorder.of(events.Retuned)[-1].rates == (str(Rate.parse("77/day")),)


def stated(limit):
    headers = {"x-ratelimit-limit-requests": str(limit), "x-ratelimit-remaining-requests": str(limit - 1)}
    return read_signal(200, headers)


def test_a_limit_that_one_response_states_is_everybody_s(gates, key):
    """A lower one is heeded by all, and still shared. Whoever lowered it raises it, to what was set."""
    one, other = (gates(key, rates="6000/minute") for _ in range(2))
    one.observe(stated(600))
    eventually(lambda: other.snapshot().rates[0].limit == 600, "the other goes by it")
    assert one.snapshot().rates[0].level <= 60  # what this one has of it, not all of it
    one.observe(stated(9000))
    eventually(lambda: other.snapshot().rates[0].limit == 6000, "it is raised again")


def test_a_response_raises_nothing_that_somebody_else_has_set(gates, key):
    one, other = (gates(key, rates="6000/minute") for _ in range(2))
    other.set_rates("60/minute")
    eventually(lambda: one.snapshot().rates[0].limit == 60, "it was lowered by hand")
    one.observe(stated(600))
    one.observe(stated(5000))
    assert one.snapshot().rates[0].limit == 60


def test_rates_that_count_other_things_cannot_share_a_key(gates, key):
    """Five hundred requests are not five hundred tokens."""
    one = gates(key, rates="500/minute")
    with one.admit(timeout=PATIENCE), pytest.raises(InvalidConfig, match=r"rates are of requests"):
        gates(key, rates="200_000 tokens/minute")
    assert one.snapshot().rates[0].limit == 500


def test_calls_under_way_keep_their_places_although_their_gate_was_closed(gates, key):
    """R-8, B3: closing refuses those who come; those inside are inside until they leave."""
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
    """Makes one more of those who share everything, in time that is moved by hand."""
    store, made = MemoryStore(clock), []

    def make(**options):
        options = {"concurrency": None, "throttled_concurrency": None, "byte_budget": None, **options}
        made.append(Dispatch("key", store=store, clock=clock, **options))
        return made[-1]

    yield make
    for gate in made:
        gate.close()


def settle_down(*gates):
    """Wait until nobody has anything to ask."""
    eventually(lambda: not any(gate._link._working for gate in gates), "all is said")


def test_one_that_was_idle_for_longer_than_its_lease_uses_no_place_that_others_have(shared, clock):
    """B30, R-8: four places in all, and two members; the first did nothing for ten seconds."""
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


def test_bytes_in_flight_of_all_together_are_within_the_budget(shared):
    """R-8: only what is larger than the whole budget runs alone, and then it is alone."""
    first, second = shared(byte_budget=1_000), shared(byte_budget=1_000)
    inside = [permit for gate in (first, second) if (permit := gate.try_admit(bytes=900)) is not None]
    for permit in inside:
        permit.settle()
    assert len(inside) == 1


def test_a_waiter_goes_when_somebody_raises_a_rate_that_would_have_kept_it_for_an_hour(shared, clock):
    """DESIGN 2: other limits retune the pool, waiters included."""
    first, second = shared(rates="1/hour burst 1"), shared(rates="1/hour burst 1")
    with first.admit(timeout=PATIENCE):
        pass
    went = threading.Event()

    def wait():
        with first.admit():
            went.set()

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: first.snapshot().waiting == 1, "one waits")
    second.set_rates("3600000/hour burst 1000")

    def goes():
        clock.advance(0.1)
        return went.is_set()

    eventually(goes, "the one who waited goes")
    assert clock.seconds() < 1_000 + 3_000
    thread.join(PATIENCE)


# -- how often a store is asked again


@pytest.mark.parametrize("inside", [1, 3])
def test_acquire_backoff_paces_how_often_a_store_is_asked_for_places_that_others_have(inside):
    """R-17: those who wait here are woken; only the store is asked again, and again."""
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
    eventually(lambda: usual._link.asked >= 12, "the usual one has asked often")
    assert patient._link.asked <= 4
    held.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert set(went) == {usual, patient}
    for gate in (holder, usual, patient):
        gate.close()


@pytest.mark.parametrize(
    "options", [{"acquire_backoff": Backoff(1)}, {"acquire_backoff": 0.5, "store": "memory:pace"}]
)
def test_acquire_backoff_is_a_backoff_and_for_those_who_share(options):
    """DESIGN 12."""
    with pytest.raises(InvalidConfig, match="acquire_backoff"):
        Dispatch("key", **options)
