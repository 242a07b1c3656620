"""Which ids have an answer, and which a line of the job file has used.

The ids themselves are kept, not hashes of them: if two ids counted as one, a job would never be sent. An id
of ten letters takes about 100 bytes; a digest of 128 bits would take nearly as much.
"""

from __future__ import annotations


class SeenIds:
    """A set of ids, each with a note whether a line with this id was read.

    >>> ids = SeenIds()
    >>> ids.add("a"), ids.add("a"), "a" in ids, ids.was_read("a"), len(ids)
    (True, False, True, False, 1)
    >>> ids.read("a"), ids.read("a"), ids.was_read("a")
    (True, False, True)
    """

    def __init__(self) -> None:
        self._read: dict[str, bool] = {}

    def __len__(self) -> int:
        return len(self._read)

    def __contains__(self, custom_id: str) -> bool:
        return custom_id in self._read

    def add(self, custom_id: str) -> bool:
        """Add an id. False: it was there already."""
        if custom_id in self._read:
            return False
        self._read[custom_id] = False
        return True

    def was_read(self, custom_id: str) -> bool:
        """Whether a line with this id was read."""
        return self._read.get(custom_id, False)

    def read(self, custom_id: str) -> bool:
        """Note that a line with this id was read. False: another line had it before."""
        if self._read.get(custom_id):
            return False
        self._read[custom_id] = True
        return True
