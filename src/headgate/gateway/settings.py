"""What a gateway is told when it starts: on the command line, in `headgate.toml`, or in a program."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ..arguments import positive_int, seconds_to_ns
from ..errors import InvalidConfig, InvalidLimit
from ..limits import Rate, read_rates
from ..retries.policy import number_of_retries
from .guards import hostname
from .keys import Token, read_tokens
from .upstreams import Rates, Upstream, upstream

DEFAULT_LISTEN = "127.0.0.1:8429"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a gateway works: the options of `headgate serve` by the same names. Times are in seconds.

    `upstreams` are the APIs that it leads to, and `listen` is "host:port" where clients call it. `rates` and
    `concurrency` hold for each API that has none of its own, and `store` shares them. `tokens` are those of
    clients. `drain` is how long running calls may take when the gateway is stopped. `retries` is how often it
    tries a refused or failed request again.

    A client is held in silence for `patience`, then by what it tolerates, and `max_wait` at most. `hosts` are
    further names by which clients may call the gateway. `inject` puts the keys of the gateway into requests
    of clients that have a token. `store_key` is the name to share the limits under, whatever the key of a
    request is. With `allow_control` the live page can end backoff windows and set rates.

    Raises InvalidConfig, InvalidCapacity or InvalidWindow for what cannot work.

    >>> settings = Settings(upstreams=(upstream("openai"), upstream("local", "http://127.0.0.1:8000")))
    >>> [each.host for each in settings.upstreams]
    ['api.openai.com', '127.0.0.1:8000']
    """

    upstreams: tuple[Upstream, ...]
    listen: str = DEFAULT_LISTEN
    rates: Rates = "auto"
    concurrency: int | None = None
    store: str | None = None
    store_key: str | None = None
    patience: float = 15.0
    max_wait: float = 240.0
    retries: int = 2
    hosts: tuple[str, ...] = ()
    inject: bool = False
    allow_control: bool = False
    tokens: tuple[Token, ...] = field(default=(), repr=False)
    drain: float = 300.0

    def __post_init__(self) -> None:
        for name in ("patience", "max_wait", "drain"):
            seconds_to_ns(getattr(self, name), name)
        number_of_retries(self.retries, "retries")
        if self.concurrency is not None:
            positive_int(self.concurrency, "concurrency", example=64)
        listen_address(self.listen)
        if self.store_key is not None and len({each.host for each in self.upstreams}) > 1:
            raise InvalidConfig("store_key names one limit, and there are several APIs; leave it out")


