"""The paper's algorithm: a server of batch sums, and the whole protocol in one process."""

from overhand.summation.continual import ContinualSum
from overhand.summation.endless import EndlessSum
from overhand.summation.gathered import Gathered, GatheredSums
from overhand.summation.server import SumServer
from overhand.summation.tree_server import TreeServer

__all__ = ["ContinualSum", "EndlessSum", "Gathered", "GatheredSums", "SumServer", "TreeServer"]
