"""The command line: every command has --json, and a bad argument ends with exit code 2."""

from __future__ import annotations

import sys
from typing import Annotated

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
from overhand.cli.simulate import simulate
from overhand.errors import OverhandError

app = typer.Typer(
    name="overhand",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Private running counts without a trusted server, from shufflers side by side.",
)
for command in (
    *(plan, simulate, compare, bandit, audit, reproduce),
    *(demo, prepare, tokens, settle, server, shuffler, client),
):
    app.command()(command)


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
        app()
    except OverhandError as error:
        messages.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True, highlight=False)
        sys.exit(2)


__all__ = ["app", "run"]
