"""What processes have used so far, read from Linux's /proc."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PROCESSES = Path("/proc")
_GONE = (FileNotFoundError, ProcessLookupError)


class Stat(NamedTuple):
    """The fields that matter here; seconds of processor time, and bytes."""

    parent: int
    own: float
    ended_children: float
    resident: int


def stat(process: int) -> Stat:
    # The name, in parentheses, may hold anything; what follows are numbers.
    fields = (_PROCESSES / str(process) / "stat").read_text().rpartition(")")[2].split()
    user, system, children_user, children_system = (int(field) / _TICKS for field in fields[11:15])
    return Stat(
        int(fields[1]), user + system, children_user + children_system, int(fields[21]) * _PAGE
    )


def alone(processes: Iterable[int]) -> float:
    """Seconds that these processes used, without their children."""
    return sum(stat(process).own for process in processes)


def with_children(process: int) -> float:
    """Seconds of a process and all below it, also of those that ended."""
    total = 0.0
    for one in (process, *below(process)):
        with suppress(*_GONE):
            found = stat(one)
            total += found.own + found.ended_children
    return total


def below(process: int) -> Iterator[int]:
    """All processes that a process started, and those that they did."""
    parents = dict(_parents())
    found = [process]
    for one in found:
        children = [child for child, parent in parents.items() if parent == one]
        found += children
        yield from children


def _parents() -> Iterator[tuple[int, int]]:
    for place in _PROCESSES.iterdir():
        if place.name.isdigit():
            with suppress(*_GONE):
                yield int(place.name), stat(int(place.name)).parent


def peak(process: int) -> int:
    """The most bytes that a process ever had in memory."""
    lines = (_PROCESSES / str(process) / "status").read_text().splitlines()
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def command(process: int) -> str:
    """How a process was started, or nothing if it has ended."""
    with suppress(*_GONE):
        text = (_PROCESSES / str(process) / "cmdline").read_bytes()
        return text.replace(b"\0", b" ").decode(errors="replace")
    return ""
