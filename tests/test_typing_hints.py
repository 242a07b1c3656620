"""`typing.get_type_hints` resolves every public annotation of headgate."""

import inspect
import subprocess
import sys
import typing
from collections.abc import Callable
from importlib import import_module

import pytest

import headgate

MODULES = [
    "headgate",
    "headgate.arguments",
    "headgate.backoff",
    "headgate.errors",
    "headgate.events",
    "headgate.frozen",
    "headgate.http",
    "headgate.http.aiohttp",
    "headgate.http.anthropic",
    "headgate.http.httpx",
    "headgate.http.requests",
    "headgate.integrations.asgi",
    "headgate.integrations.fastapi",
    "headgate.integrations.gateway",
    "headgate.limits",
    "headgate.observers",
    "headgate.publishing",
    "headgate.sandbox",
    "headgate.tenacity",
    "headgate.testing",
    "headgate.typing",
    "headgate.verdict",
]


def public_names(module):
    """What a module announces, or else what it defines without an underscore."""
    announced = getattr(module, "__all__", None)
    if announced is not None:
        return list(announced)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def public_callables(kind):
    """The functions behind the public methods and properties of a class, and `__init__` and the like."""
    for base in kind.__mro__:
        if not base.__module__.startswith("headgate"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") and not (name.startswith("__") and name.endswith("__")):
                continue
            for thing in (
                (member.fget, member.fset) if isinstance(member, property) else (inspect.unwrap(member),)
            ):
                function = getattr(thing, "__func__", thing)
                if inspect.isfunction(function):
                    yield f"{base.__module__}.{base.__qualname__}.{name}", function


def classes_in(hint):
    """The classes of headgate that a hint names."""
    if inspect.isclass(hint) and hint.__module__.startswith("headgate"):
        yield hint
    for part in hint if isinstance(hint, list) else typing.get_args(hint):
        yield from classes_in(part)


def everything():
    """What the modules announce, and the classes that public annotations name."""
    found = announced()
    to_do = list(found.values())
    while to_do:
        try:
            hints = typing.get_type_hints(to_do.pop())
        except (NameError, TypeError):
            continue  # the test itself reports it
        for hint in hints.values():
            for kind in classes_in(hint):
                name = f"{kind.__module__}.{kind.__qualname__}"
                if name not in found:
                    new = {name: kind, **dict(public_callables(kind))}
                    to_do += new.values()
                    found.update(new)
    return found


def announced():
    found = {}
    for name in MODULES:
        module = import_module(name)
        for public in public_names(module):
            thing = getattr(module, public)
            if inspect.isclass(thing):
                if thing.__module__.startswith("headgate"):
                    found[f"{thing.__module__}.{thing.__qualname__}"] = thing
                    found.update(public_callables(thing))
            elif inspect.isfunction(thing):
                found[f"{thing.__module__}.{thing.__qualname__}"] = thing
    return found


EVERYTHING = everything()


@pytest.mark.parametrize("name", sorted(EVERYTHING))
def test_every_public_annotation_resolves(name):
    hints = typing.get_type_hints(EVERYTHING[name])
    for hint in hints.values():
        assert not unresolved(hint), f"{hint!r} is still a string"


def unresolved(hint):
    if isinstance(hint, (str, typing.ForwardRef)):
        return typing.get_origin(hint) is not typing.Literal
    if typing.get_origin(hint) is typing.Literal:
        return False
    if isinstance(hint, list):
        return any(map(unresolved, hint))
    return any(map(unresolved, typing.get_args(hint)))


def test_the_walk_finds_what_is_public():
    assert {
        "headgate.dispatch.dispatch.Dispatch.__init__",
        "headgate.gate.admission.Permit.settle",
        "headgate.limiters.resource.Slot.__enter__",
        "headgate.events.Admitted",
        "headgate.limits.Rate.per",
    } <= EVERYTHING.keys()
    assert len(EVERYTHING) > 500
    assert {name.partition(".")[0] for name in EVERYTHING} == {"headgate"}


def test_hints_resolve_in_an_interpreter_that_has_imported_nothing_else():
    program = (
        "import headgate, sys; assert 'typing' not in sys.modules; import typing; "
        "print(typing.get_type_hints(headgate.Dispatch.set_backoff)['duration'], "
        "typing.get_type_hints(headgate.events.Event)['key'])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "float | datetime.timedelta <class 'collections.abc.Hashable'>"


def test_hints_are_the_real_types():
    from collections.abc import Mapping
    from datetime import timedelta

    from headgate.http import Signal
    from headgate.typing import Observer, P, R, Rates

    acquire = typing.get_type_hints(headgate.MemoryLimiter.acquire)
    assert acquire["timeout"] == float | timedelta | None
    assert acquire["cost"] == int | Mapping[str, int]
    assert typing.get_type_hints(headgate.MemoryLimiter.set_rates)["rates"] == Rates
    assert typing.get_type_hints(headgate.RateLimiter.__call__)["fn"] == Callable[P, R]
    assert typing.get_type_hints(headgate.Dispatch.__init__)["observer"] == Observer | None
    assert typing.get_type_hints(headgate.Dispatch.observe)["signal"] is Signal


def test_names_for_annotations_are_found_where_the_type_checker_finds_them():
    """The table that serves run time and the imports that serve the type checker name the same modules."""
    import ast

    from headgate import hints

    source = ast.parse(inspect.getsource(hints))
    block = next(node for node in source.body if isinstance(node, ast.If))
    for_checkers = {
        alias.name: "headgate." + node.module if node.level else node.module
        for node in block.body
        for alias in node.names
    }
    assert sorted([*for_checkers, "later"]) == hints.__all__
    for name, module in for_checkers.items():
        assert getattr(hints, name) == hints.later(module, name)
        assert getattr(hints, name).found() is getattr(import_module(module), name)
    with pytest.raises(AttributeError, match="no attribute 'Sekonds'"):
        hints.Sekonds  # noqa: B018
