"""Circuit breakers by key, all with the same options."""

from __future__ import annotations

from ..arguments import check_hashable
from ..errors import InvalidConfig
from ..gate.clock import SYSTEM
from ..gate.closing import Closing
from ..gate.keyed import KeyedObjects
from ..gate.pickling import only_here
from ..hints import Any, AnyStore, Hashable, Unpack, later
from .breaker import CircuitBreaker, CircuitState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .options import BreakerOptions
else:
    BreakerOptions = later("headgate.breaker.options", "BreakerOptions")


class BreakerRegistry(Closing):
    """Circuit breakers by key, all made with the same options.

    >>> targets = BreakerRegistry(failure_threshold=3)
    >>> targets.for_key("stripe") is targets.for_key("stripe")
    True

    The options are those of `CircuitBreaker`. A breaker that no caller holds and that has nothing to remember
    is forgotten. With a `store`, breakers of equal keys in all registries of the same store and `key` share
    one circuit; a `with` block leaves the store. Raises what `CircuitBreaker` raises for options that cannot
    work, and StoreError without the store.
    """

    __slots__ = ("__weakref__", "_keyed", "_options", "_store", "key")

    __reduce__ = only_here()

    def __init__(
        self, *, key: str = "", store: AnyStore | None = None, **options: Unpack[BreakerOptions]
    ) -> None:
        CircuitBreaker(**options)  # raises for options that cannot work
        if not isinstance(key, str):
            raise InvalidConfig(f'key={key!r} is not a key; write a string, e.g. key="payments"')
        self.key = key
        self._options = options
        self._store = store
        self._keyed: KeyedObjects[CircuitBreaker] = KeyedObjects(self._make, CircuitBreaker.is_idle)
        if store is not None:
            from ..sharing.records.member import greet  # noqa: PLC0415 - loaded only with a store

            greet(store, options.get("clock", SYSTEM))

    @classmethod
    def named(cls, name: str, **options: Any) -> BreakerRegistry:
        """The registry of that `name`, made on first use and kept for the life of the process.

        The options are those of `BreakerRegistry`. Raises InvalidConfig for options that differ from those it
        was made with, and if `name` is not a string.

        >>> BreakerRegistry.named("payments") is BreakerRegistry.named("payments")
        True
        """
        if not isinstance(name, str) or not name:
            raise InvalidConfig(f'registry name {name!r} is not a name; write a string, e.g. "payments"')
        known = _named.get(name)
        if known is None:
            # One step: of two that come first at the same time, one stays.
            known = _named.setdefault(name, (cls(**options), options))
        registry, made_with = known
        store, options = options.get("store", made_with.get("store")), _without_store(options)
        if (options and options != _without_store(made_with)) or store != made_with.get("store"):
            raise InvalidConfig(
                f"the registry {name!r} exists already, with {_without_store(made_with) or 'the defaults'}; "
                f"leave the options out, or write another name for {options}"
            )
        return registry

    def for_key(self, key: Hashable) -> CircuitBreaker:
        """The breaker of that `key`, any hashable value: every caller that asks gets the same object.

        Raises InvalidConfig for a key that cannot be hashed or, if there is a store, is not a string.
        """
        try:
            breaker = self._keyed.get(key)
        except TypeError:
            check_hashable(key, "key")
            raise
        if self._store is not None:
            breaker.begin()
        return breaker

    def state(self, key: Hashable) -> CircuitState:
        """The state of the breaker of that `key`, a `CircuitState`; closed if none was asked for yet.

        >>> BreakerRegistry().state("stripe")
        <CircuitState.CLOSED: 'closed'>
        """
        check_hashable(key, "key")
        breaker = self._keyed.peek(key)
        return CircuitState.CLOSED if breaker is None else breaker.state

    def states(self) -> dict[Hashable, CircuitState]:
        """The state of each breaker that is remembered, by its key.

        >>> targets = BreakerRegistry()
        >>> stripe = targets.for_key("stripe")
        >>> targets.states()
        {'stripe': <CircuitState.CLOSED: 'closed'>}
        """
        return {key: breaker.state for key, breaker in self._keyed.items()}

    def reset(self, key: Hashable) -> None:
        """Close the breaker of that `key` by hand. One that does not exist is closed already."""
        check_hashable(key, "key")
        breaker = self._keyed.peek(key)
        if breaker is not None:
            breaker.reset()

    def forget(self, key: Hashable) -> None:
        """Make a new breaker when this `key` is asked for again. Callers that hold the old one keep it.

        >>> targets = BreakerRegistry()
        >>> old = targets.for_key("stripe")
        >>> targets.forget("stripe")
        >>> targets.for_key("stripe") is old
        False
        """
        check_hashable(key, "key")
        self._keyed.forget(key)

    def close(self) -> None:
        """Leave the store, which is still told what it does not know. The breakers go on by themselves.

        A second call does nothing.
        """
        self._store = None
        for _key, breaker in self._keyed.items():  # noqa: PERF102 - it is not a dictionary
            breaker.close()

    def __len__(self) -> int:
        """How many breakers are remembered."""
        return len(self._keyed)

    def _make(self, key: Hashable) -> CircuitBreaker:
        breaker = CircuitBreaker(**self._options, key=key)
        breaker.keep_in(self._keyed)
        if self._store is not None:
            breaker.share(self._store, key, within=f"{self.key}/" if self.key else "")
        return breaker

    def __repr__(self) -> str:
        return f"<BreakerRegistry of {len(self)} circuit breakers>"


# By name, and with which options each was made.
_named: dict[str, tuple[BreakerRegistry, dict[str, Any]]] = {}


def _without_store(options: dict[str, Any]) -> dict[str, Any]:
    return {option: given for option, given in options.items() if option != "store"}
