"""The command line, run in the process of the tests."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any
from unittest import mock

from overhand.cli import run


@dataclass(frozen=True)
class Result:
    returncode: int
    stdout: str
    stderr: str


def overhand(*arguments: str) -> Result:
    """Run the command in this process: starting Python for each would take most of the time."""
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["overhand", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run()
        except SystemExit as leave:
            return Result(int(leave.code or 0), out.getvalue(), err.getvalue())
    return Result(0, out.getvalue(), err.getvalue())


def as_json(*arguments: str) -> Any:
    result = overhand(*arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def rows_that_hold(printed: str) -> int:
    """Of a table that the audit prints: by their last word, for notes may say it, too."""
    return sum(line.split()[-1:] == ["holds"] for line in printed.splitlines())
