"""Names for annotations: what public signatures of headgate accept.

>>> from headgate.typing import Observer, Rates, Seconds
>>> def make(rates: Rates, timeout: Seconds, observer: Observer) -> None: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import TypeAlias

from .events import Event
from .limits import Rate

Seconds: TypeAlias = float | timedelta
Rates: TypeAlias = Rate | str | Iterable[Rate | str]
Jitter: TypeAlias = str | tuple[str, float] | tuple[str, float, float]
Observer: TypeAlias = Callable[[Event], object]
