"""DispatchAudience: whom a Dispatch tells what happens at it, and what is told first."""

from __future__ import annotations

from ..gate.admission import Permit
from ..gate.audience import Audience
from ..hints import Hashable, Observer
from .backoff_window import BackoffWindow


class DispatchAudience(Audience):
    """Tells the observers of a Dispatch first that its window has ended, if that let a call in."""

    __slots__ = ("_window",)

    def __init__(self, key: Hashable, given: Observer | None, window: BackoffWindow) -> None:
        super().__init__(key, given)
        self._window = window

    def admitted(self, permit: Permit, rule: str | None, tenant: Hashable) -> None:
        if self._window.rule.unended:
            self._window.notice_end(permit.taken_at)
        Audience.admitted(self, permit, rule, tenant)  # quicker than by `super()`
