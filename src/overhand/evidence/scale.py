"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from overhand.model import Privacy


@dataclass(frozen=True)
class Scale:
    """Sizes of all measurements: the same claims are looked at on any scale.

    >>> from dataclasses import replace
    >>> smaller = replace(QUICK, name="smaller", horizons=(10**4, 10**5), coverage_runs=1000)
    >>> smaller.privacy == QUICK.privacy
    True
    """

    name: str
    horizons: tuple[int, ...]
    """For errors that grow with the number of users."""
    precision: float
    """The relative standard deviation of these errors, which sets the number of runs."""
    users: int
    """For everything that is measured at one number of users."""
    runs: int
    coverage_runs: int
    coverage_users: int
    rounds: tuple[int, ...]
    """Of bandits."""
    bandit_runs: int
    shufflers: tuple[int, ...] = (1, 2, 3, 4, 5)
    """For everything that is shown against their number."""
    epsilons: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)
    """For errors of those whom one may trust."""
    privacy: Privacy = Privacy(1.0, 1e-6)
    seed: int = 0


QUICK = Scale(
    name="quick",
    horizons=(10**4, 10**5, 10**6, 10**7),
    precision=0.01,
    users=10**5,
    runs=100,
    coverage_runs=40_000,
    coverage_users=1_000,
    rounds=(5_000, 20_000, 80_000),
    bandit_runs=5,
)
"""Less than two minutes on two cores."""

FULL = Scale(
    name="full",
    horizons=(10**4, 10**5, 10**6, 10**7, 10**8, 10**9),
    precision=0.015,
    users=10**6,
    runs=200,
    coverage_runs=100_000,
    coverage_users=10_000,
    rounds=(10**4, 10**5, 10**6),
    bandit_runs=20,
)
"""About an hour on two cores."""
