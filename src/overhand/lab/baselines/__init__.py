"""What the algorithm is compared with: same interface, same accounting, each at its best."""

from overhand.lab.baselines.local import CapResponse, GaussianResponse, LocalSum, local_counter
from overhand.lab.baselines.trusted import GaussianTree, SquareRoot, trusted_tree

__all__ = [
    "CapResponse",
    "GaussianResponse",
    "GaussianTree",
    "LocalSum",
    "SquareRoot",
    "local_counter",
    "trusted_tree",
]
