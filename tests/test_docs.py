"""The documentation is true: every Python block and every doctest runs, and every link leads somewhere."""

import doctest
import gc
import importlib
import re
import tomllib
import warnings
from contextlib import nullcontext
from operator import attrgetter
from pathlib import Path

import click
import pytest

import headgate
import headgate.sandbox
import headgate.testing
from headgate import Dispatch, WindowRegistry
from headgate.cli.app import main
from pages import PageRun, api_of, needs_an_api, python_blocks

ROOT = Path(__file__).parent.parent
HOUSE = Path(headgate.__file__).parent
GLOSSARY = ROOT / "docs" / "glossary.md"
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)")


MARKDOWN = sorted(
    page for folder in (".", "docs", "bench", "examples") for page in (ROOT / folder).glob("*.md")
)
PAGES = [
    page
    for page in MARKDOWN
    if python_blocks(page)
    # tests/integrations runs these, with the frameworks
    and page.name not in ("integrations.md", "coming-from-frameworks.md")
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_a_page_runs_as_it_is_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with api_of(page) if needs_an_api(page) else nullcontext() as api:
        if api is not None:
            monkeypatch.setenv("OPENAI_BASE_URL", f"{api}/v1")
            monkeypatch.setenv("OPENAI_API_KEY", "any")
        run = PageRun(page, tmp_path, api)
        run.run()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "unclosed", ResourceWarning)  # a client of a short program
            run.namespace.clear()
            gc.collect()  # so that a permit dropped by this page warns here and not in the next test


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_installs_is_an_extra_of_the_package(page):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"headgate\[([\w,]+)\]", page.read_text(encoding="utf-8")):
        assert set(named.split(",")) <= set(extras), f"{page.name}: headgate[{named}]"


def test_what_is_to_be_installed_stands_in_quotes_because_brackets_are_a_pattern_in_zsh():
    for file in [*MARKDOWN, *HOUSE.rglob("*.py")]:
        found = re.findall(r"pip install [^\"'\n`]*\w\[\w+", file.read_text(encoding="utf-8"))
        assert not found, f"{file.name}: {found}"


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page):
    for target, heading in LINK.findall(page.read_text(encoding="utf-8")):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name} links to {target}"
        assert not heading or heading in anchors(file), f"{page.name} links to {target}#{heading}"


def anchors(page):
    """The anchors that GitHub gives to the headings of a page."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
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
    module = importlib.import_module(name)
    for value in list(vars(module).values()):
        getattr(value, "__wrapped__", None)  # may load a module, which is in its package from then on
    failed = doctest.testmod(module).failed
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


def test_every_promise_of_the_guarantees_names_a_test_that_exists():
    page = ROOT / "docs" / "guarantees.md"
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", text)
    assert len(named) > 40
    for test, file in named:
        source = (page.parent / file).read_text(encoding="utf-8")
        assert f"def {test}(" in source, f"{file} has no {test}"
    for row in re.findall(r"^\| (?!promise|---)(.*) \|$", text, flags=re.MULTILINE):
        assert "](../tests/" in row, f"no test holds this: {row}"


@pytest.mark.parametrize(
    ("command", "page"),
    [
        *(("run", "run.md"), ("watch", "run.md"), ("demo", "run.md"), ("sandbox", "sandbox.md")),
        *(("serve", "gateway.md"), ("exec", "gateway.md"), ("doctor", "integrations.md")),
    ],
)
def test_every_option_of_a_command_is_on_its_page(command, page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    for option in main.get_command(None, command).params:
        if isinstance(option, click.Option):
            assert f"`{max(option.opts, key=len)}" in text, option.opts


def test_every_page_is_listed_in_the_index():
    listed = {
        target for target, _heading in LINK.findall((ROOT / "docs/index.md").read_text(encoding="utf-8"))
    }
    for page in sorted((ROOT / "docs").glob("*.md")):
        assert page.name in listed | {"index.md"}, page.name


def test_the_figures_of_the_readme_are_those_of_the_results(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(ROOT / "bench")
    picture = importlib.import_module("picture")
    bars = picture.read_bars((ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8"))
    told, counted = picture.sentences(bars)
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        found = re.findall(r"headgate takes \d.*? gets [\d,]+\.", page.read_text(encoding="utf-8"))
        assert set(found) == {told}, page.name
    assert counted in (ROOT / "README.md").read_text(encoding="utf-8")
    picture.draw(bars, tmp_path / "goodput.png")
    assert (tmp_path / "goodput.png").stat().st_size > 10_000


def test_the_figures_of_the_guide_to_sharing_are_those_of_the_results():
    results = (ROOT / "bench" / "RESULTS.md").read_text(encoding="utf-8").split("\n## ")
    (stores,) = [text for text in results if text.startswith("How far each store carries")]
    measured = [figures_of(line) for line in stores.splitlines() if re.match(r"\| (SQL|Val|Post)", line)]
    assert len(measured) == 8
    guide = (ROOT / "docs" / "sharing.md").read_text(encoding="utf-8")
    told = [figures_of(line) for line in guide.splitlines()]
    for row in measured:
        assert row in told


def figures_of(row):
    """The name at the beginning of a row of a table, and its numbers."""
    name, *cells = (cell.strip() for cell in row.strip("| ").split("|"))
    return name.partition(",")[0], [
        float(n) for cell in cells for n in re.findall(r"\d+(?:\.\d+)?", cell.replace(",", ""))
    ]
