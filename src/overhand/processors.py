"""How many processors this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


def processors() -> int:
    """As many as the machine has, the process may run on, and its container may use.

    >>> processors() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, *_quotas(), math.inf)))


def _quotas() -> Iterator[float]:
    """Processors' time per time, of every group that the process is in (Linux, versions 1 and 2).

    A container may see its own group as the root of all.
    """
    for folder in _groups():
        for read in (_quota, _quota_of_version_1):
            with suppress(OSError, ValueError, ZeroDivisionError):
                yield read(folder)


def _groups() -> Iterator[Path]:
    try:
        lines = _OWN_GROUPS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, kinds, name = line.split(":", 2)
        if kinds and "cpu" not in kinds.split(","):
            continue
        path = PurePosixPath(name.strip("/"))
        for group in (path, *path.parents):
            yield _GROUPS / ("cpu" if kinds else "") / group


def _quota(folder: Path) -> float:
    used, period = (folder / "cpu.max").read_text(encoding="ascii").split()
    return math.inf if used == "max" else int(used) / int(period)


def _quota_of_version_1(folder: Path) -> float:
    used, period = (
        int((folder / f"cpu.cfs_{name}_us").read_text(encoding="ascii"))
        for name in ("quota", "period")
    )
    return used / period if used > 0 else math.inf
