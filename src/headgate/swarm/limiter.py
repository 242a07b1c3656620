"""The limiter of a swarm: MemoryLimiter's methods, for all agents on a bus together.

Callers never wait for the bus, only at their gate. What the agents say to each other is in `agent`, what one
resource makes of it in `pool`.
"""

from __future__ import annotations

from time import time_ns
from typing import TYPE_CHECKING, Any
from weakref import ref

from ..arguments import SECOND, positive_int, positive_seconds_to_ns, ratio, seconds_to_ns
from ..errors import InvalidConfig
from ..gate.bucket import successors
from ..gate.clock import SYSTEM
from ..gate.slots import ConcurrencyRule
from ..limiters.memory_limiter import MemoryLimiter
from ..limiters.resource import Capacity, Resource, Slot, check_name
from ..limits import Rate, read_rates
from .agent import Agent
from .bus.bus import open_bus
from .membership import read_number
from .recovery import Cubic, Stepwise, read_level
from .resource import LeasedRules, Pool, SwarmGate, SwarmSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ..typing import Clock, Observer, Rates, Seconds
    from ..verdict import Verdict
    from .bus.bus import Bus
    from .messages import CapacityUpdate

_LONGEST_NAME = 1024


class DistributedLimiter(MemoryLimiter):
    """Token buckets by resource name, for all agents on a bus together.

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

    `bus` is "nats://host:4222", "redis://host:6379/0" (or valkey:), "memory:" or an object. `agent_id` names
    this agent, and no other. Whoever announces a reduction cuts the total to `reduce_factor`, once an
    episode, for everybody; it comes back while calls succeed: `recovery="cubic"`, within a minute or two, or
    `recovery="stepwise"`, by `recovery_factor` every `recovery_interval`. `max_recovery=False` lets the last
    step lead above what was configured.

    `sharing="each"` gives every agent the whole figure. An agent of `weight` 2 gets twice what one of weight
    1 gets, if both want it. With a `secret`, messages are signed, and what is not is ignored. `namespace`
    keeps swarms on one bus apart. Others have a member's share within `lease` seconds after it fell silent;
    it then goes by `on_loss`: "share" (half an equal share, which others leave to it for `forget_after`
    seconds), "closed" (nothing) or "open" (all it had).
    """

    __slots__ = ("_agent", "_agent_options", "_bus", "_curve", "_each", "_forked", "_owned", "_where")

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
        _check_namespace(namespace)
        if secret is not None and (not isinstance(secret, (str, bytes)) or not secret):
            raise InvalidConfig("secret protects nothing if it is empty; write a long one, or leave it out")
        factor = ratio(reduce_factor, "reduce_factor", low=0, high=1, example=0.5)
        growth = ratio(recovery_factor, "recovery_factor", low=1, high=float("inf"), example=1.1)
        interval = _positive(recovery_interval, "recovery_interval")
        _check_callback(on_capacity_change)
        super().__init__(observer=observer, clock=clock)
        beyond = not max_recovery
        self._curve: Cubic | Stepwise = (
            Cubic(factor, beyond=beyond)
            if recovery == "cubic"
            else Stepwise(factor, growth, interval, beyond=beyond)
        )
        self._each = sharing == "each"
        self._agent_options: dict[str, Any] = {
            "agent_id": agent_id,
            "namespace": namespace,
            "secret": secret.encode() if isinstance(secret, str) else secret,
            "council": {
                "lease": _positive(lease, "lease"),
                "forget": _positive(forget_after, "forget_after"),
                "on_loss": on_loss,
                "weight": positive_int(weight, "weight", example=1),
            },
            "wall": wall,
            "observer": observer,
            "clock": clock,
        }
        self._forked = False
        self._where = bus
        self._bus, self._owned = open_bus(bus)
        try:
            self._agent = Agent(self._bus, callback=on_capacity_change, **self._agent_options)
        except BaseException:
            if self._owned:
                self._bus.close()
            raise

    # -- configuring

    def set_rates(self, resource: str, rates: Rates) -> None:
        """Several windows and units for one resource, in one decision. The first is the one announced.

        What was cut stays cut: the new figures take effect at once, in the proportion that is in force.
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
            new = known is None
            pool = self._make_locked(resource, read) if known is None else known
            assert isinstance(pool, Pool)
            self._resources[resource] = pool
        if new:
            self._agent.join(pool)
        else:
            self._agent.configure(pool, read)

    def remove(self, resource: str) -> None:
        """Forget a resource; others have its part. Whoever waits for it is told UnknownResource."""
        self._agent.leave(resource)
        super().remove(resource)

    def close(self) -> None:
        """Leave the swarm: refuse everybody here, and leave all parts to the others. Twice is silent."""
        if self._closed:
            return
        super().close()
        self._agent.close()
        if self._owned:
            self._bus.close()

    def on_capacity_change(self, callback: Callable[[CapacityUpdate], Any] | None) -> None:
        """Have it called with every update of another agent, applied or not. The last one given counts."""
        _check_callback(callback)
        self._agent.callback = callback

    # -- announcing

    def announce_reduced(
        self,
        resource: str,
        reason: str,
        *,
        retry_after: Seconds | None = None,
        sent_at: float | None = None,
    ) -> None:
        """The API gives less than we think, e.g. answered 429: cut the total for everybody, once an episode.

        `sent_at`, on the limiter's clock (`time.monotonic()`), is when the call was sent that was answered
        so: then it is known whether the last cut has answered it already. Without it, announcements that
        follow each other within some seconds are one episode. With `retry_after`, nobody goes for that long.
        """
        pause = 0 if retry_after is None else seconds_to_ns(retry_after, "retry_after")
        sent = None if sent_at is None else round(sent_at * SECOND)
        self._agent.announce(resource, str(reason), pause, sent)

    # -- looking

    def get_capacity(self, resource: str) -> Capacity | None:
        """How the resource stands: the swarm's `total`, and `share`, this agent's part of it."""
        standing = self._agent.standing(resource)
        if standing is None:
            return None
        pool, total, share = standing
        return pool.capacity(total, share)

    @property
    def connected(self) -> bool:
        """Does the bus hear us, as far as it says?"""
        return self._agent.connected

    @property
    def ignored(self) -> dict[str, int]:
        """How many messages changed nothing, by why."""
        return dict(self._agent.ignored)

    def snapshot(self) -> dict[str, Any]:
        """What was learned, as plain values to be kept over a restart: see `restore`."""
        return self._agent.snapshot()

    def restore(self, saved: Mapping[str, Any], *, younger_than: Seconds = 600.0) -> None:
        """Go on from a snapshot, unless it is too old. What the swarm has learned since comes first."""
        oldest = seconds_to_ns(younger_than, "younger_than")
        try:
            at = read_number(saved["at"])
            levels = {str(name): read_level(level) for name, level in saved["levels"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidConfig(f"{saved!r} is not a snapshot: {error}") from None
        self._agent.restore(levels, at, oldest)

    # -- inside

    def slot(
        self, resource: str, *, cost: int | Mapping[str, int] = 1, timeout: Seconds | None = None
    ) -> Slot:
        """Wait for tokens and be under way for the length of a `with` or `async with` block.

        The tokens stay spent when the block ends, so the rate holds. A block that ends without an error
        counts as a success, by which a total that was cut grows back; `permit.settle(verdict=throttled())`
        inside of it announces a reduction.
        """
        slot = super().slot(resource, cost=cost, timeout=timeout)
        slot.__class__ = SwarmSlot  # the same fields, and one more thing to do at the end
        return slot

    def _make_locked(  # type: ignore[override]  # nothing is ever moved out here
        self, resource: str, rates: tuple[Rate, ...]
    ) -> Pool:
        columns = dict(self._columns)
        for rate in rates:
            columns.setdefault(rate.unit, len(columns))
        rules = LeasedRules(ConcurrencyRule(None, None), successors((), rates, columns, 0))
        gate = SwarmGate(resource, rules, columns=columns, observer=self._observer, clock=self._clock)
        this = ref(self)

        def heed(verdict: Verdict, sent_at: int) -> None:
            limiter = this()
            if limiter is not None:
                limiter._agent.hear_verdict(resource, verdict, sent_at)

        gate.heed = heed
        return Pool(
            gate,
            rules,
            self._agent.new_council(),
            rates=rates,
            curve=self._curve,
            turn=self._agent.turn,
            each=self._each,
            now=self._now(),
        )

    # -- after a fork

    def _entrance(self, resource: str) -> Resource:
        if self._forked:
            self._begin_anew()
        return super()._entrance(resource)

    def after_fork(self) -> None:
        super().after_fork()
        self._agent.after_fork()
        self._forked = True

    def _begin_anew(self) -> None:
        """In a forked child: we are another run, with a bus of our own, and have yet to join."""
        self._forked = False
        before = self._agent
        if self._owned:
            self._bus, _ = open_bus(self._where)
        self._agent = Agent(self._bus, callback=before.callback, **self._agent_options)
        for pool in before.pools.values():
            pool.council = self._agent.new_council()
            self._agent.join(pool)

    def __repr__(self) -> str:
        return (
            f"<DistributedLimiter {self._agent_options['agent_id']!r} of {len(self._agent.pools)} resources>"
        )


def _one_of(what: str, given: object, possible: tuple[str, ...]) -> None:
    if given not in possible:
        raise InvalidConfig(f"{what}={given!r} is unknown; write one of {', '.join(map(repr, possible))}")


def _check_namespace(namespace: object) -> None:
    if (
        not isinstance(namespace, str)
        or namespace.strip(".") != namespace
        or ".." in namespace
        or set(namespace) & set("*> \t\r\n")
    ):
        raise InvalidConfig(f'namespace={namespace!r} cannot be part of a subject; write e.g. "team-a"')


def _check_callback(callback: object) -> None:
    if callback is not None and not callable(callback):
        raise InvalidConfig(f"on_capacity_change={callback!r} cannot be called; give a function of an update")


def _positive(value: Seconds, what: str) -> int:
    try:
        return positive_seconds_to_ns(value, what)
    except ValueError as error:
        raise InvalidConfig(str(error)) from None
