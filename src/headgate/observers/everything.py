"""Observers of everything: every gate, window, breaker, budget, retry and swarm of this process."""

from __future__ import annotations

from _thread import allocate_lock

from .. import telling
from ..arguments import read_observer
from ..errors import InvalidConfig
from ..gate.forks import living
from ..gate.gate import Gate
from ..hints import Callable, Observer
from ..limiters.memory_limiter import MemoryLimiter

_changing = allocate_lock()


def observe_all(observer: Observer) -> Callable[[], None]:
    """Call `observer` with everything that happens in this process, from now on.

    It reaches gates that exist already and those that will be made, by this program or by a library that it
    uses. Observers that were given to a gate are told as before; one that was given to a gate too is told
    once. Returns a function that ends it. Raises InvalidConfig if `observer` cannot be called.

    >>> import headgate
    >>> from headgate.testing import Recorder
    >>> seen = Recorder()
    >>> stop = headgate.observe_all(seen)
    >>> with headgate.Dispatch("made by a library").admit():
    ...     pass
    >>> [type(event).__name__ for event in seen.events]
    ['Admitted', 'Settled']
    >>> stop()
    """
    if observer is None:
        raise InvalidConfig("observer=None would be told nothing; give a function of one event")
    added = telling.each_of(read_observer(observer))
    _change(lambda known: telling.each_of(*known, *added))

    def stop() -> None:
        _change(lambda known: tuple(observer for observer in known if observer not in added))

    return stop


def _change(change: Callable[[tuple[Observer, ...]], tuple[Observer, ...]]) -> None:
    with _changing:
        telling.set_everywhere(change(telling.everywhere()))
    # What is made from here on reads the new observers by itself.
    for gate in living(Gate):
        gate.follow_observers()
    for limiter in living(MemoryLimiter):
        limiter.follow_observers()
