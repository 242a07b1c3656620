"""The documentation is true: every Python block and every doctest runs, and every link leads somewhere."""

import doctest
import gc
import importlib
import re
from operator import attrgetter
from pathlib import Path

import pytest

import headgate
import headgate.sandbox
import headgate.testing
from headgate import Dispatch, WindowRegistry

ROOT = Path(__file__).parent.parent
HOUSE = Path(headgate.__file__).parent
GLOSSARY = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")
FENCE = re.compile(r"(?P<indent> *)(?P<ticks>`{3,})\s*(?P<language>\w*)")


def python_blocks(page):
    """(line of the opening fence, source) of each python block, in order."""
    blocks, opened = [], None
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = FENCE.match(line)
        if opened is None:
            if fence:
                opened, started, source = fence, number, []
        elif line.strip() == opened["ticks"]:
            if opened["language"] == "python":
                blocks.append((started, "".join(source)))
            opened = None
        else:
            source.append(line.removeprefix(opened["indent"]) + "\n")
    assert opened is None, f"{page.name}, line {started}: the block is never closed"
    return blocks


MARKDOWN = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
PAGES = [
    page
    for page in MARKDOWN
    if python_blocks(page)
    and page.name != "integrations.md"  # tests/integrations runs it, with the frameworks
]
# They import frameworks that are not installed beside the tests.
WITH_FRAMEWORKS = {
    Path("http/boto3.py"),
    Path("integrations/langchain.py"),
    Path("integrations/llama_index.py"),
}
MODULES = [
    ".".join(("headgate", *path.relative_to(HOUSE).with_suffix("").parts)).removesuffix(".__init__")
    for path in sorted(HOUSE.rglob("*.py"))
    if path.stem != "__main__" and path.relative_to(HOUSE) not in WITH_FRAMEWORKS
]


@pytest.fixture(autouse=True)
def _names_of_its_own(monkeypatch):
    """Each page and each module starts without the named objects that another one has left behind."""
    monkeypatch.setattr(Dispatch, "_names", {})
    monkeypatch.setattr(WindowRegistry, "_named", {})


def run_program(source, line, page, namespace):
    """Run a block. Its tracebacks show the lines of the page."""
    try:
        exec(compile("\n" * line + source, str(page), "exec", dont_inherit=True), namespace)
    except Exception as error:
        where = f"{page.relative_to(ROOT)}, block at line {line}"
        raise AssertionError(f"{where}: {type(error).__name__}: {error}") from error


def run_session(source, line, page, namespace):
    """Run a block of >>> and compare what it prints."""
    session = doctest.DocTestParser().get_doctest(source, {}, str(page.relative_to(ROOT)), str(page), line)
    session.globs = namespace  # not a copy: later blocks go on with what this one defines
    report = []
    if doctest.DocTestRunner(verbose=False).run(session, out=report.append, clear_globs=False).failed:
        where = f"{page.relative_to(ROOT)}, block at line {line}"
        pytest.fail(f"{where} prints something else\n{''.join(report)}", pytrace=False)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_python_block_of_a_page_runs_as_it_is_written(page):
    namespace = {"__name__": page.stem}
    for line, source in python_blocks(page):
        run = run_session if ">>>" in source else run_program
        run(source, line, page, namespace)
    namespace.clear()
    gc.collect()  # so that a permit dropped by this page warns here and not in the next test


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not heading or heading in anchors(file), f"{page.name} links to {target}#{heading}"


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_class_and_file_of_the_glossary_exists():
    rows = re.findall(
        r"^\| [^|]+ \| [^|]+ \| (`.+`) \|$", GLOSSARY.read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    assert len(rows) > 40
    for where in re.findall(r"`([^`]+)`", " ".join(rows)):
        if where.endswith(".py") or "/" in where:
            assert (HOUSE / where).exists(), where
        else:
            assert attrgetter(where)(headgate), where


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_the_source_print_what_they_say(name, capsys):
    failed = doctest.testmod(importlib.import_module(name)).failed
    assert not failed, capsys.readouterr().out


def test_every_file_of_the_roads_in_the_architecture_exists():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    files = re.findall(r"\b[a-z_]+(?:/[a-z_]+)+\.(?:py|lua)\b", text)
    assert len(files) > 40
    for file in files:
        assert (HOUSE / file).exists() or (HOUSE / "sharing" / file).exists(), file


def test_a_window_reaches_the_callers_of_another_process_through_at_most_twelve_files():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    road = text.partition("## One 429 to every process")[2].partition("```text")[2].partition("```")[0]
    hops = [int(number) for number in re.findall(r"^ *(\d+)  ", road, flags=re.MULTILINE)]
    assert hops == list(range(1, len(hops) + 1))
    assert len(hops) <= 12
