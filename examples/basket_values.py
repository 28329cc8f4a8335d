"""What customers spend over the day, in a shop that sees no single basket.

200,000 baskets over ten days, lognormal and larger in the evening. Values are reals in [0, 200]
euros; larger ones are clipped, because noise is proportional to the width of the interval.

python examples/basket_values.py [figure.png]
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.plots import colours_of, new_figure

CUSTOMERS, A_DAY, CHUNK, WINDOW = 200_000, 20_000, 500, 2_000
PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)
EUROS = oh.Reals(0.0, 200.0, clip=True)
LOCAL_STD = math.sqrt(local_counter(CUSTOMERS, PRIVACY, EUROS).user_variance)  # of one customer
RED, BLUE, BLACK = colours_of(("local", "5 shufflers", "truth"))


def baskets() -> NDArray[np.float64]:
    """Medians go from 18 to 33 euros over a day; days 6 and 7 have a sixth more."""
    day = np.arange(CUSTOMERS) / A_DAY
    median = 24.5 * np.exp(0.3 * np.sin(2 * np.pi * (day - 0.5))) * (1 + (day // 1 % 7 > 4) / 6)
    return np.random.default_rng(1).lognormal(np.log(median), 0.8)


def main() -> None:
    values = baskets()
    clipped = EUROS.rows(values)
    plan = oh.Plan.best(CUSTOMERS, 5, PRIVACY, values=EUROS)
    # Seeded because this is a simulation that must print the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    running = []
    for start in range(0, CUSTOMERS, CHUNK):
        total.update_many(values[start : start + CHUNK])
        running.append(total.estimate.mean())
        if total.t % (2 * A_DAY) == 0:
            low, high = running[-1].interval(0.95)
            print(f"{total.t:>7,} baskets: {low:.2f} to {high:.2f} euros", end=" ")
            print(f"(truth: {clipped[: total.t].mean():.2f})")
    print(f"local privacy would give +- {1.96 * LOCAL_STD / math.sqrt(CUSTOMERS):.2f}", end="; ")
    print(f"clipping lowers the mean by {values.mean() - clipped.mean():.2f} euros")

    width = WINDOW - WINDOW % plan.tree.lowest  # whole blocks: no user of the window is pending
    windows = [total.between(a, a + width).mean() for a in range(0, CUSTOMERS - width + 1, width)]
    low, high = windows[-1].interval(0.95)
    print(f"the last {width:,} baskets alone: {low:.1f} to {high:.1f} euros")
    if len(sys.argv) > 1:
        draw(sys.argv[1], clipped, {"so far": running[5:], f"of the last {width:,}": windows})


def draw(path: str, values: NDArray[np.float64], panels: dict[str, list[oh.Estimate]]) -> None:
    figure = new_figure(9, 6.4)
    axes = figure.subplots(2, sharex=True)
    for ax, (title, means) in zip(axes, panels.items(), strict=True):
        day = np.array([m.t / A_DAY for m in means])
        truth = np.array([values[m.start : m.t].mean() for m in means])
        local = np.array([1.96 * LOCAL_STD / math.sqrt(m.users) for m in means])
        low, high = np.transpose([m.interval(0.95) for m in means])
        ax.fill_between(day, truth - local, truth + local, fc=RED, alpha=0.15, label="local, 95 %")
        ax.fill_between(day, low, high, fc=BLUE, alpha=0.4, label="5 shufflers, 95 %")
        ax.plot(day, [m.value for m in means], color=BLUE, lw=1.2, label="5 shufflers")
        ax.plot(day, truth, "--", color=BLACK, lw=1.2, label="truth")
        ax.set(title=f"Mean basket {title}", ylabel="euros", xlim=(0, 10))
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].set(xlabel="days")
    axes[0].legend(frameon=False, ncols=4, loc="lower right")
    figure.savefig(path)


if __name__ == "__main__":
    main()
