"""Which batches' noise an estimate has, and what two estimates of one run share of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from overhand import errors
from overhand.model import Floats, Node
from overhand.tree import RegularTree

if TYPE_CHECKING:
    from overhand.estimates.estimate import Estimate

_ADDED_ANEW = 1e-9  # of a sum of variances that were added in another order
_SAME = 1e-12  # of a variance that cancelled out


class RunInfo(Protocol):
    """One run of a plan: estimates of runs of different names have nothing in common.

    >>> run: RunInfo = TreeRun("a", RegularTree(2, (2,)), (1.0,), variances=(4.0,), fourths=(0.0,))
    >>> whole = Segment(run, 0, 2, pending=0, imputed=0.0, variance=4.0)
    >>> run.name, run.share(whole, whole)
    ('a', [SharedNoise(left=1.0, right=1.0, variance=4.0, fourth=0.0)])
    """

    @property
    def name(self) -> str: ...

    def share(self, one: Segment, other: Segment) -> list[SharedNoise] | None:
        """What noise two estimates of this run have in common; None if that is unknown."""


@dataclass(frozen=True)
class TreeRun:
    """One run of a plan with a tree: what is known in advance about its nodes' estimates, by level.

    A node's estimate is w times its own sum and 1 - w times the sum of its children's estimates. So
    those of two nodes have noise in common only if one is below the other; then the upper one holds
    the lower one's estimate, times the product of 1 - w along the way.

    >>> tree = RegularTree(horizon=8, degrees=(2, 2))
    >>> run = TreeRun("a", tree, own_weights=(1.0, 0.5), variances=(1.0, 1.0), fourths=(0.0, 0.0))
    >>> first = Segment(run, 0, 4, pending=0, imputed=0.0, variance=1.0)
    >>> half = Segment(run, 0, 2, pending=0, imputed=0.0, variance=1.0)
    >>> find_shared_noise((first,), (half,))
    [SharedNoise(left=0.5, right=1.0, variance=1.0, fourth=0.0)]
    """

    name: str
    tree: RegularTree
    own_weights: tuple[float, ...]
    variances: tuple[float, ...]
    fourths: tuple[float, ...]
    """Fourth cumulants."""

    def weight_in(self, upper: int, lower: int) -> float:
        """How much of a node's estimate is that of one below it, by their levels."""
        return math.prod(1 - weight for weight in self.own_weights[lower:upper])

    def share(self, one: Segment, other: Segment) -> list[SharedNoise] | None:
        """Batches do not reach beyond the users of an estimate: others share nothing."""
        if not _overlap(one, other):
            return []
        mine, theirs = one.nodes(self), other.nodes(self)
        if mine is None or theirs is None:
            return None
        shared = list[SharedNoise]()
        for (left, right), pairs in Counter(_nested_levels(mine, theirs)).items():
            lower = min(left, right)
            weights = self.weight_in(left, lower), self.weight_in(right, lower)
            law = pairs * self.variances[lower - 1], pairs * self.fourths[lower - 1]
            shared.append(SharedNoise(one.weight * weights[0], other.weight * weights[1], *law))
        return shared


class SharedNoise(NamedTuple):
    """Noise that two estimates have in common, times `left` in one and `right` in the other.

    Or, of correlated noise, their covariance, which may be negative.

    >>> from overhand.estimates import Estimate
    >>> one, other = Estimate(4, 10.0, 2.0), Estimate(8, 14.0, 3.0)
    >>> pair = Pair(one, other, [SharedNoise(left=1.0, right=1.0, variance=4.0, fourth=0.0)])
    >>> round(pair.noise(times=1)[0] ** 2, 6)  # 4 + 9 - 2 x 4
    5.0
    """

    left: float
    right: float
    variance: float
    fourth: float


