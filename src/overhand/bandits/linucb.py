"""The learner of Algorithm 4, fast: `reference.BanditServer.policy` for any number of users.

It goes over any continual sum: variants differ only in the sums they are given, and in constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Floats
from overhand.randomness import Random
from overhand.values import TOLERANCE, RegressionStatistics, check_norms, finite_array

Features = NDArray[Any]
"""Of arms: the last axis has the features of one arm, the one before it the arms of one user."""

ALIKE = 1e-6
"""How far a constant feature may be from what it is said to be."""

_FLOOR = 0.25
_SMALL = 0.5
"""What a larger constant is made: smaller still, theta's first coordinate would be too large."""

ConstantsName = Literal["practical", "theory"]
"""Which constants: those of `Practical`, or the paper's (`Theory`)."""


@dataclass(frozen=True, eq=False)
class Policy:
    """Step 3 of Algorithm 4: the arm of largest <theta, x> + |width^T x|.

    The widths are a norm of x, beta |x|_{V^-1} in the paper. `t` is how many users it was learnt
    from. All that is here was computed from released sums, so it may be shown to anybody. With
    leading axes in `theta` and `width` it is the policies of as many runs, side by side.

    >>> policy = Policy(t=0, theta=np.array([1.0, 0.0]), width=0.5 * np.eye(2))
    >>> int(policy.choose(np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])))
    1
    """

    t: int
    theta: Floats
    width: Floats

    @cached_property
    def _rows(self) -> dict[np.dtype[Any], tuple[NDArray[Any], NDArray[Any]]]:
        """Widths and means by one product, and a row of ones to add up by: in either precision."""
        both = np.concatenate([self.width, self.theta[..., np.newaxis]], axis=-1)
        rows = np.ascontiguousarray(np.swapaxes(both, -1, -2))
        ones = np.ones(self.theta.shape[-1])
        kinds = (np.dtype(np.float32), np.dtype(np.float64))
        return {kind: (rows.astype(kind), ones.astype(kind)) for kind in kinds}

    def scores(self, features: Features) -> NDArray[Any]:
        """What every arm promises, in the precision of the features."""
        *runs, dimension = self.theta.shape
        (rows, _), arms = self._rows[features.dtype], features.reshape(*runs, -1, dimension)
        seen = rows @ np.swapaxes(arms, -1, -2) if runs else rows.dot(arms.T)
        squares, means = seen[..., :-1, :], seen[..., -1, :]
        np.square(squares, out=squares)
        scores = np.add.reduce(squares, axis=-2)
        np.sqrt(scores, out=scores)
        scores += means
        return np.asarray(scores.reshape(features.shape[:-1]))

    def choose(self, features: Features) -> Any:
        """The arm for every user, or for the one there is."""
        if features.ndim == 2 and self.theta.ndim == 1:  # of one user: as few steps as can be
            rows, ones = self._rows[features.dtype]
            seen = rows.dot(features.T)
            squares = seen[:-1]
            squares *= squares
            scores = np.sqrt(ones.dot(squares))
            scores += seen[-1]
            return scores.argmax()
        return np.asarray(self.scores(features).argmax(axis=-1))


def choose_arms(policy: Policy | None, features: Features, random: Random) -> Any:
    """The arm for every user, or for the one there is: by the policy, or any before the first.

    >>> from overhand.randomness import secure_random
    >>> arms = choose_arms(None, np.zeros((300, 3, 2)), secure_random())
    >>> np.unique(arms)
    array([0, 1, 2])
    """
    if policy is not None:
        return policy.choose(features)
    *users, arms, _ = features.shape
    return (random.uniforms(math.prod(users)) * arms).astype(np.int64).reshape(users)


