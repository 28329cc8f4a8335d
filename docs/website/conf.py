"""How Sphinx turns the sources that build.py wrote into pages."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from website.docstrings import only_public_bases, readable_signature, to_restructured_text

import overhand

project = "overhand"
author = "The overhand authors"
version = release = overhand.__version__
html_title = f"overhand {release}"
myst_html_meta = {"description": overhand.__doc__}
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
html_static_path = [str(Path(__file__).parent / "static")]
html_css_files = ["site.css"]
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "monokai"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 3
smartquotes = False  # two hyphens are an option, not a dash

autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"


def setup(app: Sphinx) -> None:
    app.connect("autodoc-process-docstring", to_restructured_text)
    app.connect("autodoc-process-signature", readable_signature)
    app.connect("autodoc-process-bases", only_public_bases)
