"""The source keeps its plan: imports point one way, rooms do not reach into each other, files stay short."""

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
    "light",
    "words",
    "nesting",
    "limits",
    "backoff",
    "arguments",
    "verdict",
    "telling",
    "event_log",
    "events",
    "typing",
}
PUBLIC = {"dispatch", "limiters", "retries", "breaker", "budgets"}
MAY_IMPORT = {
    "hints": set(),
    "errors": set(),
    "words": set(),
    "nesting": {"hints"},
    "frozen": {"hints"},
    "light": set(),
    "arguments": {"errors", "hints"},
    "backoff": {"errors", "frozen", "arguments", "hints"},
    "limits": {"errors", "frozen", "arguments", "hints"},
    "verdict": {"arguments", "frozen", "hints", "limits"},
    "telling": {"hints", "event_log"},
    "event_log": {"events", "hints"},
    "events": {"frozen", "hints"},
    "observers": {*GROUND, "gate", "dispatch", "limiters", "observers"},
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
    "mapping": {*GROUND, "gate", "dispatch"},
    "tenacity": {*GROUND, *PUBLIC, "gate"},
    "http": {*GROUND, "gate", "dispatch", "retries", "responses", "http"},
    "integrations": {*GROUND, "gate", "dispatch", "limiters", "responses", "http", "integrations"},
    "swarm": {*GROUND, "limiters", "gate", "sharing", "swarm"},
    "publishing": {*GROUND, "gate", "dispatch"},
    "cli": {
        *GROUND,
        "gate",
        "observers",
        "dispatch",
        "retries",
        "budgets",
        "sharing",
        "responses",
        "http",
        "sandbox",
        "gateway",
        "cli",
    },
    "gateway": {
        *GROUND,
        "gate",
        "dispatch",
        "retries",
        "responses",
        "http",
        "observers",
        "sharing",
        "gateway",
        "__init__",
    },
    "__main__": {"cli"},
    "sandbox": {*GROUND, "gate", "sandbox"},
    "testing": {*GROUND, "gate", "sandbox", "sharing", "swarm"},
    "__init__": {*GROUND, *PUBLIC, "gate", "responses", "observers", "publishing"},
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
    "path", [path for path in FILES if room(path) == "sharing"], ids=lambda path: str(path.relative_to(HOUSE))
)
def test_sharing_imports_only_pure_files_of_the_rooms_that_it_is_handed_to(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("breaker.", "budgets.")):
            assert is_pure(HOUSE / f"{node.module.replace('.', '/')}.py")


@pytest.mark.parametrize(
    "path", [path for path in FILES if room(path) in PUBLIC], ids=lambda path: str(path.relative_to(HOUSE))
)
def test_public_rooms_load_sharing_only_where_a_store_is_given(path):
    for node in ast.parse(path.read_text()).body:
        assert not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sharing"))


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


# What a named tuple offers to its users begins with an underscore too.
OF_NAMED_TUPLES = {"_asdict", "_fields", "_make", "_replace"}


def private_names_of_others(path):
    """Private names that a file uses on an object and does not define itself, with their lines.

    ruff's SLF001 forbids them on any object but `self`; this counts what reaches into another module.
    """
    nodes = list(ast.walk(ast.parse(path.read_text())))
    defines = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    own = OF_NAMED_TUPLES | {node.name for node in nodes if isinstance(node, defines)}
    own |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("self", "cls")
    }
    for node in nodes:
        if isinstance(node, ast.Attribute) and re.fullmatch(r"_[^_].*", node.attr) and node.attr not in own:
            yield node.lineno, node.attr


def private_imports(path):
    """Private names that a file imports from another file of headgate."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("headgate")):
            yield from (alias.name for alias in node.names if re.fullmatch(r"_[^_].*", alias.name))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_file_uses_a_private_name_of_another_object_or_module(path):
    assert list(private_names_of_others(path)) == []
    assert list(private_imports(path)) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HOUSE)))
def test_no_object_changes_its_class(path):
    for node in ast.walk(ast.parse(path.read_text())):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        assert not any(isinstance(target, ast.Attribute) and target.attr == "__class__" for target in targets)


# The longest that a file may be, with the reason for each exception. At most three may stand here.
MOST_LINES = 500
LONGER: dict[str, str] = {}


@pytest.mark.parametrize(
    "path", [*FILES, *sorted(HOUSE.rglob("*.lua"))], ids=lambda path: str(path.relative_to(HOUSE))
)
def test_a_file_is_short_enough_to_be_read_at_once(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES or path.relative_to(HOUSE).as_posix() in LONGER


def test_at_most_three_files_are_longer_than_that():
    assert len(LONGER) <= 3


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
    assert loaded_by("import headgate") == {"headgate"}
    loaded = loaded_by("from headgate import BackoffWindow, Dispatch, Rate, WaitTimeout")
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
        "collections",
        "types",
        "weakref",
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


def test_a_dispatch_that_nothing_is_told_and_at_which_no_call_waits_loads_no_learner_and_no_parker():
    program = "from headgate import Dispatch; Dispatch('api', rates='5/s').try_admit().settle()"
    needless = ("backoff", "dispatch.learning", "dispatch.stated", "events", "gate.parking", "gate.seam")
    assert not {f"headgate.{name}" for name in needless} & loaded_by(program)


def test_the_package_is_typed():
    assert (HOUSE / "py.typed").exists()
