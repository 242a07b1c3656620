"""Pure. The environment of a program that `headgate exec` starts: where its APIs are, and which keys it gets.

The program gets a token for each key. The gateway exchanges a token for its key in requests to the API that
the key belongs to, so the program never has the key itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import NamedTuple

from .keys import Keys, Token
from .upstreams import KNOWN, Upstream, upstream

# For each API the variables that say where it is, with the path that belongs to the address.
_ADDRESSES: dict[str, tuple[tuple[str, str], ...]] = {
    "openai": (("OPENAI_BASE_URL", "/v1"), ("OPENAI_API_BASE", "/v1")),
    "anthropic": (("ANTHROPIC_BASE_URL", ""), ("ANTHROPIC_API_BASE", "")),
    "gemini": (("GOOGLE_GEMINI_BASE_URL", ""), ("GEMINI_API_BASE", "")),
    "groq": (("GROQ_BASE_URL", ""),),
    "cohere": (("CO_API_URL", ""),),
    "mistral": (("MISTRAL_API_BASE", "/v1"),),
    "xai": (("XAI_API_BASE", "/v1"),),
    "openrouter": (("OPENROUTER_API_BASE", "/v1"),),
}
# Further variables that hold keys, besides the usual one of each API.
_MORE_KEYS = {
    "openai": ("CODEX_API_KEY",),
    "anthropic": ("ANTHROPIC_AUTH_TOKEN",),
    "gemini": ("GOOGLE_API_KEY",),
    "cohere": ("COHERE_API_KEY",),
}
_CHATGPT = "chatgpt"
_UNLESS_SET = {"ENABLE_TOOL_SEARCH": "true"}  # Claude Code turns it off behind an address that is not its own
_NO_PROXY = "127.0.0.1,localhost"


class Launch(NamedTuple):
    """The APIs behind the gateway, the keys it exchanges, and what the environment hides."""

    upstreams: tuple[Upstream, ...]
    keys: Keys
    hidden: dict[str, str]  # the token that stands in each variable
    paths: dict[str, str]  # what follows the address of the gateway in each variable of an address
    codex: str  # what follows it in the flag of Codex


def plan(
    environment: Mapping[str, str], to: str | None, new_word: Callable[[], str], *, chatgpt: bool = False
) -> Launch:
    """What `headgate exec` puts between a program and its APIs; all go to the API at `to`, if that is given.

    An address that the environment has already is where the gateway sends the requests. `chatgpt` is whether
    the program is Codex with a login of ChatGPT, whose requests go to an API of its own.
    """
    paths = {variable: path for addresses in _ADDRESSES.values() for variable, path in addresses}
    if to is not None:
        every = {name: upstream("", to) for name in _ADDRESSES}
        found: tuple[Upstream, ...] = (every["openai"],)
    else:
        every = {}
        for name, addresses in _ADDRESSES.items():
            every[name], as_usual = _present(name, environment)
            for variable, path in addresses:
                paths[variable] = f"/{name}{path if as_usual else ''}"
        found = tuple(every.values())
        if chatgpt:
            found += (upstream(_CHATGPT),)
    hidden: dict[str, str] = {}
    tokens: list[Token] = []
    injected = set()
    for name, target in every.items():
        for variable in (KNOWN[name].key_env, *_MORE_KEYS.get(name, ())):
            secret = environment.get(variable)
            if secret:
                hidden[variable] = new_word()
                tokens.append(Token(hidden[variable], secret=secret, origin=target.origin))
                injected.add(target.name)
    found = tuple(_with_secret(each, environment) for each in found)
    codex = f"/{_CHATGPT}" if chatgpt and to is None else paths["OPENAI_BASE_URL"]
    return Launch(found, Keys(tokens, injected=frozenset(injected)), hidden, paths, codex)


def _present(name: str, environment: Mapping[str, str]) -> tuple[Upstream, bool]:
    """The API of that name where the environment has it, and whether the usual path follows there."""
    known = KNOWN[name]
    for variable, path in _ADDRESSES[name]:
        address = environment.get(variable, "").rstrip("/")
        if address:
            url = address.removesuffix(path) if path else address
            return upstream(name, url, key_env=known.key_env, header=known.header), address.endswith(path)
    return upstream(name), True


def _with_secret(each: Upstream, environment: Mapping[str, str]) -> Upstream:
    return replace(each, secret=environment.get(each.key_env) or None) if each.key_env else each


def child_environment(environment: Mapping[str, str], gateway: str, launch: Launch) -> dict[str, str]:
    """The variables of the program; `gateway` is the address of the gateway."""
    changed = dict(environment)
    changed.update(launch.hidden)
    changed.update({variable: gateway + path for variable, path in launch.paths.items()})
    for variable, value in _UNLESS_SET.items():
        changed.setdefault(variable, value)
    for variable in ("NO_PROXY", "no_proxy"):  # a proxy would look for the gateway on its own machine
        before = changed.get(variable)
        changed[variable] = f"{before},{_NO_PROXY}" if before else _NO_PROXY
    return changed


def addresses(upstreams: Sequence[Upstream], gateway: str) -> list[str]:
    """What programs are given so that they find each API at the gateway: a variable, or the address alone.

    >>> addresses([upstream("openai"), upstream("local", "http://127.0.0.1:8000")], "http://127.0.0.1:8429")
    ['OPENAI_BASE_URL=http://127.0.0.1:8429/openai/v1', 'http://127.0.0.1:8429/local']
    """
    told = []
    for each in upstreams:
        address = f"{gateway}/{each.name}" if each.name else gateway
        names = (name for name in _ADDRESSES if each.name == name or each.host == upstream(name).host)
        name = next(names, None)
        if name is not None:
            variable, path = _ADDRESSES[name][0]
            told.append(f"{variable}={address}{path}")
        elif each.name:
            told.append(address)
    return told


def is_codex(command: Sequence[str]) -> bool:
    return PurePath(command[0]).name in ("codex", "codex.exe")


def with_flags(command: Sequence[str], gateway: str, launch: Launch) -> list[str]:
    """The command with the flags that a known program needs; `gateway` is the address of the gateway."""
    if is_codex(command):  # it reads no variable for the address
        return [command[0], "-c", f'openai_base_url="{gateway}{launch.codex}"', *command[1:]]
    return list(command)
