"""LinUCB over any continual sum: variants differ only in the sums they are given."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.bandits.constants import Constants
from overhand.bandits.policy import Features, Floats, Policy
from overhand.values import TOLERANCE, Moments, bounded, finite_array

_FLOOR = 0.25
ALIKE = 1e-6
"""How far a constant feature may be from what it is said to be."""


@dataclass(frozen=True)
class LinUCB:
    """Step 7 of Algorithm 4: from the sums of x y and x x^T, with noise in them, to a rule.

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
    >>> rule = learner.policy(t=1000, total=rows.sum(axis=0), std=20.0)
    >>> rule.theta.round(2), int(rule.choose(np.array([[0.6, -0.8], [0.6, 0.8]])))
    (array([0.68, 0.55]), 1)
    """

    constants: Constants

    @property
    def dimension(self) -> int:
        """How many features an arm has."""
        return self.constants.dimension

    @cached_property
    def moments(self) -> Moments:
        """What users report."""
        return Moments(self.dimension)

    def rows(self, features: ArrayLike, rewards: ArrayLike, *, first: int = 0) -> Floats:
        """What these users add to the sums, checked: |x| <= 1 and rewards in [0, 1].

        `first` is how many users came before, for an error to count from.
        """
        what = f"rows of {self.dimension} features"
        x = finite_array(features, what=what, shape=(self.dimension,), first=first)
        if self.constants.constant is not None:
            self._check_constant(x[:, 0], self.constants.constant, first)
        x = bounded(x, 1.0, clip=False, first=first)
        y = finite_array(rewards, what="rewards", shape=(), first=first)
        if len(x) != len(y):
            raise errors.InvalidValue(f"{len(x)} rows of features and {len(y)} rewards")
        wrong = (y < 0) | (y > 1)
        if wrong.any():
            user = int(np.argmax(wrong))
            raise errors.InvalidValue(
                f"reward {y[user]:.9g} of user {first + user + 1} must be between 0 and 1"
            )
        # What is rounding before features are scaled may be a little more after.
        tolerance = 4 * TOLERANCE * float((self.constants.scales**2).max())
        scaled = x * self.constants.scales
        scaled = bounded(scaled, 1.0, clip=False, first=first, tolerance=tolerance)
        return self.moments.joined(scaled, self._responses(y))

    def unchecked_rows(self, features: Floats, rewards: Floats) -> Floats:
        """The same for simulated users, who are what they should be but for rounding."""
        return self.moments.joined(features * self.constants.scales, self._responses(rewards))

    def _responses(self, rewards: Floats) -> Floats:
        """What theta is learnt from, as a column."""
        column = rewards[:, np.newaxis]
        return column if self.constants.constant is None else 2 * column - 1

    def _check_constant(self, column: Floats, constant: float, first: int) -> None:
        wrong = np.abs(column - constant) > ALIKE
        if wrong.any():
            user = int(np.argmax(wrong))
            raise errors.InvalidValue(
                f"the first feature of user {first + user + 1} is {column[user]:.9g}, not the "
                f"constant {constant:.9g}"
            )

    def policy(self, t: int, total: Floats, std: float) -> Policy:
        """The rule that these sums of t users give; with leading axes, those of many runs."""
        vector, gram = self.moments.split(total)
        shift = self.constants.shift(t, std)
        eigenvalues, axes = np.linalg.eigh(gram)
        eigenvalues = np.maximum(eigenvalues + shift, _FLOOR * shift)
        along = np.swapaxes(axes, -1, -2) @ vector[..., np.newaxis]
        theta = axes @ (along / eigenvalues[..., np.newaxis])
        widths = axes * self.constants.widths(eigenvalues, t, std)[..., np.newaxis, :]
        scales = self.constants.scales
        return Policy(t, theta[..., 0] * scales, widths * scales[:, np.newaxis])


def checked_contexts(contexts: ArrayLike, dimension: int) -> Features:
    """The arms of one user (arms, features) or of many (users, arms, features), within norm 1."""
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
