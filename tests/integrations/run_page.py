"""Run the Python blocks of the pages about frameworks, and print how each went, as one line of JSON.

The frameworks are installed in a folder of their own, because several of them ask for an older openai.
"""

import gc
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGES = [DOCS / "integrations.md", DOCS / "coming-from-frameworks.md"]


def sections(page):
    """(heading, line, source) of each block."""
    heading, source, started = "", None, 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if source is None and line.startswith("## "):
            heading = line[3:]
        elif line == "```python":
            source, started = [], number
        elif line == "```" and source is not None:
            yield heading, started, "\n" * started + "\n".join(source)
            source = None
        elif source is not None:
            source.append(line)


def main():
    warnings.simplefilter("ignore")  # what frameworks warn of is their business
    sys.modules["page"] = type(sys)("page")
    for page in PAGES:
        run(page)
    gc.collect()
    sys.stdout.flush()
    os._exit(0)  # some frameworks leave threads behind that would be waited for


def run(page):
    namespace = {"__name__": "page"}
    for heading, line, source in sections(page):
        began = time.perf_counter()
        try:
            exec(compile(source, str(page), "exec"), namespace)
            error = None
        except Exception:  # noqa: BLE001 - the test shows it
            error = traceback.format_exc()
        seconds = round(time.perf_counter() - began, 2)
        told = {"section": heading, "page": page.name, "line": line, "seconds": seconds, "error": error}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
