"""Pure. The document of the live page: one sentence, a few lines over time, and tables.

The page shows it as it is, so that what it says can be tested without a browser. A cell is a text; a table is
a list of rows, each with its cells by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from ...arguments import US_PER_S
from ...sharing.pool.view import MemberView
from ...words import duration, soon

Document: TypeAlias = dict[str, Any]
Facts: TypeAlias = Mapping[str, Any]

_AN_HOUR_AGO, _OPENED = "1 h ago", "since it was opened"


def gateway_document(
    state: Facts, series: Mapping[str, list[float]], since: Mapping[str, float | None]
) -> Document:
    """What the page of a gateway shows.

    `state` is its snapshot, `series` are the lines of the last hour, `since` says for how many seconds the
    present line of each gate has lasted.
    """
    gates: Sequence[Facts] = state["gates"]
    in_flight = sum(gate["in_flight"] or 0 for gate in gates)
    caps = [gate["throttled_concurrency"] or gate["concurrency"] for gate in gates]
    cap = sum(caps) if caps and all(caps) else None
    last = {name: points[-2] if len(points) > 1 else 0 for name, points in series.items()}
    return {
        "title": f"headgate {state['url']}",
        **_sentence(state, since),
        "lines": [
            _line("admitted", f"{last['admitted']:,.0f}/min", series["admitted"], unit="/min"),
            _line("refused by the API", f"{last['refused']:,.0f}/min", series["refused"], unit="/min"),
            _line("wait: half · 95 %", _waits(last), series["p95"], most=_short(max(series["p95"]))),
            _line(
                "in flight", f"{in_flight:,}" + (f" of {cap:,}" if cap else ""), series["in_flight"], cap=cap
            ),
        ],
        "limits": _limits(gates, since),
        "waiting": [
            {
                "tenant": row["tenant"],
                "calls": f"{row['waiting']:,}",
                "longest": _short(row["longest"]),
                "for": _waits_for(gate["binding"]),
                "gate": gate["key"],
            }
            for gate in gates
            for row in gate["tenants"]
        ],
        "windows": [
            {
                "gate": gate["key"],
                "reason": _reason(gate["window"]),
                "since": _ago(gate["window"]["since"]),
                "ends": f"in {soon(gate['window']['ends_in'])}",
            }
            for gate in gates
            if gate["window"]
        ],
        "members": [],
        "errors": [
            {
                "when": _ago(error["at"]),
                "status": str(error["status"]),
                "words": error["message"],
                "gate": error["gate"],
            }
            for error in state["errors"]
        ],
        "totals": _totals(state["counts"]),
        "gates": [gate["key"] for gate in gates],
    }


def store_document(facts: Facts, lines: Mapping[str, list[float]]) -> Document:
    """What the page of a store shows. `facts` are those of `headgate watch --json`."""
    pools = {key: pool for key, pool in facts["pools"].items() if pool is not None}
    members = [(key, member) for key, pool in pools.items() for member in pool["members"]]
    waiting = sum(member["waiting"] for _key, member in members)
    in_flight = sum(member["in_flight"] for _key, member in members)
    return {
        "title": f"headgate {facts['store']}",
        **_store_sentence(facts, pools, waiting, in_flight),
        "lines": [
            _line("in flight", f"{in_flight:,}", lines["in_flight"], start=_OPENED),
            _line("waiting", f"{waiting:,}", lines["waiting"], start=_OPENED),
            _line("processes", f"{len(members):,}", lines["members"], start=_OPENED),
            _line(
                "windows",
                f"{sum(pool['window'] > 0 for pool in pools.values()):,}",
                lines["windows"],
                start=_OPENED,
            ),
        ],
        "limits": sorted(
            (
                _limit(key, rate, binding=bool(rate["next"]) and bool(pool["waits"]), since=None)
                | {"next": f"in {soon(rate['next'])}" if rate["next"] else "now"}
                for key, pool in pools.items()
                for rate in pool["rates"]
            ),
            key=lambda row: (not row["binding"], -row["part"]),
        ),
        "waiting": [
            {
                "tenant": member["name"],
                "calls": f"{member['waiting']:,}",
                "longest": "",
                "for": "; ".join(pools[key]["waits"]) or "its turn",
                "gate": key,
            }
            for key, member in members
            if member["waiting"]
        ],
        "windows": [
            {"gate": key, "reason": "slow down", "since": "", "ends": f"in {soon(pool['window'])}"}
            for key, pool in pools.items()
            if pool["window"] > 0
        ],
        "members": [_member_row(key, member) for key, member in members],
        "errors": [],
        "totals": "",
        "gates": list(pools),
    }


def member_rows(key: str, members: Sequence[MemberView]) -> list[dict[str, str]]:
    """The rows of the processes that share the limits of a key."""
    return [_member_row(key, {**member.facts(), "lease": member.lease / US_PER_S}) for member in members]


def _member_row(key: str, member: Facts) -> dict[str, str]:
    return {
        "member": member["name"],
        "flight": f"{member['in_flight']:,}",
        "waits": f"{member['waiting']:,}",
        "places": f"{member['places']:,}",
        "lease": f"{soon(member['lease'])}" if member["lease"] > 0 else "over",
        "gate": key,
    }


# -- the sentence


def _sentence(state: Facts, since: Mapping[str, float | None]) -> dict[str, str]:
    gates: Sequence[Facts] = state["gates"]
    waiting = sum(gate["waiting"] for gate in gates)
    if state["draining"]:
        return _said("stopping", f"The gateway is being stopped. {_count(waiting, 'call')} still waiting.")
    windows = [gate for gate in gates if gate["window"]]
    if windows:
        worst = max(windows, key=lambda gate: gate["window"]["ends_in"])
        window = worst["window"]
        return _said(
            "window",
            f"{worst['key']} asked us to wait ({_reason(window)}) {_ago(window['since'])}; "
            f"{_wait(waiting)}; calls go again in {soon(window['ends_in'])}.",
        )
    if waiting:
        worst = max(gates, key=lambda gate: gate["waiting"])
        rule = worst["binding"] or "a limit"
        lasted = since.get(worst["key"])
        text = f"{rule} of {worst['key']} "
        text += "is full" if lasted is None else f"has been full for {duration(lasted)}"
        text += f"; {_wait(waiting)}"
        if worst["next_in"] is not None:
            text += f"; next in {soon(worst['next_in'])}"
        clear = _clear_in(worst)
        return _said("limited", text + (f"; clear in about {duration(clear)}." if clear else "."))
    in_flight = sum(gate["in_flight"] or 0 for gate in gates)
    if in_flight:
        fullest = max(
            ((_used(rate), rate, gate) for gate in gates for rate in gate["rates"]),
            key=lambda each: each[0],
            default=None,
        )
        text = f"Nothing waits. {_count(in_flight, 'call')} in flight"
        if fullest is not None and fullest[0] > 0:
            text += f"; {fullest[1]['name']} of {fullest[2]['key']} is used to {fullest[0]:.0%}"
        return _said("busy", text + ".")
    if not state["counts"]["calls"]:
        return _said("idle", f"No call has come yet. Programs reach this gateway at {state['url']}.")
    return _said("idle", "Nothing waits, and no call is in flight.")


def _store_sentence(facts: Facts, pools: Mapping[str, Any], waiting: int, in_flight: int) -> dict[str, str]:
    if facts["error"]:
        return _said("window", f"The store cannot be read: {facts['error']}")
    if not pools:
        return _said("idle", "No process shares a limit in this store.")
    windows = {key: pool["window"] for key, pool in pools.items() if pool["window"] > 0}
    if windows:
        key = max(windows, key=lambda each: windows[each])
        text = f"{key} asked all processes to wait; {_wait(waiting)}; calls go again in {soon(windows[key])}."
        return _said("window", text)
    if waiting:
        key = max(pools, key=lambda each: sum(member["waiting"] for member in pools[each]["members"]))
        why = "; ".join(pools[key]["waits"]) or "their turn"
        return _said("limited", f"{_count(waiting, 'call')} of {key} waiting. {why}.")
    if in_flight:
        return _said("busy", f"Nothing waits. {_count(in_flight, 'call')} in flight.")
    return _said("idle", "Nothing waits, and no call is in flight.")


def _said(state: str, sentence: str) -> dict[str, str]:
    return {"state": state, "sentence": sentence}


def _clear_in(gate: Facts) -> float | None:
    """About how many seconds the line takes, if a rate of calls holds it back."""
    for rate in gate["rates"]:
        if rate["name"] == gate["binding"] and rate["unit"] == "requests" and rate["limit"]:
            return float(gate["waiting"] * rate["per"] / rate["limit"])
    return None


# -- tables


def _limits(gates: Sequence[Facts], since: Mapping[str, float | None]) -> list[dict[str, Any]]:
    rows = []
    for gate in gates:
        waits = gate["waiting"] > 0
        for rate in gate["rates"]:
            binding = waits and rate["name"] == gate["binding"]
            row = _limit(gate["key"], rate, binding=binding, since=since.get(gate["key"]))
            wait = gate["next_in"] if binding else None
            row["next"] = _next(gate, "now" if wait is None else f"in {soon(wait)}")
            rows.append(row)
        most = gate["throttled_concurrency"] or gate["concurrency"]
        if most:
            binding = waits and gate["binding"] == "concurrency"
            used = gate["in_flight"] or 0
            rows.append(
                {
                    "gate": gate["key"],
                    "name": "calls in flight",
                    "used": f"{used:,} of {most:,}",
                    "part": min(1.0, used / most),
                    "next": _next(gate, "when a call ends" if used >= most else "now"),
                    "since": _lasted(since.get(gate["key"])) if binding else "",
                    "binding": binding,
                }
            )
    return sorted(rows, key=lambda row: (not row["binding"], -row["part"]))


def _next(gate: Facts, otherwise: str) -> str:
    """When the next call goes by a limit of that gate."""
    return f"in {soon(gate['window']['ends_in'])}" if gate["window"] else otherwise


def _limit(key: str, rate: Facts, *, binding: bool, since: float | None) -> dict[str, Any]:
    left = max(0, min(rate["level"], rate["burst"]))
    return {
        "gate": key,
        "name": f"{rate['limit']:,} {rate['name']}" if "/" in rate["name"] else rate["name"],
        "used": f"{left:,} of {rate['burst']:,} left now",
        "part": round(_used(rate), 3),
        "next": "",
        "since": _lasted(since) if binding else "",
        "binding": binding,
    }


def _used(rate: Facts) -> float:
    burst: int = rate["burst"]
    return min(1.0, max(0.0, 1 - rate["level"] / burst)) if burst else 1.0


def _line(
    name: str,
    value: str,
    points: list[float],
    *,
    unit: str = "",
    most: str = "",
    cap: float | None = None,
    start: str = _AN_HOUR_AGO,
) -> dict[str, Any]:
    """One line over time: its value now, its points with their highest, and when the first of them was."""
    most = most or f"{max(points, default=0):,.0f}{unit}"
    return {
        "name": name,
        "value": value,
        "points": points,
        "cap": cap,
        "start": start,
        "most": f"most {most}",
    }


def _waits_for(rule: str | None) -> str:
    return "the backoff window" if rule == "window" else rule or "its turn"


def _waits(step: Mapping[str, float]) -> str:
    return f"{_short(step['p50'])} · {_short(step['p95'])}" if step["admitted"] else "–"


def _totals(counts: Facts) -> str:
    parts = [
        _count(counts["calls"], "call"),
        f"{counts['waited']:,} waited",
        f"{counts['refused']:,} refused here",
        *([f"{counts['hung_up']:,} hung up while they waited"] if counts["hung_up"] else []),
    ]
    refused = sum(counts["upstream_errors"].values())
    parts.append(f"{refused:,} refused or failed by the API")
    if counts["tokens"]:
        parts.append(f"{counts['tokens']:,} tokens")
    return ", ".join(parts)


def _wait(number: int) -> str:
    return "no call waits" if not number else "1 call waits" if number == 1 else f"{number:,} calls wait"


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def _reason(window: Facts) -> str:
    return str(window["reason"]).replace("_", " ") or "slow down"


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f"{duration(seconds)} ago"


def _lasted(seconds: float | None) -> str:
    return "" if seconds is None else f"for {duration(seconds)}"


def _short(seconds: float) -> str:
    return (
        f"{seconds * 1000:.0f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
        if seconds < 60
        else duration(seconds)
    )
