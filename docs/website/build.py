"""Build the site: python docs/website/build.py build/site

The README is the front page, then the pages of docs/, a gallery of the examples, and a reference of
the public packages. What they say is written in one place each: the sources are put together in a
folder beside the site, and Sphinx turns them into pages that ask nothing of any other host.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from sphinx.cmd.build import build_main

sys.path.insert(0, str(Path(__file__).parents[1]))

from website.gallery import gallery
from website.reference import reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
GUIDES = ("choosing", "values", "shares", "pairs", "noise", "poisoning", "streams", "bandits")
RUNNING = ("deploy", "clients", "protocol", "trust", "sharp-edges")
REASONS = ("accounting", "audit", "paper", "architecture")

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
    """The side bar. A page of docs/ that has no place in it yet is put behind the guides."""
    placed = {*GUIDES, *RUNNING, *REASONS}
    others = tuple(sorted(page.stem for page in DOCS.glob("*.md") if page.stem not in placed))
    groups = {"Guides": GUIDES + others, "Running it": RUNNING, "Why it holds": REASONS}
    text = ""
    for caption, pages in groups.items():
        text += toctree(caption, [f"docs/{page}" for page in pages])
    return text + toctree("Reference", ["examples", "reference/index"])


def toctree(caption: str, pages: list[str]) -> str:
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{listed}\n```\n"


def check_that_it_works_offline(site: Path) -> None:
    asking = [
        page for page in site.rglob("*.html") if FROM_ELSEWHERE.search(page.read_text("utf-8"))
    ]
    if asking:
        raise SystemExit(f"pages that load something from another host: {asking}")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
