"""The command line: results are available as JSON, and a bad argument exits with code 2."""

from __future__ import annotations

import sys
import warnings
from errno import ENOSPC
from typing import Annotated, Any

import typer

from overhand import __version__
from overhand.cli.commands import Commands, missing, register
from overhand.errors import OverhandError, WeakDelta

app = typer.Typer(
    name="overhand",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private running statistics without a trusted server.",
)
register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"overhand {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """Options that belong to no command in particular."""


def run() -> None:
    """Run the command line; an error of the package is one line and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", WeakDelta)
            warnings.showwarning = _WarnedOnce()
            app(prog_name="overhand")  # also if it was started as a module
    except OverhandError as error:
        _leave(error)
    except ModuleNotFoundError as error:
        needed = missing(error)
        if needed is None:
            raise
        _leave(needed)
    except OSError as error:
        where = error.filename or ("standard output" if error.errno == ENOSPC else None)
        if where is None:
            raise
        _leave(f"{where}: {error.strerror}")


def _leave(error: object) -> None:
    from overhand.cli.output import say

    say("error", str(error), style="bold red")
    sys.exit(2)


class _WarnedOnce:
    """Show warnings as one line on stderr, each once: --json has stdout to itself."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any, **__: Any) -> None:
        from overhand.cli.output import say

        if str(message) not in self._said:
            self._said.add(str(message))
            say("warning", str(message), style="yellow")


__all__ = ["app", "run"]
