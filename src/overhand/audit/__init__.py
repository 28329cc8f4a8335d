"""The audit: a lower bound on epsilon, from what encoders and shufflers really do."""

from overhand.audit.attacks import STATISTICS
from overhand.audit.audit import FAILURE_RATE, Event, Finding, Shown, audited
from overhand.audit.bounds import (
    largest_epsilon,
    least_epsilon,
    least_probability,
    most_probability,
)
from overhand.audit.cases import KINDS, VALUES, Case, Kind, affordable, cases
from overhand.audit.deployment import Deployment, OneByOne
from overhand.audit.faults import FAULTS, Fault, thinned
from overhand.audit.power import LossLaw, noticed_part
from overhand.audit.report import DEFAULT_RUNS, Job, Scope, Verdict, verdict_on

__all__ = [
    "DEFAULT_RUNS",
    "FAILURE_RATE",
    "FAULTS",
    "KINDS",
    "STATISTICS",
    "VALUES",
    "Case",
    "Deployment",
    "Event",
    "Fault",
    "Finding",
    "Job",
    "Kind",
    "LossLaw",
    "OneByOne",
    "Scope",
    "Shown",
    "Verdict",
    "affordable",
    "audited",
    "cases",
    "largest_epsilon",
    "least_epsilon",
    "least_probability",
    "most_probability",
    "noticed_part",
    "thinned",
    "verdict_on",
]
