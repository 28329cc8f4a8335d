"""Options of the services, in click's order: command line, environment, file, default."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand

from overhand.cli import load_command
from overhand.errors import InvalidValue

PREFIXES = {"server": "OVERHAND_SERVER", "shuffler": "OVERHAND_SHUFFLER"}
"""Of environment variables, by service."""


class ServiceCommand(TyperCommand):
    """A command whose options may come from a file, and which can show where they come from."""

    def invoke(self, ctx: Any) -> Any:
        if not ctx.params["show_settings"]:
            return super().invoke(ctx)
        print(f"[{self.name}]")
        for key, option in _options_of(self).items():
            value, source = ctx.params[option.name], ctx.get_parameter_source(option.name).name
            place = {
                "COMMANDLINE": "command line",
                "ENVIRONMENT": f"environment: {ctx.auto_envvar_prefix}_{option.name.upper()}",
                "DEFAULT_MAP": f"file: {ctx.params['config']}",
            }.get(source, "default")
            text = json.dumps(mask(value) if isinstance(value, str) else value, default=str)
            is_set = value is not None and value not in ([], ())
            print(f"{key} = {text}  # {place}" if is_set else f"# {key} is not set")


def use_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take settings from a file; refuse misspelt or empty ones, which may be what keeps others out.

    A file may serve both services, so that the options of both are known in it.
    """
    own, prefix = _options_of(ctx.command), ctx.auto_envvar_prefix
    variables = [f"{prefix}_{name}".upper() for name in ["config", *(o.name for o in own.values())]]
    for name, value in os.environ.items():
        if name.startswith(f"{prefix}_"):
            _check_known("the environment variable {} is not an option", name, variables)
            if not value:
                raise InvalidValue(f"the environment variable {name} is empty: set it or unset it")
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # invalid TOML or text is a ValueError
        raise InvalidValue(f"cannot read settings from {path}: {error}") from error
    for name, table in content.items():
        if name not in PREFIXES or not isinstance(table, dict):
            raise InvalidValue(f"{path}: {name} is neither the table [server] nor [shuffler]")
        for key, value in table.items():
            _check_known(
                f"{path}: [{name}] has no option {{}}", key, _options_of(load_command(name))
            )
            if mask(str(value)) != str(value) and path.stat().st_mode & 0o077:
                raise InvalidValue(f"{path} holds a password and others may read it: chmod 600 it")
    ctx.default_map = {
        own[key].name: _as_typed(ctx, own[key], value, f"{path}: {key}")
        for key, value in content.get(str(ctx.command.name), {}).items()
    }
    return path


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a service that is not to be set by this one."""
    prefixes = tuple(f"{prefix}_" for prefix in PREFIXES.values())
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def mask(text: str) -> str:
    """An address without its password.

    >>> mask("postgresql://me:secret@host:5432/sums?sslpassword=other&sslmode=require")
    'postgresql://me:***@host:5432/sums?sslpassword=***&sslmode=require'
    """
    if "://" not in text:
        return text
    # From the first colon after the name to the last @: a password may hold both.
    return re.sub(
        r"(?i)(password=)[^&]*", r"\1***", re.sub(r"^(\w+://[^:]*):.*@", r"\1:***@", text)
    )


def _options_of(command: Any) -> dict[str, Any]:
    """What may be set, by its name on the command line and in files."""
    named = {max(option.opts, key=len)[2:]: option for option in command.params}
    return {key: one for key, one in named.items() if key not in ("config", "show-settings")}


def _check_known(refusal: str, name: str, known: Iterable[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1, cutoff=0)
        raise InvalidValue(f"{refusal.format(name)}: did you mean {near[0]}?")


def _as_typed(ctx: Any, option: Any, value: Any, where: str) -> str | list[str]:
    """A value of a file as it would be typed, so that it is checked by the same rules."""
    values = value if option.multiple and isinstance(value, list) else [value]
    for one in values:
        if isinstance(one, bool) != option.is_flag or not isinstance(one, str | int | float):
            kind = "true or false" if option.is_flag else "a string or a number"
            raise InvalidValue(f"{where} must be {kind}")
    typed = [str(one) for one in values] if option.multiple else str(value)
    try:
        option.process_value(ctx, typed)
    except typer.BadParameter as error:
        raise InvalidValue(f"{where}: {error.message}") from error
    return typed
