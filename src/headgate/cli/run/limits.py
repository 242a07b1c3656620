"""The gate of a run: the limits that were given, and in a shared store those that are in force there.

Rules of this room: whatever is wrong with a store is said before anything is sent, and without its password.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...dispatch.dispatch import Dispatch
from ...errors import InvalidConfig, StoreError
from ...gate.clock import SYSTEM
from ...sharing.pool.question import PoolLimits
from ...sharing.pool.view import view_of
from ...sharing.store import open_store, plain_name
from .errors import Wrong

if TYPE_CHECKING:
    from ...limits import Rate
    from ...sharing.pool.state import Pool
    from ...typing import Observer
    from .command import Order

_CONCURRENCY = 200
_MOST_CONCURRENCY = 10_000
_TO_BE_FIRST = "or be the first there and give the limits: --rate 500/minute"


def make_gate(order: Order, host: str, observer: Observer) -> tuple[Dispatch, int]:
    """The gate that all jobs go through, and how many may be under way at once."""
    auto = not order.rates or "auto" in order.rates
    if auto and len(order.rates) > 1:
        raise Wrong("--rate auto stands alone", "give the rates, or none of them")
    if order.store is not None:
        return _shared(order, order.store, order.store_key or host, observer)
    if order.store_key is not None:
        raise Wrong("--store-key needs a store", "write e.g. --store sqlite:///limits.db")
    concurrency = order.concurrency or _CONCURRENCY
    gate = Dispatch(
        host,
        rates="auto" if auto else order.rates,
        concurrency=concurrency,
        throttled_concurrency="adaptive",
        byte_budget=None,
        pause=True,
        observer=observer,
    )
    return gate, concurrency


def _shared(order: Order, store: str, key: str, observer: Observer) -> tuple[Dispatch, int]:
    """One of many at the pool of that key. What the command does not say is left as it is there."""
    if store.partition(":")[0] == "memory":
        raise Wrong(
            "--store memory: is inside one process: nobody else could share it",
            "write sqlite:///limits.db for this machine, or redis://host/0 for several",
        )
    if "auto" in order.rates:
        raise Wrong("--rate auto cannot be shared: everybody would learn for themselves", "give the rates")
    try:
        pool = asyncio.run(_look(store, key))
    except InvalidConfig as error:
        raise Wrong(f"--store {str(error).removeprefix('store=')}") from None
    except StoreError as error:
        if not order.rates:
            raise Wrong(str(error), f"check --store, {_TO_BE_FIRST}") from None
        pool = None  # a file that nobody has made yet; if it is worse, we are about to hear of it
    if pool is None and not order.rates:
        raise Wrong(
            f"{plain_name(store)} knows no limits for {key!r}, and limits that are shared cannot be learned",
            f"check --store and --store-key, {_TO_BE_FIRST}",
        )
    limits = PoolLimits(_CONCURRENCY, throttled_for=10_000_000) if pool is None else pool.limits
    concurrency = order.concurrency or limits.places or None
    try:
        gate = Dispatch(
            key,
            rates=_rates(order, pool, key),
            concurrency=concurrency,
            throttled_concurrency=limits.throttled_places or ("adaptive" if concurrency else None),
            byte_budget=limits.bytes or None,
            backoff_window=limits.throttled_for / 1e6,
            pause=True,
            store=store,
            observer=observer,
        )
    except StoreError as error:
        file = store.startswith("sqlite:")
        hint = "it takes a file of its own, in a folder that exists" if file else "check --store, or start it"
        raise Wrong(str(error), hint) from None
    return gate, min(concurrency or _CONCURRENCY, _MOST_CONCURRENCY)


async def _look(url: str, key: str) -> Pool | None:
    store = open_store(url, SYSTEM)
    try:
        return await store.look(key)
    finally:
        await store.close()


def _rates(order: Order, pool: Pool | None, key: str) -> list[Rate]:
    """Those that are given, in the order in which they are shared; or those in force."""
    given = [rate for rate in order.rates if not isinstance(rate, str)]
    if pool is None:
        return given
    there = view_of(pool)
    in_force = [level.rate for level in there.levels]
    if not given:
        return in_force
    units = [rate.unit for rate in in_force]
    if sorted(units) == sorted(rate.unit for rate in given):
        return sorted(given, key=lambda rate: units.index(rate.unit))
    if there.members:
        raise Wrong(
            f"{key!r} is shared by others who count {' and '.join(units) or 'nothing'}",
            f"leave out --rate to go by theirs ({', '.join(map(str, in_force)) or 'none'}), or give as many",
        )
    return given
