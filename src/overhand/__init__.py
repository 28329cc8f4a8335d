"""Private running counts without a trusted server, from shufflers that work side by side."""

from overhand.errors import (
    DamagedPlan,
    Infeasible,
    InvalidValue,
    OverhandError,
    ProtocolViolation,
)
from overhand.estimates import Estimate
from overhand.mechanisms import CoinSum
from overhand.model import Node, Privacy
from overhand.plan import Plan
from overhand.randomness import secure_random, seeded_random
from overhand.shufflers import ConcurrentShufflers, Shuffler
from overhand.summation import ContinualSum, EndlessSum, SumServer, TreeServer
from overhand.trees import RegularTree
from overhand.values import (
    Binned,
    Bits,
    Grouped,
    Histogram,
    Moments,
    Reals,
    SymmetricMatrices,
    Values,
    Vectors,
)

__version__ = "0.1.0"

__all__ = [
    "Binned",
    "Bits",
    "CoinSum",
    "ConcurrentShufflers",
    "ContinualSum",
    "DamagedPlan",
    "EndlessSum",
    "Estimate",
    "Grouped",
    "Histogram",
    "Infeasible",
    "InvalidValue",
    "Moments",
    "Node",
    "OverhandError",
    "Plan",
    "Privacy",
    "ProtocolViolation",
    "Reals",
    "RegularTree",
    "Shuffler",
    "SumServer",
    "SymmetricMatrices",
    "TreeServer",
    "Values",
    "Vectors",
    "secure_random",
    "seeded_random",
]
