"""What a gateway counts, and how it stands at one instant as plain data."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from headgate import __version__

from ..dispatch.dispatch import Dispatch
from ..dispatch.snapshot import facts_of_rate
from ..events import Event, WindowCleared, WindowEnded, WindowExtended, WindowSet
from ..telling import CallMeter, Meter

if TYPE_CHECKING:
    from .app import Gateway

Snapshot: TypeAlias = dict[str, Any]

_ERRORS = 20
_LONGEST_WORDS = 300
_WAITED = 1_000_000  # nanoseconds: a shorter wait is not counted as one


class Counts(Meter):
    """Totals since the gateway started, the active window of each gate, and the last errors of the APIs.

    It is an observer of every gate.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.admitted = 0
        self.waited = 0
        self.waited_ns = 0
        self.longest_ns = 0
        self.refused = 0  # by the gateway
        self.hung_up = 0  # while they waited
        self.turned_away = 0  # before they were calls: without the token, or to no API that is here
        self.why_turned_away = ""  # the last of them
        self.retried = 0
        self.tokens = 0
        self.upstream_errors: dict[int, int] = {}
        self.errors: deque[dict[str, Any]] = deque(maxlen=_ERRORS)
        self.windows: dict[str, dict[str, Any]] = {}
        self.on_window: Callable[[], object] = lambda: None  # called when a window starts or is extended
        self._calls = _Calls(self)

    def of_gate(self, key: Hashable) -> CallMeter:  # noqa: ARG002 - they are counted together
        return self._calls

    def __call__(self, event: Event) -> None:
        """Note when windows start and end."""
        if isinstance(event, WindowSet):
            self.windows[str(event.key)] = {"since": event.at, "reason": event.reason}
        elif isinstance(event, WindowExtended):
            self.windows.setdefault(str(event.key), {"since": event.at})["reason"] = event.reason
        elif isinstance(event, (WindowCleared, WindowEnded)):
            self.windows.pop(str(event.key), None)
        if isinstance(event, (WindowSet, WindowExtended)):
            self.on_window()

    def note_error(self, gate: str, status: int, body: bytes, now: float) -> None:
        self.upstream_errors[status] = self.upstream_errors.get(status, 0) + 1
        self.errors.append({"at": now, "gate": gate, "status": status, "message": words_of(body)})

    def summary(self) -> str:
        """One line about everything that went through."""
        if not self.calls and not self.turned_away:
            return "headgate: no call came to the gateway"
        parts = [f"{self.calls} call{'' if self.calls == 1 else 's'}"]
        if self.waited:
            parts.append(f"{self.waited} waited ({self.longest_ns / 1e9:.1f} s at most)")
        parts.append(f"{self.refused} refused")
        if self.hung_up:
            parts.append(f"{self.hung_up} hung up while they waited")
        if self.retried:
            parts.append(f"{self.retried} sent again")
        if self.tokens:
            parts.append(f"{self.tokens:,} tokens")
        if self.turned_away:
            parts.append(f"{self.turned_away} turned away: {self.why_turned_away}")
        return "headgate: " + ", ".join(parts)


class _Calls(CallMeter):
    """Counts the calls that were admitted, and how long they waited."""

    __slots__ = ("_counts",)

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    def admitted(self, waited: int, rule: str | None, tenant: Hashable) -> None:  # noqa: ARG002 - all alike
        counts = self._counts
        counts.admitted += 1
        if waited >= _WAITED:
            counts.waited += 1
            counts.waited_ns += waited
            counts.longest_ns = max(counts.longest_ns, waited)

    def settled(
        self, held: int, units: Iterable[str], cost: tuple[int, ...], actual: tuple[int, ...]
    ) -> None:
        """Tokens are counted as answers state them, whether a limit counts them or not."""


def words_of(body: bytes) -> str:
    """What the body of an error says."""
    try:
        document = json.loads(body)
    except ValueError:
        return " ".join(body.decode("utf-8", "replace").split())[:_LONGEST_WORDS]
    for name in ("error", "message", "detail"):
        if isinstance(document, Mapping) and document.get(name):
            document = document[name]
    return " ".join(str(document).split())[:_LONGEST_WORDS]


def take_snapshot(gateway: Gateway) -> Snapshot:
    """How the gateway stands. Times are in seconds; `since` and `longest` count back from now."""
    now, counts = gateway.now(), gateway.counts
    gates = [_gate_facts(gateway, gate, now) for gate in gateway.gates()]
    return {
        "at": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "version": __version__,
        "url": gateway.url,
        "uptime": round(now - gateway.started_at, 3),
        "draining": gateway.draining,
        "store": gateway.settings.store is not None,
        "upstreams": [{"name": each.name, "host": each.host} for each in gateway.routes.all],
        "counts": {
            "calls": counts.calls,
            "admitted": counts.admitted,
            "waited": counts.waited,
            "waited_seconds": round(counts.waited_ns / 1e9, 3),
            "longest_wait": round(counts.longest_ns / 1e9, 3),
            "refused": counts.refused,
            "hung_up": counts.hung_up,
            "retried": counts.retried,
            "tokens": counts.tokens,
            "upstream_errors": {str(status): count for status, count in counts.upstream_errors.items()},
        },
        "waiting": len(gateway.waiting),
        "gates": gates,
        "errors": [{**error, "at": round(now - error["at"], 3)} for error in reversed(counts.errors)],
    }


def _gate_facts(gateway: Gateway, gate: Dispatch, now: float) -> dict[str, Any]:
    state = gate.snapshot()
    tenants: dict[str, dict[str, Any]] = {}
    for relay in list(gateway.waiting.values()):
        if relay.call.gate is not gate or relay.waiting_since is None:
            continue
        row = tenants.setdefault(relay.tenant, {"tenant": relay.tenant, "waiting": 0, "longest": 0.0})
        row["waiting"] += 1
        row["longest"] = max(row["longest"], round(now - relay.waiting_since, 3))
    window = gateway.counts.windows.get(str(gate.key))
    remaining = gate.window.remaining
    return {
        "key": str(gate.key),
        "waiting": state.waiting,
        "in_flight": state.in_flight,
        "concurrency": state.concurrency,
        "throttled_concurrency": state.throttled_concurrency,
        "binding": state.binding,
        "next_in": None if state.next_at is None else round(max(0.0, state.next_at - now), 3),
        "rates": [facts_of_rate(rate) for rate in state.rates],
        "window": {
            "ends_in": round(remaining, 3),
            "since": None if window is None else round(now - window["since"], 3),
            "reason": "" if window is None else window["reason"],
        }
        if remaining > 0
        else None,
        "throttled": state.backoff_active,
        "tenants": sorted(tenants.values(), key=lambda row: -row["longest"]),
    }
