"""`headgate exec`: run a program whose API calls wait at a gateway."""

import asyncio
import logging
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import click

from ..errors import InvalidLimit, StoreError
from . import INTERRUPT_IGNORED
from .gateway import command_error, gateway_options, given_settings
from .options import Command, CommandError

_FORWARDED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
# The terminal sends these to the program too, which decides what they mean.
_LEFT_TO_THE_PROGRAM = ("SIGINT", "SIGQUIT")


@click.command(
    cls=Command,
    short_help="Run a program whose API calls wait for their limits.",
    context_settings={"allow_interspersed_args": False},
)
@gateway_options(listens="a free port")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_command(command: tuple[str, ...], **options: Any) -> None:
    """Run COMMAND behind a gateway of its own: its calls to APIs wait until there is room for them.

    \b
    headgate exec -- python summarise.py
    headgate exec --rate 50/minute --store sqlite:///limits.db -- claude -p "..."
    headgate exec --to http://127.0.0.1:8000 -- node agent.js

    Variables such as OPENAI_BASE_URL and ANTHROPIC_BASE_URL lead the program to the gateway, and in the
    variables of keys it finds tokens that are valid for this run only. Logins that are not keys pass
    unchanged. The program has the terminal; at its end one line on stderr says what its calls did.

    Exit status: that of COMMAND, 128 + n if signal n ended it, 127 if it was not found, 2 if the gateway
    cannot start.
    """
    from ..gateway.launch import is_codex, plan  # noqa: PLC0415 - with aiohttp, which --help can do without
    from ..gateway.settings import Settings  # noqa: PLC0415

    logging.getLogger().addHandler(logging.NullHandler())  # stderr belongs to the program
    to = options.pop("to")
    options["listen"] = options["listen"] or "127.0.0.1:0"
    try:
        given = given_settings(options)
        chatgpt = is_codex(command) and to is None and _has_chatgpt_login(command[0])
        launch = plan(os.environ, to, lambda: f"sk-headgate-{secrets.token_hex(20)}", chatgpt=chatgpt)
        given.pop("upstreams", None)
        settings = Settings(upstreams=launch.upstreams, **given)
        sys.exit(asyncio.run(_run(command, settings, launch)))
    except (InvalidLimit, StoreError) as error:
        raise command_error(error, options["listen"]) from None


def _has_chatgpt_login(codex: str) -> bool:
    """Whether Codex sends its requests with a login of ChatGPT. Only Codex knows where it keeps its login."""
    if os.environ.get("CODEX_API_KEY"):
        return False
    try:
        asked = subprocess.run(  # noqa: S603 - the user asks for this program
            [codex, "login", "status"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return b"ChatGPT" in asked.stdout + asked.stderr


async def _run(command: Sequence[str], settings: Any, launch: Any) -> int:
    from ..gateway.app import Gateway  # noqa: PLC0415 - as above
    from ..gateway.launch import child_environment, with_flags  # noqa: PLC0415

    gateway = Gateway(settings, keys=launch.keys)
    try:
        await gateway.start()
    except OSError as error:
        raise command_error(error, settings.listen) from None
    try:
        environment = child_environment(os.environ, gateway.url, launch)
        status = await _child(with_flags(command, gateway.url, launch), environment)
    finally:
        await gateway.close()
    click.echo(gateway.counts.summary(), err=True)
    return status


async def _child(command: list[str], environment: dict[str, str]) -> int:
    """Run the program with this terminal, and wait for its end."""
    running: list[asyncio.subprocess.Process] = []
    early: list[int] = []  # signals that came while it was being started

    def forward(number: int) -> None:
        if not running:
            early.append(number)
            return
        with suppress(ProcessLookupError):
            running[0].send_signal(number)

    if INTERRUPT_IGNORED:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a shell starts programs in the background
    _handle_signals(forward)
    try:
        child = await asyncio.create_subprocess_exec(*command, env=environment)
    except FileNotFoundError:
        raise _NotFound(f"{command[0]}: command not found") from None
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise _NotExecutable(f"{command[0]}: {why}") from None
    running.append(child)
    for number in early:
        forward(number)
    status = await child.wait()
    return 128 - status if status < 0 else status


def _handle_signals(forward: Callable[[int], None]) -> None:
    """Before the program is started: from then on it gets the signals."""
    loop = asyncio.get_running_loop()
    for name in (*_FORWARDED, *_LEFT_TO_THE_PROGRAM):
        number = getattr(signal, name, None)
        if number is None or (number == signal.SIGINT and INTERRUPT_IGNORED):
            continue
        with suppress(NotImplementedError):
            if name in _FORWARDED:
                loop.add_signal_handler(number, forward, number)
            else:
                loop.add_signal_handler(number, lambda: None)


class _NotFound(CommandError):
    exit_code = 127  # as of shells


class _NotExecutable(CommandError):
    exit_code = 126
