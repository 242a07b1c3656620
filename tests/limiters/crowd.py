"""Threads that act at the same time."""

import threading

from patience import PATIENCE


class InThreads:
    """Threads that are all joined at the end, and whose results or errors are kept."""

    def __init__(self):
        self.threads = []
        self.results = []

    def start(self, act, *args):
        def body():
            try:
                self.results.append(act(*args))
            except BaseException as error:  # noqa: BLE001 - an error is a result, too
                self.results.append(error)

        thread = threading.Thread(target=body, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self):
        for thread in self.threads:
            thread.join(PATIENCE)
            assert not thread.is_alive(), "a thread was left waiting"
        return self.results


def race(count, act):
    """Start `count` threads at the same instant; what each of them returned."""
    ready = threading.Barrier(count)
    crowd = InThreads()

    def body(i):
        ready.wait(PATIENCE)
        return act(i)

    for i in range(count):
        crowd.start(body, i)
    results = crowd.join()
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results
