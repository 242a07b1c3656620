"""The gate of a run: with the limits of the command, and with a store the limits that are in force there.

Errors of a store are raised before anything is sent, and never show its password.
"""

import asyncio

from ...dispatch.dispatch import Dispatch
from ...errors import InvalidConfig, StoreError
from ...gate.clock import SYSTEM
from ...limits import Rate
from ...sharing.pool.question import PoolLimits
from ...sharing.pool.state import Pool
from ...sharing.pool.view import view_of
from ...sharing.store import open_store, plain_name
from ...typing import Observer
from .errors import RunError
from .options import RunOptions

_CONCURRENCY = 200
_MOST_CONCURRENCY = 10_000
_TO_BE_FIRST = "or be the first there and give the limits: --rate 500/minute"


def make_gate(options: RunOptions, host: str, observer: Observer) -> tuple[Dispatch, int]:
    """The gate that all jobs go through, and how many may be in flight at once."""
    auto = not options.rates or "auto" in options.rates
    if auto and len(options.rates) > 1:
        raise RunError("--rate auto stands alone", "give the rates, or none of them")
    if options.store is not None:
        return _shared(options, options.store, options.store_key or host, observer)
    if options.store_key is not None:
        raise RunError("--store-key needs a store", "write e.g. --store sqlite:///limits.db")
    concurrency = options.concurrency or _CONCURRENCY
    gate = Dispatch(
        host,
        rates="auto" if auto else options.rates,
        concurrency=concurrency,
        throttled_concurrency="adaptive",
        byte_budget=None,
        pause=True,
        observer=observer,
    )
    return gate, concurrency


def _shared(options: RunOptions, store: str, key: str, observer: Observer) -> tuple[Dispatch, int]:
    """A gate that shares the pool of this key. Limits that the command does not give stay as they are."""
    if store.partition(":")[0] == "memory":
        raise RunError(
            "--store memory: is inside one process: no other could share it",
            "write sqlite:///limits.db for this machine, or redis://host/0 for several",
        )
    if "auto" in options.rates:
        raise RunError("--rate auto cannot be shared: each process would learn for itself", "give the rates")
    try:
        pool = asyncio.run(_look(store, key))
    except InvalidConfig as error:
        raise RunError(f"--store {str(error).removeprefix('store=')}") from None
    except StoreError as error:
        if not options.rates:
            raise RunError(str(error), f"check --store, {_TO_BE_FIRST}") from None
        pool = None  # a file that does not exist yet; if it is worse, Dispatch raises it below
    if pool is None and not options.rates:
        raise RunError(
            f"{plain_name(store)} knows no limits for {key!r}, and limits that are shared cannot be learned",
            f"check --store and --store-key, {_TO_BE_FIRST}",
        )
    limits = PoolLimits(_CONCURRENCY, throttled_for=10_000_000) if pool is None else pool.limits
    concurrency = options.concurrency or limits.places or None
    try:
        gate = Dispatch(
            key,
            rates=_rates(options, pool, key),
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
        raise RunError(str(error), hint) from None
    return gate, min(concurrency or _CONCURRENCY, _MOST_CONCURRENCY)


async def _look(url: str, key: str) -> Pool | None:
    store = open_store(url, SYSTEM)
    try:
        return await store.look(key)
    finally:
        await store.close()


def _rates(options: RunOptions, pool: Pool | None, key: str) -> list[Rate]:
    """The given rates, in the order of the rates in the pool; or the rates of the pool, if none are given."""
    given = [rate for rate in options.rates if not isinstance(rate, str)]
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
        raise RunError(
            f"{key!r} is shared by others that count {' and '.join(units) or 'nothing'}",
            f"leave out --rate to go by theirs ({', '.join(map(str, in_force)) or 'none'}), or give as many",
        )
    return given
