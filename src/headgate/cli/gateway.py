"""What `headgate serve` and `headgate exec` have in common: their options, and the settings made of them."""

from collections.abc import Callable
from errno import EADDRINUSE
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidLimit, StoreError
from .options import RATE, CommandError, section

if TYPE_CHECKING:
    from ..gateway.settings import Settings

_where, _limits, _waiting = map(section, ("Where", "Limits", "Waiting"))
_SECONDS = click.FloatRange(0, 86_400)
_RATES = "e.g. 500/minute, '200_000 tokens/minute'. Repeatable.  [default: auto, as answers tell]"
_STORE = "Share the limits with everything that uses the same store: sqlite:///limits.db, redis://host/0."
_STORE_KEY = "The name to share them under.  [default: the host of the API, and a digest for other keys]"

_TO = _where("--to URL", "The one API behind the gateway.")
_OPTIONS = (
    _where("--config FILE", "Settings as TOML; options come first.", click.Path(path_type=Path)),
    _limits("--rate RATE", _RATES, RATE, name="rates", multiple=True),
    _limits(
        "--concurrency N", "Calls in flight at once, at most.  [default: 400]", click.IntRange(1, 100_000)
    ),
    _limits("--store URL", _STORE),
    _limits("--store-key NAME", _STORE_KEY),
    _waiting("--patience S", "Seconds in which a waiting client hears nothing.  [default: 15]", _SECONDS),
    _waiting("--max-wait S", "Seconds that a client waits at most, then 503.  [default: 240]", _SECONDS),
    _waiting("--retries N", "For refusals and failures of the API.  [default: 2]", click.IntRange(0, 100)),
)


def gateway_options(listens: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: the options that both commands take. `listens` says where this one listens by default."""
    where = f"Where to listen; port 0 picks a free one.  [default: {listens}]"

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed((_TO, _where("--listen HOST:PORT", where), *_OPTIONS)):
            command = option(command)
        return command

    return decorate


def given_settings(options: dict[str, Any]) -> dict[str, Any]:
    """The settings by name: those of the file, and those of the command line instead of them."""
    from ..gateway.settings import rates_of, read_file  # noqa: PLC0415 - --help can do without

    options = dict(options)
    config, rates = options.pop("config"), options.pop("rates")
    settings: dict[str, Any] = read_file(config) if config is not None else {}
    if rates:
        settings["rates"] = rates_of(rates, "--rate")
    settings.update({name: value for name, value in options.items() if value not in (None, ())})
    store = settings.get("store")
    if store is not None and store.partition(":")[0] == "memory":
        raise CommandError(
            "--store memory: is inside one process: no other could share it",
            "write sqlite:///limits.db for this machine, or redis://host/0 for several",
        )
    return settings


def checked_settings(given: dict[str, Any]) -> "Settings":
    """The settings, with what the environment adds."""
    from os import environ  # noqa: PLC0415

    from ..gateway.settings import Settings, with_environment  # noqa: PLC0415

    return with_environment(Settings(**given), environ)


def command_error(error: Exception, listen: str) -> CommandError:
    """What a person is told if the gateway cannot start."""
    if isinstance(error, InvalidLimit):
        return CommandError(str(error))
    if isinstance(error, StoreError):
        return CommandError(str(error), "check --store, or start the server of the store")
    taken = isinstance(error, OSError) and error.errno == EADDRINUSE
    why = "another program listens there" if taken else getattr(error, "strerror", None) or error
    return CommandError(
        f"cannot listen on {listen}: {why}", "choose another --listen, or port 0 for a free one"
    )
