"""All the rules of one gate as one decision, all or nothing.

Rules of this room: the mode is judged at the instant of admission and nowhere else; a call
that does not fit everywhere has taken nothing anywhere.
"""

from __future__ import annotations

from ..limits import BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .concurrency import ConcurrencyRule
    from .rate import RateRule, StrictRule
    from .weight import WeightRule
    from .window import Reentry, Window

REFUSED, ADMITTED, THROTTLED = 0, 1, 2


class Layers:
    """Window, concurrency, bytes and rates. Any of them may be absent."""

    __slots__ = ("_first_rate", "_other_rates", "places", "rates", "reentry", "tail", "weight", "window")

    def __init__(
        self,
        *,
        window: Window | None = None,
        tail: int = 0,
        reentry: Reentry | None = None,
        places: ConcurrencyRule | None = None,
        weight: WeightRule | None = None,
        rates: Sequence[RateRule | StrictRule] = (),
    ) -> None:
        self.window = window
        self.tail = tail  # how long after its end a window still counts as recent
        self.reentry = reentry  # given: nobody goes before the window ends
        self.places = places
        self.weight = weight
        self.set_rates(rates)

    def set_rates(self, rates: Sequence[RateRule | StrictRule]) -> None:
        self.rates = tuple(rates)
        self._first_rate = self.rates[0] if self.rates else None
        self._other_rates = self.rates[1:]

    # -- admission

    def entrance(self) -> Callable[[tuple[int, ...], int], int]:
        """The shortest way to `enter`: a lone rate needs no layers around it."""
        others = (self.places, self.weight, self.reentry)
        if len(self.rates) == 1 and not any(others):
            return self.rates[0].enter
        return self.enter

    def enter(self, cost: tuple[int, ...], now: int) -> int:
        """Take the cost from every rule and answer the mode, or change nothing and answer REFUSED."""
        places = self.places
        weight = self.weight
        load = cost[BYTES]
        mode = ADMITTED
        window = self.window
        if window is not None and window.until is not None:
            mode = self._mode(now)
            if mode == THROTTLED and weight is not None:
                load *= weight.penalty
        if mode == REFUSED:
            return REFUSED
        if places is not None and not (places.fits() if mode == ADMITTED else self._fits_throttled()):
            return REFUSED
        if weight is not None and not weight.fits(load):
            return REFUSED
        first = self._first_rate
        if first is not None and not (
            self._enter_rates(cost, now) if self._other_rates else first.enter(cost, now)
        ):
            return REFUSED
        # What is held is taken last and without a call, so that Ctrl-C cannot come in between.
        if weight is not None:
            weight.in_flight += load
        if places is not None:
            places.in_flight += 1
            if mode == THROTTLED:
                places.throttled_in_flight += 1
        return mode

    def _mode(self, now: int) -> int:
        """Under which rules one who comes now would go in, if at all."""
        until = self.window.until  # type: ignore[union-attr]  # asked only if there was a window
        assert until is not None
        if self.reentry is not None and now < until:
            return REFUSED
        places = self.places
        if now < until + self.tail and (places is not None or self.weight is not None):
            return THROTTLED  # without either nothing would be any tighter
        if places is not None and places.regrowing and not places.fits_regrowing(now, until + self.tail):
            return REFUSED
        return ADMITTED

    def _enter_rates(self, cost: tuple[int, ...], now: int) -> bool:
        for rate in self._other_rates:
            if not rate.fits(cost, now):
                return False
        if not self.rates[0].enter(cost, now):
            return False
        for rate in self._other_rates:
            rate.enter(cost, now)
        return True

    def _fits_throttled(self) -> bool:
        assert self.places is not None
        assert self.window is not None
        return self.places.fits_throttled(self.window.episode)

    @property
    def throttled_until(self) -> int | None:
        """When the last signal stops being recent; None if there never was one."""
        if self.window is None or self.window.until is None:
            return None
        return self.window.until + self.tail

    def throttled(self, now: int) -> bool:
        """Is a signal recent?"""
        until = self.throttled_until
        return until is not None and now < until

    def refusal(self, cost: tuple[int, ...]) -> tuple[str, str] | None:
        """Why this cost can never be admitted, and which rule says so; or None."""
        for rate in self.rates:
            why = rate.refusal(cost)
            if why is not None:
                return why, rate.name
        return None

    def held_by(self, cost: tuple[int, ...], now: int) -> tuple[str | None, int | None]:
        """What keeps this cost out, and when to look again.

        No rule: nothing does. No moment: when somebody leaves.
        """
        window, places, weight = self.window, self.places, self.weight
        if self.reentry is not None and window is not None and window.closed(now):
            return "window", window.until
        throttled = self.throttled(now)
        binding: str | None = None
        at = now
        for rate in self.rates:
            earliest = rate.earliest(cost, now)
            if earliest > at:
                binding, at = rate.name, earliest
        until = self.throttled_until
        load = cost[BYTES]
        if throttled:
            assert until is not None
            # Somebody leaving may let it in before, but the mode's end is the latest news.
            if weight is not None and not weight.fits(load * weight.penalty):
                binding, at = "bytes", max(at, until)
            if places is not None and not self._fits_throttled():
                full = not places.fits()
                binding, at = ("concurrency" if full else "throttled concurrency"), max(at, until)
            return binding, at if binding else None
        if places is not None and not places.fits():
            return "concurrency", None
        if weight is not None and not weight.fits(load):
            return "bytes", None
        if places is not None and places.regrowing and until is not None:
            grows = None if places.fits_regrowing(now, until) else places.grows_at(until)
            if grows is not None:
                binding, at = "concurrency", max(at, grows)
        return binding, at if binding else None

    def slack(self, cost: tuple[int, ...], now: int) -> int:
        """How much later than it could one may be let in without any rate going unused."""
        return min((rate.slack(cost, now) for rate in self.rates), default=0)

    def size(self, cost: tuple[int, ...]) -> int:
        """How long this cost occupies the rate it weighs on most, in nanoseconds: what tenants share."""
        size = 1
        for rule in self.rates:
            if rule.column < len(cost):
                size = max(size, cost[rule.column] * rule.rate.per_ns // rule.rate.amount)
        return size

    def certain_wait(self, cost: tuple[int, ...], now: int) -> tuple[str, int] | None:
        """The rate that makes this cost wait longest, and until when, if nothing can be given back."""
        if self.places is None or not self.places.in_flight:
            worst = max(self.rates, key=lambda rate: rate.earliest(cost, now), default=None)
            if worst is not None and worst.earliest(cost, now) > now:
                return worst.name, worst.earliest(cost, now)
        return None

    # -- after the call

    def correct(self, cost: tuple[int, ...], actual: tuple[int, ...], taken_at: int, now: int) -> None:
        """Replace what was estimated by what it was."""
        for rate in self.rates:
            column = rate.column
            if column < len(cost):
                rate.settle(cost[column], actual[column], taken_at, now)

    def leave(self, cost: tuple[int, ...], mode: int) -> None:
        """Give back what was held. Without a call, as it was taken."""
        places, weight = self.places, self.weight
        if weight is not None:
            weight.in_flight -= cost[BYTES] * weight.penalty if mode == THROTTLED else cost[BYTES]
        if places is not None:
            places.in_flight -= 1
            if mode == THROTTLED:
                places.throttled_in_flight -= 1

    def empty(self) -> None:
        """Nobody is inside: how a forked child starts."""
        if self.places is not None:
            self.places.in_flight = self.places.throttled_in_flight = 0
        if self.weight is not None:
            self.weight.in_flight = 0
