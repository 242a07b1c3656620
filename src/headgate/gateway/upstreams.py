"""Pure. The APIs behind a gateway: where each is, and under which path clients reach it.

Upstreams are fixed when the gateway starts. Nothing in a request can name another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import urlsplit

from ..errors import InvalidConfig
from ..limits import Rate

Rates: TypeAlias = tuple[Rate, ...] | Literal["auto"]
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """One API behind a gateway. Requests below `/name/` go to it, or all requests if `name` is empty.

    `url` is its address. `key_env` is the environment variable that usually holds its key, and `header` the
    field that carries the key. `secret` is the key itself, if the gateway has one. `rates` and `concurrency`
    are its own limits, if they differ from those of the gateway.
    """

    name: str
    url: str
    key_env: str = ""
    header: str = "authorization"
    secret: str | None = field(default=None, repr=False)
    rates: Rates | None = None
    concurrency: int | None = None

    @property
    def host(self) -> str:
        """The host as `headgate run` names it: with its port unless that is the usual one."""
        return urlsplit(self.url).netloc.lower()

    @property
    def has_path(self) -> bool:
        """Whether the API is only a part of what its host serves."""
        return bool(urlsplit(self.url).path.strip("/"))

    @property
    def origin(self) -> tuple[str, str, int]:
        """Scheme, host and port: a key goes nowhere else."""
        parts = urlsplit(self.url)
        return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]

    def address(self, target: str) -> str:
        """The whole URL for a `target`, a path and query, below the URL of the upstream.

        Segments that end the one and begin the other appear once, as in `headgate run`.

        >>> Upstream(name="", url="https://api.example.com/api/v1").address("/v1/models?limit=2")
        'https://api.example.com/api/v1/models?limit=2'
        """
        parts = urlsplit(self.url)
        base = parts.path.rstrip("/")
        if base:
            segments = base.split("/")[1:]
            own = target.partition("?")[0].split("/")[1:]
            for shared in range(min(len(segments), len(own)), 0, -1):
                if segments[-shared:] == own[:shared]:
                    base = "".join(f"/{segment}" for segment in segments[:-shared])
                    break
        return f"{parts.scheme}://{parts.netloc}{base}{target}"


class Known:
    """An API that has a name: its URL, the variable and the header of its key."""

    __slots__ = ("header", "key_env", "url")

    def __init__(self, url: str, key_env: str, header: str = "authorization") -> None:
        self.url = url
        self.key_env = key_env
        self.header = header


KNOWN = {
    "openai": Known("https://api.openai.com", "OPENAI_API_KEY"),
    "anthropic": Known("https://api.anthropic.com", "ANTHROPIC_API_KEY", "x-api-key"),
    "gemini": Known("https://generativelanguage.googleapis.com", "GEMINI_API_KEY", "x-goog-api-key"),
    "groq": Known("https://api.groq.com", "GROQ_API_KEY"),
    "cohere": Known("https://api.cohere.com", "CO_API_KEY"),
    "mistral": Known("https://api.mistral.ai", "MISTRAL_API_KEY"),
    "xai": Known("https://api.x.ai", "XAI_API_KEY"),
    "openrouter": Known("https://openrouter.ai/api", "OPENROUTER_API_KEY"),
    "deepseek": Known("https://api.deepseek.com", "DEEPSEEK_API_KEY"),
    "together": Known("https://api.together.xyz", "TOGETHER_API_KEY"),
    "chatgpt": Known("https://chatgpt.com/backend-api/codex", ""),  # of Codex with a login of ChatGPT
}


def upstream(
    name: str,
    url: str = "",
    *,
    key_env: str = "",
    header: str = "",
    rates: Rates | None = None,
    concurrency: int | None = None,
) -> Upstream:
    """An `Upstream` of that `name`. What is left out is that of the API with this name or this host.

    `url`, `key_env`, `header`, `rates` and `concurrency` are its fields. Raises InvalidConfig for a name that
    is not known and has no URL, and for what is not a URL.

    >>> upstream("openai").url
    'https://api.openai.com'
    >>> upstream("local", "http://127.0.0.1:8000", key_env="LOCAL_KEY").host
    '127.0.0.1:8000'
    """
    if name and not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        instead = f"--to {name} for one API, or NAME={name}" if "://" in name else "letters and digits"
        raise InvalidConfig(f"{name!r} is not a name for a path; write {instead}")
    known = KNOWN.get(name) if not url else _by_host(urlsplit(checked_url(url)).netloc.lower())
    if not url:
        if known is None:
            names = ", ".join(KNOWN)
            raise InvalidConfig(f"{name!r} is not a known API ({names}); write NAME=URL for another one")
        url = known.url
    return Upstream(
        name=name,
        url=checked_url(url),
        key_env=key_env or (known.key_env if known else ""),
        header=(header or (known.header if known else "authorization")).lower(),
        rates=rates,
        concurrency=concurrency,
    )


def _by_host(host: str) -> Known | None:
    return next((known for known in KNOWN.values() if urlsplit(known.url).netloc == host), None)


def checked_url(url: str) -> str:
    """The URL, if it can be that of an API."""
    example = "write e.g. https://api.openai.com"
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise InvalidConfig(f"{url!r} is not a URL: {error}; {example}") from None
    if parts.scheme not in _PORTS or not parts.hostname or port == 0:
        raise InvalidConfig(f"{url!r} is not the URL of an API; {example}")
    if parts.username is not None or parts.query or parts.fragment:
        raise InvalidConfig(
            "the URL of an API has a host and a path, and neither password, query nor fragment"
        )
    if any(c.isspace() or ord(c) < 33 or ord(c) > 126 for c in url.strip()):
        raise InvalidConfig(f"{url!r} has characters that a URL cannot have; {example}")
    return url.strip()


class Routes:
    """Which upstream a request goes to, by the first segment of its path."""

    def __init__(self, upstreams: Sequence[Upstream]) -> None:
        self.all = tuple(upstreams)
        self._named = {each.name: each for each in upstreams if each.name}
        roots = [each for each in upstreams if not each.name]
        if not upstreams:
            raise InvalidConfig("a gateway needs an API; give --to URL, or names such as openai")
        if len(roots) > 1 or len(self._named) + len(roots) != len(upstreams):
            raise InvalidConfig("two upstreams have the same path; give each a name of its own")
        self._root = roots[0] if roots else None

    def find(self, target: str) -> tuple[Upstream, str] | None:
        """The upstream of a path with its query, and what is left of it there; None if there is none."""
        if self._named:
            first, slash, rest = target[1:].partition("/")
            name, mark, query = first.partition("?")
            found = self._named.get(name)
            if found is not None:
                return found, f"/{rest}" if slash and not mark else f"/{mark}{query}{slash}{rest}"
        return None if self._root is None else (self._root, target)
