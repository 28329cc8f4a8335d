"""Shift and radius: what makes a Gram matrix with noise in it invertible, and how far to doubt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from overhand import errors
from overhand.bandits.policy import Floats

ConstantsName = Literal["practical", "theory"]


class Constants(Protocol):
    """How a released sum becomes a rule; `std` is that of one coordinate of the sum's noise."""

    @property
    def dimension(self) -> int:
        """How many features an arm has."""

    @property
    def centred(self) -> bool:
        """Whether rewards are learnt as 2 y - 1, which a constant feature makes free."""

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
    `exploration` of the others: noise that stays is learnt away, and too much doubt of it costs
    more than it brings (`docs/bandits.md`).

    Centred rewards lie in [-1, 1]: they have the same joint sensitivity as rewards in [0, 1]
    (`Moments`), at twice the signal.
    """

    dimension: int
    centred: bool = True
    exploration: float = 0.5

    def __post_init__(self) -> None:
        errors.whole("dimension", self.dimension, least=1)
        errors.number("exploration", self.exploration, above=0)

    def shift(self, t: int, std: float) -> float:
        return 1 + 2 * std * math.sqrt(2 * self.dimension)

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        reward_variance, theta_square = (1.0, 2.0) if self.centred else (0.25, 1.0)
        noise = (1 + theta_square / 2) * (self.exploration * std) ** 2
        return np.asarray(np.sqrt(reward_variance / eigenvalues + noise / eigenvalues**2))
