"""Modules are private to their package, packages are public; heavy libraries come late."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = "overhand"
SOURCE = Path(__file__).parents[1] / "src"


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

    A module may use modules of its own package and of the packages around that; those directly
    under the root are for everybody. The name of a package ends with a dot.
    """
    modules = {name for name in texts if not name.endswith(".")}
    found = {name.rstrip("."): _foreign(name, text, modules) for name, text in texts.items()}
    return {name: foreign for name, foreign in found.items() if foreign}


def _foreign(name: str, text: str, modules: set[str]) -> set[str]:
    home = name if name.endswith(".") else name.rpartition(".")[0] + "."
    used = {module for module in _imported(text, home) if module in modules}
    packages = {module: module.rpartition(".")[0] for module in used}
    return {
        module
        for module, package in packages.items()
        if package != ROOT and not home.startswith(package + ".")
    }


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
    "overhand.tree.": "from overhand.tree.node import Node",
    "overhand.tree.node": "",
    "overhand.tree.deep.": "",
    "overhand.tree.deep.leaf": "from overhand.tree.node import Node\nfrom ..node import Node",
}


def planted(text: str) -> set[str]:
    return offences({**PLANTED, "overhand.plan.": "", "overhand.plan.plan": text}).get(
        "overhand.plan.plan", set()
    )


def test_what_packages_offer_may_be_used() -> None:
    assert not offences(PLANTED)
    for text in (
        "from overhand.tree import Node",
        "from overhand.tree import deep",
        "from overhand import errors",
        "from overhand.errors import InvalidValue",
        "import overhand.tree",
        "from overhand.plan import plan",
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
    texts = {**PLANTED, "overhand.tree.": "from overhand.tree.deep.leaf import Leaf"}
    assert offences(texts) == {"overhand.tree": {"overhand.tree.deep.leaf"}}


HEAVY = (
    "aiohttp", "matplotlib", "pandas", "prometheus_client", "psycopg", "rich", "starlette", "typer",
)  # fmt: skip


def test_the_package_needs_no_extra() -> None:
    """Nor takes the time to load one: a service's and a command's libraries come with them."""
    code = f"import sys, overhand; print([m for m in {(*HEAVY, 'uvicorn')} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=SOURCE
    )
    assert done.stdout == "[]\n"
