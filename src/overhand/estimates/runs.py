"""Which batches' noise an estimate has: what two estimates of one run share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from overhand.model import Floats, Node
from overhand.trees import RegularTree

_ROUNDING = 1e-9  # of a sum of variances that were added in another order


@dataclass(frozen=True)
class Run:
    """One run of a plan: what is known in advance about its nodes' estimates, by level.

    Estimates of runs of different names have nothing in common. A node's estimate is w times its
    own sum and 1 - w times the sum of its children's estimates. So those of two nodes have noise in
    common only if one is below the other; then the upper one holds the lower one's estimate, times
    the product of 1 - w along the way.

    >>> tree = RegularTree(horizon=8, degrees=(2, 2))
    >>> run = Run("a", tree, own_weights=(1.0, 0.5), variances=(1.0, 1.0), fourths=(0.0, 0.0))
    >>> first = Stretch(run, 0, 4, pending=0, imputed=0.0, variance=1.0)
    >>> half = Stretch(run, 0, 2, pending=0, imputed=0.0, variance=1.0)
    >>> common((first,), (half,))
    [Common(left=0.5, right=1.0, variance=1.0, fourth=0.0)]
    """

    name: str
    tree: RegularTree
    own_weights: tuple[float, ...]
    variances: tuple[float, ...]
    fourths: tuple[float, ...]
    """Fourth cumulants."""

    def part_of(self, upper: int, lower: int) -> float:
        """How much of a node's estimate is that of one below it, by their levels."""
        return math.prod(1 - weight for weight in self.own_weights[lower:upper])


class Common(NamedTuple):
    """Noise that two estimates have in common, times `left` in one and `right` in the other."""

    left: float
    right: float
    variance: float
    fourth: float


class Stretch(NamedTuple):
    """Consecutive users of a run, and how an estimate counts them: times `weight`.

    `pending` of them are in none of its batches: `imputed` was added for these. The sums of batches
    may be off by `slack` beyond their noise. `coordinate` is the only one that the estimate has, if
    it has not all.

    >>> run = Run("a", RegularTree(8, (2, 2)), (1.0, 0.5), (1.0, 1.0), (0.0, 0.0))
    >>> Stretch(run, 0, 7, pending=1, imputed=0.5, variance=2.0).nodes()
    [Node(level=2, start=0, stop=4), Node(level=1, start=4, stop=6)]
    """

    run: Run
    start: int
    stop: int
    pending: int
    imputed: Any
    variance: float
    slack: float = 0.0
    weight: float = 1.0
    coordinate: int | None = None

    def nodes(self) -> list[Node] | None:
        """The nodes that were added up; None if they are not those that the plan says.

        That happens where batches were missing or lost. The plan's nodes have the least variance
        that an estimate of this many users can have, and no others do.
        """
        tree = self.run.tree
        last = self.stop - self.pending + -self.start % tree.lowest
        nodes = list(tree.cover(self.start, max(last, self.start))) if last <= self.stop else []
        is_whole = sum(node.size for node in nodes) == self.stop - self.start - self.pending
        variance = math.fsum(self.run.variances[node.level - 1] for node in nodes)
        if is_whole and math.isclose(variance, self.variance, rel_tol=_ROUNDING):
            return nodes
        return None


class InBatches(NamedTuple):
    """What is known about the users who are not pending."""

    value: Floats
    users: int | None
    """How many there are, if that is known exactly."""
    pending: int
    slack: float


Origin = tuple[Stretch, ...]
"""All that an estimate is the sum of, each of another run."""


def common(left: Origin, right: Origin) -> list[Common] | None:
    """What two estimates share; None if that is unknown."""
    found: list[Common] = []
    for one in left:
        for other in right:
            if _are_apart(one, other):
                continue
            mine, theirs = one.nodes(), other.nodes()
            if mine is None or theirs is None:
                return None
            found += _nested(one, mine, other, theirs)
    return found


def have_users_in_common(left: Origin, right: Origin) -> bool:
    """Whether some users are in both."""
    return any(_overlap(one, other) for one in left for other in right)


def _overlap(one: Stretch, other: Stretch) -> bool:
    is_beside = one.stop <= other.start or other.stop <= one.start
    return one.run.name == other.run.name and not is_beside


def _are_apart(one: Stretch, other: Stretch) -> bool:
    """Whether they are of other users, or other coordinates: batches do not reach beyond them."""
    if not _overlap(one, other):
        return True
    both = one.coordinate is not None and other.coordinate is not None
    return both and one.coordinate != other.coordinate


def _nested(
    one: Stretch, mine: Sequence[Node], other: Stretch, theirs: Sequence[Node]
) -> Iterator[Common]:
    run = one.run
    for (left, right), pairs in Counter(_overlaps(mine, theirs)).items():
        lower = min(left, right)
        yield Common(
            one.weight * run.part_of(left, lower),
            other.weight * run.part_of(right, lower),
            pairs * run.variances[lower - 1],
            pairs * run.fourths[lower - 1],
        )


def _overlaps(mine: Sequence[Node], theirs: Sequence[Node]) -> Iterator[tuple[int, int]]:
    """The levels of all pairs of nodes that are nested, both lists being in order."""
    i = j = 0
    while i < len(mine) and j < len(theirs):
        left, right = mine[i], theirs[j]
        if left.start < right.stop and right.start < left.stop:
            yield left.level, right.level
        if left.stop <= right.stop:
            i += 1
        if right.stop <= left.stop:
            j += 1