def listen_address(listen: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:8429`, `[::1]:0` or `:8429`; a path and -1 of `unix:/run/headgate.sock`."""
    if listen.startswith("unix:"):
        if not listen[5:]:
            raise InvalidConfig("listen='unix:' names no file; write e.g. unix:/run/headgate.sock")
        return listen, -1
    host, colon, port = listen.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise InvalidConfig(f"listen={listen!r} is not an address; write HOST:PORT, e.g. {DEFAULT_LISTEN}")
    return hostname(host) or "0.0.0.0", int(port)  # noqa: S104 - `:8429` asks for every address


# -- the file

_KINDS = {
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    list: 'a list; write e.g. ["a.example"]',
}

# What a request and its answer say about their cost.
_COUNTED = ("requests", "tokens", "input_tokens", "output_tokens", "bytes")
_NUMBERS = ("patience", "max_wait", "drain")
_LISTS = ("hosts",)
_OF_FILE = {
    *(
        "listen",
        "rate",
        "concurrency",
        "store",
        "store_key",
        "retries",
        "inject",
        "token_file",
        "allow_control",
    ),
    *("upstreams", *_NUMBERS, *_LISTS),
}
_OF_UPSTREAM = {"to", "key_env", "header", "rate", "concurrency"}


def read_file(path: Path) -> dict[str, Any]:
    """The settings in a TOML file, by their names in Settings; only those that it has."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfig(f"{path} is not TOML: {error}") from None
    return from_document(document, str(path), path.parent)


def from_document(document: Mapping[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """The settings in a parsed file. `folder` is where a token file is looked for."""
    _known(document, _OF_FILE, where)
    given: dict[str, Any] = {}
    for name, value in document.items():
        if name == "rate":
            given["rates"] = rates_of(value, where)
        elif name == "upstreams":
            if not isinstance(value, dict):
                raise InvalidConfig(
                    f"{where}: upstreams = {value!r} is not a table; write [upstreams.openai]"
                )
            given["upstreams"] = tuple(
                _upstream(each, table, f"{where}: upstreams.{each}") for each, table in value.items()
            )
        elif name == "token_file":
            given["tokens"] = token_file(folder / _typed(name, value, str, where))
        elif name in _LISTS:
            value = _typed(name, value, list, where)  # noqa: PLW2901 - the value, checked
            given[name] = tuple(_typed(name, each, str, where).lower() for each in value)
        else:
            kind = (int, float) if name in _NUMBERS else int if name in ("concurrency", "retries") else str
            given[name] = _typed(name, value, bool if name in ("inject", "allow_control") else kind, where)
    return given


def _upstream(name: str, table: Any, where: str) -> Upstream:
    if not isinstance(table, dict):
        raise InvalidConfig(f'{where} is not a table; write [upstreams.{name}] and to = "https://…" below it')
    _known(table, _OF_UPSTREAM, where)
    rates = rates_of(table["rate"], where) if "rate" in table else None
    concurrency = table.get("concurrency")
    if concurrency is not None:
        positive_int(concurrency, f"{where}: concurrency", example=64)
    texts = {each: _typed(each, table.get(each, ""), str, where) for each in ("to", "key_env", "header")}
    return upstream(
        name,
        texts["to"],
        key_env=texts["key_env"],
        header=texts["header"],
        rates=rates,
        concurrency=concurrency,
    )


def _known(table: Mapping[str, Any], names: set[str], where: str) -> None:
    for name in table:
        if name not in names:
            raise InvalidConfig(f"{where}: {name!r} is not known; known are {', '.join(sorted(names))}")


def _typed(name: str, value: Any, kind: Any, where: str) -> Any:
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise InvalidConfig(f"{where}: {name} = {value!r} is not {_KINDS.get(kind, 'a number')}")
    return value


def rates_of(given: Any, where: str = "rate") -> Rates:
    """Rates as they are written: `auto`, one of them, or a list."""
    listed = [given] if isinstance(given, (str, Rate)) or not hasattr(given, "__iter__") else list(given)
    if "auto" in listed:
        if len(listed) > 1:
            raise InvalidConfig(f"{where}: auto stands alone; give the rates, or none of them")
        return "auto"
    try:
        rates = read_rates(listed)
    except InvalidLimit as error:
        raise InvalidConfig(f"{where}: {error}") from None
    for rate in rates:
        if rate.unit not in _COUNTED:
            raise InvalidConfig(f"{where}: {rate.unit!r} is not counted; write {', '.join(_COUNTED)}")
    return rates


def token_file(path: Path) -> tuple[Token, ...]:
    """The tokens in a file."""
    try:
        return tuple(read_tokens(path.read_text("utf-8")))
    except OSError as error:
        raise InvalidConfig(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def with_environment(settings: Settings, environment: Mapping[str, str]) -> Settings:
    """The same settings with the keys and the token that the environment holds."""
    known = tuple(
        replace(each, secret=environment.get(each.key_env) or None) if each.key_env else each
        for each in settings.upstreams
    )
    tokens = settings.tokens
    if word := environment.get("HEADGATE_TOKEN"):
        tokens = (*tokens, *read_tokens(word))
    return replace(settings, upstreams=known, tokens=tokens)


SETTINGS = tuple(each.name for each in fields(Settings))
