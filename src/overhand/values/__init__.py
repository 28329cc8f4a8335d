"""What users hold: bits, reals, vectors, matrices, buckets, groups; and how they are checked."""

from overhand.values.buckets import Binned, Buckets, Histogram
from overhand.values.groups import Grouped
from overhand.values.kind import BITS, Bits, Quantizer, Reals, Sensitivity, Values, finite_array
from overhand.values.spec import FORMS, values_of
from overhand.values.vectors import (
    TOLERANCE,
    RegressionStatistics,
    SymmetricMatrices,
    Vectors,
    check_norms,
    pack,
    unpack,
)

__all__ = [
    "BITS",
    "FORMS",
    "TOLERANCE",
    "Binned",
    "Bits",
    "Buckets",
    "Grouped",
    "Histogram",
    "Quantizer",
    "Reals",
    "RegressionStatistics",
    "Sensitivity",
    "SymmetricMatrices",
    "Values",
    "Vectors",
    "check_norms",
    "finite_array",
    "pack",
    "unpack",
    "values_of",
]
