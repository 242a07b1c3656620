"""A small disk of its own, in memory, that a test fills up.

with SmallDisk() as disk:
    disk.folder                 # its files
    disk.fill()                 # there is no room for another byte
    disk.make_room()

To mount it takes root. Where that is refused, the tests that need it are skipped, and say so.
"""

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from programs import program


class SmallDisk:
    def __init__(self, megabytes=8):
        self._size = f"size={megabytes}m,mode=755"
        self.folder = Path(tempfile.mkdtemp(prefix="headgate-disk-"))
        self._filler = self.folder / "filler"

    def __enter__(self):
        mount = program("mount", "mount")
        command = [mount, "-t", "tmpfs", "-o", self._size, "headgate-test", str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            self.folder.rmdir()
            why = done.stderr.splitlines()[0]
            pytest.skip(f"a disk of its own cannot be mounted, which takes root: {why}")
        return self

    def __exit__(self, *_):
        # Lazily: a server that is ending may have files open there.
        subprocess.run([program("umount", "mount"), "-l", str(self.folder)], check=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def fill(self):
        with suppress(OSError), self._filler.open("wb", buffering=0) as filler:
            while filler.write(bytes(1 << 16)):
                pass
        assert shutil.disk_usage(self.folder).free == 0

    def make_room(self):
        self._filler.unlink()
