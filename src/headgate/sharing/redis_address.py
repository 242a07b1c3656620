"""Where the Valkey or Redis servers of a store or bus are, read from a URL or from a ready client.

Rules of this room: what cannot work is refused before anything is connected, without its password. Nothing is
connected here. Of a ready client only its settings are used: its connections belong to another event loop.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from ..errors import InvalidConfig
from .store import without_password

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from redis.asyncio import Redis

    Host = tuple[str, int]

_SCHEMES = {"valkey": "redis", "valkeys": "rediss", "redis": "redis", "rediss": "rediss", "unix": "unix"}
_EXAMPLES = {
    "": "redis://user:password@host:6379/0",
    "cluster": "redis+cluster://user:password@host1:6379,host2:6379",
    "sentinel": "redis+sentinel://user:password@host1:26379,host2:26379/name-of-the-primary",
}
_PORTS = {"": 6379, "cluster": 6379, "sentinel": 26379}
# What is taken over from a ready client, where it is set.
_TAKEN_OVER = (
    *("host", "port", "path", "db", "username", "password", "credential_provider", "client_name"),
    *("ssl_keyfile", "ssl_certfile", "ssl_cert_reqs", "ssl_ca_certs", "ssl_ca_data", "ssl_ca_path"),
    *("ssl_check_hostname", "ssl_min_version", "ssl_ciphers", "ssl_password"),
)
# What an asyncio client cannot do, so that a client with it is refused.
_NOT_TAKEN_OVER = ("ssl_validate_ocsp", "ssl_validate_ocsp_stapled", "ssl_ocsp_expected_cert")


@dataclass(frozen=True, slots=True)
class Address:
    """Servers of one kind ("" for a single one, "cluster", "sentinel"), and how to connect to each.

    `settings` are those of a connection of redis-py, `sentinel_settings` those of one to a sentinel.
    `primary` is the name that the sentinels know the server by. `remap` turns an address that a cluster
    tells into one that can be reached.
    """

    shown: str  # the URL as it may be shown
    kind: str
    hosts: tuple[Host, ...]
    settings: dict[str, Any] = field(repr=False)
    sentinel_settings: dict[str, Any] = field(default_factory=dict, repr=False)
    primary: str = ""
    remap: Callable[[Host], Host] | None = None

    def client(self, host: Host | None = None, *, one_connection: bool = False) -> Redis:
        """A client of one server; without a host, of the only one or of the one that the sentinels name.

        With `one_connection`, commands arrive in the order in which they were sent.
        """
        from redis.asyncio import ConnectionPool, Redis  # noqa: PLC0415 - an extra

        if host is None and self.kind == "sentinel":
            pool: Any = self._pool_by_sentinels()
        else:
            pool = ConnectionPool(**{**self.settings, **_place(host or (self.hosts or (None,))[0])})
        return Redis(connection_pool=pool, single_connection_client=one_connection)

    def _pool_by_sentinels(self) -> Any:
        from redis.asyncio import ConnectionPool, Redis, sentinel  # noqa: PLC0415 - an extra

        settings = dict(self.settings)
        tls = settings.pop("connection_class", None) is not None
        manager: Any = sentinel.Sentinel([])  # type: ignore[no-untyped-call]
        manager.sentinels = [
            Redis(connection_pool=ConnectionPool(**{**self.sentinel_settings, **_place(host)}))
            for host in self.hosts
        ]
        managed = sentinel.SentinelManagedSSLConnection if tls else sentinel.SentinelManagedConnection
        pool_of: Any = sentinel.SentinelConnectionPool
        return pool_of(self.primary, manager, connection_class=managed, **settings)


def _clients_behind(client: Redis) -> list[Redis]:
    """A client, and those of the sentinels that it asks."""
    manager = getattr(client.connection_pool, "sentinel_manager", None)
    return [client, *(manager.sentinels if manager is not None else ())]


async def close_client(client: Redis) -> None:
    """Close a client of an Address, and its connections to sentinels."""
    for each in _clients_behind(client):
        with suppress(Exception):  # the connection may be lost already
            await each.aclose()
        await each.connection_pool.disconnect()


def address_of(where: Any, what: str, *, timeout: float, connect_timeout: float, **options: Any) -> Address:
    """Read a URL or a ready client.

    Raises InvalidConfig, which begins with `what` ("store" or "bus"), if it cannot work or redis-py is not
    installed.
    """
    shown = without_password(where) if isinstance(where, str) else name_of_client(where)
    try:
        import_module("redis.asyncio")  # an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415 - as above
        from redis.backoff import NoBackoff  # noqa: PLC0415 - as above
        from redis.exceptions import RedisError  # noqa: PLC0415 - as above
    except ImportError as error:
        raise InvalidConfig(
            f'{what}={shown!r} needs a client that is not installed; run: pip install "headgate[redis]"'
        ) from error
    read = _read_url(where, what) if isinstance(where, str) else _read_client(where, what)
    ours = {
        "socket_timeout": timeout,
        "socket_connect_timeout": connect_timeout,
        "retry": Retry(NoBackoff(), 0),  # `send_again_if_lost` knows better what may be sent twice
        "protocol": 2,
        **options,
    }
    address = replace(
        read, settings={**ours, **read.settings}, sentinel_settings={**ours, **read.sentinel_settings}
    )
    try:
        for client in _clients_behind(address.client()):
            client.connection_pool.make_connection()  # type: ignore[no-untyped-call]
    except (ValueError, TypeError, RedisError):
        _wrong(what, shown, address.kind, "has options that cannot be read")
    return address


def _wrong(what: str, shown: str, kind: str, why: str) -> NoReturn:
    raise InvalidConfig(f"{what}={shown!r} {why}; write e.g. {_EXAMPLES[kind]}") from None


# -- a URL


def is_redis(scheme: str) -> bool:
    """Whether a URL with this scheme is one of Valkey or Redis."""
    server, plus, kind = scheme.partition("+")
    return server in _SCHEMES and (not plus or (kind in ("cluster", "sentinel") and server != "unix"))


def _read_url(url: str, what: str) -> Address:
    from redis.asyncio.connection import parse_url  # noqa: PLC0415 - an extra

    shown = without_password(url)
    scheme, mark, rest = url.partition("://")
    if not mark or not is_redis(scheme):
        _wrong(what, shown, "", "is not the URL of a Valkey or Redis server")
    server, _, kind = scheme.partition("+")
    end = min((rest.find(sign) for sign in "/?#" if sign in rest), default=len(rest))
    who, at, names = rest[:end].rpartition("@")
    names_of_servers = names.split(",")
    if len(names_of_servers) > 1 and not kind:
        _wrong(what, shown, "cluster", "names several servers, which only a cluster or sentinels have")
    try:
        parts = urlsplit(f"redis://{who}{at}{names_of_servers[0]}{rest[end:]}")
        hosts = [urlsplit(f"redis://{name}") for name in names_of_servers]
        ports = [host.port for host in hosts]
    except ValueError:  # its own words may quote the password
        _wrong(
            what,
            shown,
            kind,
            "has a host or port that cannot be read (in a password, write %40 for @, %2F for /, %23 for #)",
        )
    path = parts.path.strip("/")
    if server != "unix" and not all(host.hostname and host.port != 0 for host in hosts):
        _wrong(what, shown, kind, "names no server")
    primary, query = "", parts.query
    sentinel_options = {}
    if kind == "sentinel":
        primary, _, path = path.partition("/")
        if not primary:
            _wrong(what, shown, kind, "does not name the primary, as the sentinels know it")
        given = parse_qsl(query, keep_blank_values=True)
        prefix = "sentinel_"
        sentinel_options = {
            name.removeprefix(prefix): value for name, value in given if name.startswith(prefix)
        }
        query = urlencode([(name, value) for name, value in given if not name.startswith(prefix)])
    if server != "unix" and path and not path.isdecimal():
        _wrong(what, shown, kind, "has a path that is not the number of a database")
    if kind == "cluster" and path.strip("0"):
        _wrong(what, shown, kind, "has a database other than 0, which a cluster does not have")
    whole = f"{parts.path}" if server == "unix" else f"/{path}"
    try:
        settings: dict[str, Any] = dict(
            parse_url(f"{_SCHEMES[server]}://{parts.netloc}{whole}{query and '?' + query}")
        )
    except ValueError:
        _wrong(what, shown, kind, "has options that cannot be read")
    if server == "unix":
        return Address(shown, kind, (), settings)
    del settings["host"]
    settings.pop("port", None)
    tls = {name: value for name, value in settings.items() if name.startswith(("ssl_", "connection_class"))}
    found = tuple((str(host.hostname), port or _PORTS[kind]) for host, port in zip(hosts, ports, strict=True))
    return Address(shown, kind, found, settings, {**tls, **sentinel_options}, unquote(primary))


# -- a ready client


def name_of_client(client: Any) -> str:
    """What messages call the servers of a client: a URL without a password."""
    try:
        return _read_client(client, "store").shown
    except (InvalidConfig, ImportError):
        return f"the client {type(client).__name__}"


def _read_client(client: Any, what: str) -> Address:
    nodes = getattr(client, "nodes_manager", None)
    if nodes is not None:
        hosts = tuple((str(node.host), int(node.port)) for node in nodes.startup_nodes.values())
        given = getattr(client, "connection_kwargs", None) or nodes.connection_kwargs
        settings = _settings_of(given, given.get("connection_class"), what)
        for name in ("host", "port", "path"):
            settings.pop(name, None)
        remap = getattr(nodes, "address_remap", None)
        return Address(_shown("cluster", hosts, settings), "cluster", hosts, settings, remap=remap)
    pool = client.connection_pool
    settings = _settings_of(pool.connection_kwargs, pool.connection_class, what)
    manager = getattr(pool, "sentinel_manager", None)
    if manager is not None:
        pools = [sentinel.connection_pool for sentinel in manager.sentinels]
        each = [_settings_of(pool.connection_kwargs, pool.connection_class, what) for pool in pools]
        hosts = tuple((one.pop("host"), one.pop("port")) for one in each)
        primary = str(pool.service_name)
        shown = f"{_shown('sentinel', hosts, settings)}/{primary}"
        return Address(shown, "sentinel", hosts, settings, each[0], primary)
    if "path" in settings:
        return Address(f"unix://{settings['path']}", "", (), settings)
    if "host" not in settings:
        raise InvalidConfig(f"{what}={type(client).__name__}: this client does not tell where its server is")
    hosts = ((settings.pop("host"), settings.pop("port", 6379)),)
    return Address(f"{_shown('', hosts, settings)}/{settings.get('db', 0)}", "", hosts, settings)


def _settings_of(given: dict[str, Any], connection_class: type | None, what: str) -> dict[str, Any]:
    from redis.asyncio import connection  # noqa: PLC0415 - an extra

    lost = [name for name in _NOT_TAKEN_OVER if given.get(name)]
    if lost:
        raise InvalidConfig(f"{what}=: the client has {', '.join(lost)}, which cannot be taken over")
    settings = {name: given[name] for name in _TAKEN_OVER if given.get(name) is not None}
    kinds = "" if connection_class is None else " ".join(each.__name__ for each in connection_class.__mro__)
    if given.get("ssl") or "SSL" in kinds:
        settings["connection_class"] = connection.SSLConnection
    else:
        settings = {name: value for name, value in settings.items() if not name.startswith("ssl_")}
    if "path" in settings:
        settings["connection_class"] = connection.UnixDomainSocketConnection
    return settings


def _shown(kind: str, hosts: tuple[Host, ...], settings: dict[str, Any]) -> str:
    names = ",".join(f"{host}:{port}" for host, port in hosts)
    return f"redis{'s' * ('connection_class' in settings)}{kind and '+' + kind}://{names}"


def _place(host: Host | None) -> dict[str, Any]:
    return {} if host is None else {"host": host[0], "port": host[1]}
