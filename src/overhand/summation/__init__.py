"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.summation.continual import ContinualSum
from overhand.summation.endless import EndlessSum
from overhand.summation.server import SumServer, TreeServer

__all__ = ["ContinualSum", "EndlessSum", "SumServer", "TreeServer"]
