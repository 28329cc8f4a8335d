"""No command line ends in a traceback: those that once did, and thousands at random."""

from __future__ import annotations

import importlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.cli import COMMANDS, load_command
from overhand.deploy.client import client as client_module
from overhand.errors import OverhandError
from support.cli_runner import overhand

pytestmark = pytest.mark.filterwarnings("ignore::overhand.errors.WeakDelta")

WORDS = [
    "",
    ":key:",
    ":-1",
    "[bold]",
    "[/]",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "\u00e9",
    "%s",
    "a,b",
    "-",
]
NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "1.5",
    "1_0",
    "1e1",
    "3",
    "1e30",
    "0.5",
    "1e-9",
    "99999999999999999999",
]
FILES = ["nowhere/x.json", "/", ".", "plan.json", "bits.csv", "empty.csv", "table.parquet", "x.png"]
FILES += ["out.csv", "out.html", "out.svg", "/proc/nothing/x.csv", "a" * 300, "plan.json/x.csv"]
KINDS = [
    "bit",
    "real",
    "real:0:50",
    "vector:2",
    "histogram:5",
    "matrix:2",
    "regression:2",
    "real:5:1",
]
KINDS += [
    "vector:0",
    "histogram:1e9",
    "vector:1e9",
    "histogram:-1",
    "real:nan:1",
    "regression:1e400",
]
CHOICES = ["coins", "shares", "pairs", "ballots", "best", "services", "regular", "paper"]
CHOICES += [
    "binary",
    "exact",
    "simple",
    "advanced",
    "counts",
    "messages",
    "ones",
    "uniform",
    "hard",
]
CHOICES += ["bernoulli:0.5", "bernoulli:2", "local", "all", "none", "trusted", "practical", "fixed"]
ADDRESSES = ["http://127.0.0.1:1", "http://", "ftp://x", "https://[", "http://127.0.0.1:99999"]
POOLS = [WORDS, NUMBERS, FILES, KINDS, CHOICES, ADDRESSES]

SMALL = {
    "horizon": [*["2", "7", "3e1", "60"] * 6, "0", "-1", "x", "60.5", "1e400"],
    "users": [*["100", "150"] * 4, "5", "nan"],
    "runs": [*["1", "2"] * 6, "0", "1.5"],
    "shufflers": ["1", "2", "3"],
    "epsilon": ["1", "20", "100"],
    "count": ["1", "3"],
    "jobs": [*["1"] * 12, "0", "-1"],
    "dimension": [*["2", "3"] * 6, "1", "0"],
    "arms": [*["2", "3"] * 6, "1", "0"],
    "size": ["2", "4"],
    "reports": ["1", "2"],
    "values": KINDS,
    "mechanism": CHOICES[:6],
    "tree": ["regular", "paper", "binary"],
    "input_form": ["ones", "bits.csv", "uniform", "bernoulli:0.5", "table.parquet"],
    "rivals": ["services", "local,concurrent", ","],
    "file": ["bits.csv", "own.csv", "own.csv", "table.parquet"],
    "column": ["v", "w", "v"],
    "group": ["g", "v"],
    "at": ["t", "v"],
    "plan_file": ["plan.json"],
}
"""Values that are often right, and make little work."""
CHANCES = {
    "file": 1.0,
    "column": 1.0,
    "plan_file": 0.5,
    "horizon": 1.0,
    "users": 1.0,
    "runs": 1.0,
    "jobs": 1.0,
    "arms": 1.0,
    "dimension": 1.0,
}
"""Options that are given on nearly every line, or it would take long."""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    oh.Plan.best(60, 2, oh.Privacy(4.0, 1e-4)).save(tmp_path / "plan.json")
    (tmp_path / "bits.csv").write_text("1\n0\n1\n" * 20)
    own = "v,w,g,t\n" + "".join(f"{i % 2},{i % 5},{'ab'[i % 2]},2026-11-01\n" for i in range(60))
    (tmp_path / "own.csv").write_text(own)
    (tmp_path / "empty.csv").touch()
    (tmp_path / "table.parquet").write_bytes(b"PAR1 or so")


@pytest.fixture
def nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes long, or starts processes, is only begun."""

    def begun(*_: Any, **__: Any) -> Any:
        raise OverhandError("begun")

    for place in ("one_machine.run_services", "audit._judge", "demo._draw_values"):
        module, _, name = place.partition(".")
        monkeypatch.setattr(importlib.import_module(f"overhand.cli.{module}"), name, begun)
    monkeypatch.setattr("overhand.lab.evidence.reproduce", begun)
    monkeypatch.setattr("overhand.deploy.server.running.run_server", begun)
    monkeypatch.setattr("overhand.deploy.shuffler.running.run_shuffler", begun)
    monkeypatch.setattr("overhand.deploy.http.telemetry.start_logging", lambda name: None)
    monkeypatch.setattr(client_module, "_ATTEMPTS", 1)


def lines(seed: int, count: int) -> Iterator[list[str]]:
    random = np.random.default_rng(seed)

    def one_of(pool: list[str]) -> str:
        return pool[random.integers(len(pool))]

    def value(name: str) -> str:
        if name in SMALL and random.random() < (1.0 if name in CHANCES else 0.9):
            return one_of(SMALL[name])
        if random.random() < 0.3:
            return one_of(NUMBERS)
        return one_of(POOLS[random.integers(len(POOLS))])

    names = list(COMMANDS)
    options = {name: load_command(name).params for name in names}
    for index in range(count):
        command = names[index % len(names)]
        line, daring = command.split(), [0.01, 0.1, 0.4][random.integers(3)]
        for option in options[command]:
            chance = CHANCES.get(option.name, 0.3 if option.name in SMALL else daring)
            if option.param_type_name == "argument":
                line += [value(option.name)] * (random.random() < 0.8)
            elif option.name not in ("help",) and random.random() < chance:
                line += [max(option.opts, key=len)]
                line += [] if option.is_flag else [value(option.name)]
        yield line


def check(line: list[str]) -> None:
    """Anything but `SystemExit` and a line of text is a defect."""
    try:
        result = overhand(*line)
    except Exception as error:
        raise AssertionError(f"{line}: {error!r}") from error
    assert result.returncode in (0, 1, 2), line
    assert "Traceback" not in result.stderr, line
    assert result.returncode == 0 or result.stderr, line


@pytest.mark.usefixtures("nothing_long")
def test_no_line_at_random_ends_in_a_traceback() -> None:
    for line in lines(seed=1, count=26):
        check(line)


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_long")
@pytest.mark.parametrize("seed", range(20))
def test_two_thousand_lines_at_random_end_in_no_traceback(seed: int) -> None:
    for line in lines(seed=100 + seed, count=100):
        check(line)
