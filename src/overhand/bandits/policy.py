"""The action rule that a server sends to users: small, immutable and public."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[Any]
"""Of arms: the last axis has the features of one arm, the one before it the arms of one user."""


@dataclass(frozen=True, eq=False)
class Policy:
    """Step 3 of Algorithm 4: the arm of largest <theta, x> + |width^T x|.

    The widths are a norm of x, beta |x|_{V^-1} in the paper. `t` is how many users it was learnt
    from. All that is here was computed from released sums, so it may be shown to anybody. With
    leading axes in `theta` and `width` it is the rules of as many runs, side by side.

    >>> rule = Policy(t=0, theta=np.array([1.0, 0.0]), width=0.5 * np.eye(2))
    >>> int(rule.choose(np.array([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])))
    1
    """

    t: int
    theta: Floats
    width: Floats

    @cached_property
    def _rows(self) -> dict[np.dtype[Any], NDArray[Any]]:
        """Widths and means by one product, in either precision."""
        both = np.concatenate([self.width, self.theta[..., np.newaxis]], axis=-1)
        rows = np.ascontiguousarray(np.swapaxes(both, -1, -2))
        return {np.dtype(kind): rows.astype(kind) for kind in (np.float32, np.float64)}

    @cached_property
    def _both(self) -> dict[np.dtype[Any], tuple[NDArray[Any], NDArray[Any]]]:
        ones = np.ones(self.theta.shape[-1])
        return {kind: (rows, ones.astype(kind)) for kind, rows in self._rows.items()}

    def scores(self, features: Features) -> NDArray[Any]:
        """What every arm promises, in the precision of the features."""
        *runs, dimension = self.theta.shape
        rows, arms = self._rows[features.dtype], features.reshape(*runs, -1, dimension)
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
            rows, ones = self._both[features.dtype]
            seen = rows.dot(features.T)
            squares = seen[:-1]
            squares *= squares
            scores = np.sqrt(ones.dot(squares))
            scores += seen[-1]
            return scores.argmax()
        return np.asarray(self.scores(features).argmax(axis=-1))
