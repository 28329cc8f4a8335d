"""The command line: every command has --json, and a bad argument ends with exit code 2."""

from __future__ import annotations

import sys
import warnings
from typing import Annotated, Any

import typer
from rich.markup import escape

from overhand import __version__
from overhand.cli.audit import audit
from overhand.cli.bandit import bandit
from overhand.cli.client import client
from overhand.cli.compare import compare
from overhand.cli.demo import demo
from overhand.cli.output import messages
from overhand.cli.plan import plan
from overhand.cli.reproduce import reproduce
from overhand.cli.services import prepare, server, settle, shuffler, tokens
from overhand.cli.settings import ServiceCommand
from overhand.cli.simulate import simulate
from overhand.cli.verify import verify
from overhand.errors import OverhandError, WeakDelta

app = typer.Typer(
    name="overhand",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Private running counts without a trusted server, from shufflers side by side.",
)
for command in (
    *(plan, simulate, compare, bandit, audit, reproduce),
    *(demo, prepare, tokens, settle, client, verify),
):
    app.command()(command)
for service in (server, shuffler):
    app.command(cls=ServiceCommand)(service)


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
            help="Print the version and leave.",
        ),
    ] = False,
) -> None:
    """Options of no command in particular."""


def run() -> None:
    """Run the command line; what the package refuses is one line and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", WeakDelta)
            warnings.showwarning = _WarnedOnce()
            app()
    except OverhandError as error:
        messages.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


class _WarnedOnce:
    """Warnings as one line on stderr, each once: --json has stdout for itself."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, message: Warning | str, *_: Any, **__: Any) -> None:
        if str(message) not in self._said:
            self._said.add(str(message))
            line = f"[yellow]warning:[/] {escape(str(message))}"
            messages.print(line, soft_wrap=True, highlight=False)


__all__ = ["app", "run"]
