"""What commands ask of the operating system: signals, file locks, open files.

Windows has no signal handlers of an event loop, no `fcntl` and no `resource`: the first get a substitute, and
what the others do is left out.
"""

import asyncio
import errno
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

if sys.platform != "win32":
    import fcntl
    import resource

_SPARE_FILES = 200
_WITHOUT_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)


def on_stop_signals(act: Callable[[int], object]) -> None:
    """Have the running event loop call `act(number)` at each SIGINT (Ctrl-C) and SIGTERM."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, act, number)
        except NotImplementedError:
            signal.signal(number, lambda number, _frame: loop.call_soon_threadsafe(act, number))


async def until_stopped(serving: Coroutine[Any, Any, None]) -> int:
    """Await `serving` until it ends, or until SIGTERM or Ctrl-C. The exit status is 130 after Ctrl-C."""
    task = asyncio.ensure_future(serving)
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        task.cancel()

    on_stop_signals(stop)
    with suppress(asyncio.CancelledError):
        await task
    return 130 if signals[:1] == [signal.SIGINT] else 0


def lock_file(fd: int) -> bool:
    """Lock a file for this process. False: another process has it.

    A file system without locks counts as locked.
    """
    if sys.platform == "win32":
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _WITHOUT_LOCKS:
            raise
    return True


def allow_connections(count: int) -> None:
    """Raise the limit on open files, as far as this process may, so that `count` connections fit."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
