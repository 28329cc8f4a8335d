"""The trusted server of Shariff and Sheffet (2018): a binary tree of normal noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.model import Privacy
from overhand.plan import DEFAULT_FAILURE_PROBABILITY
from overhand.values import Values

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GaussianTree:
    """A node for every dyadic batch of users, single users included, each with noise N(0, s^2).

    A user is in one node a level, so s = sensitivity sqrt(levels) / mu for the guarantee, exactly.
    The sum at t has as many nodes as t has binary ones.

    >>> from overhand.values import BITS
    >>> tree = GaussianTree(horizon=1000, privacy=Privacy(1.0, 1e-6), values=BITS)
    >>> tree.levels, [round(tree.std(t), 1) for t in (511, 512)], f"{tree.delta_spent:.1e}"
    (10, [40.1, 13.4], '1.0e-06')
    """

    horizon: int
    privacy: Privacy
    values: Values

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)

    @property
    def levels(self) -> int:
        """Of these, the root is none: what it says comes too late."""
        return max(1, (self.horizon - 1).bit_length())

    @cached_property
    def node_std(self) -> float:
        return self.values.sensitivity * math.sqrt(self.levels) / gaussian_mu(self.privacy)

    @property
    def delta_spent(self) -> float:
        """The exact delta of the Gaussian mechanism on all levels at once."""
        moved = self.values.sensitivity * math.sqrt(self.levels) / self.node_std
        return gaussian_delta(moved, self.privacy.epsilon)

    def std(self, t: int) -> float:
        """The standard deviation of a coordinate of the sum at t."""
        return self.node_std * math.sqrt(self._terms(t))

    def _terms(self, t: int) -> int:
        """Nodes in the cover: without a root, a full tree is its two halves."""
        return 2 if t == 1 << self.levels else t.bit_count()

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Normal tails and a union bound over all times and coordinates."""
        failure_probability = errors.number(
            "failure_probability", failure_probability, above=0, below=1
        )
        events = math.log(2 * self.horizon * self.values.dimension / failure_probability)
        most = max(self.levels, self._terms(self.horizon))
        return self.node_std * math.sqrt(2 * most * events)

    def noise(self, random: np.random.Generator, shape: tuple[int, ...]) -> GaussianTreeNoise:
        """The noise of arrays of sums, drawn as it is asked for."""
        return GaussianTreeNoise(self, random, shape)


class GaussianTreeNoise:
    """The noise of the cover, of which a node is drawn when it first is in a cover asked for.

    Level l has a node in the cover where bit l of t is set, and it is the same node as before if
    no higher bit has changed.
    """

    def __init__(
        self, tree: GaussianTree, random: np.random.Generator, shape: tuple[int, ...]
    ) -> None:
        self._tree = tree
        self._random = random
        self._nodes = np.zeros((tree.levels, *shape))
        self._whole = 1 << tree.levels
        self._first_half: Floats | None = None
        self._t = 0

    def at(self, t: int) -> Floats:
        """At a time no earlier than the one before."""
        if t != self._t:
            for level in range(min((t ^ self._t).bit_length(), self._tree.levels)):
                self._nodes[level] = self._drawn() if t >> level & 1 else 0.0
            if t == self._whole:
                first = self._drawn() if self._first_half is None else self._first_half
                self._nodes[-1] = first + self._drawn()
            elif t >= self._whole // 2 > self._t:
                self._first_half = self._nodes[-1].copy()
            self._t = t
        return np.asarray(self._nodes.sum(axis=0))

    def _drawn(self) -> Floats:
        return self._random.normal(0.0, self._tree.node_std, self._nodes.shape[1:])
