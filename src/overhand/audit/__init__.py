"""The audit: a lower bound on epsilon, from what encoders and shufflers really do."""

from overhand.audit.attacks import STATISTICS, Answers, Attacker
from overhand.audit.audit import (
    DEFAULT_RUNS,
    FAILURE_RATE,
    Finding,
    Scope,
    Verdict,
    audited,
    verdict_on,
)
from overhand.audit.bounds import (
    LossLaw,
    epsilon_shown,
    largest_epsilon,
    least_probability,
    most_probability,
    noticed_part,
)
from overhand.audit.cases import KINDS, VALUES, Case, Deployment, OneByOne
from overhand.audit.faults import FAULTS, Fault
from overhand.audit.listening import NOTHING, Listener
from overhand.audit.store import STORE_FAULTS, ThroughStore, has_service

__all__ = [
    "DEFAULT_RUNS",
    "FAILURE_RATE",
    "FAULTS",
    "KINDS",
    "NOTHING",
    "STATISTICS",
    "STORE_FAULTS",
    "VALUES",
    "Answers",
    "Attacker",
    "Case",
    "Deployment",
    "Fault",
    "Finding",
    "Listener",
    "LossLaw",
    "OneByOne",
    "Scope",
    "ThroughStore",
    "Verdict",
    "audited",
    "epsilon_shown",
    "has_service",
    "largest_epsilon",
    "least_probability",
    "most_probability",
    "noticed_part",
    "verdict_on",
]
