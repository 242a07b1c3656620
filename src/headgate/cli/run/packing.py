"""Files of lines that are packed by gzip or zstd, by the end of their names: `.gz`, `.zst`.

What is added to a packed file is a complete member of its own, as `cat a.gz b.gz` would make it, so that a
crash damages nothing that was written before.
"""

import gzip
import importlib
import sys
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, Any, NamedTuple

from ..options import CommandError

_CHUNK = 1 << 18


class Packing(NamedTuple):
    """How bytes are packed. `unpacker` makes an object with `decompress`, `eof` and `unused_data`."""

    pack: Callable[[bytes], bytes]
    unpacker: Callable[[], Any]
    open: Callable[[Path], IO[bytes]]
    begins: bytes
    broken: type[Exception]  # raised for bytes that are not packed


def packing_of(path: Path | None) -> Packing | None:
    """How a file of this name is packed; None if it is not. Raises CommandError if a library is missing."""
    suffix = "" if path is None else path.suffix.lower()
    if suffix == ".gz":
        return Packing(
            lambda content: gzip.compress(content, 6, mtime=0),
            lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
            lambda path: gzip.open(path, "rb"),  # type: ignore[arg-type,return-value]
            b"\x1f\x8b\x08",
            zlib.error,
        )
    if suffix == ".zst":
        try:
            zstd = importlib.import_module(
                "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
            )
        except ImportError:
            hint = 'pip install "headgate[zstd]", or use .gz'
            raise CommandError(f"{path} needs zstd, which is not installed", hint) from None
        return Packing(
            zstd.compress,
            zstd.ZstdDecompressor,
            lambda path: zstd.open(path, "rb"),
            b"\x28\xb5\x2f\xfd",
            zstd.ZstdError,
        )
    return None


class PackedLines:
    """The lines of a packed file, piece by piece: `(lines, end)`.

    `end` is where the member that ends with these lines ends in the file, None if it goes on. Afterwards
    `torn` is whether the last member is incomplete, and `rest` is the end of it that is not a line.
    """

    def __init__(self, file: IO[bytes], packing: Packing) -> None:
        self._file = file
        self._packing = packing
        self.torn = False
        self._rest: list[bytes] = []  # in pieces, so that a long line is put together once

    @property
    def rest(self) -> bytes:
        return b"".join(self._rest)

    def __iter__(self) -> Iterator[tuple[list[bytes], int | None]]:
        unpacker, position = self._packing.unpacker(), 0
        while chunk := self._file.read(_CHUNK):
            position += len(chunk)
            while chunk:
                self.torn = True
                try:
                    lines = self._lines_in(unpacker.decompress(chunk))
                except (self._packing.broken, EOFError):
                    return
                if not unpacker.eof:
                    yield lines, None
                    break
                chunk = unpacker.unused_data
                unpacker, self.torn = self._packing.unpacker(), False
                yield lines, position - len(chunk)

    def _lines_in(self, content: bytes) -> list[bytes]:
        """The lines that end in this piece; what follows them is kept for the next one."""
        end = content.find(b"\n") + 1
        if not end:
            self._rest.append(content)
            return []
        lines = [b"".join([*self._rest, content[:end]]), *BytesIO(content[end:]).readlines()]
        self._rest = [] if lines[-1].endswith(b"\n") else [lines.pop()]
        return lines
