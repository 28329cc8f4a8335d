"""The local model: every user answers for itself, and nobody is trusted.

For every kind of value the best mechanism known to us. All answers are unbiased and independent,
so a running sum errs by about sqrt(t).
"""

from overhand.baselines.local.answers import LocalSum
from overhand.baselines.local.bits import LocalResponse
from overhand.baselines.local.caps import CapResponse
from overhand.baselines.local.choice import local_counter
from overhand.baselines.local.gaussian import GaussianResponse
from overhand.baselines.local.subsets import SubsetResponse
from overhand.baselines.local.windows import WindowResponse

__all__ = [
    "CapResponse",
    "GaussianResponse",
    "LocalResponse",
    "LocalSum",
    "SubsetResponse",
    "WindowResponse",
    "local_counter",
]
