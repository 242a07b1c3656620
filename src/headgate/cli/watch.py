"""`headgate watch`: the processes that share limits in a store, what they hold, and why calls wait.

Looking changes nothing.
"""

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, TextIO

import click

from ..arguments import US_PER_S
from ..errors import InvalidConfig, InvalidLimit, StoreError
from ..gate.clock import SYSTEM
from ..sharing.pool.view import PoolView, view_of
from ..sharing.store import Store, open_store, plain_name
from .options import Command, CommandError, section
from .system import until_stopped

# Seconds between two searches for new keys; and at most one part in _LIST_PART of the time is spent on them.
_LIST_EVERY, _LIST_PART = 1.0, 20

_showing = section("Showing")


@click.command(cls=Command, short_help="Who shares limits in a store, and why others wait.")
@click.argument("store")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@_showing("--every SECONDS", "How often to look.", click.FloatRange(0.05, 3600), default=0.5)
@_showing("--once", "Look once, and end.")
@_showing("--json", "An object a line for each look.", name="as_json")
def watch(store: str, keys: tuple[str, ...], **options: Any) -> None:
    """Show the processes that share limits in STORE, what each holds, and why calls wait; until Ctrl-C.

    \b
    headgate watch sqlite:///limits.db
    headgate watch redis://limits.internal/0 api.openai.com
    headgate watch redis://limits.internal/0 --once --json

    STORE is what programs give as store=, and `headgate run` as --store. For each KEY, or for all keys in it:
    rates, places and bytes, the backoff window, and the processes that share them. Looking changes nothing.

    Exit status: 0, 2 if the store cannot be read, 130 after Ctrl-C.
    """
    try:
        sys.exit(asyncio.run(until_stopped(show_store(store, keys, sys.stdout, **options))))
    except (InvalidLimit, StoreError) as error:
        hint = "write STORE as the programs do that share by it, e.g. sqlite:///limits.db"
        raise CommandError(str(error).removeprefix("store="), hint) from None


class StoreView(NamedTuple):
    """One look at a store: the pool of each key, None if it has none. `trouble`: why the look failed."""

    store: str
    at: datetime
    pools: dict[str, PoolView | None]
    trouble: str = ""

    def facts(self) -> dict[str, Any]:
        """The same as plain data, for JSON; times in seconds. A store that failed has no pools."""
        pools = {} if self.trouble else self.pools
        return {
            "at": self.at.isoformat(timespec="milliseconds"),
            "store": self.store,
            "error": self.trouble or None,
            "pools": {key: None if pool is None else _facts_of(pool) for key, pool in pools.items()},
        }


async def show_store(
    url: str, keys: Sequence[str], out: TextIO, *, every: float, once: bool = False, as_json: bool = False
) -> None:
    """Show the pools of a store: once, or every `every` seconds until cancelled.

    An error of the first look is raised. Errors of later looks are shown, and the next look tries again.
    """
    if url.partition(":")[0] == "memory":
        raise InvalidConfig("memory: is inside one process, and no other can look into it")
    store = open_store(url, SYSTEM)
    pools = _Pools(store, keys)
    try:
        seen = StoreView(plain_name(url), datetime.now(UTC), await pools.look())
        with ExitStack() as stack:
            screen = None
            if not as_json:
                from .picture import StoreScreen, store_picture  # noqa: PLC0415 - loads rich

                screen = stack.enter_context(closing(StoreScreen(out, live=not once)))
            while True:
                if screen is None:
                    print(json.dumps(seen.facts()), file=out, flush=True)
                else:
                    screen.show(partial(store_picture, seen))
                if once:
                    return
                await asyncio.sleep(every)
                try:
                    seen = StoreView(seen.store, datetime.now(UTC), await pools.look())
                except StoreError as error:
                    seen = seen._replace(at=datetime.now(UTC), trouble=str(error))
    finally:
        await store.close()


class _Pools:
    """The pools of the given keys, or of all keys.

    A server may have millions of keys of other programs: the longer a search for pools among them takes, the
    less often it is done.
    """

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self._store = store
        self._wanted = keys
        self._found: Sequence[str] = keys
        self._list_at = SYSTEM.seconds()

    async def look(self) -> dict[str, PoolView | None]:
        began = SYSTEM.seconds()
        if not self._wanted and began >= self._list_at:
            self._found = await self._store.keys()
            took = SYSTEM.seconds() - began
            self._list_at = began + max(_LIST_EVERY, _LIST_PART * took)
        states = {key: await self._store.look(key) for key in self._found}
        return {
            key: None if state is None else view_of(state)
            for key, state in states.items()
            if state is not None or self._wanted
        }


def _facts_of(pool: PoolView) -> dict[str, Any]:
    return {
        "rates": [
            {
                "name": level.rate.name,
                "unit": level.rate.unit,
                "limit": level.rate.amount,
                "per": level.rate.per,
                "burst": level.rate.burst,
                "level": level.level,
                "next": level.next / US_PER_S,
            }
            for level in pool.levels
        ],
        "window": pool.window / US_PER_S,
        "throttled": pool.throttled / US_PER_S,
        "places": {
            "held": pool.places.held,
            "limit": pool.places.limit or None,
            "usual_limit": pool.usual_places or None,
        },
        "bytes": {"held": pool.bytes.held, "limit": pool.bytes.limit or None},
        "members": [{**member._asdict(), "lease": member.lease / US_PER_S} for member in pool.members],
        "waits": list(pool.waits),
    }
