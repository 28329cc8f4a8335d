"""How Sphinx makes the site of docs/, with the README as its front page: make docs"""

import ast
import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from refresh import DRAWN
from website.reference import CONTEXT, shorten_arrays, to_restructured_text, write_index

import overhand

project = "overhand"
version = release = overhand.__version__
html_title = f"overhand {release}"
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"
smartquotes = False  # two hyphens are an option, not a dash

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx_copybutton"]
templates_path = [str(Path(__file__).parent / "templates")]
exclude_patterns = ["website/templates"]
myst_heading_anchors = 3
myst_html_meta = {"description": overhand.__doc__}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

autosummary_context = CONTEXT
autosummary_imported_members = True
autosummary_ignore_module_all = False

FENCED = re.compile(r"(^```.*?^```)", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"(?<!\[)`(?:docs/([\w-]+\.md)|examples/(?:(\w+)\.py)?)`")


def link_pages(app: Sphinx, page: str, source: list[str]) -> None:
    """A page of docs/ that names another one, or an example, links to it."""

    def link(named: re.Match[str]) -> str:
        anchor = f"#{named[2].replace('_', '-')}" if named[2] else ""
        return f"[{named[0]}](/{named[1] or 'website/examples.md' + anchor})"

    if page == "website/examples":
        source[0] += "".join(map(example, sorted(Path(app.srcdir, "../examples").glob("*.py"))))
    parts = FENCED.split(source[0])
    parts[::2] = [NAMED.sub(link, part) for part in parts[::2]]
    source[0] = "".join(parts)


def example(code: Path) -> str:
    """A section: what the program is about, its figure if it draws one, and itself."""
    said = ast.get_docstring(ast.parse(code.read_text("utf-8")))
    figure = f"![{code.stem}](../{code.stem}.png)" if code.stem in DRAWN else ""
    options = ":language: python\n:start-at: from __future__"
    shown = f"```{{literalinclude}} ../../examples/{code.name}\n{options}\n```"
    return f"\n## {code.stem.replace('_', ' ')}\n\n{said}\n\n{figure}\n\n{shown}\n"


def setup(app: Sphinx) -> None:
    write_index(Path(__file__).parent)
    app.connect("source-read", link_pages)
    app.connect("autodoc-process-docstring", to_restructured_text)
    app.connect("autodoc-process-signature", shorten_arrays)
