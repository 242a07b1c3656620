"""Waiting in real time for other threads, processes and servers. Says nothing about how fast they are."""

import asyncio
import threading

PATIENCE = 20.0  # seconds of real time after which something that never happens is an error
TICK = 0.001


def eventually(predicate, what):
    """Wait for something to come true elsewhere."""
    tick = threading.Event()
    for _ in range(int(PATIENCE / TICK)):
        if predicate():
            return
        tick.wait(TICK)
    raise AssertionError(f"never happened: {what}")


async def happens(event):
    """Wait for an event, and be ready for the next."""
    await asyncio.wait_for(event.wait(), PATIENCE)
    event.clear()
