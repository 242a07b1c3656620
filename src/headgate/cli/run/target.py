"""The address given as --to, and where the path of a job leads from there."""

import re
from urllib.parse import SplitResult, urlsplit

from .errors import BadTarget

# The last segment of an address to which paths are to be added, as in `base_url=` of the SDKs.
_BASE = re.compile(r"v\d+(?:alpha|beta)?\d*|api|openai|inference")
_MOST_ADDRESSES = 256


class Target:
    """The address given as --to, joined with the path of a job.

    >>> Target("https://api.example.com/v1").join("/v1/chat/completions")
    'https://api.example.com/v1/chat/completions'
    """

    def __init__(self, to: str) -> None:
        self.parts = _checked_url(to)
        self.host = self.parts.netloc.rpartition("@")[2].lower()
        self._root = f"{self.parts.scheme}://{self.host}"
        self._segments = [segment for segment in self.parts.path.split("/") if segment]
        self.has_path = bool(self._segments) and not _BASE.fullmatch(self._segments[-1])
        self.query = f"?{self.parts.query}" if self.parts.query else ""
        self.joined: dict[str, str] = {}  # addresses of jobs that were read before
        self._paths: dict[str, str] = {}

    @property
    def whole(self) -> str:
        """The address as it was given."""
        return self._root + "/" + "/".join(self._segments) + self.query

    def remember(self, url: str, address: str) -> str:
        """Keep the address of a job, because most jobs of a file go to the same."""
        if len(self.joined) < _MOST_ADDRESSES:
            self.joined[url] = address
        return address

    def path_of(self, address: str) -> str:
        path = self._paths.get(address)
        if path is None:
            path = urlsplit(address).path
            if len(self._paths) < _MOST_ADDRESSES:
                self._paths[address] = path
        return path

    def join(self, path: str) -> str:
        """The address for a path. Segments that end one and begin the other appear once: `/v1` above."""
        path, mark, query = path.partition("?")
        segments = path.strip("/").split("/")
        base = self._segments
        for shared in range(min(len(base), len(segments)), 0, -1):
            if base[-shared:] == segments[:shared]:
                base = base[:-shared]
                break
        return self._root + "/" + "/".join([*base, *segments]) + (mark + query or self.query)


def _meant(to: str) -> str:
    """The URL for a name that `headgate serve` knows, or for an address without its protocol."""
    from ...gateway.upstreams import KNOWN  # noqa: PLC0415 - for this error only

    address = to.strip().lstrip("/")
    known = KNOWN.get(address.lower())
    if known is not None:
        return known.url
    return f"{'http' if address.startswith(('localhost', '127.')) else 'https'}://{address}"


def _checked_url(to: str) -> SplitResult:
    example = "https://api.openai.com"
    try:
        parts = urlsplit(to.strip())
        port = parts.port
    except ValueError as error:
        raise BadTarget(f"--to {to!r} is not a URL: {error}", f"write e.g. {example}") from None
    if parts.scheme not in ("http", "https"):
        if "://" not in to:
            raise BadTarget(f"--to {to!r} does not say how to get there", f"write {_meant(to)}")
        raise BadTarget(
            f"--to {to!r}: {parts.scheme!r} is not a protocol of this command",
            f"write http or https: {example}",
        )
    name = parts.hostname or ""
    if not name or port == 0 or any(c.isspace() or ord(c) < 33 for c in to.strip()):
        raise BadTarget(f"--to {to!r} names no host", f"write e.g. {example}")
    if parts.username is not None:
        raise BadTarget("--to has a password in it", "give it by --header, or a key by --key-env")
    if parts.fragment:
        raise BadTarget(f"--to {to!r} has a fragment (#), which no server sees", "leave it out")
    return parts
