"""Ctrl-C at an arbitrary moment: a signal that raises in the main thread."""

import signal
import sys


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


class InterruptAt:
    """Raises at the n-th call inside headgate, as Ctrl-C could. `hit` says whether there were n calls."""

    def __init__(self, n):
        self._left = n
        self.hit = False

    def __enter__(self):
        sys.setprofile(self._called)

    def __exit__(self, *_error):
        sys.setprofile(None)
        return self.hit

    def _called(self, frame, event, _arg):
        if event in ("call", "c_return") and "headgate" in frame.f_globals.get("__name__", ""):
            self._left -= 1
            if self._left == 0:
                self.hit = True
                sys.setprofile(None)
                raise Interrupted


def interrupt_everywhere(scenario, most=1000):
    """Run the scenario with an interrupt at its first call, its second and so on, to its last."""
    for n in range(1, most):
        interrupt = InterruptAt(n)
        scenario(interrupt)
        if not interrupt.hit:
            return
