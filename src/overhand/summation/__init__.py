"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.summation.continual import ContinualSum, TreeServer
from overhand.summation.endless import EndlessSum
from overhand.summation.saving import Resumable
from overhand.summation.server import SumServer
from overhand.summation.windows import Window, Windows

__all__ = [
    "ContinualSum",
    "EndlessSum",
    "Resumable",
    "SumServer",
    "TreeServer",
    "Window",
    "Windows",
]
