"""The public names: what is in the `__all__` of a public package, each entered once."""

from __future__ import annotations

import ast
import importlib
import inspect
from dataclasses import dataclass
from functools import cache
from typing import Any

from sphinx.pycode import ModuleAnalyzer
from website.packages import PACKAGES


@dataclass(frozen=True)
class Entry:
    """A public name of a package."""

    package: str
    name: str
    value: Any

    @property
    def path(self) -> str:
        return f"{self.package}.{self.name}"

    @property
    def is_class(self) -> bool:
        return inspect.isclass(self.value)

    @property
    def is_function(self) -> bool:
        return inspect.isroutine(self.value) or hasattr(self.value, "__wrapped__")

    @property
    def said(self) -> str:
        """The docstring: its own, or for a constant the one that follows it in the source."""
        if self.is_class or self.is_function:
            return inspect.getdoc(self.value) or ""
        module = defining_modules(self.package).get(self.name, self.package)
        return said_after(module, "", self.name)

    @property
    def plain_fields(self) -> list[str]:
        """Fields that nothing is said of: the signature has them already."""
        fields = getattr(self.value, "__dataclass_fields__", getattr(self.value, "_fields", ()))
        where = self.value.__module__, self.value.__qualname__
        return [field for field in fields if not said_after(*where, field)]


def said_after(module: str, owner: str, name: str) -> str:
    """The docstring that follows an assignment, of a module or of a class."""
    return "\n".join(ModuleAnalyzer.for_module(module).find_attr_docs().get((owner, name), ()))


def defining_modules(package: str) -> dict[str, str]:
    """Where a package has its names from."""
    tree = ast.parse(inspect.getsource(importlib.import_module(package)))
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


@cache
def entries() -> tuple[Entry, ...]:
    """Every public name once: what the top exports is entered where its package is."""
    found: list[Entry] = []
    for package in (*PACKAGES[1:], PACKAGES[0]):
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if not any(entry.name == name and entry.value is value for entry in found):
                found.append(Entry(package, name, value))
    return tuple(found)


def public_bases(value: Any) -> list[type]:
    """The classes that a class is directly made of and that a reader can look up."""
    public = [entry.value for entry in entries() if entry.is_class]
    return [base for base in value.__bases__ if base in public]
