"""Which choices matter to a private recommender: the tables of docs/bandits.md.

python docs/choices.py            prints them; 20 runs each, a few minutes on two cores
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.bandits import LinUCB, Policy, Practical, plan_for_regret
from overhand.lab.regret import (
    Diverse,
    Environment,
    Field,
    Films,
    PlanSums,
    Rival,
    Segments,
    measure,
    rival,
)

HORIZON, PRIVACY, RUNS = 100_000, oh.Privacy(1.0, 1e-6), 20
CONSTANT = Environment.constant


@dataclass(frozen=True)
class Shifted(Practical):
    """With another multiple of the noise's norm as the shift."""

    factor: float = 2.0

    def shift(self, t: int, std: float) -> float:
        return 1 + self.factor * std * math.sqrt(2 * self.dimension)


@dataclass(frozen=True)
class Projected(LinUCB):
    """Raises the eigenvalues that are too small instead of shifting all of them."""

    def policy(self, t: int, total: NDArray[np.float64], std: float) -> Policy:
        vector, gram = self.moments.split(total)
        eigenvalues, axes = np.linalg.eigh(gram)
        eigenvalues = np.maximum(eigenvalues, 1 + std * math.sqrt(2 * self.dimension))
        along = np.swapaxes(axes, -1, -2) @ vector[..., np.newaxis]
        theta = axes @ (along / eigenvalues[..., np.newaxis])
        widths = axes * self.constants.widths(eigenvalues, t, std)[..., np.newaxis, :]
        scales = self.constants.scales
        return Policy(t, theta[..., 0] * scales, widths * scales[:, np.newaxis])


def show(title: str, environment: Environment, rivals: Iterable[Rival]) -> None:
    """Mean regrets of one environment, each with its standard error."""
    print(f"{title}, {environment.name}")
    for outcome in measure(environment, HORIZON, list(rivals), runs=RUNS, jobs=2):
        print(f"  {outcome.rival.name:<34}{outcome.mean:6.0f} +- {outcome.standard_error:.0f}")
    sys.stdout.flush()


def learning(base: Rival, name: str, learner: LinUCB) -> Rival:
    return replace(base, name=name, learner=learner)


def adding(base: Rival, name: str, plan: oh.Plan) -> Rival:
    return replace(base, name=name, sums=PlanSums(plan, gaussian=True))


def main() -> None:
    segments = Segments(9, 10)
    for environment in (segments, Films(), Diverse(5, 10)):
        d = environment.dimension
        base = rival("services", Field(HORIZON, 4, PRIVACY, d))
        plans = {
            c: plan_for_regret(HORIZON, 4, PRIVACY, d, users_per_std=c) for c in (1, 2, 5, 12, 30)
        }
        named = [
            (f"{c} user{'s' * (c > 1)} per std: blocks of {p.tree.lowest}", p)
            for c, p in plans.items()
        ]
        moments = oh.RegressionStatistics(d)
        counter = oh.Plan.best(HORIZON, privacy=PRIVACY, values=moments, mechanism="services")
        named.append((f"a counter's plan: blocks of {counter.tree.lowest}", counter))
        show("plan", environment, [adding(base, name, plan) for name, plan in named])

    base = rival("services", Field(HORIZON, 4, PRIVACY, 9))
    constants = [
        Shifted(9, CONSTANT, exploration=e, factor=c) for c in (1, 2, 4) for e in (0.25, 0.5, 1)
    ]
    named_constants = [(f"shift {c.factor}, exploration {c.exploration}", c) for c in constants]
    named_constants.append(("constant feature not used", Shifted(9)))
    policies = [learning(base, name, LinUCB(c)) for name, c in named_constants]
    policies.append(learning(base, "projection", Projected(Practical(9, CONSTANT))))
    show("policy", segments, policies)

    counts = [
        (
            f"shares, at most {k} shuffler{'s' * (k > 1)}",
            plan_for_regret(HORIZON, k, PRIVACY, 9, mechanism="shares"),
        )
        for k in (1, 2, 4, 6)
    ]
    counts.append(("two services", plan_for_regret(HORIZON, 1, PRIVACY, 9)))
    show("shufflers", segments, [adding(base, name, plan) for name, plan in counts])


if __name__ == "__main__":
    main()
