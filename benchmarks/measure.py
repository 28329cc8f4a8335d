"""Start contestants one after another, each in its own process, and collect their figures.

A child's `ru_maxrss` starts at what its parent held when it was started. So this process imports
no array library, and everything that needs one, even the calibration, is asked of a child.
"""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.contestants import Contestant
from benchmarks.task import Task

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 600.0  # seconds
INSTALL = "pip install overhand[bench]"


class Failed(Exception):
    """A child did not answer; the message is the last thing it said."""


@dataclass(frozen=True)
class Measured(ABC):
    """What was measured of one contestant, or why nothing was."""

    name: str
    version: str = ""
    missing: str = ""

    @abstractmethod
    def ratios(self, ours: Self) -> dict[str, float | None]:
        """Against ours, by name."""

    def summary(self, ours: Self) -> dict[str, Any]:
        """The row with its ratios against ours, for scripts."""
        if self.missing:
            return {"name": self.name, "missing": self.missing}
        return {**asdict(self), **self.ratios(ours)}


def ratio(value: float, to: float) -> float | None:
    return value / to if to else None


@dataclass(frozen=True)
class Row(Measured):
    """Running sums of one contestant."""

    users_per_second: float = 0.0
    seconds: float = 0.0
    runs: int = 0
    setup_seconds: float = 0.0
    import_mebibytes: float = 0.0
    added_mebibytes: float = 0.0
    rms_error: float = 0.0
    expected_rms: float | None = None

    @property
    def typical_error(self) -> float:
        """The expectation if it is known: what one run measures may be a third off."""
        return self.rms_error if self.expected_rms is None else self.expected_rms

    def ratios(self, ours: Self) -> dict[str, float | None]:
        return {
            "seconds_ratio": ratio(self.seconds, ours.seconds),
            "memory_ratio": ratio(self.added_mebibytes, ours.added_mebibytes),
            "error_ratio": ratio(self.typical_error, ours.typical_error),
        }


def ask(module: str, *arguments: str) -> dict[str, Any]:
    """Run a module of this package in a new process; its last line is the answer."""
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        raise Failed(f"no answer within {LONGEST:g} s") from None
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def contest(contestant: Contestant, task: Task) -> Row:
    """Two processes: one that only imports, one that runs."""
    if not contestant.installed:
        return Row(contestant.name, missing=f"not installed: {INSTALL}")
    where = contestant.module, contestant.function, task.to_json()
    try:
        imported = ask("child", "import", *where)
        result = ask("child", "run", *where)
    except Failed as failure:
        return Row(contestant.name, missing=f"failed: {failure}")
    peak = result.pop("peak")
    return Row(
        contestant.name,
        contestant.version,
        users_per_second=task.horizon / result["seconds"],
        import_mebibytes=imported["peak"],
        added_mebibytes=max(0.0, peak - imported["peak"]),
        **result,
    )
