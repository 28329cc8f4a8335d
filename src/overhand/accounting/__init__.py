"""What a mechanism costs, and what all the batches of one user cost together."""

from overhand.accounting.composition import (
    advanced_share,
    certified_delta,
    leaked_delta,
    least_scale,
    quick_delta,
    spent_delta,
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
from overhand.accounting.services import BlocksGuarantee

__all__ = [
    "MOST_REPORTS",
    "SMALLEST_DELTA",
    "BlocksGuarantee",
    "Level",
    "advanced_share",
    "certified_delta",
    "check_delta",
    "gaussian_delta",
    "gaussian_mu",
    "gaussian_variance",
    "leaked_delta",
    "least_scale",
    "quick_delta",
    "shifted_pair",
    "spent_delta",
]
