"""What to run and how accurate it will be."""

from overhand.plan.calibration import (
    Draft,
    calibrated,
    fewest_messages,
    levels_of,
    with_best_laplace,
)
from overhand.plan.combination import (
    DEFAULT_FAILURE_PROBABILITY,
    Combination,
    NodeSum,
    chernoff_bound,
    combined,
    own_weight,
    run_of,
)
from overhand.plan.costs import (
    DIGEST_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    SEAL_BYTES,
    Costs,
    clear_bytes,
    report_bytes,
)
from overhand.plan.json import fields_of, parameters
from overhand.plan.objective import SQUARED_ERROR, Delay, Objective
from overhand.plan.plan import Plan
from overhand.plan.ranking import best_split
from overhand.plan.request import (
    MECHANISM_KINDS,
    MOST_EPSILON,
    NOISE_MAKERS,
    TREE_KINDS,
    Composition,
    Terms,
    TreeKind,
    check_epsilon,
    checked_tree,
    kinds_of,
)

__all__ = [
    "DEFAULT_FAILURE_PROBABILITY",
    "DIGEST_BYTES",
    "HEADER_BYTES",
    "ID_BYTES",
    "MECHANISM_KINDS",
    "MOST_EPSILON",
    "NOISE_MAKERS",
    "SEAL_BYTES",
    "SQUARED_ERROR",
    "TREE_KINDS",
    "Combination",
    "Composition",
    "Costs",
    "Delay",
    "Draft",
    "NodeSum",
    "Objective",
    "Plan",
    "Terms",
    "TreeKind",
    "best_split",
    "calibrated",
    "check_epsilon",
    "checked_tree",
    "chernoff_bound",
    "clear_bytes",
    "combined",
    "fewest_messages",
    "fields_of",
    "kinds_of",
    "levels_of",
    "own_weight",
    "parameters",
    "report_bytes",
    "run_of",
    "with_best_laplace",
]
