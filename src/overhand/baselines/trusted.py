"""The central model: a server that sees every value and is trusted with it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from overhand import errors
from overhand.accounting import gaussian_delta, gaussian_mu
from overhand.model import Privacy
from overhand.plan import DEFAULT_FAILURE_PROBABILITY, Plan, Terms, best_split, calibrated
from overhand.randomness import Random, generator_of
from overhand.trees import RegularTree
from overhand.values import BITS, Values

_EXACT = 1 << 22
_FINE = 0.1


def trusted_tree(horizon: int, privacy: Privacy, *, combine: bool, values: Values = BITS) -> Plan:
    """The binary tree of Dwork et al. and Chan et al., with the server's own coins.

    It is a plan like any other, whose lowest batches are single users: there is nobody to wait
    for. With `combine`, nodes are combined with their children (Honaker's estimate) and the
    budget is split for that. Its coins cost nobody anything, so values are rounded finely.

    >>> for combine in (False, True):
    ...     plan = trusted_tree(10_000, Privacy(1.0, 1e-6), combine=combine)
    ...     print(round(plan.rms_error, 1), plan.delta_spent <= 1e-6)
    40.2 True
    28.8 True
    """
    horizon = errors.whole("horizon", horizon, least=2)
    levels = max(1, (horizon - 1).bit_length())
    tree = RegularTree(horizon, (1, *[2] * (levels - 1)))
    terms = Terms(privacy, values=values, coarseness=_FINE)
    split = best_split(tree) if combine else np.ones(levels)
    mechanisms = calibrated(tree.sizes, list(split), terms)
    plan = Plan(tree, mechanisms, privacy, shufflers=levels)
    return plan if combine else replace(plan, combine=False)


@dataclass(frozen=True)
class SquareRoot:
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

    horizon: int
    privacy: Privacy
    values: Values = BITS

    def __post_init__(self) -> None:
        errors.whole("horizon", self.horizon, least=1)

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
    def step_std(self) -> float:
        """The standard deviation of z."""
        return math.sqrt(self._squares[0]) * self.values.sensitivity / gaussian_mu(self.privacy)

    @property
    def delta_spent(self) -> float:
        """The exact delta of the Gaussian mechanism."""
        shift = math.sqrt(self._squares[0]) * self.values.sensitivity / self.step_std
        return gaussian_delta(shift, self.privacy.epsilon)

    @property
    def messages_per_user(self) -> int:
        return 1

    @property
    def rms_error(self) -> float:
        return self.step_std * math.sqrt(self._squares[1])

    @property
    def worst_std(self) -> float:
        return self.step_std * math.sqrt(self._squares[0])

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """Normal tails and a union bound."""
        failure_probability = errors.number(
            "failure_probability", failure_probability, above=0, below=1
        )
        estimates = self.horizon * self.values.dimension
        return self.worst_std * math.sqrt(2 * math.log(2 * estimates / failure_probability))

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
        self._noise: NDArray[np.float64] = irfft(spectrum, size, axis=0)[:horizon]
        self._t = 0
        self._sum: Any = 0

    def estimates(self, rows: NDArray[Any]) -> NDArray[np.float64]:
        """The estimates after each of the next users."""
        sums = self._sum + self._values.running_sums(rows)
        noise = self._noise[self._t : self._t + len(rows)]
        self._t += len(rows)
        self._sum = sums[-1]
        return np.asarray(sums + noise)


def _coefficients(count: int) -> NDArray[np.float64]:
    """c_0 .. c_{count-1} by c_j = c_{j-1} (1 - 1 / (2j))."""
    factors = 1 - 1 / (2 * np.arange(1, count))
    return np.concatenate([[1.0], np.cumprod(factors)])
