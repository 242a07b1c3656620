"""The gates of a gateway: one for each host and credential, shared through a store if there is one."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable

from ..dispatch.dispatch import Dispatch
from ..errors import StoreError
from ..gate.clock import SYSTEM
from ..gate.keyed import KeyedObjects
from ..http.exchange import GatedSender
from ..sharing.pool.question import PoolLimits
from ..sharing.store import open_store
from ..typing import Clock, Observer
from .settings import Settings
from .upstreams import Upstream

_CONCURRENCY = 400


class Gates:
    """Gates by host and credential, each with what sends through it.

    The key of a gate is the host, as for `headgate run`, and a digest of the credential if that is not the
    one of the gateway itself.
    """

    def __init__(self, settings: Settings, observer: Observer | None, clock: Clock) -> None:
        self._settings = settings
        self._observer = observer
        self._clock = clock
        self._limits = {each.host: each for each in reversed(settings.upstreams)}
        self._senders: KeyedObjects[GatedSender] = KeyedObjects(
            self._make, lambda sender: gate_of(sender).is_idle(), by_user=True
        )
        self._making = asyncio.Lock()

    def all(self) -> list[Dispatch]:
        """Every gate, as of now."""
        return [gate_of(sender) for _key, sender in self._senders.items()]

    def close(self) -> None:
        for gate in self.all():
            gate.close()

    async def check_store(self) -> None:
        """Raise if the store cannot be used: the first gates ask it."""
        if self._settings.store is not None:
            upstreams = self._settings.upstreams
            for each in [each for each in upstreams if each.secret] or upstreams[:1]:
                await self.sender(each, "")

    async def sender(self, upstream: Upstream, digest: str) -> GatedSender:
        """What sends by the gate of a host and a credential.

        With a store it is made in a thread, because the store is asked.
        """
        key = (upstream.host, digest)
        if self._settings.store is None:
            return self._senders.get(key)
        known = self._senders.peek(key)
        if known is None:
            async with self._making:
                return await asyncio.to_thread(self._senders.get, key)
        return known

    def _make(self, key: Hashable) -> GatedSender:
        assert isinstance(key, tuple)
        host, digest = key
        settings, own = self._settings, self._limits[host]
        name = settings.store_key or f"{host} {digest}".strip()
        limits = None if settings.store is None else limits_in(settings.store, name)
        if limits is None:
            limits = PoolLimits(_CONCURRENCY, throttled_for=10_000_000)
        # Limits that the settings leave open stay as they are in the pool.
        places = own.concurrency or settings.concurrency or limits.places or None
        gate = Dispatch(
            name,
            rates=settings.rates if own.rates is None else own.rates,
            concurrency=places,
            throttled_concurrency=limits.throttled_places or ("adaptive" if places else None),
            byte_budget=limits.bytes or None,
            backoff_window=limits.throttled_for / 1e6,
            pause=True,
            store=settings.store,
            observer=self._observer,
            clock=self._clock,
        )
        return GatedSender(gate, retries=settings.retries)


def gate_of(sender: GatedSender) -> Dispatch:
    assert isinstance(sender.gate, Dispatch)
    return sender.gate


def limits_in(url: str, key: str) -> PoolLimits | None:
    """The limits in force in the store, None if it has none under this key."""

    async def look() -> PoolLimits | None:
        store = open_store(url, SYSTEM)
        try:
            pool = await store.look(key)
        finally:
            await store.close()
        return None if pool is None else pool.limits

    try:
        return asyncio.run(look())
    except StoreError:  # a file that does not exist yet; if it is worse, Dispatch raises it
        return None
