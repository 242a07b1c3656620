"""Run the Python blocks of the pages about frameworks, and print how each went, as one line of JSON.

The frameworks are installed in a folder of their own, because several of them ask for an older openai. SDKs
find local APIs by the variables of their environment, so that the blocks are written as for the real ones.

- A block of docs/integrations.md runs by itself, without what other blocks define: it can be copied.
- A block of `output` is what the block before it has printed. Seconds may differ, and `...` is anything.
- `<!-- 2 calls pass the gate, 1 goes around it -->` before a block says what happens when it runs.
"""

import contextlib
import doctest
import gc
import io
import json
import os
import re
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import NamedTuple

from headgate import events, observe_all
from headgate.sandbox import Sandbox
from headgate.testing import Recorder

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = [DOCS / "integrations.md", DOCS / "coming-from-frameworks.md"]
BY_THEMSELVES = {"integrations.md"}
SAID = re.compile(r"<!-- (\d+) calls? pass(?:es)? the gate(?:, (\d+) goe?s? around it)? -->")
SECONDS = re.compile(r"\d[\d.]*(?= s\b)")


class Block(NamedTuple):
    heading: str
    line: int  # of the opening fence
    source: str
    output: str | None  # what it prints, if the page says so
    passed: int | None  # how many of its calls pass a gate, if the page says so
    around: int = 0  # and how many go around it


def sections(page):
    """The blocks of Python of a page."""
    found, heading, said = [], "", None
    language, source, started = None, [], 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if language is not None:
            if line != "```":
                source.append(line)
                continue
            text = "\n".join(source)
            if language == "python":
                passed, around = (None, 0) if said is None else (int(said[1]), int(said[2] or 0))
                found.append(Block(heading, started, text, None, passed, around))
                said = None
            elif language == "output":
                found[-1] = found[-1]._replace(output=text)
            language = None
        elif line.startswith("```"):
            language, source, started = line[3:], [], number
        elif line.startswith("## "):
            heading = line[3:]
        else:
            said = SAID.fullmatch(line) or said
    return found


def main():
    warnings.simplefilter("ignore")  # what frameworks warn of is their business
    sys.modules["page"] = type(sys)("page")
    seen = Recorder()
    observe_all(seen)
    apis = {
        "openai": Sandbox("openai", requests="1200/minute burst 20").start(),
        "anthropic": Sandbox("anthropic", requests="1200/minute burst 20").start(),
        "plain": Sandbox("plain", requests="1200/minute burst 20").start(),
    }
    lead_to({name: api.url for name, api in apis.items()})
    for page in PAGES:
        run(page, seen, apis.values())
    gc.collect()
    sys.stdout.flush()
    os._exit(0)  # some frameworks leave threads behind that would be waited for


def lead_to(urls):
    """Tell SDKs by their environment where the APIs are."""
    openai, claude, plain = urls["openai"], urls["anthropic"], urls["plain"]
    os.environ |= dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), f"{openai}/v1")
    os.environ |= dict.fromkeys(("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), claude)
    os.environ |= dict.fromkeys(("GOOGLE_GEMINI_BASE_URL", "CO_API_URL", "AWS_ENDPOINT_URL"), plain)
    os.environ["GROQ_BASE_URL"] = plain
    os.environ |= dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "k")
    for name in ("OPENAI", "ANTHROPIC", "GEMINI", "GROQ", "CO", "MISTRAL"):
        os.environ[f"{name}_API_KEY"] = "k"
    with contextlib.suppress(ImportError):  # this SDK reads no variable for the address
        from mistralai.client import sdkconfiguration

        sdkconfiguration.SERVERS.update(dict.fromkeys(sdkconfiguration.SERVERS, openai))


def run(page, seen, apis):
    namespace = {"__name__": "page"}
    if "litellm" in sys.modules:  # the page before has given it clients for the whole process
        sys.modules["litellm"].client_session = sys.modules["litellm"].aclient_session = None
    for number, block in enumerate(sections(page)):
        if page.name in BY_THEMSELVES:
            namespace = {"__name__": "page"}
        elif number:
            time.sleep(1.1)  # the block before has used all that the local APIs allow at once
        told = try_block(page, block, namespace, seen, apis)
        if "429" in (told["error"] or ""):
            # A framework that imports its parts with the first call holds up calls that were admitted, and
            # they reach the API together with later ones. The second time it has all its parts.
            time.sleep(1.5)
            told = try_block(page, block, namespace, seen, apis)
        print(json.dumps(told), flush=True)


def try_block(page, block, namespace, seen, apis):
    """Run one block, and return how that went."""
    seen.events.clear()
    sent = sum(api.report().requests for api in apis)
    began = time.perf_counter()
    printed = io.StringIO()
    error = None
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * block.line + block.source, str(page), "exec"), namespace)
        check(block, printed.getvalue(), seen, sum(api.report().requests for api in apis) - sent)
    except BaseException:  # noqa: BLE001 - the test shows it
        error = traceback.format_exc()
    seconds = round(time.perf_counter() - began, 2)
    return {
        "section": block.heading,
        "page": page.name,
        "line": block.line,
        "seconds": seconds,
        "error": error,
    }


def check(block, printed, seen, sent):
    """Raise unless the block did what the page says about it."""
    if block.output is not None:
        wanted, got = SECONDS.sub("N", block.output + "\n"), SECONDS.sub("N", printed)
        assert doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS), f"it printed\n{printed}"
    if block.passed is not None:
        counts = len(seen.of(events.Admitted)), len(seen.of(events.Settled)), sent
        assert counts == (block.passed, block.passed, block.passed + block.around), (
            f"{counts} calls were admitted, settled, sent"
        )


if __name__ == "__main__":
    main()
