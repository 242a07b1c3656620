"""`headgate doctor`: what is installed, which layer retries, whether a client passes the gate."""

import asyncio
import json
import re
import sys
from typing import Any

import click

from .options import Command, CommandError, section

_looking = section("Looking")
_showing = section("Showing")


@click.command(cls=Command, short_help="What is installed, who retries, does a client pass the gate.")
@click.argument("clients", metavar="[CLIENT]...", nargs=-1)
@_looking("--store URL", "Ask this store, too.", str)
@_showing("--json", "One object with everything.", name="as_json")
def doctor(clients: tuple[str, ...], store: str | None, as_json: bool) -> None:
    """Say what is installed, which layer retries how often, and whether each CLIENT passes the gate.

    \b
    headgate doctor
    headgate doctor myapp.llm:client
    headgate doctor myapp.llm:make_client --store redis://limits.internal/0 --json

    CLIENT is module:name: a client of an SDK, httpx, aiohttp or requests, a chat model of LangChain, a
    function without arguments that returns one, or a function of a base URL that sends one call there. The
    module is imported, so what stands at its top level runs. One call goes by the client to a local API, and
    gates of headgate tell whether they admitted it. A call that no gate saw is not limited, and no error
    would say so.

    Exit status: 0, 1 if a client does not pass the gate or the store does not answer, 2 for a mistake.
    """
    from . import checkup  # noqa: PLC0415 - --help can do without

    report: dict[str, Any] = {**checkup.machine(), "packages": checkup.installed()}
    try:
        loaded = {name: checkup.load(name) for name in clients}
    except LookupError as error:
        raise CommandError(str(error.args[0]), "run it where your program runs, with its packages") from None
    report["clients"] = asyncio.run(_check(checkup, loaded))
    report["store"] = None if store is None else asyncio.run(checkup.ask_store(store))
    if as_json:
        click.echo(json.dumps(report))
    else:
        _show(report)
    failed = any(result["passes"] is not True for result in report["clients"])
    sys.exit(1 if failed or (report["store"] or {}).get("error") else 0)


async def _check(checkup: Any, loaded: dict[str, Any]) -> list[dict[str, Any]]:
    results = []
    for name, client in loaded.items():
        results += [{"name": name, **result} for result in await checkup.check(client)]
    return results


def _show(report: dict[str, Any]) -> None:
    click.echo(
        f"headgate {report['headgate']}, {report['implementation']} {report['python']}, {report['system']}, "
        f"event loop {report['event_loop']}"
    )
    if report["aiohttp_parser"] is not None:
        slow = "" if report["aiohttp_parser"] == "C" else ": slow, its C extension is missing"
        click.echo(f"aiohttp parses responses in {report['aiohttp_parser']}{slow}")
    click.echo()
    rows = [("package", "version", "retries", "what to write")]
    rows += [(it["name"], it["version"], it["retries"], it["line"]) for it in report["packages"]]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    for row in rows:
        click.echo("  ".join([*(row[column].ljust(widths[column]) for column in range(3)), row[3]]))
    click.echo("client() and async_client() are in headgate.http.httpx")
    for result in report["clients"]:
        click.echo()
        click.echo(_sentence(result))
    if report["store"] is not None:
        click.echo()
        about = report["store"]
        if about["error"]:
            click.echo(click.style(f"{about['store']}: {about['error']}", fg="red"))
        else:
            keys = ", ".join(about["keys"]) or "no keys"
            click.echo(f"{about['store']} answers in {about['milliseconds']} ms: {keys}")


def _gate_text(key: str) -> str:
    """The key of a gate. One for each host, or for each host and model, has the address of the local API."""
    made = re.fullmatch(r"127\.0\.0\.1:\d+( .+)?", key)
    return key if made is None else f"{key} ({'host and model' if made[1] else 'host'})"


def _sentence(result: dict[str, Any]) -> str:
    """What the check of one client found."""
    who = f"{result['name']} ({result['client']})"
    retries = f"; it retries {result['retries']} times by itself" if result["retries"] else ""
    if result["passes"] is True:
        gates = ", ".join(sorted({_gate_text(key) for key in result["gates"]}))
        trouble = f"; the call failed: {result['error']}" if result["error"] else ""
        return click.style(f"{who} passes the gate {gates}{retries}{trouble}", fg="green")
    if result["passes"] is False:
        words = "goes around the gate: its call was sent, and no gate saw it"
        return click.style(f"{who} {words}{retries}", fg="red")
    return click.style(
        f"{who} could not be checked: {result['error'] or 'it sent nothing here'}", fg="yellow"
    )
