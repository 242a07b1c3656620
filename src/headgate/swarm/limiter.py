"""The limiter of a swarm: MemoryLimiter's methods, for all agents on a bus together.

Callers wait at their gate, never for the bus. `agent` speaks with the other agents, `resource` decides what
one resource makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from time import time_ns
from typing import Any

from ..arguments import (
    moment_to_ns,
    positive_int,
    positive_seconds_to_ns,
    ratio,
    read_observer,
    seconds_to_ns,
    yes_or_no,
)
from ..errors import InvalidConfig
from ..gate.clock import SYSTEM
from ..gate.pickling import only_here
from ..limiters.memory_limiter import MemoryLimiter
from ..limiters.resource import Capacity, Resource, check_name
from ..limits import read_rates
from ..typing import Clock, Observer, Rates, Seconds
from ..verdict import Verdict
from .agent import Agent
from .bus.bus import Bus, open_bus
from .leadership import Settings
from .messages import read_level, read_number
from .recovery import Cubic, Stepwise
from .resource import Options, SharedResource
from .transport import weakly
from .update import CapacityUpdate

_LONGEST_NAME = 1024
_NAMESPACE = re.compile(r"([^.*> \t\r\n]+(\.[^.*> \t\r\n]+)*)?")


class DistributedLimiter(MemoryLimiter):
    """Rates by resource name, for all agents on a bus together.

    >>> from headgate import DistributedLimiter
    >>> from headgate.testing import ManualClock
    >>> clock = ManualClock()
    >>> one = DistributedLimiter(bus="memory:doctest", agent_id="agent-1", clock=clock)
    >>> two = DistributedLimiter(bus="memory:doctest", agent_id="agent-2", clock=clock)
    >>> for agent in (one, two):
    ...     agent.set_capacity("openai", 100, 60)          # a minute, for both of them together
    >>> one.get_capacity("openai").share, two.get_capacity("openai").share
    (50, 50)
    >>> one.announce_reduced("openai", "received 429")
    >>> two.get_capacity("openai").total, two.get_capacity("openai").share
    (50, 25)
    >>> one.close()
    >>> two.get_capacity("openai").share
    50
    >>> two.close()

    `bus` is "nats://host:4222", "redis://host:6379/0" (or valkey:), "memory:" or an object. `agent_id` must
    be this agent's alone. An agent that announces a reduction cuts the total to `reduce_factor`, once an
    episode, for all agents; it comes back while calls succeed: with `recovery="cubic"` within a minute or
    two, with `recovery="stepwise"` by `recovery_factor` every `recovery_interval`. `max_recovery=False` lets
    the last step lead above what was configured.

    `sharing="each"` gives every agent the whole total. An agent of `weight` 2 gets twice what one of weight 1
    gets, if both want it. With a `secret`, messages are signed, and messages without a signature are ignored.
    `namespace` keeps swarms on one bus apart. When an agent falls silent, others get its share within `lease`
    seconds; the silent agent then goes by `on_loss`: "share" (half an equal share, which others leave to it
    for `forget_after` seconds), "closed" (nothing) or "open" (all it had).

    `on_capacity_change` is a function of each `CapacityUpdate` of another agent, and an `observer` is called
    with every event. `wall`, which returns nanoseconds since 1970, and `clock` replace the time in tests.

    A `slot` block that ends without an error counts as a success; `permit.settle(verdict=throttled())` in it
    announces a reduction. Raises InvalidConfig or InvalidCapacity for arguments that cannot work.
    """

    __slots__ = ("_agent", "_bus", "_forked", "_options", "_owned", "_where")

    __reduce__ = only_here("make one per process on the same bus to share it")

    def __init__(
        self,
        *,
        bus: Bus | str,
        agent_id: str,
        reduce_factor: float = 0.5,
        recovery_interval: Seconds = 30.0,
        recovery_factor: float = 1.1,
        max_recovery: bool = True,
        sharing: str = "total",
        recovery: str = "cubic",
        weight: int = 1,
        secret: str | bytes | None = None,
        namespace: str = "",
        lease: Seconds = 10.0,
        forget_after: Seconds = 120.0,
        on_loss: str = "share",
        on_capacity_change: Callable[[CapacityUpdate], Any] | None = None,
        wall: Callable[[], int] = time_ns,
        observer: Observer | None = None,
        clock: Clock = SYSTEM,
    ) -> None:
        if bus is None:
            raise InvalidConfig('bus=None: a swarm needs one; write e.g. bus="nats://127.0.0.1:4222"')
        if not isinstance(agent_id, str) or not agent_id or len(agent_id) > 200:
            raise InvalidConfig(f'agent_id={agent_id!r} is not a name; write one of its own, e.g. "agent-1"')
        _one_of("sharing", sharing, ("total", "each"))
        _one_of("recovery", recovery, ("cubic", "stepwise"))
        _one_of("on_loss", on_loss, ("share", "open", "closed"))
        if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
            raise InvalidConfig(f'namespace={namespace!r} cannot be part of a subject; write e.g. "team-a"')
        if secret is not None and (not isinstance(secret, (str, bytes)) or not secret):
            raise InvalidConfig("secret protects nothing if it is empty; write a long one, or leave it out")
        if not callable(wall):
            raise InvalidConfig(f"wall={wall!r} cannot be called; give a function such as time.time_ns")
        yes_or_no(max_recovery, "max_recovery")
        factor = ratio(reduce_factor, "reduce_factor", low=0, high=1, example=0.5)
        growth = ratio(recovery_factor, "recovery_factor", low=1, high=float("inf"), example=1.1)
        interval = positive_seconds_to_ns(recovery_interval, "recovery_interval", error=InvalidConfig)
        read_observer(on_capacity_change, "on_capacity_change", "an update")
        super().__init__(observer=observer, clock=clock)
        settings = Settings(
            lease=positive_seconds_to_ns(lease, "lease", error=InvalidConfig),
            forget=positive_seconds_to_ns(forget_after, "forget_after", error=InvalidConfig),
            weight=positive_int(weight, "weight", example=1),
            on_loss=on_loss,
        )
        stepwise = Stepwise(factor, growth, interval, beyond=not max_recovery)
        self._options = Options(
            agent_id=agent_id,
            namespace=namespace,
            secret=secret.encode() if isinstance(secret, str) else secret,
            settings=settings,
            curve=stepwise if recovery == "stepwise" else Cubic(factor, beyond=not max_recovery),
            each=sharing == "each",
            wall=wall,
            observer=observer,
            clock=clock,
        )
        self._forked = False
        self._where = bus
        self._bus, self._owned = open_bus(bus)
        try:
            self._agent = Agent(self._bus, self._options, on_capacity_change)
        except BaseException:
            if self._owned:
                self._bus.close()
            raise

    # -- configuring

    def set_rates(self, resource: str, rates: Rates) -> None:
        """Set several rates for one `resource`, in one decision. Reductions announce the first of them.

        `rates` is a rate, as text or as a `Rate`, or a list of them, for all agents together. A cut stays in
        force: the new rates take effect at once, cut in the same proportion. Raises InvalidLimit for what is
        not a rate, InvalidConfig for none, and Closed.

        >>> with DistributedLimiter(bus="memory:rates", agent_id="agent-1") as agent:
        ...     agent.set_rates("openai", ["60/minute burst 10", "2_000 tokens/minute burst 500"])
        ...     agent.get_capacity("openai").total
        60
        """
        read = read_rates(rates)
        if not read:
            raise InvalidConfig(f'rates={rates!r} is empty; write e.g. "60/minute", or remove({resource!r})')
        check_name(resource)
        if len(resource) > _LONGEST_NAME:
            raise InvalidConfig(f"resource {resource[:20]!r}… is too long a name to send around")
        if self._forked:
            self._begin_anew()
        with self._lock:
            self._raise_if_closed()
            known = self._resources.get(resource)
            if known is None:
                learn = partial(weakly(self._hear_verdict), resource)
                shared = SharedResource(resource, read, self._agent.new_membership(), self._options, learn)
                self._resources[resource] = shared
        if known is None:
            self._agent.join(shared)
        else:
            assert isinstance(known, SharedResource)
            self._agent.configure(known, read)

    def remove(self, resource: str) -> None:
        """Forget a `resource`; other agents get its share. Callers that wait for it raise UnknownResource."""
        check_name(resource)
        self._agent.leave(resource)
        super().remove(resource)

    def close(self) -> None:
        """Leave the swarm: refuse all callers here, with Closed, and leave the shares to other agents.

        A second call does nothing.
        """
        with self._lock:
            if self._closed:
                return
        super().close()
        self._agent.close()
        if self._owned:
            self._bus.close()

    def on_capacity_change(self, callback: Callable[[CapacityUpdate], Any] | None) -> None:
        """Have `callback` called, in place of the last one, with every `CapacityUpdate` of another agent.

        None ends it. Raises InvalidConfig if `callback` cannot be called.

        >>> with DistributedLimiter(bus="memory:updates", agent_id="agent-1") as agent:
        ...     agent.on_capacity_change(lambda update: print(update.resource, update.new_capacity))
        """
        self._agent.callback = read_observer(callback, "on_capacity_change", "an update")

    # -- announcing

    def announce_reduced(
        self,
        resource: str,
        reason: str,
        *,
        retry_after: Seconds | None = None,
        sent_at: float | None = None,
    ) -> None:
        """Say that the API gives less of a `resource` than configured: cut the total of all, once an episode.

        `reason`, e.g. "received 429", is for observers and logs. `sent_at`, on the limiter's clock
        (`time.monotonic()`), is when the refused call was sent: a refusal
        of a call sent before the last cut does not cut again. Without it, announcements that follow each
        other within some seconds are one episode. With `retry_after`, no agent admits a call for that many
        seconds. Raises InvalidWindow if one of them is not a time.
        """
        check_name(resource)
        pause = 0 if retry_after is None else seconds_to_ns(retry_after, "retry_after")
        sent = None if sent_at is None else moment_to_ns(sent_at, "sent_at")
        self._agent.announce(resource, str(reason), pause, sent)

    # -- looking

    def get_capacity(self, resource: str) -> Capacity | None:
        """How a `resource` stands, as a `Capacity`; None if it has no limits.

        Its `total` is that of the swarm, and its `share` what this agent may use of it.
        """
        check_name(resource)
        return self._agent.capacity_of(resource)

    @property
    def connected(self) -> bool:
        """Whether the bus is connected, as far as it says."""
        return self._agent.connected

    @property
    def ignored(self) -> dict[str, int]:
        """How many messages of the swarm changed nothing, by reason."""
        return dict(self._agent.ignored)

    def snapshot(self) -> dict[str, Any]:
        """How far totals are cut, as plain values to be saved before a restart: see `restore`.

        >>> with DistributedLimiter(bus="memory:saved", agent_id="agent-1") as agent:
        ...     saved = agent.snapshot()
        >>> saved["levels"]
        {}
        """
        return self._agent.snapshot()

    def restore(self, saved: Mapping[str, Any], *, younger_than: Seconds = 600.0) -> None:
        """Continue from what `snapshot` has `saved`, unless it is too old.

        It is too old if it is not `younger_than` that many seconds. Later cuts of the swarm count for more.
        Raises InvalidConfig for what is not a snapshot.

        >>> with DistributedLimiter(bus="memory:restored", agent_id="agent-1") as agent:
        ...     agent.restore(agent.snapshot(), younger_than=60)
        """
        oldest = seconds_to_ns(younger_than, "younger_than")
        try:
            at = read_number(saved["at"])
            levels = {str(name): read_level(level) for name, level in saved["levels"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(f"{saved!r} is not a snapshot: {error}") from None
        self._agent.restore(levels, at, oldest)

    def _hear_verdict(self, resource: str, verdict: Verdict, sent_at: int) -> None:
        if verdict.kind in ("throttled", "overloaded"):
            pause = 0 if verdict.retry_after is None else seconds_to_ns(verdict.retry_after, "retry_after")
            self._agent.announce(resource, verdict.kind, pause, sent_at)

    # -- after a fork

    def _find(self, resource: str, again: bool = False) -> Resource:
        if self._forked:
            self._begin_anew()
        return super()._find(resource, again)

    def after_fork(self) -> None:
        super().after_fork()
        self._agent.after_fork()
        self._forked = True

    def _begin_anew(self) -> None:
        """In a forked child: join as another run, with a bus of its own."""
        self._forked = False
        before = self._agent
        if self._owned:
            self._bus, _ = open_bus(self._where)
        self._agent = Agent(self._bus, self._options, before.callback)
        for resource in before.resources.values():
            resource.membership = self._agent.new_membership()
            self._agent.join(resource)

    def __repr__(self) -> str:
        agent = self._agent
        return f"<DistributedLimiter {agent.agent_id!r} of {len(agent.resources)} resources>"


def _one_of(what: str, given: object, possible: tuple[str, ...]) -> None:
    if given not in possible:
        raise InvalidConfig(f"{what}={given!r} is unknown; write one of {', '.join(map(repr, possible))}")
