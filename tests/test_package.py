"""What is published is what was tested: the sdist, the wheel, and the wheel in environments of its own."""

import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes, policy
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import headgate
from headgate.sandbox import Sandbox

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headgate"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Those that draw charts and sign requests take longest to install.
INSTALLED_EXTRAS = ",".join(sorted(PROJECT["optional-dependencies"].keys() - {"plot", "boto3"}))
BRANCH = {"bin": "Scripts"} if os.name == "nt" else {}

pytestmark = pytest.mark.xdist_group("package")

REPOSITORY = "https://github.example/someone/a-fork"
RELEASE = {
    "HEADGATE_TAG": f"v{headgate.__version__}",
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "someone/a-fork",
}
UNRELEASED = {name: value for name, value in os.environ.items() if name not in RELEASE}


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """(sdist, wheel), the wheel built from the sdist as `python -m build` does it."""
    place = tmp_path_factory.mktemp("dist")
    sdist = build("sdist", ROOT, place)
    return sdist, build("wheel", unpacked(sdist), place)


def build(kind, source, place, **variables):
    """Build an sdist or a wheel, as a workflow with these variables does it."""
    environment = {**UNRELEASED, **variables}
    run(sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", place, cwd=source, env=environment)
    (package,) = place.glob("*.tar.gz" if kind == "sdist" else "*.whl")
    return package


def unpacked(sdist):
    with tarfile.open(sdist) as packed:
        # Python 3.12 and later warn where no filter is given; `filter=` came with Python 3.11.4.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(sdist.parent)
    return sdist.parent / sdist.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def bare(built, tmp_path_factory):
    """The Python of an environment that has the wheel and nothing else."""
    python = environment(tmp_path_factory.mktemp("bare"))
    install(python, "--no-index", built[1])
    return python


@pytest.fixture(scope="module")
def full(built, tmp_path_factory):
    """The Python of an environment that has the wheel with its extras, and what the README imports."""
    return with_packages(tmp_path_factory.mktemp("full"), f"{built[1]}[{INSTALLED_EXTRAS}]")


@pytest.fixture(scope="module")
def as_in_readme(built, tmp_path_factory):
    """The Python of an environment that has the wheel without extras, and what the README imports."""
    return with_packages(tmp_path_factory.mktemp("readme"), built[1])


def with_packages(place, wheel):
    python = environment(place)
    constraints = ["-c", ROOT / "constraints" / "test.txt"]
    install(python, "--no-compile", *constraints, wheel, *sorted(needed_by_readme() - {"headgate"}))
    return python


def environment(place):
    venv.create(place)
    return place / BRANCH.get("bin", "bin") / "python"


def pip(python, *words):
    """Run the pip of the tests for another Python: to install one in each environment takes seconds."""
    quietly = ("--disable-pip-version-check", "--python", python)
    return run(sys.executable, "-m", "pip", *quietly, *words)


def install(python, *words):
    pip(python, "install", "--quiet", *words)


def program(python, source, **variables):
    """Run a program where neither this repository nor the environment of the tests can be imported."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return run(python, "-I", "-c", source, env={**clean, **variables}, cwd=python.parent)


def readme_block():
    """The first block of Python in the README."""
    return re.search(r"^```python\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)[1]


def needed_by_readme():
    """The packages that the first block of the README imports."""
    roots = re.findall(r"^\s*(?:from|import) (\w+)", readme_block(), flags=re.MULTILINE)
    return set(roots) - set(sys.stdlib_module_names)


# -- what is in them


def test_the_version_is_one_that_can_be_published():
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", headgate.__version__)
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {headgate.__version__} (" in text, "the changelog has no heading for this version"


def test_the_wheel_has_every_file_of_the_source_and_no_other(built):
    with zipfile.ZipFile(built[1]) as packed:
        files = {name for name in packed.namelist() if ".dist-info/" not in name}
    expected = {
        path.relative_to(SOURCE.parent).as_posix()
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert files == expected
    assert {
        "headgate/py.typed",
        "headgate/budgets/prices.json",
        "headgate/gateway/page/page.html",
        "headgate/sharing/scripts/pool.lua",
    } <= files


def test_the_sdist_has_what_it_takes_to_test_headgate_and_nothing_else(built):
    with tarfile.open(built[0]) as packed:
        files = {name.partition("/")[2] for name in packed.getnames()}
    roots = {name.partition("/")[0] for name in files}
    folders = {"src", "tests", "docs", "examples", "bench", "constraints"}
    texts = {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE"}
    tools = {"Makefile", "pyproject.toml", "hatch_build.py", "PKG-INFO", ".gitignore"}
    assert roots == folders | texts | tools
    assert not [name for name in files if name.startswith("bench/") and not name.endswith(".py")]
    assert not [name for name in files if re.search(r"\.venv|__pycache__|\.pyc$|/_build|\.egg-info", name)]
    for test in (ROOT / "tests").rglob("*.py"):
        assert test.relative_to(ROOT).as_posix() in files


# -- what PyPI shows


def described(package):
    """The metadata of an sdist or a wheel; its payload is the description."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as packed:
            (name,) = [name for name in packed.namelist() if name.endswith(".dist-info/METADATA")]
            content = packed.read(name)
    else:
        with tarfile.open(package) as packed:
            content = packed.extractfile(f"{package.name.removesuffix('.tar.gz')}/PKG-INFO").read()
    return message_from_bytes(content, policy=policy.compat32)


def description_of(metadata):
    return metadata.get_payload(decode=True).decode()


def links_of(text):
    """The addresses of all links and pictures of a Markdown text."""
    nodes = list(MarkdownIt("commonmark").enable("table").parse(text))
    for node in nodes:
        nodes += node.children or []
        address = node.attrs.get("href") or node.attrs.get("src")
        if address:
            yield node.type, str(address)


def test_a_build_without_a_tag_has_no_addresses_and_the_readme_as_it_is(built):
    for package in built:
        metadata = described(package)
        assert metadata.get_all("Project-URL") is None
        assert metadata["Description-Content-Type"] == "text/markdown"
        assert description_of(metadata) == README


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """sdist and wheel of a tag, and a wheel that a person builds from that sdist."""
    place, again = tmp_path_factory.mktemp("release"), tmp_path_factory.mktemp("again")
    sdist, wheel = build("sdist", ROOT, place, **RELEASE), build("wheel", ROOT, place, **RELEASE)
    return sdist, wheel, build("wheel", unpacked(sdist), again)


def test_a_release_says_where_its_source_is(released):
    tag = RELEASE["HEADGATE_TAG"]
    for package in released:
        assert set(described(package).get_all("Project-URL")) == {
            f"Repository, {REPOSITORY}",
            f"Documentation, {REPOSITORY}/blob/{tag}/docs/index.md",
            f"Changelog, {REPOSITORY}/blob/{tag}/CHANGELOG.md",
            f"Issues, {REPOSITORY}/issues",
            f"Release notes, {REPOSITORY}/releases/tag/{tag}",
        }


def test_every_link_in_the_description_of_a_release_is_absolute_and_leads_to_a_file(released):
    there = re.compile(rf"{re.escape(REPOSITORY)}/(blob|raw)/{re.escape(RELEASE['HEADGATE_TAG'])}/")
    for package in released:
        text = description_of(described(package))
        links = list(links_of(text))
        assert len(links) == len(list(links_of(README))) > 10
        for kind, address in links:
            place = there.match(address)
            assert place, address
            assert place[1] == ("raw" if kind == "image" else "blob")
            path = ROOT / address[place.end() :].partition("#")[0]
            assert path.is_file(), address
        assert there.sub("", text) == README, "nothing else is changed"


@pytest.fixture(scope="module")
def hook():
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_are_made_absolute_and_code_is_left_alone(hook):
    address = hook.Address("https://github.example/a/b", "v1.0.0")
    text = """[one](docs/a.md#part), ![two](b.png) and [three](https://x.example/), [four](#here)
`[code](a.md)`

```sh
echo "[code](a.md)"
```
[five](a.md)
"""
    assert hook.with_absolute_links(text, address) == (
        text.replace("(docs/a.md#part)", "(https://github.example/a/b/blob/v1.0.0/docs/a.md#part)")
        .replace("(b.png)", "(https://github.example/a/b/raw/v1.0.0/b.png)")
        .replace("[five](a.md)", "[five](https://github.example/a/b/blob/v1.0.0/a.md)")
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("HEADGATE_TAG", "v99.0.0"),
        ("HEADGATE_TAG", headgate.__version__),
        ("GITHUB_SERVER_URL", ""),
        ("GITHUB_SERVER_URL", "github.com"),
        ("GITHUB_SERVER_URL", "https://user:password@github.com"),
        ("GITHUB_SERVER_URL", "https://github.com/"),
        ("GITHUB_REPOSITORY", ""),
        ("GITHUB_REPOSITORY", "headgate"),
        ("GITHUB_REPOSITORY", "a/b/c"),
        ("GITHUB_REPOSITORY", "a/b?x"),
        ("GITHUB_REPOSITORY", "a/b\n"),
    ],
)
def test_a_variable_that_cannot_be_right_is_an_error_that_names_it(hook, name, wrong):
    with pytest.raises(ValueError, match=rf"^{name}={re.escape(repr(wrong))} "):
        hook.address_of({**RELEASE, name: wrong}, headgate.__version__)
    assert hook.address_of({**RELEASE, "HEADGATE_TAG": ""}, headgate.__version__) is None


