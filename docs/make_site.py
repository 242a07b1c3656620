"""Builds the site from docs/: `make docs`.

The pages are plain Markdown that GitHub renders too, so everything that only a site needs is made here: the
navigation from the tables of docs/index.md, the reference from docs/reference.py, the pages from outside of
docs/, and `llms.txt`.

    python docs/make_site.py build/site
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from typing import is_typeddict
from urllib.parse import unquote, urlsplit

from reference import INNER, PAGES

DOCS = Path(__file__).parent
ROOT = DOCS.parent
# Pages from outside of docs/, by their place on the site.
OTHERS = {
    "README.md": "Overview",
    "CHANGELOG.md": "Changelog",
    "CONTRIBUTING.md": "Contributing",
    "SECURITY.md": "Security",
    "examples/README.md": "Examples",
    "bench/RESULTS.md": "Measurements",
}
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s]+)(\))")


def stage(place: Path) -> None:
    """Copy every page, as one tree: `docs/` is its root."""
    for path in DOCS.rglob("*"):
        inside = path.relative_to(DOCS)
        if path.is_file() and inside.parts[0] not in ("_static", "__pycache__") and path.suffix != ".py":
            copy(path, place, inside)
    for name in OTHERS:
        if (ROOT / name).exists():
            copy(ROOT / name, place, Path(name))


def copy(source: Path, place: Path, inside: Path) -> None:
    target = place / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != ".md":
        shutil.copy(source, target)
        return
    text = LINK.sub(lambda link: moved(link, source, place), source.read_text("utf-8"))
    target.write_text(text, encoding="utf-8")


def moved(link: re.Match[str], page: Path, place: Path) -> str:
    """A link of a page, to where its target is on the site; a file that is no page is brought along."""
    path, mark, heading = link[2].partition("#")
    target = (page.parent / path).resolve()
    there = place_of(target)
    if target.suffix != ".md" and target.is_file():
        (place / there).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, place / there)
    steps = "../" * len(place_of(page).parent.parts)
    return f"{link[1]}{steps}{there.as_posix()}{mark}{heading}{link[3]}"


def place_of(path: Path) -> Path:
    inside = path.relative_to(ROOT)
    return Path(*inside.parts[1:]) if inside.parts[0] == "docs" else inside


def navigation(place: Path) -> None:
    """Append to the front page a table of contents, from its own headings and links."""
    index = place / "index.md"
    text = index.read_text("utf-8")
    parts = [("Start", text.partition("\n## ")[0])]
    parts += [(part.partition("\n")[0], part) for part in text.split("\n## ")[1:]]
    seen, trees = {"index.md", "README.md"}, []
    for title, part in parts:
        pages = [link for _, link, _ in LINK.findall(part)]
        pages = list(dict.fromkeys(p.partition("#")[0] for p in pages if p.partition("#")[0].endswith(".md")))
        pages = [page for page in pages if page not in seen and page not in OTHERS]
        seen |= set(pages)
        trees.append((title.removeprefix("The ").capitalize(), [(None, page) for page in pages]))
    trees[0][1].insert(0, (OTHERS["README.md"], "README.md"))
    rest = sorted(
        path.relative_to(place).as_posix()
        for path in place.rglob("*.md")
        if path.relative_to(place).parts[0] != "reference"
    )
    trees.append(("More", [(None, page) for page in rest if page not in seen and page not in OTHERS]))
    trees.append(("Reference", [(None, f"reference/{page.file}.md") for page in PAGES]))
    project = [(title, name) for name, title in OTHERS.items() if (place / name).exists()]
    trees.append(("Project", project[1:]))
    for caption, pages in trees:
        if pages:
            lines = [f"{title} <{page[:-3]}>" if title else page[:-3] for title, page in pages]
            head = [f":caption: {caption}", ":hidden:", ""]
            text += "\n" + "\n".join(["", "```{toctree}", *head, *lines, "```", ""])
    index.write_text(text, encoding="utf-8")


def reference(place: Path) -> None:
    for page in PAGES:
        text = [f"# {page.title}", "", page.about, ""]
        for module, name in page.entries():
            if module != "headgate" and f"## {module}" not in text:
                text += [f"## {module}", ""]
            text += ["```{eval-rst}", *directive(module, name), "```", ""]
        file = place / "reference" / f"{page.file}.md"
        file.parent.mkdir(exist_ok=True)
        file.write_text("\n".join(text), encoding="utf-8")


def directive(module: str, name: str) -> list[str]:
    thing = getattr(import_module(module), name)
    full = f"{module}.{name}"
    if not isinstance(thing, type):
        kind = "autofunction" if callable(thing) and inspect.isroutine(thing) else "autodata"
        return [f".. {kind}:: {full}"]
    lines = [f".. autoclass:: {full}", "   :members:"]
    if issubclass(thing, BaseException):
        lines[0] = f".. autoexception:: {full}"
    elif module in ("headgate", "headgate.testing") and not issubclass(thing, tuple):
        lines += ["   :inherited-members:"]
    if INNER.get(full):
        lines += [f"   :exclude-members: {', '.join(INNER[full].split())}"]
    return lines


# -- for language models


def for_models(place: Path, site: Path) -> None:
    """`llms.txt`, which lists the pages, `llms-full.txt`, which is all of them, and each page as Markdown."""
    index = (place / "index.md").read_text("utf-8").partition("\n```{toctree}")[0]
    first = next(part for part in index.split("\n\n")[1:] if part[:1].isalpha())
    lists, full = {"Guides": [], "Reference": []}, [index]
    for path in sorted(place.rglob("*.md")):
        page = path.relative_to(place)
        if page.name == "index.md":
            continue
        text = path.read_text("utf-8")
        if page.parts[0] == "reference":
            text = reference_text(page.stem)
        (site / page).parent.mkdir(parents=True, exist_ok=True)
        (site / page).write_text(text, encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        row = f"- [{title}]({page.as_posix()}): {about(text)}"
        lists["Reference" if page.parts[0] == "reference" else "Guides"].append(row)
        full.append(text)
    (site / "index.md").write_text(index, encoding="utf-8")
    parts = [f"# headgate\n\n> {' '.join(first.split())}"]
    parts += [f"## {title}\n\n" + "\n".join(rows) for title, rows in lists.items()]
    (site / "llms.txt").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(full), encoding="utf-8")


def about(text: str) -> str:
    """The first words of a page: of its first paragraph, without links and programs."""
    words = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    first = next((part for part in words.split("\n\n")[1:] if re.match(r"[\w`*\"]", part)), "")
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return plain if len(plain) <= 200 else f"{plain[:200].rpartition(' ')[0]} …"


def reference_text(file: str) -> str:
    """A page of the reference as plain text: signatures and docstrings."""
    page = next(page for page in PAGES if page.file == file)
    text = [f"# {page.title}", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page.about)]
    for module, name in page.entries():
        thing = getattr(import_module(module), name)
        text += [f"## {module}.{name}{signature(thing)}", inspect.getdoc(thing) or ""]
        if isinstance(thing, type) and not issubclass(thing, BaseException):
            for method, inner in members(module, name):
                text += [f"### {name}.{method}{signature(inner)}", inspect.getdoc(inner) or ""]
    return "\n\n".join(text)


def members(module: str, name: str) -> list[tuple[str, object]]:
    """The methods and properties of a public class that are for users."""
    thing = getattr(import_module(module), name)
    if is_typeddict(thing):
        return []
    hidden = set(INNER.get(f"{module}.{name}", "").split())
    return [
        (method, inner)
        for method, inner in inspect.getmembers(thing)
        if not method.startswith("_")
        and method not in hidden
        and (inspect.isroutine(inner) or isinstance(inner, property))
    ]


def signature(thing: object) -> str:
    try:
        return str(inspect.signature(thing))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


# -- links


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.places: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.places.add(value)
            elif value and (
                (tag in ("a", "link") and name == "href") or (tag in ("img", "script") and name == "src")
            ):
                self.targets.append(value)


def broken_links(site: Path) -> list[str]:
    """Links of the built pages that lead nowhere. Links to other hosts are not followed."""
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = _Links()
        pages[path].feed(path.read_text("utf-8"))
    wrong = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            file = file / "index.html" if file.is_dir() else file
            places = pages[file].places if file in pages else set()
            if not file.exists() or (
                file in pages and parts.fragment and unquote(parts.fragment) not in places
            ):
                wrong.append(f"{path.relative_to(site)}: {target}")
    return wrong


def main(site: Path) -> int:
    site = site.resolve()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        stage(place)
        reference(place)
        navigation(place)
        shutil.rmtree(site, ignore_errors=True)
        sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-c", DOCS]
        done = subprocess.run([*sphinx, "-d", place / ".doctrees", place, site], check=False)
        if done.returncode:
            return done.returncode
        for_models(place, site)
    wrong = broken_links(site)
    for line in wrong:
        print(f"broken link: {line}", file=sys.stderr)
    pages = len(list(site.rglob("*.html")))
    print(f"{site / 'index.html'}: {pages} pages, {len(wrong)} broken links")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
