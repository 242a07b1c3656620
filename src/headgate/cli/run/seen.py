"""Pure. Which ids have been seen, in 16 bytes each, so that a file may have millions of them."""

from hashlib import blake2b
from typing import NamedTuple

# What is known of an id: FOUND is that of a line that was looked at before the start.
ANSWERED, READ, FAILED, FOUND = 1, 2, 4, 8

_ENTRY = 16
_REST = 11  # bytes of the hash in an entry; two more say in which bucket it is
_BUCKETS = 1 << 16


class Seen(NamedTuple):
    """What is known of an id, and the digest of the job that was answered; None if it was not noted."""

    marks: int = 0
    digest: int | None = None


NEVER_SEEN = Seen()


class SeenIds:
    """The ids of jobs, each with marks and the digest of its job.

    An id is kept as 104 bits of its BLAKE2 hash: among a million ids two are the same by chance once in
    10^19 runs.
    """

    def __init__(self) -> None:
        self._buckets: list[bytearray | None] = [None] * _BUCKETS
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, custom_id: str, mark: int, digest: int | None = None) -> Seen:
        """Add a mark to an id, and a digest if one is given. What was known of it before."""
        bucket, at, key = self._find(custom_id)
        if at < 0:
            self._count += 1
            bucket += key + _packed(mark, digest)
            return NEVER_SEEN
        before = _unpacked(bucket, at)
        kept = before.digest if digest is None else digest
        bucket[at + _REST : at + _ENTRY] = _packed(before.marks | mark, kept)
        return before

    def remove(self, custom_id: str) -> None:
        """Forget an id."""
        bucket, at, _ = self._find(custom_id)
        if at >= 0:
            self._count -= 1
            del bucket[at : at + _ENTRY]

    def get(self, custom_id: str) -> Seen:
        """What is known of an id."""
        bucket, at, _ = self._find(custom_id)
        return NEVER_SEEN if at < 0 else _unpacked(bucket, at)

    def _find(self, custom_id: str) -> tuple[bytearray, int, bytes]:
        """The bucket of an id, its place there, below 0 if it has none, and its key."""
        hashed = blake2b(custom_id.encode("utf-8", "surrogatepass"), digest_size=_REST + 2).digest()
        number, key = hashed[0] << 8 | hashed[1], hashed[2:]
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        at = bucket.find(key)
        while at > 0 and at % _ENTRY:  # bytes of two entries that look like a key
            at = bucket.find(key, at + 1)
        return bucket, at, key


_HAS_DIGEST = 128


def _packed(marks: int, digest: int | None) -> bytes:
    if digest is None:
        return bytes((marks, 0, 0, 0, 0))
    return bytes((marks | _HAS_DIGEST,)) + digest.to_bytes(4, "big")


def _unpacked(bucket: bytearray, at: int) -> Seen:
    marks = bucket[at + _REST]
    if not marks & _HAS_DIGEST:
        return Seen(marks)
    digest = int.from_bytes(bucket[at + _REST + 1 : at + _ENTRY], "big")
    return Seen(marks & ~_HAS_DIGEST, digest)
