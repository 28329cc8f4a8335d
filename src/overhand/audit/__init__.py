"""The audit: a lower bound on epsilon, from what encoders and shufflers really do."""

from overhand.audit.attacks import STATISTICS, Answers, Attacker
from overhand.audit.audit import FAILURE_RATE, Finding, audited
from overhand.audit.bounds import (
    LossLaw,
    epsilon_shown,
    largest_epsilon,
    least_probability,
    most_probability,
    noticed_part,
)
from overhand.audit.cases import BY_SERVICES, KINDS, VALUES, Case, Deployment, OneByOne, Placement
from overhand.audit.faults import FAULTS, Fault
from overhand.audit.listening import NOTHING, Listener
from overhand.audit.lying import LyingService
from overhand.audit.scope import DEFAULT_RUNS, Scope, Verdict, verdict_on
from overhand.audit.store import ThroughStore, has_service
from overhand.audit.substituted import SubstitutedKey

__all__ = [
    "BY_SERVICES",
    "DEFAULT_RUNS",
    "FAILURE_RATE",
    "FAULTS",
    "KINDS",
    "NOTHING",
    "STATISTICS",
    "VALUES",
    "Answers",
    "Attacker",
    "Case",
    "Deployment",
    "Fault",
    "Finding",
    "Listener",
    "LossLaw",
    "LyingService",
    "OneByOne",
    "Placement",
    "Scope",
    "SubstitutedKey",
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
