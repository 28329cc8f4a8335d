"""The central model: a server that sees every value and is trusted with it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from overhand import errors
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.model import Floats, Privacy, Rows
from overhand.planning import DEFAULT_FAILURE_PROBABILITY, Plan, Requirements, best_split, calibrate
from overhand.randomness import Random, generator_of
from overhand.tree import RegularTree
from overhand.values import BITS, Values

_EXACT = 1 << 22
_FINE = 0.1


def trusted_tree(horizon: int, privacy: Privacy, *, combine: bool, values: Values = BITS) -> Plan:
    """The binary tree of Dwork et al. and Chan et al., with the server's own coins.

    It is a plan like any other, whose lowest batches are single users: nobody has to wait. With
    `combine`, nodes are combined with their children (Honaker's estimate) and the budget is split
    for that. Its coins cost nothing, so values are rounded finely.

    >>> for combine in (False, True):
    ...     plan = trusted_tree(10_000, Privacy(1.0, 1e-6), combine=combine)
    ...     print(round(plan.rms_error, 1), plan.delta_spent <= 1e-6)
    40.2 True
    28.8 True
    """
    horizon = errors.whole("horizon", horizon, least=2)
    levels = max(1, (horizon - 1).bit_length())
    tree = RegularTree(horizon, (1, *[2] * (levels - 1)))
    terms = Requirements(privacy, values=values, coarseness=_FINE)
    split = best_split(tree) if combine else np.ones(levels)
    mechanisms = calibrate(tree.sizes, list(split), terms)
    plan = Plan(tree, mechanisms, privacy, shufflers=levels)
    return plan if combine else replace(plan, combine=False)


@dataclass(frozen=True)
class _NormalNoise(ABC):
    """Normal noise of a server, for users of bounded sensitivity: exactly accounted."""

    horizon: int
    privacy: Privacy
    values: Values = BITS

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)

    @property
    @abstractmethod
    def shift(self) -> float:
        """How far in l2 a user of sensitivity 1 can move what noise is added to."""

    @property
    @abstractmethod
    def worst_std(self) -> float:
        """The standard deviation of a coordinate of the sum, where it is largest."""

    @cached_property
    def step_std(self) -> float:
        """The standard deviation of every normal variable that is drawn."""
        return self.shift * self.values.sensitivity.norm / gaussian_mu(self.privacy)

    @property
    def delta_spent(self) -> float:
        """The exact delta of the Gaussian mechanism on all that is released."""
        shift = self.shift * self.values.sensitivity.norm / self.step_std
        return gaussian_delta(shift, self.privacy.epsilon)

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Normal tails and a union bound over all times and coordinates."""
        chance = errors.finite_number("failure_probability", failure_probability, above=0, below=1)
        estimates = self.horizon * self.values.dimension
        return self.worst_std * math.sqrt(2 * math.log(2 * estimates / chance))


@dataclass(frozen=True)
class GaussianTree(_NormalNoise):
    """A node for every dyadic batch of users, single users included, each with noise N(0, s^2).

    A user is in one node per level, so s = sensitivity sqrt(levels) / mu, exactly.
    The sum at t has as many nodes as t has binary ones.

    >>> tree = GaussianTree(horizon=1000, privacy=Privacy(1.0, 1e-6), values=BITS)
    >>> tree.levels, [round(tree.std(t), 1) for t in (511, 512)], f"{tree.delta_spent:.1e}"
    (10, [40.1, 13.4], '1.0e-06')
    """

    @property
    def levels(self) -> int:
        """Of these, the root is none: what it says comes too late."""
        return max(1, (self.horizon - 1).bit_length())

    @property
    def shift(self) -> float:
        return math.sqrt(self.levels)

    @property
    def worst_std(self) -> float:
        return self.step_std * math.sqrt(max(self.levels, self._nodes_at(self.horizon)))

    def std(self, t: int) -> float:
        """The standard deviation of a coordinate of the sum at t."""
        return self.step_std * math.sqrt(self._nodes_at(t))

    def _nodes_at(self, t: int) -> int:
        """Nodes in the cover: without a root, a full tree is its two halves."""
        return 2 if t == 1 << self.levels else t.bit_count()

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
                self._nodes[level] = self._draw() if t >> level & 1 else 0.0
            if t == self._whole:
                first = self._draw() if self._first_half is None else self._first_half
                self._nodes[-1] = first + self._draw()
            elif t >= self._whole // 2 > self._t:
                self._first_half = self._nodes[-1].copy()
            self._t = t
        return np.asarray(self._nodes.sum(axis=0))

    def _draw(self) -> Floats:
        return self._random.normal(0.0, self._tree.step_std, self._nodes.shape[1:])


@dataclass(frozen=True)
class SquareRoot(_NormalNoise):
    """The square-root factorisation (Fichtenberger, Henzinger and Upadhyay 2023).

    The lower triangular matrix of ones is L L with the Toeplitz coefficients
    c_j = C(2j, j) / 4^j; the noise of the sums is L z with z normal. With
    A_t = c_0^2 + ... + c_{t-1}^2, a user moves L x by at most sqrt(A_n), and the noise at t has
    variance A_n A_t / mu^2. It is the best trusted server known, and needs all users' values.

    The combined binary tree of `trusted_tree` has 28.8:

    >>> best = SquareRoot(horizon=10_000, privacy=Privacy(1.0, 1e-6))
    >>> round(best.rms_error, 1), f"{best.delta_spent:.1e}"
    (16.2, '1.0e-06')
    """

    messages_per_user: ClassVar[int] = 1

    @cached_property
    def _squares(self) -> tuple[float, float]:
        """A_n, and the mean of A_t over t = 1 .. n."""
        exact = min(self.horizon, _EXACT)
        squares = _coefficients(exact) ** 2
        total = float(squares.sum())
        # sum over t of A_t = sum over j of (n - j) c_j^2
        moment = float((squares * np.arange(exact)).sum())
        if self.horizon > exact:
            # c_j^2 = 1 / (pi j) up to a relative 1 / (4 j): below 1e-7 from here on.
            total += math.log(self.horizon / exact) / math.pi
            moment += (self.horizon - exact) / math.pi
        return total, total - moment / self.horizon

    @property
    def shift(self) -> float:
        return math.sqrt(self._squares[0])

    @property
    def rms_error(self) -> float:
        return self.step_std * math.sqrt(self._squares[1])

    @property
    def worst_std(self) -> float:
        return self.step_std * self.shift

    def start(self, random: Random) -> SquareRootRun:
        """A run over a stream: only a simulation, as its noise is not made of integers."""
        generator = generator_of(random)
        if self.horizon * self.values.dimension > _EXACT * 8:
            raise errors.Infeasible(
                f"a run over {self.horizon} users would hold all its noise in memory"
            )
        return SquareRootRun(self, generator)


class SquareRootRun:
    """The running sum with the noise L z."""

    granularity = 1

    def __init__(self, factorisation: SquareRoot, random: np.random.Generator) -> None:
        horizon, values = factorisation.horizon, factorisation.values
        self._values = values
        steps = random.normal(0.0, factorisation.step_std, (horizon, *values.shape))
        size = next_fast_len(2 * horizon, real=True)
        coefficients = rfft(_coefficients(horizon), size).reshape(-1, *[1] * len(values.shape))
        spectrum = rfft(steps, size, axis=0)
        spectrum *= coefficients
        self._noise: Floats = irfft(spectrum, size, axis=0)[:horizon]
        self._t = 0
        self._sum: Any = 0

    def estimates(self, rows: Rows) -> Floats:
        sums = self._sum + self._values.running_sums(rows)
        noise = self._noise[self._t : self._t + len(rows)]
        self._t += len(rows)
        self._sum = sums[-1]
        return np.asarray(sums + noise)


def _coefficients(count: int) -> Floats:
    """c_0 .. c_{count-1} by c_j = c_{j-1} (1 - 1 / (2j))."""
    factors = 1 - 1 / (2 * np.arange(1, count))
    return np.concatenate([[1.0], np.cumprod(factors)])