def test_the_workflow_of_a_release_gives_its_tag_to_the_build():
    workflows = ROOT / ".github" / "workflows"
    assert 'with: { tag: "${{ github.ref_name }}" }' in (workflows / "release.yml").read_text()
    assert 'HEADGATE_TAG: "${{ inputs.tag }}"' in (workflows / "test.yml").read_text()


def test_every_classifier_of_a_python_is_one_that_the_workflow_tests():
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    tested = set(re.findall(r'"(3\.\d+)"', workflow))
    told = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", line)}
    assert told <= tested
    assert f"{sys.version_info[0]}.{sys.version_info[1]}" in tested


# -- the wheel in an environment of its own


def test_without_extras_the_core_works_and_a_command_says_what_to_install(bare):
    shown = program(bare, "import headgate, sys; print(headgate.__file__); print(headgate.Dispatch('api'))")
    assert str(bare.parent.parent) in shown
    program(bare, "import headgate\nfor name in headgate.__all__: getattr(headgate, name)")
    assert pip(bare, "list", "--format=freeze").count("headgate") == 1
    done = subprocess.run([bare.parent / "headgate", "--help"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "headgate[cli]" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_extras_a_store_in_a_file_works(bare, tmp_path):
    source = f"""
from headgate import Dispatch
with Dispatch("api", rates="600/minute", store="sqlite:///{tmp_path}/limits.db") as api:
    with api.admit(timeout=10):
        print("admitted")
"""
    assert program(bare, source) == "admitted\n"


def test_with_extras_every_module_can_be_imported(full):
    program(full, """
import importlib, pkgutil, headgate
frameworks = {f"headgate.integrations.{name}" for name in ("fastapi", "langchain", "llama_index")}
frameworks.add("headgate.http.boto3")
for module in pkgutil.walk_packages(headgate.__path__, "headgate."):
    if module.name not in frameworks and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
""")  # fmt: skip


def test_with_extras_the_commands_start(full):
    version = run(full.parent / "headgate", "--version")
    assert headgate.__version__ in version
    for command in ("run", "serve", "exec", "watch", "sandbox", "doctor", "demo"):
        assert "Usage" in run(full.parent / "headgate", command, "--help")


@pytest.mark.parametrize("with_extras", [False, True], ids=["without extras", "with extras"])
def test_the_first_block_of_the_readme_runs_from_the_wheel_against_the_sandbox(with_extras, request):
    python = request.getfixturevalue("full" if with_extras else "as_in_readme")
    with Sandbox("openai", requests="600/minute", tokens="100_000/minute") as api:
        program(python, readme_block(), OPENAI_BASE_URL=api.url, OPENAI_API_KEY="any")
        if "openai" in needed_by_readme():
            assert api.report().admitted >= 1
            assert api.report().refused == 0
