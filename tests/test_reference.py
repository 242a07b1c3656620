"""The reference has every public name, and each is explained by a docstring with an example that runs."""

import inspect
import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

import headgate
import headgate.events
import headgate.http
import headgate.observers
import headgate.sandbox
import headgate.testing
import headgate.typing

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))
try:
    import make_site
    import reference
finally:
    sys.path.remove(str(DOCS))

# They need frameworks that are not installed beside the tests.
WITH_FRAMEWORKS = ("headgate.http.boto3",)
ENTRIES = [
    (module, name)
    for page in reference.PAGES
    for module, name in page.entries()
    if module not in WITH_FRAMEWORKS
]
NAMES = [f"{module}.{name}" for module, name in ENTRIES]
# What a page imports: the module, and the names, in brackets or in a line.
FROM = re.compile(r"^ *(?:>>> )?from (headgate[\w.]*) import (?:\(([^)]*)\)|([^#\n]*))", flags=re.MULTILINE)
# What is documented where it stands, and not by a docstring.
ALIASES = {f"headgate.typing.{name}" for name in ["AnyStore", "Jitter", "Observer", "Rates", "Seconds"]}


def thing(name):
    module, _, word = name.rpartition(".")
    return getattr(import_module(module), word)


def methods():
    """(name of the class, name of the method, method) of every public class but errors."""
    for module, name in ENTRIES:
        kind = thing(f"{module}.{name}")
        if isinstance(kind, type) and not issubclass(kind, BaseException):
            for method, inner in make_site.members(module, name):
                yield f"{module}.{name}", method, inner


METHODS = {f"{kind}.{method}": inner for kind, method, inner in methods()}


@pytest.mark.parametrize(
    "module",
    [headgate, headgate.http, headgate.observers, headgate.sandbox, headgate.testing, headgate.typing],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_on_a_page(module):
    shown = {thing(name) for name in NAMES if name not in ALIASES}
    for name in module.__all__:
        full = f"{module.__name__}.{name}"
        assert full in NAMES or getattr(module, name) in shown, full


def test_every_event_is_on_a_page():
    events = {
        f"headgate.events.{name}"
        for name, kind in vars(headgate.events).items()
        if isinstance(kind, type) and issubclass(kind, headgate.events.Event)
    }
    assert events <= set(NAMES)


def test_no_name_is_on_two_pages():
    assert len(NAMES) == len(set(NAMES))


def test_what_is_excused_from_an_example_exists():
    assert set(reference.WITHOUT_EXAMPLE) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ALIASES])
def test_every_public_name_has_a_docstring_of_its_own(name):
    found = thing(name).__doc__
    assert found, "it has no docstring"
    assert re.match(r"\s*\S.*[.:)]\s*($|\n)", found), "the first line is not a sentence"


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_public_method_has_a_docstring(name):
    assert inspect.getdoc(METHODS[name]), "it has no docstring, and is not listed in docs/reference.py"


@pytest.mark.parametrize(
    "name", [name for name in NAMES if name not in ALIASES and name not in reference.WITHOUT_EXAMPLE]
)
def test_every_public_name_has_an_example_that_is_executed(name):
    # `tests/test_docs.py` and `tests/integrations` run the examples of all modules.
    kind = thing(name)
    own = [kind.__doc__ or ""]
    if isinstance(kind, type):
        own += [inspect.getdoc(inner) or "" for full, inner in METHODS.items() if full.startswith(f"{name}.")]
    assert any(">>>" in text for text in own)


def test_no_name_is_excused_that_has_an_example():
    assert [name for name in reference.WITHOUT_EXAMPLE if ">>>" in (thing(name).__doc__ or "")] == []


# They need frameworks that are missing where the reference is built. The guide to frameworks shows them.
IN_GUIDES_ONLY = {
    "headgate.integrations.langchain.RateLimiter",
    "headgate.integrations.llama_index.RateLimiter",
}


def test_every_name_that_a_guide_imports_is_on_a_page():
    shown = {f"{module}.{name}" for page in reference.PAGES for module, name in page.entries()}
    imported = set()
    for guide in [DOCS.parent / "README.md", *DOCS.glob("*.md"), *(DOCS.parent / "examples").glob("*.py")]:
        for module, several, one in FROM.findall(guide.read_text(encoding="utf-8")):
            names = (part.split(" as ")[0].strip() for part in (several or one).split(","))
            imported |= {f"{module}.{name}" for name in names if name}
    assert len(imported) > 50
    missing = imported - shown
    modules = {"headgate.events", "headgate.verdict"}
    elsewhere = {"headgate.testing.FakeProvider"}  # on the page as headgate.sandbox.FakeProvider
    assert missing == modules | elsewhere | IN_GUIDES_ONLY


@pytest.mark.parametrize("guide", sorted(DOCS.glob("*.md")), ids=lambda guide: guide.name)
def test_what_the_list_for_language_models_says_about_a_guide_are_its_first_words(guide):
    text = guide.read_text(encoding="utf-8")
    told = make_site.about(text)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(text.partition("\n\n")[2].split()))
    assert 20 < len(told) <= 202
    assert plain.startswith(told.removesuffix(" …"))
