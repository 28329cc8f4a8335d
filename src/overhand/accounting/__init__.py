"""What a mechanism costs, and what all the batches of one user cost together."""

from overhand.accounting.composition import (
    MOST_REPORTS,
    SMALLEST_DELTA,
    Level,
    advanced_share,
    certified_delta,
    check_delta,
)
from overhand.accounting.divergence import (
    delta,
    hockey_stick,
    satisfies,
    shifted_pair,
)
from overhand.accounting.domination import dominated_delta
from overhand.accounting.gaussian import gaussian_delta, gaussian_mu, gaussian_variance
from overhand.accounting.guarantee import (
    leaked_delta,
    least_scale,
    quick_delta,
    spent_delta,
    spent_epsilon,
)

__all__ = [
    "MOST_REPORTS",
    "SMALLEST_DELTA",
    "Level",
    "advanced_share",
    "certified_delta",
    "check_delta",
    "delta",
    "dominated_delta",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_variance",
    "hockey_stick",
    "leaked_delta",
    "least_scale",
    "quick_delta",
    "satisfies",
    "shifted_pair",
    "spent_delta",
    "spent_epsilon",
]
