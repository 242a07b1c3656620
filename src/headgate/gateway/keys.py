"""Keys of APIs and tokens of clients: which key a request is sent with, and who its client is.

A token is a word that only this gateway knows. Where keys are injected, a client sends a token in the place
of the key, and the key takes that place only in requests to the scheme, host and port that it belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple
from urllib.parse import parse_qsl

from ..errors import InvalidConfig
from .guards import Refusal
from .upstreams import Upstream

# The headers in which clients send keys, and the field that carries a token beside a key.
CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
TOKEN = "x-headgate-token"  # noqa: S105 - the name of a field
# What a browser that shows the live page keeps.
COOKIE = "headgate_page"

_ASKED = "this gateway asks for its token, in the place of the API key or as x-headgate-token"


class Token(NamedTuple):
    """A word that admits a client. `tenant` is the name of the client, if it has one.

    `secret` is the key of an API that the token stands for, and `origin` where that key may go.
    """

    word: str
    tenant: str = ""
    secret: str | None = None
    origin: tuple[str, str, int] | None = None

    def __repr__(self) -> str:
        return f"<Token of {self.tenant or 'a client'}>"


class Passage(NamedTuple):
    """What a request that may pass is sent with: headers, path and query, key.

    `tenant` is the name that its token has. `own` is whether the key is that of the gateway.
    """

    headers: list[tuple[str, str]]
    target: str
    tenant: str
    digest: str
    own: bool

    @property
    def unsized(self) -> bool:
        """Whether the headers do not say how long the body is."""
        return all(name.lower() != "content-length" for name, _value in self.headers)


class Keys:
    """Which clients may pass, and with which key.

    `required` asks every request for a token. Without it a request is refused only if it sends no credential
    of its own to an API whose key is injected.
    """

    def __init__(
        self, tokens: Sequence[Token] = (), *, required: bool = False, injected: frozenset[str] = frozenset()
    ) -> None:
        if required and not tokens:
            raise InvalidConfig(
                "a gateway that asks for a token needs one; set HEADGATE_TOKEN, or token_file"
            )
        self._tokens = tuple(tokens)
        self._required = required
        self._injected = injected  # names of upstreams

    @property
    def tokens(self) -> tuple[Token, ...]:
        return self._tokens

    def find(self, word: str) -> Token | None:
        """The token with that word. Takes as long for a wrong word as for a right one."""
        found = None
        given = word.encode("utf-8", "surrogateescape")
        for token in self._tokens:
            if compare_digest(given, token.word.encode()):
                found = token
        return found

    def may_look(self, headers: Mapping[str, str]) -> bool:
        """Whether a request for a page of the gateway itself may pass."""
        if not self._required:
            return True
        if any(self.find(word) is not None for word in words_of(headers, "")):
            return True
        found = False
        for part in headers.get("cookie", "").split(";"):
            name, _, value = part.strip().partition("=")
            if name == COOKIE:
                given = value.encode("utf-8", "surrogateescape")
                for token in self._tokens:
                    found |= compare_digest(given, cookie_for(token.word).encode())
        return found

    def passage(
        self, upstream: Upstream, target: str, request: Mapping[str, str], headers: list[tuple[str, str]]
    ) -> Passage | Refusal:
        """How a request to that upstream goes on. `headers` are those that travel on, `request` all."""
        token = None
        if self._tokens:
            for word in words_of(request, target):
                token = self.find(word)
                if token is not None:
                    break
            if token is None:
                injects = upstream.name in self._injected
                if self._required or (injects and not _credential(headers, target)):
                    return Refusal(401, _ASKED)
            else:
                if token.origin is not None and token.origin != upstream.origin:
                    return Refusal(401, f"this token is not valid for {upstream.host}")
                headers, target = _exchanged(token, upstream, headers, target, self._injected)
        credential = _credential(headers, target)
        own = not credential or credential == upstream.secret
        tenant = "" if token is None else token.tenant
        return Passage(headers, target, tenant, "" if own else digest_of(credential), own)


def _exchanged(
    token: Token,
    upstream: Upstream,
    headers: list[tuple[str, str]],
    target: str,
    injected: frozenset[str],
) -> tuple[list[tuple[str, str]], str]:
    """The headers and the target with the key in the place of the token."""
    secret = token.secret
    if secret is None and upstream.name in injected:
        secret = upstream.secret
    changed, replaced = [], False
    for name, value in headers:
        if name.lower() in CREDENTIALS and token.word in value:
            if secret is None:
                continue  # it was meant for the gateway, and the API must not see it
            changed.append((name, value.replace(token.word, secret)))
            replaced = True
        elif secret is None or name.lower() not in CREDENTIALS:
            changed.append((name, value))
    if token.word in target:
        target = target.replace(token.word, secret or "")
        replaced = True
    if secret is not None and not replaced:
        bearer = upstream.header == "authorization"
        changed.append((upstream.header, f"Bearer {secret}" if bearer else secret))
    return changed, target


def words_of(headers: Mapping[str, str], target: str) -> list[str]:
    """What a request sends where a token or a key can stand."""
    words = [headers[TOKEN]] if TOKEN in headers else []
    for name in CREDENTIALS:
        value = headers.get(name)
        if value:
            words.append(_bare(value))
    if "key=" in target:
        words += [value for name, value in parse_qsl(target.partition("?")[2]) if name == "key"]
    return words


def _credential(headers: Sequence[tuple[str, str]], target: str) -> str:
    """The key that a request is sent with; empty if it has none."""
    found = {name.lower(): value for name, value in headers if name.lower() in CREDENTIALS}
    for name in CREDENTIALS:
        if found.get(name):
            return _bare(found[name])
    if "key=" in target:
        return next((value for name, value in parse_qsl(target.partition("?")[2]) if name == "key"), "")
    return ""


def _bare(value: str) -> str:
    """A credential without the name of its scheme."""
    scheme, space, rest = value.strip().partition(" ")
    return rest.strip() if space and scheme.lower() == "bearer" else value.strip()


def cookie_for(word: str) -> str:
    """What a browser keeps in the place of a token. It opens pages of the gateway, and lets no call pass."""
    return sha256(b"headgate page " + word.encode("utf-8", "surrogateescape")).hexdigest()


def digest_of(credential: str) -> str:
    """A name for a key that may appear in logs and stores."""
    return "key " + sha256(credential.encode("utf-8", "surrogateescape")).hexdigest()[:12]


def read_tokens(text: str) -> list[Token]:
    """The tokens in a file, one a line: `name:token`, or a token alone.

    >>> read_tokens("# the team\\nann:4f1c0a9d7e\\n")
    [<Token of ann>]
    """
    tokens = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()  # noqa: PLW2901 - the line is what stands in it
        if not line or line.startswith("#"):
            continue
        name, colon, word = line.rpartition(":")
        if len(word) < 8 or not word.isascii() or not word.isprintable() or " " in word:
            raise InvalidConfig(f"line {number} of the tokens: a token has at least 8 characters, no spaces")
        tokens.append(Token(word, name.strip() if colon else ""))
    return tokens
