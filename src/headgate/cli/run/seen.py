"""Many names in little memory: which have been answered, and which have been met.

Rules of this room: sixteen bytes a name, whatever its length; no more is needed to tell them apart. Names
are known by 63 bits of a hash with a secret seed: of a million, two are taken for one in one run of twenty
million.
"""

from __future__ import annotations

from array import array

_SMALLEST = 1 << 12


class Ids:
    """A set of names that can be added to, each with one mark.

    >>> ids = Ids()
    >>> ids.add("a"), ids.add("a"), "a" in ids, ids.marked("a"), len(ids)
    (True, False, True, False, 1)
    >>> ids.mark("a"), ids.marked("a")
    (True, True)
    """

    __slots__ = ("_count", "_mask", "_table")

    def __init__(self) -> None:
        self._table = array("Q", bytes(8 * _SMALLEST))
        self._mask = _SMALLEST - 1
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, name: str) -> bool:
        return self._table[self._place(_key(name))] != 0

    def add(self, name: str) -> bool:
        """Put it there. False: it was there already."""
        key = _key(name)
        place = self._place(key)
        if self._table[place]:
            return False
        self._table[place] = key
        self._count += 1
        if 2 * self._count > self._mask:
            self._grow()
        return True

    def marked(self, name: str) -> bool:
        """Is it there, with its mark?"""
        return bool(self._table[self._place(_key(name))] & 1)

    def mark(self, name: str) -> bool:
        """Mark it, and put it there if need be. False: it was marked already."""
        self.add(name)
        place = self._place(_key(name))
        if self._table[place] & 1:
            return False
        self._table[place] |= 1
        return True

    def _place(self, key: int) -> int:
        table, mask = self._table, self._mask
        place = (key >> 1) & mask
        while (there := table[place]) and there | 1 != key | 1:
            place = (place + 1) & mask
        return place

    def _grow(self) -> None:
        old = self._table
        size = 2 * len(old)
        self._table = array("Q", bytes(8 * size))
        self._mask = size - 1
        for key in old:
            if key:
                self._table[self._place(key)] = key


def _key(name: str) -> int:
    """An even number, never zero: the last bit is the mark."""
    return (hash(name) << 1 & 0xFFFF_FFFF_FFFF_FFFE) or 2
