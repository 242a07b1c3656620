"""What a member asks the pool of a key, in a store or in memory. Times in microseconds."""

from itertools import count

SECOND = 1_000_000
NO_LIMITS = [0, 0, 0, 0]

numbers = count(1)


def question(member="a", number=None, *, rates=(), lease=60 * SECOND, **facts):
    """A question that asks for nothing, and what is given of it. Unless told, its number is a new one."""
    rates = [list(rate) for rate in rates]
    return {
        "member": member,
        "id": next(numbers) if number is None else number,
        "lease": lease,
        "version": 0,
        "rates": rates,
        "limits": NO_LIMITS,
        "set": None,
        "lumps": [],
        "back": [[] for _ in rates],
        "extra": [0 for _ in rates],
        "uses": [0, 0],
        "wants": [0, 0],
        "spare": [0, 0],
        "needs": 0,
        "pauses": False,
        "pause": None,
        "bye": False,
        **facts,
    }
