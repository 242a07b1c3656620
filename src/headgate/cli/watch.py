"""`headgate watch`: the processes that share limits in a store, or one process, and why calls wait.

Looking changes nothing.
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, Self, TextIO

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
@_showing("--web", "A page for a browser, at the address that is printed.")
@_showing("--listen HOST:PORT", "Where --web listens; port 0 picks a free one.", default="127.0.0.1:0")
def watch(store: str, keys: tuple[str, ...], *, web: bool, listen: str, **options: Any) -> None:
    """Show the processes that share limits in STORE, what each holds, and why calls wait; until Ctrl-C.

    \b
    headgate watch sqlite:///limits.db
    headgate watch redis://limits.internal/0 api.openai.com
    headgate watch postgresql://limits.internal/db --once --json
    headgate watch unix:///run/user/1000/headgate-4711.sock
    headgate watch sqlite:///limits.db --web

    STORE is what programs give as store=, and `headgate run` as --store. For each KEY, or for all keys in it:
    rates, places and bytes, the backoff window, and the processes that share them. Looking changes nothing.

    With unix:///... it shows the gates of one process that calls headgate.publish(): the URL is the `url` of
    what that returns.

    Exit status: 0, 2 if the store cannot be read, 130 after Ctrl-C.
    """
    _is_no_page(store)
    show: Callable[..., Any] = show_process if store.startswith("unix:") else show_store
    if web:
        if store.startswith("unix:") or options["once"] or options["as_json"]:
            raise CommandError(
                "--web shows a store, again and again", "leave out --once and --json, or leave out --web"
            )
        show = partial(show_store_page, listen=listen)
    try:
        sys.exit(asyncio.run(until_stopped(show(store, keys, sys.stdout, **options))))
    except (InvalidLimit, StoreError) as error:
        hint = "write STORE as the programs do that share by it, e.g. sqlite:///limits.db"
        raise CommandError(str(error).removeprefix("store="), hint) from None


def _is_no_page(store: str) -> None:
    """The address of a gateway is the first thing that one tries; what it shows is a page."""
    if store.startswith(("http://", "https://")):
        page = f"{store.partition('/.headgate')[0].rstrip('/')}/.headgate/ui"
        raise CommandError(
            f"{store} is the address of a server, and `headgate watch` shows a store",
            f"if it is a gateway, open {page} in a browser; or give what the gateway got as --store",
        )


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

    def failed(self, why: str) -> Self:
        """The same pools, and why the look at this moment failed."""
        return self._replace(at=datetime.now(UTC), trouble=why)


async def show_store(
    url: str, keys: Sequence[str], out: TextIO, *, every: float, once: bool = False, as_json: bool = False
) -> None:
    """Show the pools of a store: once, or every `every` seconds until cancelled.

    An error of the first look is raised. Errors of later looks are shown, and the next look tries again.
    """
    store = _open(url)
    pools = _Pools(store, keys)

    async def look() -> StoreView:
        return StoreView(plain_name(url), datetime.now(UTC), await pools.look())

    def draw(seen: Any, width: int, height: int | None) -> Any:
        from .picture import store_picture  # noqa: PLC0415 - loads rich

        return store_picture(seen, width, height)

    try:
        await _keep_showing(look, draw, out, every=every, once=once, as_json=as_json)
    finally:
        await store.close()


async def show_store_page(
    url: str, keys: Sequence[str], _out: TextIO, *, listen: str, every: float, **_how: Any
) -> None:
    """Show the pools of a store in a browser until cancelled. An error of the first look is raised."""
    try:
        from .watch_web import show_page  # noqa: PLC0415 - loads aiohttp
    except ModuleNotFoundError:
        raise CommandError("--web needs the gateway", "install it: pip install 'headgate[gateway]'") from None
    store = _open(url)
    pools = _Pools(store, keys)
    try:
        seen = StoreView(plain_name(url), datetime.now(UTC), await pools.look())

        async def look() -> dict[str, Any]:
            try:
                return StoreView(seen.store, datetime.now(UTC), await pools.look()).facts()
            except StoreError as error:
                return seen.failed(str(error)).facts()

        await show_page(look, listen, every)
    finally:
        await store.close()


def _open(url: str) -> Store:
    if url.partition(":")[0] == "memory":
        raise InvalidConfig("memory: is inside one process, and no other can look into it")
    return open_store(url, SYSTEM)


async def show_process(url: str, keys: Sequence[str], out: TextIO, **how: Any) -> None:
    """Show the gates of a process that publishes them: once, or again and again until cancelled."""
    from .published import cannot_look, look_at, process_picture  # noqa: PLC0415 - only for a process

    try:
        await _keep_showing(partial(look_at, url, tuple(keys)), process_picture, out, **how)
    except OSError as error:
        raise cannot_look(url, error) from None


async def _keep_showing(
    look: Callable[[], Awaitable[Any]],
    draw: Callable[[Any, int, int | None], Any],
    out: TextIO,
    *,
    every: float,
    once: bool = False,
    as_json: bool = False,
) -> None:
    """Show what `look` gives. The error of the first look is raised, later ones are shown."""
    seen = await look()
    with ExitStack() as stack:
        screen = None
        if not as_json:
            from .picture import StoreScreen  # noqa: PLC0415 - loads rich

            screen = stack.enter_context(closing(StoreScreen(out, live=not once)))
        while True:
            if screen is None:
                print(json.dumps(seen.facts()), file=out, flush=True)
            else:
                screen.show(partial(draw, seen))
            if once:
                return
            await asyncio.sleep(every)
            try:
                seen = await look()
            except (StoreError, OSError) as error:
                seen = seen.failed(str(error))


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
        "members": [{**member.facts(), "lease": member.lease / US_PER_S} for member in pool.members],
        "waits": list(pool.waits),
    }
