"""Where the services' options come from: command line, environment, file, default, in this order.

The order is Typer's own. This module decides what an option is called in each place, what a file
may contain, and how all of it is shown.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from overhand.cli.commands import loaded
from overhand.errors import InvalidValue

_SERVICES = ("server", "shuffler")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
# Anything between the first colon after the name and the last @ is the password: it may hold both.
_PASSWORD = re.compile(r"^(\w+://[^:]*):.*@")
_PASSWORD_OPTION = re.compile(r"(password=)[^&]*", re.IGNORECASE)


class ServiceCommand(TyperCommand):
    """A command whose every option may come from the environment or a file as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for key, option in _options_of(self).items():
            option.envvar = _variable(self.name, key)

    def invoke(self, ctx: Any) -> Any:
        if not ctx.params["show_settings"]:
            return super().invoke(ctx)
        print("\n".join(_shown(ctx)))


def use_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """Take from a file what neither the command line nor the environment sets."""
    _check_environment(ctx.command, os.environ)
    if path is not None:
        ctx.default_map = dict(_settings_of(ctx, path))
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        help="Read options from this TOML file, from the table named after this command; the "
        "command line and environment variables take precedence.",
        callback=use_file,
        is_eager=True,
    ),
]
ShowSettings = Annotated[
    bool,
    typer.Option("--show-settings", help="Print all options and where they come from, and exit."),
]


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without any settings of a service."""
    prefixes = tuple(_variable(name, "") for name in _SERVICES)
    return {name: value for name, value in environment.items() if not name.startswith(prefixes)}


def masked(text: str) -> str:
    """An address without its password.

    >>> masked("postgresql://me:secret@host:5432/sums?sslpassword=other&sslmode=require")
    'postgresql://me:***@host:5432/sums?sslpassword=***&sslmode=require'
    """
    if "://" not in text:
        return text
    return _PASSWORD_OPTION.sub(r"\1***", _PASSWORD.sub(r"\1:***@", text))


def _options_of(command: Any) -> dict[str, Any]:
    """The options of a command by their names on the command line."""
    named = {max(option.opts, key=len).removeprefix("--"): option for option in command.params}
    return {key: option for key, option in named.items() if key not in ("help", "show-settings")}


def _variable(command: Any, key: str) -> str:
    return f"OVERHAND_{command}_{key}".upper().replace("-", "_")


def _check_environment(command: Any, environment: Mapping[str, str]) -> None:
    """Refuse misspelt and empty settings: one of them may be what keeps others out."""
    prefix = _variable(command.name, "")
    known = [option.envvar for option in _options_of(command).values()]
    for name, value in environment.items():
        if not name.startswith(prefix):
            continue
        if name not in known:
            raise InvalidValue(
                f"the environment variable {name} is not an option{_near(name, known)}"
            )
        if not value:
            raise InvalidValue(f"the environment variable {name} is empty: set it or unset it")


def _settings_of(ctx: typer.Context, path: Path) -> Iterator[tuple[str, str | list[str]]]:
    """A command's settings in a file, as if typed, by the names of its parameters."""
    content = _read(path)
    _check_names(path, content)
    _check_private(path, content)
    options = _options_of(ctx.command)
    for key, value in content.get(str(ctx.command.name), {}).items():
        yield options[key].name, _typed(ctx, options[key], value, f"{path}: {key}")


def _check_names(path: Path, content: Mapping[str, Any]) -> None:
    commands = {name: loaded(name) for name in _SERVICES}  # a file may serve both
    for name, table in content.items():
        if name not in commands or not isinstance(table, dict):
            raise InvalidValue(f"{path}: {name} is neither the table [server] nor [shuffler]")
        keys = [key for key in _options_of(commands[name]) if key != "config"]
        for key in table:
            if key not in keys:
                raise InvalidValue(f"{path}: [{name}] has no option {key}{_near(key, keys)}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # invalid TOML or text is a ValueError
        raise InvalidValue(f"cannot read settings from {path}: {error}") from error


def _typed(ctx: typer.Context, option: Any, value: Any, where: str) -> str | list[str]:
    """A value as it is typed on the command line, so that it is checked by the same rules."""
    values = value if option.multiple and isinstance(value, list) else [value]
    texts = [_text(one, option, where) for one in values]
    typed = texts if option.multiple else texts[0]
    try:
        option.process_value(ctx, typed)
    except typer.BadParameter as error:
        raise InvalidValue(f"{where}: {error.message}") from error
    return typed


def _text(value: Any, option: Any, where: str) -> str:
    if isinstance(value, bool) != option.is_flag or not isinstance(value, str | int | float):
        kind = "true or false" if option.is_flag else "a string or a number"
        raise InvalidValue(f"{where} must be {kind}")
    return str(value)


def _check_private(path: Path, content: Mapping[str, Mapping[str, Any]]) -> None:
    texts = [str(value) for table in content.values() for value in table.values()]
    if any(masked(text) != text for text in texts) and path.stat().st_mode & _OTHERS:
        raise InvalidValue(f"{path} contains a password and others may read it: chmod 600 it")


def _near(name: str, known: Iterable[str]) -> str:
    """The known name that was probably meant."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0)
    return f": did you mean {found[0]}?" if found else ""


def _shown(ctx: Any) -> Iterator[str]:
    """All settings, as a file could have them, and where each comes from."""
    file = ctx.params["config"]
    yield f"[{ctx.command.name}]"
    for key, option in _options_of(ctx.command).items():
        sources = {
            "COMMANDLINE": "command line",
            "ENVIRONMENT": f"environment: {option.envvar}",
            "DEFAULT_MAP": f"file: {file}",
        }
        value = ctx.params[option.name]
        source = sources.get(ctx.get_parameter_source(option.name).name, "default")
        if key == "config":
            continue
        is_set = value is not None and value not in ([], ())
        yield f"{key} = {_literal(value)}  # {source}" if is_set else f"# {key} is not set"


def _literal(value: Any) -> str:
    if isinstance(value, list | tuple):
        return _literal(value[0]) if len(value) == 1 else json.dumps(list(value))
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, int | float) else json.dumps(masked(str(value)))
