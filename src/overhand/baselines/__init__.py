"""What the algorithm is compared with: same interface, same accounting, each at its best."""

from overhand.baselines.gaussian_tree import GaussianTree
from overhand.baselines.growing import GrowingBatches
from overhand.baselines.local import (
    CapResponse,
    GaussianResponse,
    LocalResponse,
    LocalSum,
    SubsetResponse,
    WindowResponse,
    local_counter,
)
from overhand.baselines.trusted import SquareRoot, trusted_tree

__all__ = [
    "CapResponse",
    "GaussianResponse",
    "GaussianTree",
    "GrowingBatches",
    "LocalResponse",
    "LocalSum",
    "SquareRoot",
    "SubsetResponse",
    "WindowResponse",
    "local_counter",
    "trusted_tree",
]
