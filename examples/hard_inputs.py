"""The lower bound's hard inputs (Section 4): errors on them grow as the theorem says.

For k = 1, 2, 3 shufflers, inputs are drawn from Delta_{n,k} and the paper's trees are run on
them. The fitted exponents are close to those of the theorem, 1 / (2k + 1).
"""

from __future__ import annotations

import numpy as np

import overhand as oh
from overhand.lab.lower_bound import HardInput, least_horizon, repeats
from overhand.lab.simulation import simulate

PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)
HORIZONS = (10_000, 100_000, 1_000_000)
RUNS = 20


def measured_error(horizon: int, shufflers: int) -> float:
    plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree="paper")
    hard = HardInput.against(horizon, shufflers, PRIVACY.epsilon)
    squares = [
        simulate(plan, hard.draw(oh.seeded_random(seed)), seed=seed).rms_error ** 2
        for seed in range(RUNS)
    ]
    return float(np.sqrt(np.mean(squares)))


def main() -> None:
    print("shufflers       users     rep   measured rms error")
    for shufflers in (1, 2, 3):
        errors = [measured_error(horizon, shufflers) for horizon in HORIZONS]
        for horizon, error in zip(HORIZONS, errors, strict=True):
            bound = repeats(horizon, shufflers, PRIVACY.epsilon)
            print(f"{shufflers:>9}   {horizon:>9,}   {bound:>5.1f}   {error:>18.1f}")
        exponent = np.polyfit(np.log(HORIZONS), np.log(errors), 1)[0]
        print(f"          exponent {exponent:.3f}, proved {1 / (2 * shufflers + 1):.3f}")
    print(f"\nFor one shuffler the bound is vacuous below n = {least_horizon(1, 1.0):.1e} users.")


if __name__ == "__main__":
    main()
