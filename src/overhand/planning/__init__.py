"""What to run and how accurate it will be."""

from overhand.planning.batch_sums import (
    DEFAULT_FAILURE_PROBABILITY,
    NodeSum,
    chernoff_bound,
    run_of,
)
from overhand.planning.blocks import BlockErrors, Intervals, Rows
from overhand.planning.costs import (
    DIGEST_BYTES,
    HEADER_BYTES,
    ID_BYTES,
    SEAL_BYTES,
    report_bytes,
)
from overhand.planning.plan import Plan, fields_of, parameters
from overhand.planning.requirements import (
    MECHANISM_KINDS,
    TREE_KINDS,
    Composition,
    Delay,
    Objective,
    Requirements,
    TreeKind,
    check_epsilon,
    kinds_of,
)
from overhand.planning.search import (
    best_split,
    calibrate,
    levels_of,
    with_best_laplace,
)

__all__ = [
    "DEFAULT_FAILURE_PROBABILITY",
    "DIGEST_BYTES",
    "HEADER_BYTES",
    "ID_BYTES",
    "MECHANISM_KINDS",
    "SEAL_BYTES",
    "TREE_KINDS",
    "BlockErrors",
    "Composition",
    "Delay",
    "Intervals",
    "NodeSum",
    "Objective",
    "Plan",
    "Requirements",
    "Rows",
    "TreeKind",
    "best_split",
    "calibrate",
    "check_epsilon",
    "chernoff_bound",
    "fields_of",
    "kinds_of",
    "levels_of",
    "parameters",
    "report_bytes",
    "run_of",
    "with_best_laplace",
]
