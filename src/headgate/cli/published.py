"""What a process publishes of its gates: read from its socket, and shown."""

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple, Self

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from ..words import soon
from .options import CommandError
from .picture import Bars

_PATIENCE = 5.0  # seconds for one look
_MOST_BYTES = 16 * 1024 * 1024


class ProcessView(NamedTuple):
    """One look at the gates of a process. `trouble`: why the look failed."""

    url: str
    at: datetime
    process: dict[str, Any]
    gates: list[dict[str, Any]]
    trouble: str = ""

    def facts(self) -> dict[str, Any]:
        """The same as plain data, for JSON. A process that cannot be asked has no gates."""
        gates = [] if self.trouble else self.gates
        return {
            "at": self.at.isoformat(timespec="milliseconds"),
            "url": self.url,
            "error": self.trouble or None,
            **self.process,
            "gates": gates,
        }

    def failed(self, why: str) -> Self:
        """The same gates, and why the look at this moment failed."""
        return self._replace(at=datetime.now(UTC), trouble=why)


async def look_at(url: str, keys: tuple[str, ...]) -> ProcessView:
    """Ask a process how its gates stand; only those of the given keys, if there are any."""
    path = url.removeprefix("unix://")
    reader, writer = await asyncio.open_unix_connection(path, limit=_MOST_BYTES)
    try:
        told = json.loads(await asyncio.wait_for(reader.readline(), _PATIENCE))
        if keys and told["more"]:
            writer.write(json.dumps(keys).encode() + b"\n")
            told = json.loads(await asyncio.wait_for(reader.readline(), _PATIENCE))
        gates = [gate for gate in told["gates"] if not keys or gate["key"] in keys]
        process = {name: told[name] for name in ("host", "process", "more")}
        return ProcessView(url, datetime.now(UTC), process, gates)
    except (ValueError, KeyError, TypeError) as error:
        raise OSError(f"{url} does not say what a process of headgate does: {error!r}") from None
    finally:
        writer.close()


def cannot_look(url: str, error: OSError) -> CommandError:
    """The error of the command if the first look failed."""
    hint = "the process calls headgate.publish(), and prints the url that it returns"
    return CommandError(f"{url}: {error.strerror or error}", hint)


def process_picture(seen: ProcessView, width: int, height: int | None = None) -> RenderableType:
    """All gates, one below the other; no taller than `height` lines."""
    clock = f"{seen.at.astimezone():%H:%M:%S}"
    who = f"process {seen.process['process']} on {seen.process['host']}"
    lines: list[RenderableType] = [Text.assemble((who, "bold"), (f"   {clock}", "dim"))]
    if seen.trouble:
        lines.append(Text(f"{seen.trouble}; trying again. This is how it stood before:", "bold red"))
    if not seen.gates:
        lines.append(Text("no gates", "italic"))
    hidden = seen.process["more"]
    for number, gate in enumerate(seen.gates):
        block = [Text(), *_gate(gate, width)]
        if height is not None and len(lines) + len(block) > height - 2:
            hidden += len(seen.gates) - number
            break
        lines += block
    if hidden:
        lines.append(Text(f"and {hidden} more gates", "dim"))
    return Group(*lines)


def _gate(gate: dict[str, Any], width: int) -> Iterator[RenderableType]:
    head = Text.assemble((gate["key"], "bold"), "   ")
    if gate["waiting"]:
        head.append(f"{gate['waiting']:,} {'waits' if gate['waiting'] == 1 else 'wait'}", "bold yellow")
        then = "" if gate["next"] is None else f", next in {soon(gate['next'])}"
        head.append(f" for {gate['binding']}{then}", "yellow")
    else:
        head.append("no call waits", "green")
    yield head
    bars = Bars(width - 2, max(10, min(40, width - 62)))
    for rate in gate["rates"]:
        used = rate["burst"] - rate["level"]
        left = f"{max(0, rate['level']):,} of {rate['burst']:,} could go now"
        words = Text.assemble(f"{rate['limit']:,} {rate['name']}", (f"   {left}", "dim"))
        full = "yellow" if gate["binding"] == rate["name"] else "cyan"
        bars.add(Text(rate["unit"].replace("_", " "), "dim"), max(0.0, used / rate["burst"]), words, full)
    if gate["concurrency"]:
        part = gate["in_flight"] / gate["concurrency"]
        words = Text(f"{gate['in_flight']:,} of {gate['concurrency']:,} in flight")
        bars.add(Text("places", "dim"), part, words, "yellow" if part >= 1 else "cyan")
    if gate["window"]:
        words = Text(f"told to slow down: {soon(gate['window'])} left", "bold yellow")
        bars.add(Text("window", "dim"), 1.0, words, "yellow")
    yield Padding(bars.table, (0, 0, 0, 2), expand=False)
    totals = gate["totals"]
    said = [f"{totals['admitted']:,} admitted"]
    if totals["waited"]:
        mean = totals["seconds_waited"] / totals["waited"]
        said.append(f"{totals['waited']:,} of them waited, {mean:.2f} s on average")
    said += [f"{totals[name]:,} {name}" for name in ("refused", "cancelled") if totals[name]]
    if totals["responses"]:
        said.append(f"{totals['limited']:,} of {totals['responses']:,} responses said slow down")
    yield Text(f"  since the start: {'; '.join(said)}", "dim")
