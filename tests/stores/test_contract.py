"""What every kind of store does. PLACES in conftest.py lists the kinds.

Stores have their own clocks, so the rates here are slow: a unit takes an hour and more.
"""

import asyncio
import json
from functools import partial
from uuid import uuid4

import pytest

import pool_questions
from headgate.errors import StoreError
from headgate.sharing.memory import MemoryStore
from headgate.sharing.pool.answer import answer
from headgate.sharing.pool.heard import news_of
from headgate.sharing.pool.state import Pool
from headgate.sharing.sqlite import SqliteStore
from patience import PATIENCE, News, happens

SECOND = 1_000_000
DAY = 86_400 * SECOND
SLOW = [[1_000, 365 * DAY, 1_000]]  # 900 may be granted, and none is earned while a test runs
NO_LIMITS = [0, 0, 0, 0]


@pytest.fixture
def key():
    return f"key {uuid4().hex}"


question = partial(pool_questions.question, rates=SLOW)


def on(opened, scenario, stores=1):
    """Run a scenario with several stores of one place, and close them in any case."""

    async def main():
        many = [opened() for _ in range(stores)]
        try:
            return await asyncio.wait_for(scenario(*many), 3 * PATIENCE)
        finally:
            for store in many:
                await store.close()

    return asyncio.run(main())


async def charged(store, key):
    """Return how many units of SLOW are gone, found by asking. All that is granted is returned."""
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


def test_a_store_answers_as_answer_py_does(opened, key):
    """In all that does not depend on how much time has passed."""
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
        del given["first_stamp"], given["version"], given["born"], given["at"]
        return {
            **given,
            "starts": [start == 0 for start in given["starts"]],
            "ask_again_in": bool(given["ask_again_in"]),
            "kept": round(given["kept"] / DAY),
        }

    async def scenario(store):
        pool = Pool()
        for asked in story:
            expected = answer(pool, json.loads(json.dumps(asked)), 10**9)
            assert timeless(await store.ask(key, asked)) == timeless(expected)

    on(opened, scenario)


def test_a_store_counts_every_unit_once(opened, key):
    async def scenario(store):
        for n in range(20):
            await store.ask(key, question(f"m{n % 3}", batches=[[n]]))
        assert await charged(store, key) == sum(range(20))

    on(opened, scenario)


def test_two_stores_of_one_place_count_every_unit_once(opened, key):
    """As two processes would have them."""

    async def scenario(one, other):
        for n in range(15):
            await asyncio.gather(
                one.ask(key, question("a", batches=[[10]])), other.ask(key, question("b", batches=[[10]]))
            )
            if n == 7:
                assert await charged(other, key) == 160
        assert await charged(one, key) == await charged(other, key) == 300

    on(opened, scenario, stores=2)


def test_questions_asked_at_once_get_their_own_answers(opened, key):
    async def scenario(store):
        asks = [store.ask(key, question(f"m{n}", batches=[[1]], wants=[n, 0])) for n in range(60)]
        answers = await asyncio.gather(*asks)
        assert [given["places"] for given in answers] == list(range(60))
        assert await charged(store, key) == 60

    on(opened, scenario)


def test_different_keys_share_nothing(opened, key):
    """Keys with any characters in them."""
    keys = [key, f"{key} ", f"{key}:{{}}", f"{key} ключ", f"{key}%_'\"", f"{key}\n"]

    async def scenario(store):
        for each in keys:
            await store.ask(each, question(batches=[[100]], window=60 * SECOND))
            given = await store.ask(f"{each}/", question())
            assert (given["members"], given["window_left"], given["window_generation"]) == (1, 0, 0)
            assert await charged(store, each) == 100

    on(opened, scenario)


def test_a_question_asked_again_gets_the_same_answer_and_is_decided_once(opened, key):
    """By the same store, or by another one of the same place."""

    async def scenario(one, other):
        asked = question(batches=[[50]] * 2, returned=[[[1, 0]]], owed=[3], window=60 * SECOND, wants=[3, 3])
        first = json.loads(json.dumps(await one.ask(key, asked)))
        for store in (one, other, one):
            assert json.loads(json.dumps(await store.ask(key, asked))) == first
        assert await charged(one, key) == 103

    on(opened, scenario, stores=2)


