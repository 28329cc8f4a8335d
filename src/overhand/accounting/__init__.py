"""What a mechanism costs, and what all the batches of one user cost together."""

from overhand.accounting.composition import (
    advanced_share,
    certified_delta,
    leaked_delta,
    least_scale,
    quick_delta,
    spent_delta,
    spent_epsilon,
)
from overhand.accounting.divergence import (
    MOST_REPORTS,
    SMALLEST_DELTA,
    Level,
    check_delta,
    gaussian_delta,
    gaussian_mu,
    gaussian_variance,
    shifted_pair,
)
from overhand.accounting.services import (
    charged_delta,
    outside_epsilon,
    services_delta,
    services_mu,
    usable_privacy,
)

__all__ = [
    "MOST_REPORTS",
    "SMALLEST_DELTA",
    "Level",
    "advanced_share",
    "certified_delta",
    "charged_delta",
    "check_delta",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_variance",
    "leaked_delta",
    "least_scale",
    "outside_epsilon",
    "quick_delta",
    "services_delta",
    "services_mu",
    "shifted_pair",
    "spent_delta",
    "spent_epsilon",
    "usable_privacy",
]
