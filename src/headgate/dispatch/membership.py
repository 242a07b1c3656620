"""How a Dispatch with a store becomes a member of the pool of its key."""

from __future__ import annotations

from ..backoff import Backoff
from ..errors import InvalidConfig
from ..hints import AnyStore, Callable, later
from ..limits import Rate
from .shared_learner import DispatchLearner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sharing.pool.member import PoolMember
    from .dispatch import Dispatch
    from .learning import Learner
else:
    Dispatch = later("headgate.dispatch.dispatch", "Dispatch")
    Learner = later("headgate.dispatch.learning", "Learner")
    PoolMember = later("headgate.sharing.pool.member", "PoolMember")


def join_pool(
    dispatch: Dispatch,
    find_learner: Callable[[], Learner],
    store: AnyStore,
    rates: tuple[Rate, ...],
    *,
    automatic: bool,
    on_loss: str,
    pace: Backoff | None,
    random: Callable[[], float],
) -> PoolMember:
    """The member that shares this Dispatch; it is to be started."""
    if not isinstance(dispatch.key, str) or not dispatch.key:
        raise InvalidConfig(
            f'key={dispatch.key!r}: in a store a key is a string, e.g. Dispatch("openai", ...)'
        )
    if pace is not None and not isinstance(pace, Backoff):
        raise InvalidConfig(
            f"acquire_backoff={pace!r} is not a Backoff; write e.g. acquire_backoff=Backoff(0.02, cap=1)"
        )
    from ..sharing.pool.member import PoolMember  # noqa: PLC0415 - only where a store is given

    return PoolMember(
        dispatch,
        dispatch.window.hear,
        DispatchLearner(dispatch, find_learner()),
        store,
        dispatch.key,
        rates,
        automatic=automatic,
        on_loss=on_loss,
        pace=pace,
        random=random,
    )
