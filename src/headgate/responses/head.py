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
    """The position of each value; -1 stands for a field that is missing."""

    date: int
    content_type: int
    content_encoding: int
    scopes: tuple[tuple[str, int, int, int], ...]  # the name of each, its limit, remaining and reset


def head_of(status: int, headers: object, now: object) -> Head:
    """What the head of a response says at the wall-clock time `now`; its status is below 400."""
    entries = wire.entries_to_read(headers)
    if type(entries) is list:
        try:
            layout = _layout(tuple([name for name, _ in entries]))
            head = None if layout is None else _read([value for _, value in entries], layout, now)
        except (TypeError, ValueError):  # not a pair, or not a name
            head = None
        if head is not None:
            return head
    fields = wire.fields_of(entries)
    content_type, content_encoding = (fields.get(name, _MISSING)[0] for name in _CONTENT)
    return success_of(status, fields, now), content_type, content_encoding


_CONTENT = ("content-type", "content-encoding")
_MISSING = ("",)


@lru_cache(maxsize=256)
def _layout(names: tuple[object, ...]) -> Layout | None:
    """What the fields of these names are for; None if that depends on more than their names."""
    positions = {wire.key_of(name): position for position, name in enumerate(names)}
    if len(positions) < len(names) or not _BY_FIELD.isdisjoint(positions):
        return None
    scopes: dict[str, dict[str, int]] = {}
    for key, position in positions.items():
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


def _read(values: list[object], layout: Layout, now: object) -> Head | None:
    """The head with these values; None if one of them is not a single figure that is understood."""
    texts = []
    for value in values:
        text = value.decode("latin-1") if type(value) is bytes else value
        if type(text) is not str:
            return None
        texts.append(text)
    texts.append("")  # stands at -1
    date, content_type, content_encoding, plan = layout
    signal = SUCCESS
    if plan:
        scopes = []
        present = Present((texts[date],), now)
        for name, limit_at, remaining_at, reset_at in plan:
            limit = None if limit_at < 0 else wire.number(texts[limit_at])
            remaining = None if remaining_at < 0 else wire.number(texts[remaining_at])
            reset = None if reset_at < 0 else wire.when(texts[reset_at], present)
            if (
                (limit is None and limit_at >= 0)
                or (remaining is None and remaining_at >= 0)
                or (reset is None and reset_at >= 0)
            ):
                return None
            # A limit of zero on an admitted call marks a budget that does not apply to it.
            if limit or (limit is None and (remaining is not None or reset)):
                scopes.append(Scope(name, limit, remaining, reset))
        if scopes:
            signal = Signal(scopes=tuple(scopes))
    return signal, texts[content_type], texts[content_encoding]