class Constants(Protocol):
    """How a released sum becomes a policy; `std` is that of one coordinate of the sum's noise.

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

    A `constant` first feature makes two things free, for the joint sensitivity of
    `RegressionStatistics` stays as it is. Rewards are learnt as 2 y - 1, at twice the signal: only
    theta's first coordinate moves. And the constant is made small, so that the other features may
    be larger within norm 1.

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
            errors.finite_number("constant", self.constant, above=0, below=1)
        errors.finite_number("exploration", self.exploration, above=0)

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

    @property
    def theta_square(self) -> float:
        """The most that |theta|^2 can be, of rewards as they are learnt."""
        return 1.0 if self.constant is None else 2.0

    def widths(self, eigenvalues: Floats, t: int, std: float) -> Floats:
        reward_variance = 0.25 if self.constant is None else 1.0
        noise = (1 + self.theta_square / 2) * (self.exploration * std) ** 2
        return np.asarray(np.sqrt(reward_variance / eigenvalues + noise / eigenvalues**2))


@dataclass(frozen=True)
class LinUCB:
    """Step 7 of Algorithm 4: from the sums of x y and x x^T, with noise in them, to a policy.

    **Why the Gram matrix stays positive definite.** Noise can make an eigenvalue of the sum of
    x x^T negative. The paper adds lambda to all of them (a *shift*), and so do we: the norm of the
    noise is known beforehand, so that twice that is enough but for a tiny probability. Raising only
    the eigenvalues that are too small (a *projection*) does as well (`docs/bandits.md`), but it
    decides anew at every release which directions are noise. It is the safety net here: an
    eigenvalue that comes out below a quarter of the shift is set to that.

    >>> from overhand.bandits import Practical
    >>> learner = LinUCB(Practical(dimension=2))
    >>> users = np.array([[0.6, 0.8]] * 500 + [[0.6, -0.8]] * 500)
    >>> rows = learner.rows(users, rewards=[1.0] * 500 + [0.0] * 500)
    >>> policy = learner.policy(t=1000, total=rows.sum(axis=0), std=20.0)
    >>> policy.theta.round(2), int(policy.choose(np.array([[0.6, -0.8], [0.6, 0.8]])))
    (array([0.68, 0.55]), 1)
    """

    constants: Constants

    @property
    def dimension(self) -> int:
        """How many features an arm has."""
        return self.constants.dimension

    @cached_property
    def moments(self) -> RegressionStatistics:
        """What users report."""
        return RegressionStatistics(self.dimension)

    def rows(self, features: ArrayLike, rewards: ArrayLike, *, first: int = 0) -> Floats:
        """What these users add to the sums, checked: |x| <= 1 and rewards in [0, 1].

        `first` is how many users came before, for an error to count from.
        """
        what = f"rows of {self.dimension} features"
        x = finite_array(features, what=what, shape=(self.dimension,), first=first)
        self.check_constant(x[:, 0], lambda user: f"user {first + user + 1}")
        x = check_norms(x, 1.0, clip=False, first=first)
        y = finite_array(rewards, what="rewards", shape=(), first=first)
        if len(x) != len(y):
            raise errors.InvalidValue(f"{len(x)} rows of features and {len(y)} rewards")
        wrong = (y < 0) | (y > 1)
        if wrong.any():
            user = int(np.argmax(wrong))
            raise errors.InvalidValue(
                f"reward {float(y[user])} of user {first + user + 1} must be between 0 and 1"
            )
        scaled = x * self.constants.scales
        scaled = check_norms(scaled, 1.0, clip=False, first=first, tolerance=self._tolerance)
        return self.moments.join_columns(scaled, self._responses(y))

    @cached_property
    def _tolerance(self) -> float:
        """What is rounding before features are scaled may be a little more after."""
        return 4 * TOLERANCE * float((self.constants.scales**2).max())

    def unchecked_rows(self, features: Floats, rewards: Floats) -> Floats:
        """The same for simulated users, who are what they should be but for rounding."""
        return self.moments.join_columns(features * self.constants.scales, self._responses(rewards))

    def _responses(self, rewards: Floats) -> Floats:
        """What theta is learnt from, as a column."""
        column = rewards[..., np.newaxis]
        return column if self.constants.constant is None else 2 * column - 1

    def check_constant(self, column: Floats, whose: Callable[[int], str]) -> None:
        """Refuse rows whose first feature is not what it is said to be, if it is said."""
        constant = self.constants.constant
        if constant is None:
            return
        wrong = np.abs(column - constant) > ALIKE
        if wrong.any():
            row = int(np.argmax(wrong))
            raise errors.InvalidValue(
                f"the first feature of {whose(row)} is {column[row]:.9g}, not the constant "
                f"{constant:.9g}"
            )

    def spectrum(self, t: int, gram: Floats, std: float) -> tuple[Floats, Floats]:
        """Eigenvalues and eigenvectors of the shifted Gram matrix, none of them too small."""
        shift = self.constants.shift(t, std)
        eigenvalues, axes = np.linalg.eigh(gram)
        return np.maximum(eigenvalues + shift, _FLOOR * shift), axes

    def policy(self, t: int, total: Floats, std: float) -> Policy:
        """The policy that these sums of t users give; with leading axes, those of many runs."""
        vector, gram = self.moments.split(total)
        eigenvalues, axes = self.spectrum(t, gram, std)
        along = np.swapaxes(axes, -1, -2) @ vector[..., np.newaxis]
        theta = axes @ (along / eigenvalues[..., np.newaxis])
        widths = axes * self.constants.widths(eigenvalues, t, std)[..., np.newaxis, :]
        scales = self.constants.scales
        return Policy(t, theta[..., 0] * scales, widths * scales[:, np.newaxis])


def check_contexts(contexts: ArrayLike, dimension: int) -> Features:
    """The arms of one user (arms, features) or of many (users, arms, features), within norm 1.

    >>> check_contexts([[1, 0], [0.6, 0.8]], dimension=2)
    array([[1. , 0. ],
           [0.6, 0.8]])
    """
    try:
        features = np.asarray(contexts)
    except ValueError:
        raise errors.InvalidValue("contexts must all have the same length") from None
    if features.dtype != np.float64 and features.dtype != np.float32:
        if features.dtype.kind not in "iufb":
            raise errors.InvalidValue(f"contexts of type {features.dtype} must be numbers")
        with np.errstate(over="ignore"):  # a longer float may become infinite
            features = features.astype(np.float64)
    if features.ndim not in (2, 3) or features.shape[-1] != dimension or not features.size:
        raise errors.InvalidValue(
            f"contexts of shape {features.shape} must be of shape (arms, {dimension}) "
            f"or (users, arms, {dimension})"
        )
    with np.errstate(over="ignore"):
        squares = np.vecdot(features, features, dtype=np.float64)  # as reports are checked
    longest = squares.flat[squares.argmax()]  # or NaN
    if not longest <= 1 + TOLERANCE:  # half of what a report may have
        raise errors.InvalidValue(
            f"contexts of norm {math.sqrt(longest):.9g} must be finite and of norm at most 1"
        )
    return features
