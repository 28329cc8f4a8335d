"""The public packages: those that list their names, but for the command line and the services."""

from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
INTERNAL = ("overhand.cli.", "overhand.deploy.")
"""Their lists are for the package's own use; of the services, the client is public."""

_names = sorted(
    ".".join(path.relative_to(SOURCES).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCES.rglob("*.py")
    if "\n__all__ = " in path.read_text("utf-8")
)
PACKAGES = tuple(
    name for name in _names if not f"{name}.".startswith(INTERNAL) or name.endswith(".client")
)
