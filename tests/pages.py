"""Pages of the documentation as programs: their blocks, in order, and what each of them prints.

- `python`: it runs, and a session of >>> prints what it says. A block that begins with a comment like
  `# app.py` is written to that file instead, if a block of `sh` names the file.
- `sh`: a shell runs it, without its `pip install`. `https://api.openai.com` is the sandbox, and `app.py` is
  the program before it unless there is such a file.
- `output`: the block before it has printed this. Numbers of seconds, waits and tokens may differ, and
  `...` stands for anything.

The sandbox of a page is started with the options of the first `headgate sandbox` on it. Programs find it by
OPENAI_BASE_URL, as their readers would.
"""

import contextlib
import doctest
import io
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})\s*(?P<language>\w*)")
FILE = re.compile(r"# (\w+\.\w+)\n")
TRIED_WITH = re.compile(r"^headgate sandbox --port 8000 ?(?P<options>[^#\n]*)", re.MULTILINE)
LOOSE = re.compile(r"\d[\d,.]*(?= (s|a second|waited|tokens)\b)")
PATIENCE = 60  # seconds that a block may take
OPENAI = "https://api.openai.com"


class Block(NamedTuple):
    language: str
    line: int  # of the opening fence
    source: str


def blocks(page):
    """Every block of a page, in order."""
    found, opened = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, started, source = fence, number, []
        elif line.strip() == opened["ticks"]:
            found.append(Block(opened["language"], started, "".join(source)))
            opened = None
        else:
            source.append(line.removeprefix(opened["indent"]) + "\n")
    assert opened is None, f"{page.name}, line {started}: the block is never closed"
    return found


def needs_an_api(page):
    return any(block.language in ("sh", "output") for block in blocks(page))


@contextlib.contextmanager
def api_of(page):
    """The sandbox that the programs of a page call, as its address."""
    tried = TRIED_WITH.search(page.read_text(encoding="utf-8"))
    options = shlex.split(tried["options"]) if tried else ["--requests", "6000/minute"]
    command = [sys.executable, "-m", "headgate", "sandbox", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as api:
        try:
            yield api.stdout.readline().strip()
        finally:
            api.send_signal(signal.SIGINT)


class PageRun:
    """Runs the blocks of a page one after the other, in a folder of their own."""

    def __init__(self, page, folder, api):
        self._page = page
        self._folder = folder
        self._api = api
        self._blocks = blocks(page)
        self._printed = None
        self.namespace = {"__name__": page.stem}

    def run(self):
        run = {"python": self._python, "sh": self._shell, "output": self._output}
        for block in self._blocks:
            if block.language in run:
                run[block.language](block)

    def _where(self, block):
        return f"{self._page.relative_to(ROOT)}, block at line {block.line}"

    def _python(self, block):
        file = FILE.match(block.source)
        if file and any(file[1] in other.source for other in self._blocks if other.language == "sh"):
            (self._folder / file[1]).write_text(block.source)
            return
        (self._folder / "app.py").write_text(block.source)
        if ">>>" in block.source:
            self._session(block)
        else:
            self._program(block)

    def _program(self, block):
        """Run a program. Its tracebacks show the lines of the page."""
        printed = io.StringIO()
        try:
            code = compile("\n" * block.line + block.source, str(self._page), "exec", dont_inherit=True)
            with contextlib.redirect_stdout(printed):
                exec(code, self.namespace)
        except Exception as error:
            raise AssertionError(f"{self._where(block)}: {type(error).__name__}: {error}") from error
        self._printed = printed.getvalue()

    def _session(self, block):
        """Run a block of >>> and compare what it prints."""
        name = str(self._page.relative_to(ROOT))
        session = doctest.DocTestParser().get_doctest(block.source, {}, name, str(self._page), block.line)
        session.globs = self.namespace  # not a copy: later blocks go on with what this one defines
        report = []
        runner = doctest.DocTestRunner(verbose=False)
        if runner.run(session, out=report.append, clear_globs=False).failed:
            pytest.fail(f"{self._where(block)} prints something else\n{''.join(report)}", pytrace=False)

    def _shell(self, block):
        lines = [line for line in block.source.splitlines() if not line.startswith("pip install ")]
        ended = subprocess.run(
            ["sh", "-e", "-c", "\n".join(lines).replace(OPENAI, self._api)],
            cwd=self._folder,
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        self._printed = ended.stdout.replace(self._api, OPENAI)
        assert ended.returncode == 0, f"{self._where(block)} ends with {ended.returncode}\n{ended.stdout}"

    def _output(self, block):
        assert self._printed is not None, f"{self._where(block)}: nothing has run before it"
        wanted, got = LOOSE.sub("N", block.source), LOOSE.sub("N", self._printed)
        if not doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS):
            pytest.fail(f"{self._where(block)} is not what was printed\n{self._printed}", pytrace=False)


def python_blocks(page):
    """(line of the opening fence, source) of each python block, in order."""
    return [(block.line, block.source) for block in blocks(page) if block.language == "python"]
