"""Units of a rate that earns one in 86 seconds: what is charged stays charged for as long as a test takes."""

import asyncio
from contextlib import asynccontextmanager
from functools import partial

import pool_questions
from headgate.errors import StoreError
from headgate.sharing.redis import RedisStore

SECOND = 1_000_000
DAY = 86_400 * SECOND
SLOW = [[1_000, DAY, 1_000]]

question = partial(pool_questions.question, rates=SLOW)


@asynccontextmanager
async def opened(url, **options):
    store = RedisStore(url, **options)
    try:
        yield store
    finally:
        await store.close()


async def charged(url, key="k"):
    """Return how many units of the slow rate are gone, over a connection of its own."""
    async with opened(url) as store:
        pool = await store.look(key)
        return pool.rates[0].missing(pool.now)


async def take(store, member, numbers, key="k"):
    """Take one unit by each question, and ask those that failed again by the same number."""
    for number in numbers:
        asked = question(member, number, batches=[[1]])
        for _ in range(200):
            try:
                given = await store.ask(key, asked)
            except StoreError:
                await asyncio.sleep(0.01)
            else:
                assert given["starts"] == [0]
                break
        else:
            raise AssertionError("never answered")
