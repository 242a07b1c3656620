"""Several stores that are made, broken and mended at once, so that one run of processes tries all of them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import pytest


class Places(NamedTuple):
    """What was made, by name; and why each of the others cannot be tried here."""

    made: dict
    skipped: dict

    def all(self, act):
        """Have something done to all of them, each in a thread of its own."""
        with ThreadPoolExecutor(len(self.made)) as threads:
            list(threads.map(act, self.made.values()))

    def check(self, name):
        """Skip the test if this one could not be made."""
        if name in self.skipped:
            pytest.skip(self.skipped[name])


@contextmanager
def places(makers):
    """Enter all of these context managers, each in a thread of its own."""

    def make(item):
        name, maker = item
        manager = maker()
        try:
            return name, manager, manager.__enter__()
        except pytest.skip.Exception as why:
            return name, None, str(why)

    with ExitStack() as stack, ThreadPoolExecutor(len(makers)) as threads:
        made, skipped = {}, {}
        for name, manager, value in threads.map(make, makers.items()):
            if manager is None:
                skipped[name] = value
            else:
                stack.push(manager.__exit__)
                made[name] = value
        yield Places(made, skipped)
