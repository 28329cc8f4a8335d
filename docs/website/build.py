"""Build the site: python docs/website/build.py build/site

The README is the front page, then the pages of docs/, a gallery of the examples, and a reference of
the public packages. What they say is written in one place each: the sources are put together in a
folder beside the site, and Sphinx turns them into pages that ask nothing of any other host.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from sphinx.cmd.build import build_main
from sphinx.search.en import SearchEnglish

sys.path.insert(0, str(Path(__file__).parents[1]))

from website.gallery import gallery
from website.reference import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GROUPS = {
    "Start": ("quickstart", "tutorials", "questions", "values", "time", "hindsight", "faq"),
    "Decide": ("alternatives", "choosing", "noise", "sharp-edges"),
    "Deploy": ("install", "deploy", "clients", "trust", "poisoning"),
    "Learn": ("streams", "bandits"),
    "Understand": (
        *("paper", "accounting", "shares", "pairs", "audit", "reproduce"),
        "architecture",
    ),
    "Reference": ("cli", "glossary", "protocol"),
}
"""The side bar: the pages of docs/ by what a reader wants. Examples and packages come last."""
SEARCHED = {"histogram": "docs/tutorials", "certificate": "docs/cli"}
"""Words that a search must find, and where."""

FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<!\[)`(?P<path>docs/[\w-]+\.md|examples/(?:\w+\.py)?)`")
FROM_ELSEWHERE = re.compile(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=\"(?:https?:)?//")


def main(site: Path) -> int:
    sources = site.parent / "pages"
    shutil.rmtree(sources, ignore_errors=True)
    shutil.rmtree(site, ignore_errors=True)
    write_sources(sources)
    failed: int = build_main(
        ["-W", "--keep-going", "-q", "-j", "auto", "-c", str(Path(__file__).parent)]
        + ["-d", str(site.parent / "doctrees"), str(sources), str(site)]
    )
    if not failed:
        check_that_it_works_offline(site)
        check_that_search_finds(site, SEARCHED)
        print(f"the site: {site / 'index.html'}")
    return failed


def write_sources(sources: Path) -> None:
    """All pages in one folder, where links of the README and of docs/ mean what they meant."""
    (sources / "docs").mkdir(parents=True)
    (sources / "reference").mkdir()
    for figure in DOCS.glob("*.png"):
        shutil.copy(figure, sources / "docs")
    for page in DOCS.glob("*.md"):
        text = with_links(page.read_text(encoding="utf-8"), up="../")
        (sources / "docs" / page.name).write_text(text, encoding="utf-8")
    readme = with_links((ROOT / "README.md").read_text(encoding="utf-8"), up="")
    (sources / "index.md").write_text(readme + contents(), encoding="utf-8")
    (sources / "examples.md").write_text(gallery(), encoding="utf-8")
    for name, text in reference().items():
        (sources / "reference" / f"{name}.rst").write_text(text, encoding="utf-8")


def with_links(text: str, up: str) -> str:
    """A page that names another one links to it."""

    def link(named: re.Match[str]) -> str:
        path = named["path"]
        place = path if path.startswith("docs/") else anchor(path)
        return f"[{named[0]}]({up}{place})"

    parts = FENCED.split(text)
    parts[::2] = [NAMED.sub(link, part) for part in parts[::2]]
    return "".join(parts)


def anchor(example: str) -> str:
    """Where an example, or all of them, is in the gallery."""
    stem = Path(example).stem.replace("_", "-")
    return "examples.md" if example == "examples/" else f"examples.md#{stem}"


def contents() -> str:
    """The side bar. A page of docs/ without a place in it is an error."""
    placed = {page for pages in GROUPS.values() for page in pages}
    written = {page.stem for page in DOCS.glob("*.md")}
    if placed != written:
        raise SystemExit(f"pages without a group, or groups without a page: {placed ^ written}")
    groups = {caption: [f"docs/{page}" for page in pages] for caption, pages in GROUPS.items()}
    groups["Reference"] += ["examples", "reference/index"]
    return "".join(toctree(caption, pages) for caption, pages in groups.items())


def toctree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def check_that_it_works_offline(site: Path) -> None:
    asking = [
        page for page in site.rglob("*.html") if FROM_ELSEWHERE.search(page.read_text("utf-8"))
    ]
    if asking:
        raise SystemExit(f"pages that load something from another host: {asking}")


def check_that_search_finds(site: Path, searched: dict[str, str]) -> None:
    """Refuse a site whose index, which its page of search reads, lacks words or where they are."""
    index = site / "searchindex.js"
    if not (site / "search.html").exists() or not index.exists():
        raise SystemExit("the site has no search")
    found = json.loads(index.read_text("utf-8").removeprefix("Search.setIndex(").rstrip(");\n"))
    for word, page in searched.items():
        if page not in pages_with(stemmed(word), found):
            raise SystemExit(f"a search for {word} does not find {page}")


def pages_with(term: str, index: dict[str, Any]) -> list[str]:
    """The index has one number, or a list of them, for a term of a text and of a title."""
    places: list[int] = []
    for terms in (index["terms"], index["titleterms"]):
        found = terms.get(term, [])
        places += found if isinstance(found, list) else [found]
    return [index["docnames"][place] for place in places]


def stemmed(word: str) -> str:
    """As the index has it."""
    return str(SearchEnglish({}).stem(word))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
