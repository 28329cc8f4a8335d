"""`overhand` and `python -m overhand`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or say what to install for it."""
    try:
        from overhand.cli import run
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f"the command line needs {error.name}: pip install 'overhand[cli]'")
    run()


if __name__ == "__main__":
    main()
