"""What a member asks the pool of a key, in a store or in memory. Times in microseconds."""

import json
from itertools import count

from headgate.sharing.pool.question import PoolLimits, empty_question
from headgate.sharing.pool.state import Pool

SECOND = 1_000_000
NO_LIMITS = PoolLimits()

numbers = count(1)


def question(member="a", number=None, *, rates=(), lease=60 * SECOND, **facts):
    """Return an empty question with these facts. Unless given, its number is a new one."""
    number = next(numbers) if number is None else number
    return {**empty_question(member, number, rates=rates, lease=lease), **facts}


def copied(pool):
    """Return a pool as a store keeps it and reads it back."""
    return Pool.unpacked(json.loads(json.dumps(pool.packed())))
