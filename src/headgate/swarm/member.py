"""Pure. What one member of a swarm knows of itself, whatever role it has."""

from __future__ import annotations

from dataclasses import dataclass, field

from .messages import Message
from .rules import NEVER
from .shares import WHOLE


@dataclass(frozen=True, slots=True)
class Settings:
    """How a swarm keeps its members; times are nanoseconds.

    `settle` is within which every member that is there has received a question and answered it. After
    `forget` a silent member is taken for dead. `splits` says whether the bus may fall into parts. `turn`,
    from 0 to a million, spreads members that would otherwise act at the same moment.
    """

    lease: int
    forget: int
    settle: int = 0
    splits: bool = False
    turn: int = 0
    weight: int = 1
    on_loss: str = "share"

    # Others get a member's share within a lease: first the member stops using it, then the leader takes it
    # for free, then the leader offers it. The gap between the first two allows for clocks of different
    # speeds.

    @property
    def interval(self) -> int:
        """How often the leader sends a heartbeat and a member reports."""
        return max(1, self.lease // 10)

    @property
    def hold(self) -> int:
        """How long a member uses its share after it sent the last report that the leader answered."""
        return self.lease * 7 // 10

    @property
    def patience(self) -> int:
        """How long the leader takes a share for used after it last heard the member."""
        return self.lease * 8 // 10


@dataclass(slots=True)
class Member:
    """What one member knows of itself, shared by its `Membership` and its `Leadership`."""

    key: str
    settings: Settings
    wants: int = WHOLE  # how much of the whole it has a use for
    outbox: list[tuple[str, Message]] = field(default_factory=list)  # messages to send, and where
    echo_at: int = NEVER  # when the last own message was sent that came back over the bus
    present_since: int = NEVER  # since when own messages have come back without a gap

    def send(self, where: str, message: Message) -> None:
        self.outbox.append((where, message))

    def take_outbox(self) -> list[tuple[str, Message]]:
        """The messages to send; the outbox is empty afterwards."""
        taken, self.outbox = self.outbox, []
        return taken

    def hear_itself(self, sent_at: int) -> None:
        """A message that this member sent then came back: it is on the bus."""
        if sent_at - self.echo_at > 2 * self.settings.interval:
            self.present_since = sent_at
        self.echo_at = max(self.echo_at, sent_at)
