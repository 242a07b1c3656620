"""Pure. What the members of a pool may have been granted and not used yet, when their callers have gone.

Where no caller is in line, a member drops and returns what lies unused for longer than a moment, but for its
part of a tenth of each burst (gate/leased.py). That tenth is kept back. Where it can be more, as with a burst
that is earned in a moment, the rates keep back the rest too while units are being granted: they are used when
the callers return, together with what was earned meanwhile.

Times are the store's, in integer microseconds. The script for Valkey and Redis does the same arithmetic, step
by step: `tests/stores` compares the two.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rate import USED_WITHIN, PoolRate

if TYPE_CHECKING:
    from .state import Pool


def keep_back(pool: Pool, now: int) -> None:
    """Have each rate keep back what members that were granted something of late may have unused.

    For those that have flows, it is in `together` (flow.py).
    """
    late = [each for each in pool.members.values() if each.last_start > now - USED_WITHIN and not each.flows]
    reaches, resting = [each.reach for each in late], sum(not each.waiting for each in late)
    for rate in pool.rates:
        if isinstance(rate, PoolRate):
            rate.keep_back(reaches, resting)
