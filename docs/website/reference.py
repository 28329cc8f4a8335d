"""The reference of the library: what Sphinx does not see by itself of names and docstrings."""

import re
import sys
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from sphinx.pycode import ModuleAnalyzer
from website.packages import PACKAGES

MARKED = re.compile(
    r"`(?P<code>[^`]+)`"
    r"|(?P<stressed>(?<![\w*])(\*\*?)(?=\S)[^*\n]+(?<=\S)\3(?![\w*]))"
    r"|(?P<itself>[\\*_|])"
)
ARRAY = re.compile(r"~?numpy\.ndarray\[~?tuple\[[^]]*\], ~?numpy\.dtype\[([^]]*)\]\]")


def _context() -> dict[str, Any]:
    """For the template of a package's page: where each of its names is told, and with what option.

    What the top exports is told where its package is. Fields that nothing is said of are left out,
    as the signature has them already, and so are values that fill more than a line.
    """
    told: dict[tuple[str, int], str] = {}
    places: dict[str, list[str]] = {package: [] for package in PACKAGES}
    options: dict[str, str] = {}
    for package in (*PACKAGES[1:], PACKAGES[0]):
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            place = told.setdefault((name, id(value)), f"{package}.{name}")
            places[package].append(place)
            if isinstance(value, type):
                options[place] = f":exclude-members: {', '.join(_plain_fields(value))}"
            elif not callable(value) and len(repr(value)) > 80:
                options[place] = ":no-value:"
    return {"places": places, "options": options}


def _plain_fields(of: Any) -> list[str]:
    fields = getattr(of, "__dataclass_fields__", getattr(of, "_fields", ()))
    said = ModuleAnalyzer.for_module(of.__module__).find_attr_docs()
    return [field for field in fields if (of.__qualname__, field) not in said]


CONTEXT = _context()
TOLD = {place.rpartition(".")[2]: place for all_ in CONTEXT["places"].values() for place in all_}


def write_index(website: Path) -> None:
    """The page that lists the packages; autosummary finds them there and writes the others."""
    (website / "reference").mkdir(exist_ok=True)
    head = (website / "templates" / "packages.rst").read_text()
    (website / "reference" / "index.rst").write_text(
        head + "".join(f"   {name}\n" for name in PACKAGES)
    )


def to_restructured_text(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Sphinx's hook: docstrings are plain Markdown. Of a constant, it has found its type's."""
    if what == "data":
        lines[:] = _said_of_constant(name.rpartition(".")[2], obj)
    result: list[str] = []
    for is_blank, block in groupby(lines, key=lambda line: not line.strip()):
        text = list(block)
        if is_blank or text[0].startswith(">>>"):
            result += text
        elif text[0].startswith("    "):
            result += ["::", "", *text]
        else:
            result += MARKED.sub(_restructured, "\n".join(text)).split("\n")
    lines[:] = result


def _said_of_constant(name: str, value: object) -> list[str]:
    """The docstring that follows the assignment, in whichever module that is."""
    for key, module in list(sys.modules.items()):
        is_there = key.startswith("overhand") and getattr(module, name, None) is value
        if is_there and (said := ModuleAnalyzer.for_module(key).find_attr_docs().get(("", name))):
            return list(said)
    return []


def _restructured(marked: re.Match[str]) -> str:
    """Public names link to what they name; a letter may follow them, as in `Plan`s."""
    if marked["code"]:
        code = " ".join(marked["code"].split())
        head, dot, member = code.removeprefix("overhand.").removesuffix("()").partition(".")
        return (
            rf":py:obj:`{code} <{TOLD[head]}{dot}{member}>`\ " if head in TOLD else rf"``{code}``\ "
        )
    return marked["stressed"] or "\\" + marked["itself"]


def shorten_arrays(*event: Any) -> tuple[str | None, ...]:
    """Sphinx's hook: what is taken and returned, with arrays as they are written in the source."""
    return tuple(part and ARRAY.sub(r"NDArray[\1]", part) for part in event[-2:])
