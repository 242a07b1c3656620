"""The house keeps its plan: imports point one way, and `import headgate` stays light."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import headgate

HOUSE = Path(headgate.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))

# What each room may import of the house. A room not listed here has no place in it yet.
GROUND = {
    "hints",
    "errors",
    "frozen",
    "words",
    "limits",
    "backoff",
    "arguments",
    "verdict",
    "events",
    "typing",
}
PUBLIC = {"dispatch", "limiters", "retries", "breaker", "budgets"}
MAY_IMPORT = {
    "hints": set(),
    "errors": set(),
    "words": set(),
    "frozen": {"hints"},
    "arguments": {"errors", "hints"},
    "backoff": {"errors", "frozen", "arguments", "hints"},
    "limits": {"errors", "frozen", "arguments", "hints"},
    "verdict": {"arguments", "frozen", "hints", "limits"},
    "events": {"frozen", "hints"},
    "typing": {*GROUND, "gate", "sharing", "swarm"},
    "responses": {"responses"},
    "gate": {*GROUND, "gate"},
    "dispatch": {*GROUND, "gate", "dispatch", "sharing", "responses"},
    "limiters": {*GROUND, "gate", "limiters"},
    "retries": {*GROUND, "gate", "retries", "responses"},
    "breaker": {*GROUND, "gate", "retries", "breaker", "sharing"},
    "budgets": {*GROUND, "gate", "budgets", "sharing"},
    "sharing": {*GROUND, "gate", "sharing", "breaker", "budgets"},
    "client": {*GROUND, *PUBLIC, "gate"},
    "tenacity": {*GROUND, *PUBLIC, "gate"},
    "http": {*GROUND, "gate", "dispatch", "retries", "responses", "http"},
    "swarm": {*GROUND, "limiters", "gate", "sharing", "swarm"},
    "cli": {*GROUND, "gate", "dispatch", "retries", "sharing", "responses", "http", "sandbox", "cli"},
    "__main__": {"cli"},
    "sandbox": {*GROUND, "gate", "sandbox"},
    "testing": {*GROUND, "gate", "sandbox", "sharing", "swarm"},
    "__init__": {*GROUND, *PUBLIC, "gate", "responses"},
}
IMPURE = {
    "time",
    "random",
    "threading",
    "_thread",
    "asyncio",
    "logging",
    "os",
    "socket",
    "secrets",
}
DRAWERS = {"utils", "helpers", "common", "base", "core", "misc", "manager"}


def is_pure(path):
    """Does the file promise, by the first word of its docstring, to have no effects?"""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").startswith("Pure.")


def room(path):
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


def imports(path):
    """(rooms of the house, modules of the world) that a file imports when it is loaded.

    What it imports for the type checker alone may point anywhere: it binds nothing.
    """
    package = ["headgate", *path.relative_to(HOUSE).parts[:-1]]
    rooms, world = set(), set()
    tree = ast.parse(path.read_text())
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                world.add(alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
            if node.level:
                base = package[: len(package) - node.level + 1]
                full = [*base, *(node.module or "").split(".")] if node.module else base
                names = (
                    [".".join(full)] if len(full) > 1 else [f"{full[0]}.{alias.name}" for alias in node.names]
                )
            for name in names:
                parts = name.split(".")
                if parts[0] == "headgate":
                    rooms.add(parts[1] if len(parts) > 1 else "__init__")
                else:
                    world.add(parts[0])
    return rooms, world


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_a_room_imports_only_what_is_below_it(path):
    rooms, _ = imports(path)
    assert rooms <= MAY_IMPORT[room(path)]


@pytest.mark.parametrize(
    "path", [path for path in FILES if is_pure(path)], ids=lambda path: str(path.relative_to(HOUSE))
)
def test_pure_files_are_pure(path):
    """`now` is an argument: no clock, lock, I/O, logging or dice."""
    _, world = imports(path)
    assert not world & IMPURE
    text = path.read_text()
    assert "open(" not in text.replace("_open(", "")
    assert not re.search(r"\b(datetime|date)\.(now|utcnow|today)\(", text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_file_is_a_drawer(path):
    assert path.stem not in DRAWERS
    assert not set(path.relative_to(HOUSE).parts[:-1]) & DRAWERS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_every_room_opens_with_its_rule(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_public_names_are_exactly_those_announced():
    assert sorted(headgate.__all__) == headgate.__all__
    for name in headgate.__all__:
        assert getattr(headgate, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Dispach'"):
        headgate.Dispach  # noqa: B018


def loaded_by(statement):
    """The modules that a fresh interpreter loads for a statement, and had not before."""
    program = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_headgate_loads_the_standard_library_only_and_little_of_it():
    loaded = loaded_by("import headgate")
    world = {name.partition(".")[0] for name in loaded}
    assert world - {"headgate"} <= set(sys.stdlib_module_names)
    assert not world & {
        "asyncio",
        "threading",
        "logging",
        "dataclasses",
        "typing",
        "re",
        "inspect",
        "socket",
        "random",
    }
    for room in (
        "http",
        "limiters",
        "retries",
        "breaker",
        "budgets",
        "client",
        "responses",
        "sharing",
        "tenacity",
    ):
        assert f"headgate.{room}" not in loaded
    assert "headgate.testing" not in loaded


def test_the_package_is_typed():
    assert (HOUSE / "py.typed").exists()
