"""The live page of a gateway: what it shows, and what it may change if the gateway allows that."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from aiohttp.web import BaseRequest, StreamResponse

from ...errors import InvalidLimit, StoreError
from ...gate.clock import SYSTEM
from ...sharing.pool.view import PoolView, view_of
from ...sharing.store import Store, open_store
from ..guards import Refusal
from ..keys import cookie_for
from .history import History
from .live import LivePage
from .view import Document, gateway_document, member_rows

if TYPE_CHECKING:
    from ..app import Gateway

_LARGEST_ORDER = 10_000  # bytes


class OwnPage:
    """The pages `ui`, `events` and `control` of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.history = History()
        self.live = LivePage(self._look)
        self._store: Store | None = None

    async def close(self) -> None:
        """End the events of all browsers, and let the store go."""
        self.live.end()
        store, self._store = self._store, None
        if store is not None:
            await store.close()

    async def _pools(self, keys: list[str]) -> dict[str, PoolView]:
        """The pools of these gates, if they are shared and the store can be read."""
        url = self._gateway.settings.store
        if url is None:
            return {}
        try:
            if self._store is None:
                self._store = open_store(url, SYSTEM)
            states = {key: await self._store.look(key) for key in keys}
        except StoreError:
            return {}
        return {key: view_of(state) for key, state in states.items() if state is not None}

    async def _look(self) -> Document:
        gateway, history = self._gateway, self.history
        state, now = gateway.snapshot(), gateway.now()
        history.count_in_flight(sum(gate["in_flight"] or 0 for gate in state["gates"]))
        since: dict[str, float | None] = {}
        for gate in state["gates"]:
            began = history.limited_since(gate["key"]) if gate["waiting"] else None
            since[gate["key"]] = None if began is None else max(0.0, now - began)
        pools = await self._pools([gate["key"] for gate in state["gates"]])
        members = [row for key, pool in pools.items() for row in member_rows(key, pool.members)]
        document = gateway_document(state, history.series(now), since)
        return document | {"members": members, "control": gateway.settings.allow_control}

    async def page(self, request: BaseRequest) -> StreamResponse:
        """The page; a token in its address is exchanged for a cookie."""
        word = self.token_in(request)
        return await self.live.page(request, cookie=cookie_for(word) if word else "")

    def token_in(self, request: BaseRequest) -> str:
        """The token in the address of a request; empty if it has none that is valid."""
        word = parse_qs(request.query_string).get("token", [""])[0]
        return word if self._gateway.keys.find(word) is not None else ""

    async def control(self, request: BaseRequest) -> dict[str, str] | Refusal:
        """Do what the page asks for, and say what was done."""
        if not self._gateway.settings.allow_control:
            return Refusal(403, "this gateway was started without --allow-control")
        if request.method != "POST" or request.content_type != "application/json":
            return Refusal(400, "an order is a POST of a JSON object")
        body = await request.content.read(_LARGEST_ORDER)
        try:
            order = json.loads(body)
            action, key, rates = order["action"], order["gate"], order.get("rates")
        except (ValueError, KeyError, TypeError, AttributeError):
            return Refusal(400, 'an order is a JSON object with "action" and "gate"')
        gate = next((gate for gate in self._gateway.gates() if str(gate.key) == key), None)
        if gate is None:
            return Refusal(404, "no gate has that name")
        if action == "clear":
            gate.window.clear()
            return {"done": f"the backoff window of {key} was cleared"}
        if action == "retune":
            try:
                gate.set_rates(rates)
            except (InvalidLimit, TypeError) as error:
                return Refusal(400, str(error))
            return {"done": f"the rates of {key} were set"}
        return Refusal(400, 'an action is "clear" or "retune"')
