"""The house keeps its plan: imports point one way, and `import headgate` stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import headgate

HOUSE = Path(headgate.__file__).parent
FILES = sorted(HOUSE.rglob("*.py"))

# What each room may import of the house. A room not listed here has no place in it yet.
GROUND = {"errors", "values", "limits", "verdict", "events"}
PUBLIC = {
    "backoff_window",
    "dispatch",
    "limiters",
    "retries",
    "circuit_breaker",
    "token_budget",
    "resilient_client",
}
MAY_IMPORT = {
    "errors": set(),
    "values": set(),
    "limits": {"errors", "values"},
    "verdict": {"limits", "values"},
    "events": {"values"},
    "rules": {"rules", "limits", "verdict"},
    "waiting": set(),
    "permit": {*GROUND, "rules"},
    "gate": {*GROUND, "rules", "waiting", "permit"},
    "backoff_window": {*GROUND, "rules", "waiting", "gate", "sharing"},
    "dispatch": {*GROUND, "rules", "waiting", "gate", "backoff_window", "sharing"},
    "limiters": {*GROUND, "rules", "waiting", "gate", "permit"},
    "colours": {"errors"},
    "outcomes": {*GROUND, "http"},  # its signals are pure, and of no other room
    "registry": {"gate"},
    "sharing": {*GROUND, "rules", "waiting", "sharing"},
    "retries": {*GROUND, "rules", "waiting", "gate", "colours", "outcomes"},
    "circuit_breaker": {*GROUND, "rules", "waiting", "gate", "colours", "outcomes", "registry", "sharing"},
    "token_budget": {*GROUND, "rules", "waiting", "gate", "registry", "sharing"},
    "resilient_client": {*GROUND, *PUBLIC, "rules", "waiting", "colours", "outcomes"},
    "tenacity": {*GROUND, *PUBLIC, "rules", "waiting", "outcomes"},
    "http": {*GROUND, *PUBLIC, "rules", "waiting", "gate", "permit", "registry", "outcomes", "http"},
    "swarm": {*GROUND, "limiters", "rules", "waiting", "gate", "permit", "sharing", "swarm"},
    "bulk": {*GROUND, "rules", "dispatch", "waiting", "outcomes", "sharing", "http", "bulk"},
    "demo": {"dispatch", "http", "sandbox", "bulk", "demo"},
    "watch": {*GROUND, "rules", "waiting", "sharing"},
    "cli": {*GROUND, "waiting", "sandbox", "bulk", "demo", "watch"},
    "__main__": {"cli"},
    "sandbox": {*GROUND, "rules", "waiting", "sandbox"},
    "testing": {*GROUND, "rules", "waiting", "sandbox", "sharing"},
    "__init__": {*GROUND, *PUBLIC, "permit", "http"},
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
    "datetime",
    "secrets",
}
DRAWERS = {"utils", "helpers", "common", "base", "core", "misc", "manager", "types"}


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
    "path", [path for path in FILES if room(path) == "rules"], ids=lambda path: path.name
)
def test_rules_are_pure(path):
    """`now` is an argument: no clock, lock, I/O, logging or dice."""
    _, world = imports(path)
    assert not world & IMPURE
    assert "open(" not in path.read_text().replace("_open(", "")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_file_is_a_drawer(path):
    assert path.stem not in DRAWERS
    assert not set(path.relative_to(HOUSE).parts[:-1]) & DRAWERS


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_every_room_opens_with_its_rule(path):
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_locks_are_made_by_the_gate_by_registries_and_by_what_only_counts():
    makers = {room(path) for path in FILES if "allocate_lock()" in path.read_text()}
    registries = {"backoff_window", "limiters", "registry"}
    counters = {"retries", "circuit_breaker", "token_budget", "sharing", "swarm"}
    assert makers <= {"gate", "waiting", *registries, *counters}


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
        "circuit_breaker",
        "token_budget",
        "resilient_client",
        "sharing",
        "tenacity",
    ):
        assert f"headgate.{room}" not in loaded
    assert "headgate.testing" not in loaded


def test_the_package_is_typed():
    assert (HOUSE / "py.typed").exists()
