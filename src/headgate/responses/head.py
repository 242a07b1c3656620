"""Pure. The head of a response that is not an error, read by its layout.

A server names the same fields in the same order in every response. What each of them is for is worked out
once for such a list of names; after that a response takes no more than reading its values. If there is any
doubt about one of them, `signals` and `scopes` read the head field by field.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, TypeAlias

from . import wire
from .scopes import SPECIAL, Scope, subject_of
from .signals import STEERING, SUCCESS, Signal, success_of
from .wire import Present

# The signal, the content type and the content encoding.
Head: TypeAlias = tuple[Signal, str, str]


class Layout(NamedTuple):
    """The position of each field that is read; -1 stands for one that is missing."""

    date: int
    content_type: int
    content_encoding: int
    scopes: tuple[tuple[str, int, int, int], ...]  # the name of each, its limit, remaining and reset


def head_of(status: int, headers: object, now: object) -> Head:
    """What the head of a response says at the wall-clock time `now`; its status is below 400."""
    if (type(headers) is list or type(headers) is tuple) and 0 < len(
        headers
    ) <= _MOST_FIELDS:  # nearly always
        try:
            names, values = zip(*headers, strict=True)
            layout = _layout(names)
            head = None if layout is None else _read(values, layout, now)
        except (TypeError, ValueError):  # not pairs, or not names
            head = None
        if head is not None:
            return head
    fields = wire.fields_of(headers)
    content_type, content_encoding = (fields.get(name, _MISSING)[0] for name in _CONTENT)
    return success_of(status, fields, now), content_type, content_encoding


_CONTENT = ("content-type", "content-encoding")
_MISSING = ("",)
# A longer list is read field by field: its layout would take too much room.
_MOST_FIELDS = 128


@lru_cache(maxsize=512)
def _layout(names: tuple[object, ...]) -> Layout | None:
    """What the fields of these names are for; None if that depends on more than their names."""
    read = [(key, position) for position, name in enumerate(names) if (key := wire.key_of(name))]
    positions = dict(read)
    if len(positions) < len(read) or not _BY_FIELD.isdisjoint(positions):
        return None
    scopes: dict[str, dict[str, int]] = {}
    for key, position in read:
        if subject := subject_of(key, "requests", False):
            name, kind = subject
            figures = scopes.setdefault(name, dict.fromkeys(_KINDS, -1))
            if figures.get(kind) != -1:  # two fields for one figure, or another kind of figure
                return None
            figures[kind] = position
    date, content_type, content_encoding = (positions.get(key, -1) for key in ("date", *_CONTENT))
    plan = [(name, at["limit"], at["remaining"], at["reset"]) for name, at in scopes.items()]
    return Layout(date, content_type, content_encoding, tuple(plan))


_KINDS = ("limit", "remaining", "reset")
_BY_FIELD = SPECIAL | STEERING


def _read(values: tuple[object, ...], layout: Layout, now: object) -> Head | None:
    """The head with these values; None if one of them is not a single figure that is understood."""
    date, content_type, content_encoding, plan = layout
    signal = SUCCESS
    if plan:
        scopes = []
        present = None
        for name, limit_at, remaining_at, reset_at in plan:
            limit = remaining = reset = None
            if limit_at >= 0 and (limit := _count(values[limit_at])) is None:
                return None
            if remaining_at >= 0 and (remaining := _count(values[remaining_at])) is None:
                return None
            if reset_at >= 0:
                text = _text(values[reset_at])
                if text[-1:] == "s":  # a duration, nearly always
                    reset = wire.duration(text)
                else:
                    present = present or Present((_text(values[date]),) if date >= 0 else (), now)
                    reset = wire.when(text, present)
                if reset is None:
                    return None
            # A limit of zero on an admitted call marks a budget that does not apply to it.
            if limit or (limit is None and (remaining is not None or reset)):
                scopes.append(Scope(name, limit, remaining, reset))
        if scopes:
            signal = Signal(scopes=tuple(scopes))
    return (
        signal,
        _text(values[content_type]) if content_type >= 0 else "",
        _text(values[content_encoding]) if content_encoding >= 0 else "",
    )


def _count(value: object) -> float | None:
    """A figure as it came: bytes or text."""
    if (type(value) is bytes or type(value) is str) and len(value) <= 15 and value.isdigit():
        if value.isascii():
            return int(value)
        return None
    return wire.number(_text(value))


def _text(value: object) -> str:
    if type(value) is bytes:
        return value.decode("latin-1")
    if type(value) is str:
        return value
    raise TypeError
