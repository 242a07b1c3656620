"""Pure. How other processes ask the sandbox for its report and change its limits and faults.

Requests under `/__sandbox/` speak JSON, are not counted, and change everything they ask for or nothing.
"""

from __future__ import annotations

import json
from typing import Any

from ..errors import InvalidLimit
from .faults import Fault
from .provider import Provider
from .styles.formats import encode
from .styles.values import Request

ROOT = "/__sandbox/"

_HELP = {
    "GET report": "the report; report?times with every moment",
    "POST reset": "start counting again",
    "GET limits": "the limits in force",
    "PUT limits": 'others, e.g. {"requests": "300/minute", "concurrency": null, "duration": 10}',
    "GET faults": "the faults that are not over",
    "POST faults": 'one more, e.g. {"kind": "storm", "duration": 5}',
    "DELETE faults": "remove all faults",
}


def control(provider: Provider, request: Request, now: int) -> tuple[int, bytes]:
    """Status and body for a request to the control plane."""
    provider.catch_up(now)
    try:
        status, said = _answer(provider, request, now)
    except (InvalidLimit, TypeError) as error:
        status, said = 400, {"error": str(error)}
    except (ValueError, RecursionError):
        status, said = 400, {"error": "the body is not JSON"}
    return status, encode(said)


def _answer(provider: Provider, request: Request, now: int) -> tuple[int, Any]:
    path, _, query = request.path.removeprefix(ROOT).partition("?")
    match request.method, path.rstrip("/"):
        case "GET", "":
            return 200, _HELP
        case "GET", "report":
            return 200, provider.report().facts(times="times" in query)
        case "POST", "reset":
            provider.reset_report()
            return 200, {"ok": True}
        case "GET", "limits":
            return 200, provider.limits()
        case (("PUT" | "POST" | "PATCH"), "limits"):
            provider.set_limits(**_facts(request), now=now)
            return 200, provider.limits()
        case "GET", "faults":
            return 200, _faults(provider, now)
        case "POST", "faults":
            facts = _facts(request)
            provider.fault(Fault(facts.pop("kind", None), **facts), now)
            return 200, _faults(provider, now)
        case "DELETE", "faults":
            provider.clear_faults()
            return 200, []
    known = ", ".join(_HELP)
    return 404, {"error": f"{request.method} {request.path[:200]} is not known here; there are {known}"}


def _facts(request: Request) -> dict[str, Any]:
    facts = json.loads(request.body or b"{}")
    if not isinstance(facts, dict):
        raise TypeError("the body must be a JSON object")
    if "now" in facts:
        raise TypeError("the time is not yours to set")
    return facts


def _faults(provider: Provider, now: int) -> list[dict[str, object]]:
    return [{"kind": fault.kind, **fault.written()} for fault in provider.faults(now)]
