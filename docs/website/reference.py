"""The reference: one page for every public package, made of its `__all__` and its docstrings."""

from __future__ import annotations

import importlib
from types import ModuleType

from website.docstrings import restructured
from website.names import Entry, entries, public_bases
from website.packages import PACKAGES

LONGEST_VALUE = 80


def reference() -> dict[str, str]:
    """The pages by name, in reStructuredText."""
    pages = {package: page(package) for package in PACKAGES}
    listed = "".join(f"   {package}\n" for package in PACKAGES)
    rows = "".join(
        f"   * - :py:mod:`{package}`\n     - {first_line(importlib.import_module(package))}\n"
        for package in PACKAGES
    )
    pages["index"] = (
        f"{title('Packages', '=')}Every public name is in one of these packages.\n\n"
        f".. list-table::\n   :widths: auto\n\n{rows}\n"
        f".. toctree::\n   :hidden:\n\n{listed}"
    )
    return pages


def page(package: str) -> str:
    """A package: what it is for, its names at a glance, and each of them."""
    of_package = [entry for entry in entries() if entry.package == package]
    text = title(package, "=") + f".. automodule:: {package}\n   :no-members:\n\n"
    text += at_a_glance(importlib.import_module(package))
    groups = {
        "Classes": [e for e in of_package if e.is_class],
        "Functions": [e for e in of_package if e.is_function],
        "Constants and types": [e for e in of_package if not e.is_class and not e.is_function],
    }
    for heading, group in groups.items():
        if group:
            text += title(heading, "-") + "".join(directive(entry) for entry in group)
    return text


def at_a_glance(module: ModuleType) -> str:
    """A table of all names of a package, wherever they are entered."""
    rows = ""
    for name in module.__all__:
        value = getattr(module, name)
        entry = next(e for e in entries() if e.name == name and e.value is value)
        told = first_line(entry) or (f"``{written(entry)}``" if written(entry) else "")
        rows += f"   * - :py:obj:`{name} <{entry.path}>`\n     - {told}\n"
    return f".. list-table::\n   :widths: auto\n\n{rows}\n"


def directive(entry: Entry) -> str:
    """What Sphinx makes an entry of."""
    if entry.is_class:
        kind = "exception" if issubclass(entry.value, BaseException) else "class"
        options = "   :members:\n   :undoc-members:\n"
        if public_bases(entry.value):
            options += "   :show-inheritance:\n"
        if entry.plain_fields:
            options += f"   :exclude-members: {', '.join(entry.plain_fields)}\n"
        return f".. auto{kind}:: {entry.path}\n{options}\n"
    if entry.is_function:
        return f".. autofunction:: {entry.path}\n\n"
    value = f"   :value: {written(entry)}\n" if written(entry) else ""
    said = "".join(f"   {line}\n" for line in restructured(entry.said.splitlines(), entry.path))
    return f".. py:data:: {entry.path}\n{value}\n{said}\n"


def written(entry: Entry) -> str:
    """A constant or a type as one would write it, if that is short."""
    text = repr(entry.value).replace("typing.", "")
    return text if len(text) <= LONGEST_VALUE else ""


def first_line(described: Entry | ModuleType) -> str:
    """The first sentence of a docstring, as one line."""
    said = described.said if isinstance(described, Entry) else described.__doc__ or ""
    line = said.strip().split("\n\n")[0].replace("\n", " ")
    return " ".join(restructured([line], ""))


def title(text: str, underline: str) -> str:
    return f"{text}\n{underline * len(text)}\n\n"
