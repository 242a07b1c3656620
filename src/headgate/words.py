"""Pure. Times in words."""

from __future__ import annotations

from math import ceil


def duration(seconds: float) -> str:
    """A time of any length, to the second.

    >>> duration(8.2), duration(95), duration(7_322)
    ('8 s', '1:35', '2:02:02')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02}"
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def soon(seconds: float) -> str:
    """The time until something happens: rounded up, and to the tenth of a second below ten.

    >>> soon(0.31), soon(12), soon(94.2), soon(7_322)
    ('0.4 s', '12 s', '1:35', '2:02:02')
    """
    tenths = max(1, ceil(round(seconds * 10, 5)))
    return f"{tenths / 10:.1f} s" if tenths < 100 else duration(ceil(round(seconds, 6)))
