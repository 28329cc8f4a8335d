"""How much is measured."""

from __future__ import annotations

from dataclasses import dataclass

from overhand.model import Privacy


@dataclass(frozen=True)
class Scale:
    """Sizes of all measurements: the same claims are looked at on any scale."""

    name: str
    horizons: tuple[int, ...]
    """For errors that grow with the number of users."""
    steps: int
    """Users of all runs for one of these errors: with one shuffler it takes many to tell."""
    users: int
    """For everything that is measured at one number of users."""
    runs: int
    coverage_runs: int
    coverage_users: int
    rounds: int
    """Of bandits."""
    bandit_runs: int
    privacy: Privacy = Privacy(1.0, 1e-6)
    seed: int = 0


QUICK = Scale(
    name="quick",
    horizons=(10**4, 10**5, 10**6),
    steps=2 * 10**8,
    users=10**5,
    runs=20,
    coverage_runs=10_000,
    coverage_users=1_000,
    rounds=20_000,
    bandit_runs=4,
)
FULL = Scale(
    name="full",
    horizons=(10**4, 10**5, 10**6, 10**7, 10**8),
    steps=4 * 10**9,
    users=10**6,
    runs=100,
    coverage_runs=100_000,
    coverage_users=10_000,
    rounds=10**6,
    bandit_runs=20,
)
