"""The reference has every public name, and each is explained by a docstring with an example that runs.

A docstring is understood alone: it names each argument in backquotes.
"""

import inspect
import re
import sys
import typing
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
from headgate.frozen import Frozen

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
    found = inspect.getdoc(METHODS[name])
    assert found, "it has no docstring, and is not listed in docs/reference.py"
    assert re.match(r"\S.*[.:)](\n|$)", found), "the first line is not a sentence"


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


# -- arguments

# Public classes that users do not make, each with what makes it.
MADE_ELSEWHERE = {
    "headgate.CircuitState": "an enumeration: its members are there",
    "headgate.Reservation": "TokenBudget.reserve",
    "headgate.integrations.scrapy.GateMiddleware": "Scrapy, by its settings",
    "headgate.sandbox.Reply": "FakeProvider.call",
}
# They are implemented by those who write a store, and are called by headgate alone: the types of their
# arguments explain them.
FOR_AUTHORS_OF_STORES = (
    "headgate.testing.MemoryStore",
    "headgate.typing.RedisClient",
    "headgate.typing.Store",
)
# Public names and methods, by the last word of their names too.
BY_WORD = {name.rpartition(".")[2]: name for name in [*METHODS, *NAMES]} | {name: name for name in NAMES}


def docstring(name):
    return inspect.getdoc(METHODS.get(name) or thing(name)) or ""


def in_backquotes(text):
    """What a docstring has in backquotes, outside of its examples."""
    prose = re.sub(r"^ *(>>>|\.\.\.).*$", "", text, flags=re.MULTILINE)
    return re.findall(r"`([^`]+)`", prose)


def names_it(text, word):
    return any(re.search(rf"\b{re.escape(word)}\b", quoted) for quoted in in_backquotes(text))


def leads_to(text, word, seen=()):
    """Whether a docstring names the word, or another public name whose docstring leads to it."""
    others = {BY_WORD[quoted] for quoted in in_backquotes(text) if quoted in BY_WORD} - {*seen}
    return names_it(text, word) or any(
        leads_to(docstring(other), word, (*seen, *others)) for other in others if other not in ALIASES
    )


def with_arguments():
    """(name, function) of each public function, method and constructor that users call."""
    for name in [*NAMES, *METHODS]:
        inner = METHODS.get(name) or thing(name)
        if name in ALIASES or name in MADE_ELSEWHERE or name.startswith(FOR_AUTHORS_OF_STORES):
            continue
        if isinstance(inner, type) and (issubclass(inner, BaseException) or typing.is_typeddict(inner)):
            continue
        if callable(inner):
            yield name, inner


WITH_ARGUMENTS = dict(with_arguments())


@pytest.mark.parametrize("name", WITH_ARGUMENTS)
def test_a_docstring_names_every_argument_in_backquotes(name):
    """Each in its own docstring, also `clock`, `key` and `observer`: help() shows one docstring at a time.

    What needs no words is `self`, and arguments of any number: `*args` and `**kwargs` are those of a function
    that is called, and the fields and options behind others have tests below.
    """
    any_number = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    explicit = [
        parameter.name
        for parameter in inspect.signature(WITH_ARGUMENTS[name]).parameters.values()
        if parameter.kind not in any_number and parameter.name != "self"
    ]
    assert [word for word in explicit if not names_it(docstring(name), word)] == []


def unpacked(inner):
    """The options that a signature has as `**options: Unpack[...]`, by whatever name."""
    hints = typing.get_type_hints(inner.__init__ if isinstance(inner, type) else inner)
    kinds = [typing.get_args(hint)[0] for hint in hints.values() if typing.get_origin(hint) is typing.Unpack]
    return [option for kind in kinds for option in typing.get_type_hints(kind)]


UNPACKED = {name: unpacked(inner) for name, inner in WITH_ARGUMENTS.items() if unpacked(inner)}


@pytest.mark.parametrize("name", UNPACKED)
def test_a_docstring_names_every_option_or_the_public_name_that_explains_it(name):
    assert [word for word in UNPACKED[name] if not leads_to(docstring(name), word)] == []


def test_functions_whose_options_are_unpacked_are_found():
    assert {
        "headgate.retry", "headgate.BreakerRegistry", "headgate.http.httpx.client", "headgate.sandbox.Sandbox"
    } <= set(UNPACKED)  # fmt: skip


VALUES = [
    name
    for name in NAMES
    if name not in ALIASES
    and isinstance(thing(name), type)
    and issubclass(thing(name), Frozen)
    and thing(name).__init__ is Frozen.__init__
]


@pytest.mark.parametrize("name", [*VALUES, "headgate.http.exchange.SendOptions"])
def test_the_docstring_of_a_value_names_every_field_that_it_adds(name):
    kind = thing(name)
    fields = kind.__slots__ if issubclass(kind, Frozen) else kind.__annotations__
    assert [field for field in fields if not names_it(docstring(name), field)] == []


def test_classes_that_users_do_not_make_are_public():
    assert MADE_ELSEWHERE.keys() | {*FOR_AUTHORS_OF_STORES} <= set(NAMES)


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
