"""A package that lists its names keeps its modules to itself; heavy libraries come late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = "overhand"
SOURCE = Path(__file__).parents[2] / "src"


def sources(root: Path) -> dict[str, str]:
    """Every module and package of a directory by its full name; a package's text is its init's."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        found[name + "." if is_package else name] = path.read_text(encoding="utf-8")
    return found


def offences(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """By importing module, the modules of other packages that it imports, or imports from.

    A module may use modules of its own package and of the packages around that. Those directly
    under the root are for everybody, and so are those of a package that lists no names of its own
    (`__all__`), as in the deployment. The name of a package ends with a dot.
    """
    closed = {name for name, text in texts.items() if name.endswith(".") and "__all__" in text}
    modules = {
        name
        for name in texts
        if not name.endswith(".") and name.rpartition(".")[0] + "." in closed - {f"{ROOT}."}
    }
    found = {name.rstrip("."): _foreign(name, text, modules) for name, text in texts.items()}
    return {name: foreign for name, foreign in found.items() if foreign}


def _foreign(name: str, text: str, modules: set[str]) -> set[str]:
    home = name if name.endswith(".") else name.rpartition(".")[0] + "."
    used = {module for module in _imported(text, home) if module in modules}
    packages = {module: module.rpartition(".")[0] for module in used}
    return {module for module, package in packages.items() if not home.startswith(package + ".")}


def _imported(text: str, home: str) -> Iterator[str]:
    """All that may be modules among what a text imports, wherever in it."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            around = home.rstrip(".").split(".")
            start = around[: len(around) + 1 - node.level] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


def test_nobody_imports_a_module_of_another_package() -> None:
    assert offences(sources(SOURCE)) == {}


PLANTED = {
    "overhand.": "",
    "overhand.errors": "",
    "overhand.tree.": "from overhand.tree.node import Node\n__all__ = ['Node']",
    "overhand.tree.node": "",
    "overhand.tree.deep.": "__all__ = []",
    "overhand.open.": "",
    "overhand.open.gate": "",
    "overhand.tree.deep.leaf": "from overhand.tree.node import Node\nfrom ..node import Node",
}


def planted(text: str) -> set[str]:
    return offences({**PLANTED, "overhand.planning.": "", "overhand.planning.plan": text}).get(
        "overhand.planning.plan", set()
    )


def test_what_packages_offer_may_be_used() -> None:
    assert not offences(PLANTED)
    for text in (
        "from overhand.tree import Node",
        "from overhand.tree import deep",
        "from overhand import errors",
        "from overhand.errors import InvalidValue",
        "import overhand.tree",
        "from overhand.planning import plan",
        "from overhand.open.gate import Gate",
        "from . import plan",
    ):
        assert not planted(text)


def test_an_import_of_a_module_of_another_package_is_seen() -> None:
    for text in (
        "from overhand.tree.node import Node",
        "from overhand.tree import node",
        "from overhand.tree import node as trunk",
        "import overhand.tree.node",
        "from ..tree.node import Node",
        "from ..tree import node",
        "def late():\n    from overhand.tree.node import Node",
        "if TYPE_CHECKING:\n    from overhand.tree.node import Node",
    ):
        assert planted(text) == {"overhand.tree.node"}
    assert planted("from overhand.tree.deep.leaf import Leaf") == {"overhand.tree.deep.leaf"}


def test_a_package_may_not_reach_into_those_within_it() -> None:
    """What is around a package sees no more of it than others do."""
    texts = {**PLANTED, "overhand.tree.bark": "from overhand.tree.deep.leaf import Leaf"}
    assert offences(texts) == {"overhand.tree.bark": {"overhand.tree.deep.leaf"}}
    texts = {**PLANTED, "overhand.tree.": "from overhand.tree.deep.leaf import Leaf\n__all__ = []"}
    assert offences(texts) == {"overhand.tree": {"overhand.tree.deep.leaf"}}


HEAVY = (
    "aiohttp", "joblib", "matplotlib", "pandas", "prometheus_client", "psycopg", "rich",
    "starlette", "typer",
)  # fmt: skip


def through_the_door(texts: Mapping[str, str]) -> dict[str, set[str]]:
    """By module, what it takes from `overhand` itself, which loads whatever has that name."""
    inside = {name.split(".")[1] for name in texts if name.count(".") and name != "overhand."}
    found: dict[str, set[str]] = {}
    for module, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module == "overhand":
                taken = {alias.name for alias in node.names} - inside - {"__version__"}
            elif isinstance(node, ast.Import):
                taken = {alias.name for alias in node.names} & {"overhand"}
            else:
                continue
            if taken:
                found.setdefault(module, set()).update(taken)
    return found


def test_nobody_inside_goes_through_the_door() -> None:
    """A service that took `overhand.Client` would import another role unseen by the contracts."""
    assert through_the_door(sources(SOURCE)) == {}
    texts = {"overhand.tree": "", "overhand.lab.app": "from overhand import Client, tree"}
    assert through_the_door(texts) == {"overhand.lab.app": {"Client"}}
    texts = {"overhand.tree": "import overhand", "overhand.sums.": "import overhand.tree"}
    assert through_the_door(texts) == {"overhand.tree": {"overhand"}}


def printed_by(code: str) -> str:
    """What a new process prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SOURCE
    )
    return done.stdout


ELSEWHERE = (
    "overhand.deploy.shuffler", "overhand.deploy.server", "overhand.lab", "starlette", "uvicorn",
)  # fmt: skip


@pytest.mark.parametrize(
    ("code", "also"),
    [
        ("import overhand", ("numpy", "aiohttp", "overhand.deploy", "overhand.bandits")),
        ("import overhand; overhand.ContinualSum", ("aiohttp", "overhand.deploy")),
        ("import overhand; overhand.Recommender", ("aiohttp", "overhand.deploy")),
        ("import overhand; overhand.Client", ()),
        ("import overhand.deploy.client", ()),
    ],
)
def test_a_name_loads_nothing_that_it_does_not_need(code: str, also: tuple[str, ...]) -> None:
    """The laboratory, and the services, stay out of an app: so does what they are built with."""
    code += f"; import sys; print([m for m in {(*ELSEWHERE, *also)} if m in sys.modules])"
    assert printed_by(code) == "[]\n"


def test_the_package_needs_no_extra() -> None:
    """Nor takes the time to load one: a service's and a command's libraries come with them."""
    code = f"import sys, overhand; print([m for m in {(*HEAVY, 'uvicorn')} if m in sys.modules])"
    assert printed_by(code) == "[]\n"


def test_a_client_loads_nothing_that_only_services_and_commands_use() -> None:
    code = "import sys, overhand.deploy.client; print({'joblib', 'typer'} & set(sys.modules))"
    assert printed_by(code) == "set()\n"


def test_a_client_without_its_extra_says_what_to_install() -> None:
    code = """
import sys
sys.modules["aiohttp"] = None  # as if it were not installed
import overhand
try:
    overhand.Client
except ModuleNotFoundError as error:
    print(error.name, error)
"""
    expected = "aiohttp aiohttp is not installed: pip install 'overhand[client]'\n"
    assert printed_by(code) == expected