class Segment(NamedTuple):
    """Consecutive users of a run, and how an estimate counts them: times `weight`.

    `pending` of them are in none of its batches: `imputed` was added for these. The sums of batches
    may be off by `bias_bound` beyond their noise. `coordinate` is the only one that the estimate
    has, if it has not all. `rows` says which noise of the services is in it, if any is.

    >>> run = TreeRun("a", RegularTree(8, (2, 2)), (1.0, 0.5), (1.0, 1.0), (0.0, 0.0))
    >>> Segment(run, 0, 7, pending=1, imputed=0.5, variance=2.0).nodes(run)
    [Node(level=2, start=0, stop=4), Node(level=1, start=4, stop=6)]
    """

    run: RunInfo
    start: int
    stop: int
    pending: int
    imputed: Any
    variance: float
    bias_bound: float = 0.0
    weight: float = 1.0
    coordinate: int | None = None
    rows: Any = None

    def nodes(self, run: TreeRun) -> list[Node] | None:
        """The nodes that were added up; None if they are not those that the plan says.

        That happens where batches were missing or lost. The plan's nodes have the least variance
        that an estimate of this many users can have, and no others do.
        """
        tree = run.tree
        last = self.stop - self.pending + -self.start % tree.lowest
        nodes = list(tree.cover(self.start, max(last, self.start))) if last <= self.stop else []
        is_whole = sum(node.size for node in nodes) == self.stop - self.start - self.pending
        variance = math.fsum(run.variances[node.level - 1] for node in nodes)
        if is_whole and math.isclose(variance, self.variance, rel_tol=_ADDED_ANEW):
            return nodes
        return None


class InBatches(NamedTuple):
    """What is known about the users who are not pending."""

    value: Floats
    users: int | None
    """How many there are, if that is known exactly."""
    pending: int
    bias_bound: float


Origin = tuple[Segment, ...]
"""All that an estimate is the sum of, each of another run."""


def find_shared_noise(left: Origin, right: Origin) -> list[SharedNoise] | None:
    """What two estimates share; None if that is unknown."""
    found: list[SharedNoise] = []
    for one in left:
        for other in right:
            coordinates = {one.coordinate, other.coordinate} - {None}
            if one.run.name != other.run.name or len(coordinates) > 1:
                continue
            shared = one.run.share(one, other)
            if shared is None:
                return None
            found += shared
    return found


def have_users_in_common(left: Origin, right: Origin) -> bool:
    """Whether some users are in both."""
    return any(_overlap(one, other) for one in left for other in right)


def _overlap(one: Segment, other: Segment) -> bool:
    is_beside = one.stop <= other.start or other.stop <= one.start
    return one.run.name == other.run.name and not is_beside


def _nested_levels(mine: Sequence[Node], theirs: Sequence[Node]) -> Iterator[tuple[int, int]]:
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


class Pair(NamedTuple):
    """Two estimates, and what noise they share; None if that is unknown.

    Then they are assumed to share whatever makes the result worst.
    """

    left: Estimate
    right: Estimate
    shared: list[SharedNoise] | None

    @classmethod
    def of(cls, left: Estimate, right: Estimate, what: str) -> Pair:
        """For a sum, a difference or a ratio, refused unless both are of the same coordinates."""
        if not hasattr(right, "origin"):
            raise errors.InvalidValue(
                f"no {what} of an estimate and {right!r}: both must be estimates"
            )
        shapes, kinds = (np.shape(left.value), np.shape(right.value)), (left.values, right.values)
        if shapes[0] != shapes[1]:
            raise errors.InvalidValue(
                f"no {what} of estimates of shapes {shapes[0]} and {shapes[1]}"
            )
        if shapes[0] and None not in kinds and kinds[0] != kinds[1]:
            raise errors.InvalidValue(f"no {what} of estimates of {kinds[0]} and {kinds[1]}")
        if left.std == 0 or right.std == 0:
            return cls(left, right, [])
        if left.origin is None or right.origin is None:
            return cls(left, right, None)
        return cls(left, right, find_shared_noise(left.origin, right.origin))

    def noise(self, times: float) -> tuple[float, float]:
        """Standard deviation and kurtosis of left - times * right; of their sum, if it is -1."""
        one, other = self.left, self.right
        if self.shared is None:
            std = one.std + abs(times) * other.std
            return std, max(one.kurtosis, other.kurtosis)
        variance = one.std**2 + (times * other.std) ** 2
        fourth = one.kurtosis * one.std**4 + other.kurtosis * (times * other.std) ** 4
        for left, right, of_both, fourth_of_both in self.shared:
            right *= times
            variance -= 2 * left * right * of_both
            fourth += ((left - right) ** 4 - left**4 - right**4) * fourth_of_both
        if variance <= _SAME * one.std**2:  # they are the same
            return 0.0, 0.0
        return math.sqrt(variance), max(0.0, fourth / variance**2)
