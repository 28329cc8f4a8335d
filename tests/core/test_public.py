"""Every public name says what it is and, if it can be called, shows a use of it that is run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
from doctest import DocTestParser
from pathlib import Path
from types import ModuleType

import pytest

import overhand
from overhand.errors import OverhandError

ROOT = Path(__file__).parents[2]

sys.path.insert(0, str(ROOT / "docs"))

from website.packages import PACKAGES  # noqa: E402

PUBLIC = PACKAGES
INTERNAL = (
    "overhand.cli",
    "overhand.deploy.server.dashboard",
)
"""Their lists are for the package's own use."""


def lacking(module: ModuleType) -> dict[str, str]:
    """What the public names of a module lack, by name."""
    lacks = {name: _lack(module, name) for name in module.__all__}
    return {name: lack for name, lack in lacks.items() if lack is not None}


def _lack(module: ModuleType, name: str) -> str | None:
    thing = inspect.unwrap(getattr(module, name))
    if not (inspect.isclass(thing) or inspect.isfunction(thing)):
        return None if _is_explained(module, name) else "explanation"
    # `__doc__` is a class's own, where inspect.getdoc would look at its bases.
    examples = DocTestParser().get_examples(thing.__doc__ or "")
    return None if any(example.want for example in examples) else "example with an output"


def _is_explained(module: ModuleType, name: str) -> bool:
    """Whether a string or a comment `#:` follows the constant, wherever it is imported from."""
    source = inspect.getsource(module)
    body = ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                if name == (alias.asname or alias.name) and statement.module is not None:
                    return _is_explained(importlib.import_module(statement.module), alias.name)
        if name in _assigned(statement):
            after = source.splitlines()[statement.end_lineno or 0 :]
            return _is_string(following) or (bool(after) and after[0].startswith("#:"))
    return False


def _assigned(statement: ast.stmt) -> set[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _is_string(statement: ast.stmt | None) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def in_order(names: list[str]) -> list[str]:
    """Constants first, then classes, then functions, each by the alphabet."""
    return sorted(names, key=lambda name: (not name.isupper(), name[0].islower(), name))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_documented_by_examples(name: str) -> None:
    assert not lacking(importlib.import_module(name))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_in_order(name: str) -> None:
    names = importlib.import_module(name).__all__
    assert names == in_order(names)


def test_every_list_of_names_is_public_or_internal() -> None:
    sources = (ROOT / "src").rglob("*.py")
    lists = {source for source in sources if "\n__all__ = " in source.read_text()}
    parts = [source.relative_to(ROOT / "src").with_suffix("").parts for source in lists]
    names = {".".join(part for part in of_list if part != "__init__") for of_list in parts}
    assert names == {*PUBLIC, *INTERNAL}


MADE_UP = '''
from functools import lru_cache

from made_up_elsewhere import FAR, FURTHER

SPOKEN = 1
"""One."""

MARKED: int = 2
#: Two.

BARE = 3
# Three.


class Shown:
    """Adds.

    >>> Shown().add(1)
    2
    """

    def add(self, number):
        return number + 1


class Heir(Shown):
    pass


class Silent:
    """Only imports.

    >>> import math
    """


@lru_cache
def told():
    """
    >>> told()
    1
    """
    return 1


def untold():
    """Nothing to see."""


__all__ = [
    "BARE", "FAR", "FURTHER", "MARKED", "SPOKEN",
    "Heir", "Shown", "Silent", "told", "untold",
]
'''


ELSEWHERE = '''
FAR = 4
"""Four."""

FURTHER = 5
'''


def test_what_is_lacking_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "made_up.py").write_text(MADE_UP)
    (tmp_path / "made_up_elsewhere.py").write_text(ELSEWHERE)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("made_up")
    assert lacking(module) == {
        "BARE": "explanation",
        "FURTHER": "explanation",
        "Heir": "example with an output",
        "Silent": "example with an output",
        "untold": "example with an output",
    }


def test_disorder_is_seen() -> None:
    assert in_order(["b", "A", "Bee", "a", "AB", "Ab"]) == ["A", "AB", "Ab", "Bee", "a", "b"]


def pages() -> str:
    """All that readers are shown of the package."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py")]
    return "\n".join(file.read_text() for file in files)


def test_the_documents_use_what_the_package_offers() -> None:
    used = set(re.findall(r"\boh\.(\w+)", pages()))
    assert len(used) > 10
    assert used <= set(overhand.__all__)


def test_the_documents_know_all_that_the_package_offers() -> None:
    words = set(re.findall(r"\w+", pages()))
    # Errors speak for themselves.
    others = {n for n in overhand.__all__ if not _is_error(getattr(overhand, n))}
    assert others - words == set()


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, OverhandError)
