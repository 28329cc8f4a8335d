"""What the algorithm is compared with: same interface, same accounting, each at its best."""

from overhand.baselines.local import LocalResponse, local_counter
from overhand.baselines.trusted import SquareRoot, trusted_tree

__all__ = ["LocalResponse", "SquareRoot", "local_counter", "trusted_tree"]
