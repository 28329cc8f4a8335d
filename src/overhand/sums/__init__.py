"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.sums.continual import ContinualSum
from overhand.sums.endless import EndlessSum
from overhand.sums.hindsight import Curve, Hindsight, in_hindsight
from overhand.sums.saving import CUT_SHORT, Resumable, whole
from overhand.sums.server import BatchSums, Pending, SumServer
from overhand.sums.times import Window, Windows

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
    "Window",
    "Windows",
    "in_hindsight",
    "whole",
]
