"""The gallery: every example with its code, what it prints and the figure it draws."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from refresh import BLOCK, output_of

ROOT = Path(__file__).parents[2]
INTRODUCTION = """# Examples

Each is a file of its own in `examples/`, runs by itself in a few seconds, and is run by the tests.
"""


def gallery() -> str:
    """The page, in Markdown."""
    examples = sorted((ROOT / "examples").glob("*.py"))
    shown = outputs_in_pages()
    with ThreadPoolExecutor(2) as pool:
        outputs = pool.map(
            lambda path: shown.get(command(path)) or output_of(command(path)), examples
        )
        return INTRODUCTION + "".join(map(entry, examples, outputs))


def command(example: Path) -> str:
    return f"python examples/{example.name}"


def outputs_in_pages() -> dict[str, str]:
    """What pages say that examples print, which the tests hold them to."""
    pages = (ROOT / "docs").glob("*.md")
    blocks = (block for page in pages for block in BLOCK.finditer(page.read_text("utf-8")))
    return {block["command"]: block["output"] for block in blocks}


def entry(example: Path, output: str) -> str:
    """An example's part of the page."""
    said = ast.get_docstring(ast.parse(example.read_text("utf-8"))) or ""
    title, *paragraphs = said.split("\n\n")
    rest = "\n\n".join(text for text in paragraphs if not text.startswith(command(example)))
    heading = example.stem.replace("_", " ")
    figure = ROOT / "docs" / f"{example.stem}.png"
    drawn = f"\n![{title}](docs/{figure.name})\n" if figure.exists() else ""
    return f"""
## {heading}

{title}

{rest}
{drawn}
```console
$ {command(example)}
{output}```

```{{code-block}} python
:caption: examples/{example.name}

{example.read_text("utf-8")}```
"""
