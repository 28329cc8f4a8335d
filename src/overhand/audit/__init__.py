"""The audit: a lower bound on epsilon, from what encoders and shufflers really do."""

from overhand.audit.attacks import STATISTICS, Attacker
from overhand.audit.audit import FAILURE_RATE, Finding, audited
from overhand.audit.bounds import (
    largest_epsilon,
    least_epsilon,
    least_probability,
    most_probability,
)
from overhand.audit.cases import KINDS, VALUES, Case, Kind
from overhand.audit.deployment import Deployment
from overhand.audit.faults import FAULTS, Fault, thinned
from overhand.audit.power import LossLaw, noticed_part
from overhand.audit.report import DEFAULT_RUNS, Scope, Verdict, verdict_on

__all__ = [
    "DEFAULT_RUNS",
    "FAILURE_RATE",
    "FAULTS",
    "KINDS",
    "STATISTICS",
    "VALUES",
    "Attacker",
    "Case",
    "Deployment",
    "Fault",
    "Finding",
    "Kind",
    "LossLaw",
    "Scope",
    "Verdict",
    "audited",
    "largest_epsilon",
    "least_epsilon",
    "least_probability",
    "most_probability",
    "noticed_part",
    "thinned",
    "verdict_on",
]
