"""Waiting in real time for other threads, processes and servers, without asserting how fast they are."""

import asyncio
import threading

PATIENCE = 20.0  # seconds of real time after which a wait fails
TICK = 0.001


def eventually(predicate, what):
    """Wait until the predicate is true; fail after PATIENCE."""
    tick = threading.Event()
    for _ in range(int(PATIENCE / TICK)):
        if predicate():
            return
        tick.wait(TICK)
    raise AssertionError(f"never happened: {what}")


async def happens(event):
    """Wait for an asyncio.Event and clear it."""
    await asyncio.wait_for(event.wait(), PATIENCE)
    event.clear()


class News(asyncio.Event):
    """An event that a store sets when something has changed: `store.listen(key, news.set)`."""

    said = None  # what the store told last of the window

    def set(self, said=None):
        self.said = said
        super().set()
