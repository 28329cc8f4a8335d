"""The parts of a plan as they stand in its file."""

from __future__ import annotations

from typing import Any

from overhand import errors
from overhand.mechanisms import BinarySum
from overhand.randomness import BinaryFraction
from overhand.trees import PathTree, RegularTree, Tree


def mechanism_entry(mechanism: BinarySum) -> dict[str, Any]:
    """A mechanism as JSON keeps it: its probability as two whole numbers."""
    p = mechanism.noise_probability
    return {
        "size": mechanism.size,
        "noise_bits": mechanism.noise_bits,
        "noise_probability": [p.numerator, p.bits],
        "opposed": mechanism.opposed,
    }


def mechanism_of(saved: dict[str, Any]) -> BinarySum:
    """The mechanism of an entry."""
    numerator, bits = saved["noise_probability"]
    probability = BinaryFraction(numerator, bits)
    return BinarySum(saved["size"], saved["noise_bits"], probability, bool(saved["opposed"]))


def tree_of(horizon: int, description: dict[str, Any]) -> Tree:
    """The tree of a description."""
    kind = description.pop("kind")
    if kind == "regular":
        return RegularTree(horizon, tuple(description["degrees"]))
    if kind == "path":
        return PathTree(horizon, **description)
    raise errors.InvalidValue(f"tree {kind!r} is unknown")
