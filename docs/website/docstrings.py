"""Docstrings are written as plain Markdown: here they become what Sphinx reads.

Code is between single backticks, a block that is set in is shown as it stands, and `*`, `_` and `|`
in a formula are themselves. Code that names exactly one public thing links to it.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import groupby
from typing import Any

from website.names import Entry, entries, public_bases
from website.packages import PACKAGES

CODE = re.compile(r"`([^`]+)`")
STRESSED = re.compile(r"(?<![\w*])(\*\*?)(?=\S)([^*\n]+)(?<=\S)\1(?![\w*])")
NAME = re.compile(r"[A-Za-z_][\w.]*(?:\(\))?")
ARRAY = re.compile(r"~?numpy\.ndarray\[~?tuple\[[^]]*\], ~?numpy\.dtype\[([^]]*)\]\]")
ANY_ARGUMENTS = "(*args, **kwargs)"  # what a protocol seems to take


def to_restructured_text(
    app: object, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Sphinx's hook: rewrites the lines of one docstring in place."""
    lines[:] = restructured(lines, name)


def restructured(lines: list[str], near: str) -> list[str]:
    """A docstring's lines in reStructuredText; `near` says which package names are looked up in."""
    result: list[str] = []
    for is_blank, block in groupby(lines, key=lambda line: not line.strip()):
        if is_blank:
            result.append("")
            continue
        text = list(block)
        if text[0].startswith(">>>"):
            result += text
        elif text[0].startswith("    "):
            result += ["::", "", *text]
        else:
            result += inline("\n".join(text), near).split("\n")
    return result


def inline(text: str, near: str) -> str:
    """Code, stress and everything else of a paragraph."""
    parts = CODE.split(text)
    parts[::2] = [plain(part) for part in parts[::2]]
    parts[1::2] = [code(" ".join(part.split()), near) for part in parts[1::2]]
    return "".join(parts)


def plain(text: str) -> str:
    pieces = STRESSED.split(text)  # text, stars, stressed, text, ...
    for i in range(0, len(pieces), 3):
        pieces[i] = re.sub(r"([\\*_|])", r"\\\1", pieces[i])
    return "".join(
        piece if i % 3 != 2 else f"{piece}{pieces[i - 1]}" for i, piece in enumerate(pieces)
    )


def code(text: str, near: str) -> str:
    """A name links to what it names; other code is shown as it is."""
    if text in PACKAGES:
        return rf":py:mod:`{text}`\ "
    target = target_of(text.removesuffix("()"), near) if NAME.fullmatch(text) else None
    # The escaped space lets a letter follow, as in `Plan`s.
    return rf":py:obj:`{text} <{target}>`\ " if target else rf"``{text}``\ "


def target_of(name: str, near: str) -> str | None:
    """The one public thing of that name, or the one of the package that the docstring is in."""
    name = name.removeprefix("overhand.")
    head, _, member = name.partition(".")
    found = [entry for entry in named(head) if not member or hasattr(entry.value, member)]
    if len(found) > 1:
        found = [entry for entry in found if near.startswith(f"{entry.package}.")]
    if len(found) != 1 or member.count("."):
        return None
    return f"{found[0].path}.{member}" if member else found[0].path


@cache
def named(name: str) -> list[Entry]:
    return [entry for entry in entries() if entry.name == name]


def readable_signature(
    app: object,
    what: str,
    name: str,
    obj: object,
    options: object,
    taken: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Sphinx's hook: arrays as they are written in the source."""
    if what == "class" and taken == ANY_ARGUMENTS:
        taken = ""
    return with_arrays(taken), with_arrays(returned)


def with_arrays(part: str | None) -> str | None:
    """What is taken or returned; a property has neither."""
    return part if part is None else ARRAY.sub(r"NDArray[\1]", part)


def only_public_bases(
    app: object, name: str, obj: object, options: object, bases: list[Any]
) -> None:
    """Sphinx's hook: of the classes that a class is made of, those that a reader can look up."""
    bases[:] = public_bases(obj)
