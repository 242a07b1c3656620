"""Which gate a request waits at: one for all, one for each host, model or API key, or the caller's choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TypeAlias
from urllib.parse import urlsplit, urlunsplit

from ..arguments import must_be_plain
from ..dispatch.dispatch import Dispatch
from ..errors import InvalidConfig
from ..gate.first_free import FirstFree
from ..gate.keyed import KeyedObjects


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Request:
    """A request that is about to be sent, for choosing its gate or estimating its cost.

    `method` and `url` are those of the request. `host` includes the port unless it is the usual one.
    `headers` have lower-case names. `body` is None if it is not in memory, `model` if the request names none.

    >>> url = "https://api.example/"
    >>> Request(method="GET", url=url, host="api.example", headers={}, body=None, model=None)
    <Request GET https://api.example/, model None>
    """

    method: str
    url: str
    host: str
    headers: Mapping[str, str] = field(hash=False)
    body: bytes | None
    model: str | None

    def __repr__(self) -> str:  # headers carry secrets
        return f"<Request {self.method} {self.url}, model {self.model!r}>"


ChooseGate: TypeAlias = Callable[[Request], Dispatch | FirstFree]
Gates: TypeAlias = Dispatch | FirstFree | ChooseGate | None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Target:
    """Where a request goes instead, for `choose=` of an adapter: with these headers, to this base URL.

    >>> Target(base_url="https://eu.api.example").url_of("https://api.example/v1/chat?stream=1")
    'https://eu.api.example/v1/chat?stream=1'

    `headers` replace those of the request that have the same names. Scheme, host and port of the request
    become those of `base_url`, and a path of `base_url` is put before that of the request. Raises
    InvalidConfig for headers that are not a mapping, and for a base URL without scheme and host.
    """

    headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    base_url: str | None = None

    def __post_init__(self) -> None:
        if not hasattr(self.headers, "items"):
            kind = type(self.headers).__name__  # and not the headers: they carry secrets
            raise InvalidConfig(
                f'headers= is of type {kind}, not a mapping; write e.g. {{"authorization": "Bearer b"}}'
            )
        if self.base_url is None:
            return
        if not isinstance(self.base_url, str) or not all(urlsplit(self.base_url)[:2]):
            raise InvalidConfig(
                f"base_url={self.base_url!r} has no scheme or no host, so that it names no server; "
                'write e.g. base_url="https://eu.api.example"'
            )

    def url_of(self, url: str) -> str:
        """Where a request to `url` goes."""
        if self.base_url is None:
            return url
        base, parts = urlsplit(self.base_url), urlsplit(url)
        path = base.path.rstrip("/") + parts.path
        return urlunsplit((base.scheme, base.netloc, path, parts.query, parts.fragment))

    def headers_for(self, url: str) -> dict[str, str]:
        """The headers to replace in a request to `url`, with the host if that is another one.

        >>> Target(headers={"authorization": "Bearer b"}).headers_for("https://api.example/v1")
        {'authorization': 'Bearer b'}
        """
        if self.base_url is None:
            return dict(self.headers)
        return {"host": urlsplit(url).netloc.rpartition("@")[2], **self.headers}

    def __repr__(self) -> str:  # headers carry secrets
        return (
            f"<Target {self.base_url or 'as requested'}, headers {', '.join(self.headers) or 'as they are'}>"
        )


Choose: TypeAlias = Callable[[Dispatch], Target]


def per_host(make: Callable[[str], Dispatch]) -> ChooseGate:
    """A gate for every host: `make("api.openai.com")` is called for the first request, its Dispatch kept.

    Give the result to an adapter as its gate. Raises InvalidConfig if `make` cannot be called or returns
    something else.

    >>> from headgate.http.httpx import client
    >>> http_client = client(per_host(lambda host: Dispatch(host, rates="auto", pause=True)))
    """
    return _by_key(make, lambda request: request.host)


def per_model(make: Callable[[str], Dispatch]) -> ChooseGate:
    """A gate for every model: `make("gpt-5")`, or `make("default")` for a request that names none.

    Give the result to an adapter as its gate. Raises InvalidConfig if `make` cannot be called or returns
    something else than a Dispatch.

    >>> gate_of = per_model(lambda model: Dispatch(model, rates="500/minute"))
    >>> chat = dict(method="POST", url="https://api.example/", host="api.example", headers={}, body=None)
    >>> gate_of(Request(**chat, model="small"))
    <Dispatch 'small': 500 requests/minute burst 8, 0 waiting>
    """
    return _by_key(make, lambda request: request.model or "default")


def per_credential(make: Callable[[str], Dispatch]) -> ChooseGate:
    """A gate for every API key. `make` is given a digest of the key, which may appear in logs.

    Give the result to an adapter as its gate. Raises InvalidConfig if `make` cannot be called or returns
    something else than a Dispatch.

    >>> from headgate.http.httpx import client
    >>> http_client = client(per_credential(lambda digest: Dispatch(digest, rates="auto", pause=True)))
    """
    return _by_key(make, _credential)


_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")


def _credential(request: Request) -> str:
    secret = next((request.headers[name] for name in _CREDENTIALS if request.headers.get(name)), None)
    if secret is None:
        return "default"
    return "key " + sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def _by_key(make: Callable[[str], Dispatch], key: Callable[[Request], str]) -> ChooseGate:
    if not callable(make):
        raise InvalidConfig(
            f"{make!r} cannot be called; write a function that makes a gate, e.g. "
            'per_model(lambda model: Dispatch(model, rates="500/minute"))'
        )
    must_be_plain(make, "make", "a name")
    gates = _gates_by_name(make)
    return lambda request: gates.get(key(request))


def _gates_by_name(make: Callable[[str], Dispatch]) -> KeyedObjects[Dispatch]:
    def make_checked(name: Hashable) -> Dispatch:
        assert isinstance(name, str)
        return checked(make(name), make)

    return KeyedObjects(make_checked, Dispatch.is_idle, by_user=True)


def checked(gate: object, given_by: object) -> Dispatch:
    """The Dispatch that a function of the user returned, if it is one."""
    if not isinstance(gate, Dispatch):
        raise InvalidConfig(f"{given_by!r} gave {gate!r}, which is not a Dispatch; return one")
    return gate


def checked_several(gate: object) -> FirstFree | None:
    """The gate if it is a FirstFree, whose gates have to be Dispatches here; None if it is not."""
    if not isinstance(gate, FirstFree):
        return None
    for each in gate.gates:
        if not isinstance(each, Dispatch):
            raise InvalidConfig(f"{each!r} is not a Dispatch; requests wait at a FirstFree of Dispatches")
    return gate


# What APIs of language models want. They mean their Retry-After, so the gate pauses. They do not limit the
# bytes in flight: a byte budget would hold long prompts back while there is room. After a refusal the places
# are cut by a part, because a fall from 400 to 10 would leave most of the rate unused.
_DEFAULT = _gates_by_name(
    lambda name: Dispatch(name, rates="auto", throttled_concurrency="adaptive", byte_budget=None, pause=True)
)


# The models of each host that have a gate of their own; how many at most; how long their names may be.
_MODELS: dict[str, set[str]] = {}
_MOST_MODELS, _LONGEST_MODEL = 64, 200


def default_gate(host: str, model: str | None = None) -> Dispatch:
    """The gate for a host, and for a model there, in all adapters of this process that were given none.

    Providers limit each model by itself: at one gate the figures of several would replace each other. Where
    programs pass on names that their users write, the models that come late share the gate of the host.
    """
    if model is None:
        return _DEFAULT.get(host)
    models = _MODELS.setdefault(host, set())
    if model not in models:
        if len(models) >= _MOST_MODELS or len(model) > _LONGEST_MODEL:
            return _DEFAULT.get(host)
        models.add(model)
    return _DEFAULT.get(f"{host} {model}")
