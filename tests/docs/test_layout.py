"""A file of tests can be read alone: it says what it is about, and nothing is imported from it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCES = {
    path.name: path.read_text(encoding="utf-8") for path in Path(__file__).parents[1].rglob("*.py")
}


def imported(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def takes_from_tests(source: str) -> bool:
    return any(module.startswith("test_") for module in imported(source))


def test_nothing_is_imported_from_a_file_of_tests() -> None:
    """What two files need is in a module of its own."""
    assert not [name for name, source in SOURCES.items() if takes_from_tests(source)]


def test_an_import_from_a_file_of_tests_is_seen() -> None:
    for source in ("from test_a import b", "import test_a", "def f():\n    import test_a"):
        assert takes_from_tests(source)
    assert not takes_from_tests("import a\nfrom a import test_b")


def test_every_file_of_tests_says_what_it_is_about() -> None:
    tests = {name: ast.parse(s) for name, s in SOURCES.items() if name.startswith("test_")}
    assert not [name for name, tree in tests.items() if not ast.get_docstring(tree)]
