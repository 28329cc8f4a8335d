"""What to run and how good it will be."""

from overhand.plan.estimator import DEFAULT_FAILURE_PROBABILITY
from overhand.plan.levels import Composition
from overhand.plan.plan import Plan
from overhand.plan.search import TREE_KINDS, TreeKind

__all__ = ["DEFAULT_FAILURE_PROBABILITY", "TREE_KINDS", "Composition", "Plan", "TreeKind"]