def test_a_last_question_asked_again_returns_units_once(opened, key):

    async def scenario(store):
        given = await store.ask(key, question(batches=[[100]]))
        goodbye = question(returned=[[[60, given["first_stamp"]]]], leaves=True)
        for _ in range(3):
            await store.ask(key, goodbye)
        assert await charged(store, key) == 40

    on(opened, scenario)


def test_places_and_bytes_of_all_members_are_within_the_limit_until_one_leaves(opened, key):
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


def test_places_of_an_expired_member_are_free_after_its_lease(opened, key):
    """A lease of fifty milliseconds, and another member that asks until it has ended."""

    async def scenario(store):
        await store.ask(key, question("dead", limits=[4, 0, 0, 0], wants=[4, 0], lease=50_000))
        async with asyncio.timeout(PATIENCE):
            while (await store.ask(key, question("b", wants=[4, 0])))["places"] < 4:  # noqa: ASYNC110 - by its clock
                await asyncio.sleep(0.01)

    on(opened, scenario)


def test_a_window_ends_by_the_clock_of_the_store(opened, key):
    """A window of fifty milliseconds."""

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
    """Half of the burst at a time, of 150 million tokens a day and more."""
    rates = [[amount, DAY, 2 * amount]]

    async def scenario(store):
        pool = Pool()
        asked = question(rates=rates, batches=[[units], [amount]])
        given, expected = await store.ask(key, asked), answer(pool, asked, 10**9)
        assert [start == 0 for start in given["starts"]] == [start == 0 for start in expected["starts"]]
        assert given["rates"] == rates

    on(opened, scenario)


def test_limits_set_by_one_member_are_told_to_another_until_it_knows_them(opened, key):
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
def test_a_question_that_cannot_be_read_is_a_store_error_and_changes_nothing(opened, key, facts):

    async def scenario(store):
        await store.ask(key, question(batches=[[10]]))
        with pytest.raises(StoreError):
            await store.ask(key, unreadable(**facts))
        assert await charged(store, key) == 10
        assert (await store.ask(key, question()))["window_generation"] == 0

    on(opened, scenario)


# -- news


def test_listeners_hear_of_windows_and_new_limits_of_other_processes(opened, key):

    async def scenario(one, other):
        news = News()
        await other.ask(key, question("b"))
        await other.listen(key, news.set)
        await first_calls(other, news)
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


def test_news_tell_of_the_window_as_answers_do_so_that_members_need_not_ask(opened, key):
    """SQLite has none: processes that share a file look into it every 50 ms, and ask for the window."""

    async def scenario(one, other):
        news = News()
        await other.ask(key, question("b"))
        await other.listen(key, news.set)
        await first_calls(other, news)
        for window, manner in ((60 * SECOND, 1), (90 * SECOND, 0), (-1, 0)):
            news.clear()
            given = await one.ask(key, question("a", window=window, manner=manner))
            await happens(news)
            if isinstance(one, SqliteStore):
                assert news.said is None
            else:
                assert news.said == news_of(given)

    on(opened, scenario, stores=2)


async def first_calls(store, *heard):
    """Wait until new listeners were called for the first time, once each or more often."""
    if not isinstance(store, MemoryStore):  # which has no reason to
        for event in heard:
            await happens(event)
    while any(event.is_set() for event in heard):
        for event in heard:
            event.clear()
        await asyncio.sleep(0.1)


def test_every_listener_of_a_key_hears_its_news_and_no_other(opened, key):
    async def scenario(one, other):
        first, second, elsewhere = News(), News(), News()
        for name in (key, f"{key}/"):
            await one.ask(name, question())
        await other.listen(key, first.set)
        await other.listen(key, second.set)
        await other.listen(f"{key}/", elsewhere.set)
        await first_calls(other, first, second, elsewhere)
        await one.ask(key, question(window=60 * SECOND))
        await happens(first)
        await happens(second)
        assert not elsewhere.is_set()

    on(opened, scenario, stores=2)


