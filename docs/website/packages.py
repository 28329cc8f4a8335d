"""The public packages, in the order in which the reference has them."""

PACKAGES = (
    "overhand",
    "overhand.values",
    "overhand.estimates",
    "overhand.plan",
    "overhand.summation",
    "overhand.shufflers",
    "overhand.mechanisms",
    "overhand.trees",
    "overhand.accounting",
    "overhand.bandits",
    "overhand.baselines",
    "overhand.lower_bound",
    "overhand.simulation",
    "overhand.simulation.recorded",
    "overhand.simulation.regret",
    "overhand.audit",
    "overhand.evidence",
    "overhand.service.client",
)
