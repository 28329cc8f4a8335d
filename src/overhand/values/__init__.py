"""What users hold: bits, reals, vectors, matrices, one of many buckets; and how it is checked."""

from overhand.values.buckets import Histogram
from overhand.values.kind import Values
from overhand.values.scalars import BITS, Bits, Reals
from overhand.values.spec import FORMS, values_of
from overhand.values.vectors import (
    Moments,
    SymmetricMatrices,
    Vectors,
    packed,
    unpacked,
)

__all__ = [
    "BITS",
    "FORMS",
    "Bits",
    "Histogram",
    "Moments",
    "Reals",
    "SymmetricMatrices",
    "Values",
    "Vectors",
    "packed",
    "unpacked",
    "values_of",
]
