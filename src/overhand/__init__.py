"""Private running counts without a trusted server, from shufflers that work side by side."""

from overhand.errors import (
    DamagedPlan,
    Infeasible,
    InvalidValue,
    OverhandError,
    ProtocolViolation,
)
from overhand.mechanisms import BinarySum
from overhand.model import Estimate, Node, Privacy
from overhand.plan import Plan
from overhand.randomness import secure_random, seeded_random
from overhand.shufflers import ConcurrentShufflers, Shuffler
from overhand.summation import ContinualSum, EndlessSum, SumServer, TreeServer
from overhand.trees import PathTree, RegularTree

__version__ = "0.1.0"

__all__ = [
    "BinarySum",
    "ConcurrentShufflers",
    "ContinualSum",
    "DamagedPlan",
    "EndlessSum",
    "Estimate",
    "Infeasible",
    "InvalidValue",
    "Node",
    "OverhandError",
    "PathTree",
    "Plan",
    "Privacy",
    "ProtocolViolation",
    "RegularTree",
    "Shuffler",
    "SumServer",
    "TreeServer",
    "secure_random",
    "seeded_random",
]
