"""The most memory that this process ever held."""

from __future__ import annotations

import resource
import sys

_UNIT = 1 if sys.platform == "darwin" else 1024


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT / 2**20
