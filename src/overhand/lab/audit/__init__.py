"""The audit: a lower bound on epsilon, from what encoders and shufflers really do."""

from overhand.lab.audit.attacks import NOTHING, STATISTICS
from overhand.lab.audit.audit import FAILURE_RATE, Finding
from overhand.lab.audit.cases import EXPECTED_BLOCKS, KINDS, VALUES
from overhand.lab.audit.scope import DEFAULT_RUNS, Scope, verdict_on

__all__ = [
    "DEFAULT_RUNS",
    "EXPECTED_BLOCKS",
    "FAILURE_RATE",
    "KINDS",
    "NOTHING",
    "STATISTICS",
    "VALUES",
    "Finding",
    "Scope",
    "verdict_on",
]
