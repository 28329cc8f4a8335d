"""What the algorithm is compared with: same interface, same accounting, each at its best."""

from overhand.baselines.growing import GrowingBatches
from overhand.baselines.local import GaussianResponse, LocalResponse, LocalSum, SubsetResponse
from overhand.baselines.local_reals import WindowResponse
from overhand.baselines.local_vectors import CapResponse, local_counter
from overhand.baselines.trusted import GaussianTree, SquareRoot, trusted_tree

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
