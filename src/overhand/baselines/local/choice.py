"""Which local mechanism is the best for which values."""

from __future__ import annotations

from overhand import errors
from overhand.baselines.local.answers import LocalSum
from overhand.baselines.local.bits import LocalResponse
from overhand.baselines.local.caps import CapResponse
from overhand.baselines.local.gaussian import GaussianResponse
from overhand.baselines.local.subsets import SubsetResponse
from overhand.baselines.local.windows import WindowResponse
from overhand.model import Privacy
from overhand.values import Bits, Histogram, Moments, Reals, SymmetricMatrices, Values, Vectors


def local_counter(horizon: int, privacy: Privacy, values: Values) -> LocalSum:
    """The best known local mechanism for this kind of value.

    >>> from overhand.values import values_of
    >>> for spec in ("bit", "real", "vector:20", "histogram:200"):
    ...     local = local_counter(1000, Privacy(1.0, 1e-6), values_of(spec))
    ...     print(spec, type(local).__name__, round(local.user_variance, 3))
    bit LocalResponse 0.921
    real WindowResponse 1.003
    vector:20 CapResponse 6.158
    histogram:200 SubsetResponse 3.641
    """
    if isinstance(values, Bits):
        return LocalResponse.best(horizon, privacy)
    best = _without_delta(horizon, privacy, values)
    normal = GaussianResponse(horizon, values, privacy)
    return min(best, normal, key=lambda counter: counter.user_variance)


def _without_delta(horizon: int, privacy: Privacy, values: Values) -> LocalSum:
    match values:
        case Histogram():
            return SubsetResponse.best(horizon, privacy, values)
        case Reals():
            return WindowResponse.best(horizon, privacy, values)
        case Vectors() | SymmetricMatrices() if values.dimension == 1:
            return WindowResponse.best(horizon, privacy, values)
        case Vectors() | SymmetricMatrices() | Moments():
            return CapResponse.best(horizon, privacy, values)
        case _:
            raise errors.InvalidValue(f"no local mechanism for {values}")
