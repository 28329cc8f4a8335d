"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.summation.archive import BatchSums, Pending
from overhand.summation.continual import ContinualSum, TreeServer
from overhand.summation.endless import EndlessSum
from overhand.summation.hindsight import Curve, Hindsight, in_hindsight
from overhand.summation.saving import Resumable
from overhand.summation.server import SumServer
from overhand.summation.windows import Window, Windows

__all__ = [
    "BatchSums",
    "ContinualSum",
    "Curve",
    "EndlessSum",
    "Hindsight",
    "Pending",
    "Resumable",
    "SumServer",
    "TreeServer",
    "Window",
    "Windows",
    "in_hindsight",
]
