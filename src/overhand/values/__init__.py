"""What users hold: bits, reals, vectors, matrices, one of many buckets; and how it is checked."""

from overhand.values.kind import Values, finite_array
from overhand.values.scalars import BITS, Bits, Histogram, Reals
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
    "Bits",
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
