"""The shortest way to a live count from users who do not trust the server.

Each of 50,000 users either clicked or did not. The server publishes a count after each of them.
"""

from __future__ import annotations

import numpy as np

import overhand as oh


def main() -> None:
    plan = oh.Plan.best(horizon=50_000, shufflers=4, privacy=oh.Privacy(epsilon=1.0, delta=1e-6))
    print(plan)

    clicked = np.random.default_rng(1).random(50_000) < 0.2  # stands in for the users
    total = oh.ContinualSum(plan)
    for start in range(0, 50_000, 10_000):
        total.update_many(clicked[start : start + 10_000])
        low, high = total.estimate.interval(0.95)
        truth = clicked[: total.t].sum()
        print(f"{total.t:>7,} users: {low:>8,.0f} to {high:>8,.0f} clicks (truth: {truth:,})")

    window = total.between(20_000, 30_000)
    print(f"users 20,000 to 30,000: {window.value:,.0f} clicks, std {window.std:.0f}")


if __name__ == "__main__":
    main()