def test_a_listener_that_comes_while_another_one_listens_is_called_once(opened, key):
    """A member asks, then listens. What changed in between was told to the earlier listeners only."""

    async def scenario(store):
        if isinstance(store, MemoryStore):
            return  # nothing can change there between asking and listening
        earlier, later = News(), News()
        await store.ask(key, question())
        await store.listen(key, earlier.set)
        await happens(earlier)
        await store.listen(key, later.set)
        await happens(later)

    on(opened, scenario)


def test_a_listener_that_was_taken_away_hears_nothing_more_and_others_go_on(opened, key):
    async def scenario(one, other):
        gone, kept, again = News(), News(), News()
        await other.unlisten(key, gone.set)  # it does not listen yet
        for name in (key, f"{key}/"):
            await one.ask(name, question())
            await other.listen(name, gone.set)
        await other.listen(key, kept.set)
        await first_calls(other, gone, kept)
        await other.unlisten(key, gone.set)
        await asyncio.sleep(0.1)  # what it was told before that has come by now
        gone.clear()
        kept.clear()
        await one.ask(key, question(window=60 * SECOND))
        await happens(kept)
        assert not gone.is_set()
        await other.unlisten(key, kept.set)
        await other.unlisten(f"{key}/", gone.set)
        await asyncio.sleep(0.1)
        gone.clear()
        kept.clear()
        await other.listen(key, again.set)  # after the last one has gone
        await first_calls(other, again)
        await one.ask(key, question(window=90 * SECOND))
        await happens(again)
        assert not gone.is_set()
        assert not kept.is_set()

    on(opened, scenario, stores=2)


def test_one_that_listens_twice_hears_once(opened, key):
    async def scenario(one, other):
        heard, count = News(), []

        def hear(_news):
            count.append(1)
            heard.set()

        await one.ask(key, question())
        await other.listen(key, hear)
        await other.listen(key, hear)
        await first_calls(other, heard)
        count.clear()
        await one.ask(key, question(window=60 * SECOND))
        await happens(heard)
        await other.unlisten(key, hear)
        assert count == [1]

    on(opened, scenario, stores=2)


def test_a_change_of_neither_window_nor_limits_is_not_told_to_listeners(opened, key):
    async def scenario(one, other):
        heard = News()
        await one.ask(key, question())
        await other.listen(key, heard.set)
        await first_calls(other, heard)
        for n in range(20):
            await one.ask(key, question(batches=[[n]], wants=[n, n]))
        await asyncio.sleep(0.15)
        assert not heard.is_set()

    on(opened, scenario, stores=2)


def test_a_listener_that_fails_does_not_silence_the_others_or_fail_an_answer(opened, key):
    async def scenario(one, other):
        asyncio.get_running_loop().set_exception_handler(lambda _loop, _context: None)
        news = News()
        await one.ask(key, question())
        await other.listen(key, lambda _news: 1 / 0)
        await other.listen(key, news.set)
        await first_calls(other, news)
        given = await one.ask(key, question(window=60 * SECOND))
        assert given["window_left"] == 60 * SECOND
        await asyncio.wait_for(news.wait(), 1)

    on(opened, scenario, stores=2)


# -- closing


def test_a_store_may_be_closed_twice_and_without_use(opened):
    async def main():
        store = opened()
        await store.close()
        await store.close()

    asyncio.run(main())


def test_a_store_goes_on_where_a_closed_one_of_the_same_place_stopped(opened, key):
    async def first(store):
        await store.ask(key, question(batches=[[100]], window=60 * SECOND))

    async def second(store):
        assert await charged(store, key) == 100
        assert 0 < (await store.ask(key, question("b")))["window_left"] <= 60 * SECOND

    on(opened, first)
    on(opened, second)
