"""The page that shows what the server publishes: its files, and the headers to send with them.

The page is plain HTML, CSS and JavaScript modules. It contacts only the server it came from, and
shows only what is published: how full an open batch is would tell when somebody came.
"""

from __future__ import annotations

from importlib import resources

__all__ = ["FILES", "HEADERS", "PAGE", "content"]

PAGE = "index.html"

# Said here: the machine's own table may call a script plain text, and no browser runs that.
_MEDIA_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

FILES = {
    file.name: _MEDIA_TYPES[ending]
    for file in resources.files(__package__).iterdir()
    if (ending := file.name.rpartition(".")[2]) in _MEDIA_TYPES
}
"""Media type of every file of the page; the page asks for all but itself under `static/`."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
"""To be sent with every file: nothing from elsewhere, nothing inline, no frame around it."""


def content(name: str) -> bytes:
    """The bytes of one of `FILES`; `KeyError` for any other name, so no path leads outside."""
    if name not in FILES:
        raise KeyError(name)
    return resources.files(__package__).joinpath(name).read_bytes()
