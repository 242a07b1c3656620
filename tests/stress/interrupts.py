"""Ctrl-C at an arbitrary moment: a signal that raises in the main thread."""

import signal


class Interrupted(BaseException):
    pass


class Alarm:
    """A signal that raises in the main thread once, after a given time."""

    def __init__(self):
        self.rang = False
        self._before = signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, signum, frame):
        self.rang = True
        raise Interrupted

    def set(self, seconds):
        self.rang = False
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def close(self):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)
