"""What users hold: bits, reals, vectors, matrices, buckets, groups; and how they are checked."""

from overhand.values.buckets import Binned, Buckets, Histogram
from overhand.values.groups import Grouped
from overhand.values.kind import Values, finite_array
from overhand.values.scalars import BITS, Bits, Reals
from overhand.values.spec import FORMS, values_of
from overhand.values.vectors import (
    TOLERANCE,
    Moments,
    SymmetricMatrices,
    Vectors,
    bounded,
    packed,
    unpacked,
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
    "Moments",
    "Reals",
    "SymmetricMatrices",
    "Values",
    "Vectors",
    "bounded",
    "finite_array",
    "packed",
    "unpacked",
    "values_of",
]
