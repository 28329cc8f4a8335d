"""What to run and how good it will be."""

from overhand.plan.estimator import DEFAULT_FAILURE_PROBABILITY
from overhand.plan.objective import Delay, Objective
from overhand.plan.plan import Plan
from overhand.plan.recipe import MechanismKind
from overhand.plan.search import TREE_KINDS, TreeKind
from overhand.plan.terms import Composition

__all__ = [
    "DEFAULT_FAILURE_PROBABILITY",
    "TREE_KINDS",
    "Composition",
    "Delay",
    "MechanismKind",
    "Objective",
    "Plan",
    "TreeKind",
]
