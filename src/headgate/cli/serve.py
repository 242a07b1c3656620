"""`headgate serve`: the gateway for programs in any language."""

import asyncio
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidLimit, StoreError
from .gateway import checked_settings, command_error, gateway_options, given_settings
from .options import Command, CommandError, section
from .system import allow_connections, on_stop_signals

if TYPE_CHECKING:
    from ..gateway.app import Gateway

_clients, _showing = section("Clients"), section("Showing")
_CONNECTIONS = 20_000
_INJECT = "Put the keys of the environment into requests; clients send a token instead."
_TOKENS = "Tokens of clients, one a line: NAME:TOKEN. One can also stand in HEADGATE_TOKEN."


@click.command(cls=Command, short_help="A gateway that lets calls wait until the API has room.")
@click.argument("apis", metavar="[NAME | NAME=URL]...", nargs=-1)
@gateway_options(listens="127.0.0.1:8429")
@_clients("--inject", _INJECT)
@_clients("--token-file FILE", _TOKENS, click.Path(path_type=Path))
@_clients(
    "--allow-host NAME", "A name by which clients call the gateway. Repeatable.", name="hosts", multiple=True
)
@_showing("--allow-control", "The live page (/.headgate/ui) may end backoff windows and set rates.")
@_showing("-v, --verbose", "A line for every call, on stderr.")
def serve(apis: tuple[str, ...], **options: Any) -> None:
    """Listen for calls to an API, and send them as fast as its limits allow and no faster.

    \b
    headgate serve --to https://api.anthropic.com
    headgate serve openai anthropic gemini --store sqlite:///limits.db
    headgate serve local=http://127.0.0.1:8000 --rate 100/minute

    Give programs the address of the gateway in the place of the address of the API: http://127.0.0.1:8429
    with --to, http://127.0.0.1:8429/openai/v1 or /anthropic or /gemini for an API by name. A call that the
    API has no room for waits; it is not refused. Known names: openai, anthropic, gemini, groq, cohere,
    mistral, xai, openrouter, deepseek, together, chatgpt.

    SIGTERM and Ctrl-C let running calls end; a second one stops at once. Exit status: 0, 2 if it cannot
    start, 130 after Ctrl-C.
    """
    from ..gateway.app import Gateway  # noqa: PLC0415 - with aiohttp, which --help can do without
    from ..gateway.settings import token_file  # noqa: PLC0415
    from ..gateway.upstreams import upstream  # noqa: PLC0415

    verbose, tokens = options.pop("verbose"), options.pop("token_file")
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format="%(asctime)s %(message)s",
        stream=sys.stderr,
    )
    to, options["inject"] = options.pop("to"), options.pop("inject") or None
    options["allow_control"] = options["allow_control"] or None
    listen = options["listen"] or ""
    try:
        given = given_settings(options)
        if to is not None and apis:
            raise CommandError(
                "--to is for one API, and names are for several", "write NAME=URL for the API of --to"
            )
        if to is not None:
            given["upstreams"] = (upstream("", to),)
        elif apis:
            given["upstreams"] = tuple(upstream(*api.partition("=")[::2]) for api in apis)
        given.setdefault("upstreams", ())
        if tokens is not None:
            given["tokens"] = token_file(tokens)
        settings = checked_settings(given)
        listen = settings.listen
        allow_connections(_CONNECTIONS)
        sys.exit(asyncio.run(_serve(lambda: Gateway(settings))))
    except (InvalidLimit, StoreError, OSError) as error:
        raise command_error(error, listen) from None


async def _serve(make: Any) -> int:
    from ..gateway.launch import addresses  # noqa: PLC0415 - with aiohttp, which --help can do without

    gateway: Gateway = make()
    stopping: list[int] = []
    first, second = asyncio.Event(), asyncio.Event()

    def stop(number: int) -> None:
        stopping.append(number)
        (second if first.is_set() else first).set()

    on_stop_signals(stop)
    await gateway.start()
    try:
        click.echo(f"listening on {gateway.url}")
        sys.stdout.flush()
        if gateway.url.startswith("http"):
            for address in addresses(gateway.routes.all, gateway.url):
                click.echo(f"  {address}", err=True)
            click.echo(f"live page: {gateway.url}/.headgate/ui; Ctrl-C to stop", err=True)
        await first.wait()
        draining = asyncio.ensure_future(gateway.drain())
        at_once = asyncio.ensure_future(second.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        at_once.cancel()
    finally:
        await gateway.close()
    return 130 if stopping[:1] == [signal.SIGINT] else 0
