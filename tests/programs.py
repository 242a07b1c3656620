"""Programs that tests start and that no wheel brings: `make install` installs them when it runs as root.

Where such a program is missing its tests are skipped, and say so. With CI=true, or for root, they fail.
"""

import os
import shutil
from glob import glob

import pytest


def program(name, package, *places):
    """Return the path of a program: the newest of these places (patterns), or where PATH has it."""
    for place in places:
        if found := sorted(glob(place)):  # noqa: PTH207 - a pattern that begins with a slash
            return found[-1]
    if found := shutil.which(name):
        return found
    why = f"{name} is not installed; run `make install` as root, or: apt-get install {package}"
    if os.environ.get("CI", "").lower() in ("1", "true") or os.geteuid() == 0:
        pytest.fail(why)
    pytest.skip(why)
