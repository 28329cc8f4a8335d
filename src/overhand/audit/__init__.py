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
from overhand.audit.cases import BY_SERVICES, KINDS, VALUES, Case, Deployment, OneByOne
from overhand.audit.faults import FAULTS, Fault
from overhand.audit.listening import NOTHING, Listener
from overhand.audit.lying import Alone, LowestOnly, LyingService, Replayed
from overhand.audit.scope import DEFAULT_RUNS, Scope, Verdict, verdict_on
from overhand.audit.server_faults import SERVER_FAULTS, ServerFault
from overhand.audit.service_faults import SERVICE_FAULTS
from overhand.audit.store import STORE_FAULTS, ThroughStore, has_service

__all__ = [
    "BY_SERVICES",
    "DEFAULT_RUNS",
    "FAILURE_RATE",
    "FAULTS",
    "KINDS",
    "NOTHING",
    "SERVER_FAULTS",
    "SERVICE_FAULTS",
    "STATISTICS",
    "STORE_FAULTS",
    "VALUES",
    "Alone",
    "Answers",
    "Attacker",
    "Case",
    "Deployment",
    "Fault",
    "Finding",
    "Listener",
    "LossLaw",
    "LowestOnly",
    "LyingService",
    "OneByOne",
    "Replayed",
    "Scope",
    "ServerFault",
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
