"""Shift and radius: what makes a Gram matrix with noise in it invertible, and how far to doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import numpy as np

from overhand import errors
from overhand.bandits.policy import Floats

_SMALL = 0.5
"""What a larger constant is made: smaller still, theta's first coordinate would be too large."""

ConstantsName = Literal["practical", "theory"]
"""Which constants: those of `Practical`, or the paper's (`Theory`)."""


class Constants(Protocol):
    """How a released sum becomes a rule; `std` is that of one coordinate of the sum's noise.

    The paper's doubt more than the whole range of rewards, where ours are soon sure:

    >>> from overhand.bandits import Theory
    >>> theory = Theory(dimension=5, horizon=100_000, entry_error=300.0)
    >>> for constants in (Practical(dimension=5), theory):
    ...     widths = constants.widths(np.array([10_000.0]), t=20_000, std=50.0)
    ...     print(round(constants.shift(t=20_000, std=50.0)), widths.round(3))
    317 [0.006]
    3000 [1.087]
    """

    @property
    def dimension(self) -> int:
        """How many features an arm has."""

    @property
    def constant(self) -> float | None:
        """The first feature of all arms, if it is the same for all: then rewards are centred."""

    @property
    def scales(self) -> Floats:
        """What features are multiplied by before they are reported."""

    def shift(self, t: int, std: float) -> float:
        """What is added to the diagonal of the Gram matrix."""

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        """How uncertain <theta, x> is for unit x along each eigenvector of the shifted matrix."""


@dataclass(frozen=True)
class Practical:
    """Constants set from the law of the noise at each time, which is known to everybody.

    With N the noise of the Gram matrix, its norm is about std sqrt(2 d), and twice that is the
    shift. The error of theta is V^-1 (reward noise + h - N theta), with h the noise of the vector:
    the first part has covariance at most s^2 V, and each coordinate of the others a variance of
    at most (1 + |theta|^2 / 2) std^2. The bonus is one standard deviation of the first and
    `exploration` of the others: a quarter does about as well as a whole (`docs/bandits.md`).

    A `constant` first feature makes two things free, for the joint sensitivity of `Moments` stays
    as it is. Rewards are learnt as 2 y - 1, at twice the signal: only theta's first coordinate
    moves. And the constant is made small, so that the other features may be larger within norm 1.

    More noise, a larger shift; and a large constant makes room for the features that tell:

    >>> [round(Practical(dimension=5).shift(t=1000, std=std)) for std in (0.0, 50.0)]
    [1, 317]
    >>> Practical(dimension=3, constant=0.9).scales.round(2)
    array([0.56, 1.99, 1.99])
    """

    dimension: int
    constant: float | None = None
    exploration: float = 0.5

    def __post_init__(self) -> None:
        errors.whole("dimension", self.dimension, least=1)
        if self.constant is not None:
            errors.number("constant", self.constant, above=0, below=1)
        errors.number("exploration", self.exploration, above=0)

    @cached_property
    def scales(self) -> Floats:
        scales = np.ones(self.dimension)
        if self.constant is not None:
            small = min(self.constant, _SMALL)
            scales *= math.sqrt((1 - small**2) / (1 - self.constant**2))
            scales[0] = small / self.constant
        return scales

    def shift(self, t: int, std: float) -> float:
        return 1 + 2 * std * math.sqrt(2 * self.dimension)

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        is_centred = self.constant is not None
        reward_variance, theta_square = (1.0, 2.0) if is_centred else (0.25, 1.0)
        noise = (1 + theta_square / 2) * (self.exploration * std) ** 2
        return np.asarray(np.sqrt(reward_variance / eigenvalues + noise / eigenvalues**2))
