"""Log lines of single calls, and warnings of callers that wait for long."""

from __future__ import annotations

import logging
from _thread import allocate_lock
from collections.abc import Hashable
from functools import partial

from .. import events, telling
from ..arguments import SECOND, positive_seconds_to_ns
from ..errors import InvalidConfig
from ..event_log import write
from ..gate.forks import living, reset_in_child
from ..gate.gate import Gate
from ..typing import Clock, Seconds


class LogObserver:
    """Writes a line for every event. Those that headgate writes by itself are not written twice."""

    def __init__(self, logger: logging.Logger | None, slow_after: Seconds | None) -> None:
        # By what it can do: loggers of other libraries do it, too.
        can_log = hasattr(logger, "log") and hasattr(logger, "isEnabledFor") and not isinstance(logger, type)
        if logger is not None and not can_log:
            raise InvalidConfig(f'logger={logger!r} is not a logger; write e.g. logging.getLogger("my app")')
        own = logging.getLogger("headgate")
        self._logger = own if logger is None else logger
        self._most = logging.INFO if self._logger is own else logging.CRITICAL
        self._slow_after = None if slow_after is None else positive_seconds_to_ns(slow_after, "slow_after")
        self.after_fork()
        reset_in_child(self)

    def after_fork(self) -> None:
        """In a forked child: no caller waits."""
        self._lock = allocate_lock()
        self._watched: set[Hashable] = set()  # keys of gates at which callers wait

    def __call__(self, event: events.Event) -> None:
        if event.level < self._most:
            write(self._logger, event)
        if self._slow_after is not None and isinstance(event, events.Waiting):
            with self._lock:
                new = event.key not in self._watched
                self._watched.add(event.key)
            if new:
                self._look_later(event.key, self._gates_of(event.key))

    def _gates_of(self, key: Hashable) -> list[Gate]:
        return [gate for gate in living(Gate) if gate.key == key and self in telling.each_of(gate.observer)]

    def _look_later(self, key: Hashable, gates: list[Gate]) -> None:
        """One timer for all gates of that key, as long as a caller waits at one of them."""
        assert self._slow_after is not None
        clocks: list[Clock] = [gate.clock for gate in gates]
        if clocks:
            clocks[0].call_at(clocks[0].now() + self._slow_after, partial(self._look, key))
        else:
            self._watched.discard(key)

    def _look(self, key: Hashable) -> None:
        waiting = [gate for gate in self._gates_of(key) if gate.waiting]
        for gate in waiting:
            event = gate.look(partial(self._long_wait, gate))
            if event is not None:
                telling.tell(gate.observer, event)
        if waiting:
            self._look_later(key, waiting)
        else:
            self._watched.discard(key)

    def _long_wait(self, gate: Gate, now: int) -> events.LongWait | None:
        """Under the lock of the gate: what is to be told of the caller that came first, if it waits long."""
        line = gate.callers.line
        tickets = line.tickets()
        if not tickets or self._slow_after is None or now - tickets[0].joined_at < self._slow_after:
            return None
        oldest, first = tickets[0], line.first() or tickets[0]
        rule, at = gate.callers.held_by(gate.rules, first.cost, now)
        before = sum(
            waiting for priority, waiting in line.waiting_by_priority() if priority > oldest.priority
        )
        return events.LongWait(
            key=gate.key,
            at=now / SECOND,
            waited=(now - oldest.joined_at) / SECOND,
            rule=rule or gate.callers.binding or "line",
            position=before + 1,
            estimate=None if at is None or oldest is not first else max(0, at - now) / SECOND,
            waiting=line.waiting,
        )
