"""From a tree and a guarantee to one mechanism for every batch size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from overhand import errors
from overhand.accounting import (
    MOST_REPORTS,
    Level,
    advanced_share,
    certified_delta,
    check_delta,
    gaussian_variance,
    least_scale,
    simple_share,
)
from overhand.mechanisms import BinarySum
from overhand.model import Privacy
from overhand.trees import Tree

Composition = Literal["exact", "advanced", "simple"]
Mechanisms = tuple[tuple[BinarySum, ...], ...]

_SAFETY_STEP = 2e-4
_SAFETY_STEPS = 12


@dataclass(frozen=True)
class Terms:
    """What a guarantee is stated for: the budget, and on whom it may count."""

    privacy: Privacy
    honest: float = 1.0
    reports: int = 1
    composition: Composition = "exact"

    def __post_init__(self) -> None:
        check_delta(self.privacy)
        errors.fraction("honest", self.honest)
        errors.whole("reports", self.reports, least=1, most=MOST_REPORTS)
        if self.composition not in ("exact", "advanced", "simple"):
            raise errors.InvalidValue(
                f"composition={self.composition!r} must be 'exact', 'advanced' or 'simple'"
            )

    @property
    def gaussian_variance(self) -> float:
        """What one level alone would need of Gaussian noise: where searches start."""
        return gaussian_variance(self.privacy) * self.reports**2 / self.honest

    def honest_users(self, size: int) -> int:
        """How many users of a batch surely add their noise: rounded against us."""
        users = math.floor(self.honest * size)
        if users < 1:
            raise errors.Infeasible(
                f"a batch of {size} users has no honest user if honest={self.honest:g}"
            )
        return users


def levels_of(mechanisms: Mechanisms, terms: Terms) -> list[Level]:
    """What one user takes part in, as the accountant sees it."""
    return [
        Level(tuple(m.noise(terms.honest_users(m.size)) for m in of_level), terms.reports)
        for of_level in mechanisms
    ]


def calibrated(tree: Tree, shape: Sequence[float], terms: Terms) -> Mechanisms:
    """The least noise for the guarantee, the levels' variances in proportion to `shape`.

    Under simple and advanced composition every level gets the same share on its own, and
    `shape` is not used: that is what the paper's accounting comes to with exact mechanisms.
    """
    if terms.composition == "exact":
        return _jointly(tree, shape, terms)
    share = (simple_share if terms.composition == "simple" else advanced_share)(
        terms.privacy, tree.levels
    )
    alone = Terms(share, terms.honest, terms.reports)
    return tuple(
        _jointly_sized([tree.sizes(level)], [1.0], alone)[0] for level in range(1, tree.levels + 1)
    )


def quick_scale(tree: Tree, shape: Sequence[float], terms: Terms) -> float:
    """The scale that `calibrated` comes to, uncertified: to rank trees by."""
    sizes = [tree.sizes(level)[:1] for level in range(1, tree.levels + 1)]
    return _least_scale(sizes, shape, terms, None)


def _jointly(tree: Tree, shape: Sequence[float], terms: Terms) -> Mechanisms:
    return _jointly_sized([tree.sizes(level) for level in range(1, tree.levels + 1)], shape, terms)


def _jointly_sized(
    sizes: Sequence[tuple[int, ...]], shape: Sequence[float], terms: Terms
) -> Mechanisms:
    """Search with the smallest batch of every level, then certify with all of them."""
    smallest = [of_level[:1] for of_level in sizes]
    scale = _least_scale(smallest, shape, terms, None)
    bits = [[m.noise_bits for m in of_level] for of_level in _mechanisms(sizes, shape, scale, None)]
    # A step in the number of coins can jump over delta; with the coins fixed, p meets it.
    first_bits = [of_level[:1] for of_level in bits]
    scale = min(scale, _least_scale(smallest, shape, terms, first_bits, start=scale))
    for step in range(_SAFETY_STEPS):
        mechanisms = _mechanisms(sizes, shape, scale, bits)
        if certified_delta(levels_of(mechanisms, terms), terms.privacy.epsilon) <= (
            terms.privacy.delta
        ):
            return mechanisms
        scale *= 1 + _SAFETY_STEP * 2**step
    raise errors.Infeasible(f"no certificate for {terms.privacy} near variance {scale:g}")


def _least_scale(
    sizes: Sequence[tuple[int, ...]],
    shape: Sequence[float],
    terms: Terms,
    bits: Sequence[Sequence[int]] | None,
    *,
    start: float | None = None,
) -> float:
    if start is None:
        # A variance of s g_l at level l: the sum of 1 / (s g_l) is that of one level alone.
        start = terms.gaussian_variance * math.fsum(1 / g for g in shape)

    def levels_at(scale: float) -> list[Level]:
        return levels_of(_mechanisms(sizes, shape, scale, bits), terms)

    return least_scale(levels_at, terms.privacy, start=start)


def _mechanisms(
    sizes: Sequence[tuple[int, ...]],
    shape: Sequence[float],
    scale: float,
    bits: Sequence[Sequence[int]] | None,
) -> Mechanisms:
    """A mechanism of variance `scale * shape` for every size, with the coins given or needed."""
    result: list[tuple[BinarySum, ...]] = []
    for level, (of_level, g) in enumerate(zip(sizes, shape, strict=True)):
        row: list[BinarySum] = []
        for index, size in enumerate(of_level):
            most = None if bits is None else bits[level][index]
            if most is not None and 4 * scale * g > size * most:
                most = None  # the fixed coins are all fair already: more are needed
            row.append(BinarySum.with_variance(size, scale * g, noise_bits=most))
        result.append(tuple(row))
    return tuple(result)
