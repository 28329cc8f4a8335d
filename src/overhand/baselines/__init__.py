"""What the algorithm is compared with: same interface, same accounting, each at its best."""

from overhand.baselines.local import (
    CapResponse,
    GaussianResponse,
    LocalResponse,
    SubsetResponse,
    WindowResponse,
    local_counter,
)
from overhand.baselines.trusted import SquareRoot, trusted_tree

__all__ = [
    "CapResponse",
    "GaussianResponse",
    "LocalResponse",
    "SquareRoot",
    "SubsetResponse",
    "WindowResponse",
    "local_counter",
    "trusted_tree",
]
