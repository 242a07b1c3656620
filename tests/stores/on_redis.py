"""Questions to a store of a Valkey or Redis server. Times in microseconds."""

import asyncio

import pool_questions
from headgate.sharing.redis import RedisStore

SECOND = 1_000_000
DAY = 86_400 * SECOND
START = 1_800_000_000 * SECOND  # as large as a server's clock will be for decades


def question(member="a", number=1, *, rates=((100, SECOND, 50),), lease=10 * SECOND, **facts):
    """Return the first question of a member, unless a number is given."""
    return pool_questions.question(member, number, rates=rates, lease=lease, **facts)


def on(server, scenario, **options):
    """Run an async scenario with a store of that server, and close it in any case."""

    async def main():
        store = RedisStore(server.url, **options)
        try:
            return await scenario(store)
        finally:
            await store.close()

    return asyncio.run(main())
