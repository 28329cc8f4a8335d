"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.summation.archive import BatchSums, Pending
from overhand.summation.continual import ContinualSum
from overhand.summation.endless import EndlessSum
from overhand.summation.hindsight import Curve, Hindsight, in_hindsight
from overhand.summation.saving import CUT_SHORT, Resumable, whole
from overhand.summation.server import SumServer
from overhand.summation.tree_server import TreeServer
from overhand.summation.windows import Window, Windows

__all__ = [
    "CUT_SHORT",
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
    "whole",
]
