"""A linear regression over 200,000 homes, learnt as they report, from rows that nobody sees.

It predicts what a home spends on heating from four features within 1/2 of 0, so that |x| <= 1.
Least squares needs only the sums of x y and x x^T; those of one home are hidden as one vector.

python examples/regression.py [figure.png]
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import CapResponse
from overhand.lab.plots import colours_of, new_figure

HOMES, PRIVACY, MOMENTS = 200_000, oh.Privacy(1.0, 1e-6), oh.RegressionStatistics(4, clip=True)
FEATURES, TRUTH = ("cold", "area", "detached", "insulated"), np.array([0.8, 0.5, 0.25, -0.4])
COLOURS, MODELS = colours_of(FEATURES), ("5 shufflers", "local privacy", "not private")
LOCAL = CapResponse.best(HOMES, PRIVACY, MOMENTS)  # of local mechanisms, the best for vectors
Floats = NDArray[np.float64]


def solved(total: Floats, std: float) -> tuple[Floats, Floats]:
    """Theta by ridge regression from noisy sums, and what the noise does to it, to first order."""
    xy, xx = MOMENTS.split(total)
    inverse = np.linalg.inv(xx + std / 2 * np.eye(4))
    theta = inverse @ xy
    moved = (1 + theta @ theta / 2) * np.eye(4) + np.outer(theta, theta) / 2
    return theta, std * np.sqrt(np.diag(inverse @ moved @ inverse))


def main() -> None:
    rng = np.random.default_rng(1)  # two features are uniform, two are yes or no
    x = np.column_stack([rng.random((HOMES, 2)), rng.integers(0, 2, (HOMES, 2))]) - 0.5
    rows = np.column_stack([x, x @ TRUTH + rng.normal(0.0, 0.1, HOMES)])
    plan = oh.Plan.best(HOMES, 5, PRIVACY, values=MOMENTS)
    # Seeded because this is a simulation: exact coins from secure_random() take minutes here.
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    # Whole blocks: no home is pending.
    times = plan.tree.lowest * np.geomspace(100, HOMES // plan.tree.lowest, 80).astype(np.int64)
    sums, found = np.cumsum(MOMENTS.rows(rows), axis=0), np.empty((4, len(times), len(TRUTH)))
    local = LOCAL.start(oh.seeded_random(2)).estimates(MOMENTS.rows(rows))
    for i, t in enumerate(times):
        total.update_many(rows[total.t : t])
        found[:2, i] = solved(total.estimate.value, total.estimate.std)
        found[2, i], _ = solved(local[t - 1], math.sqrt(t * LOCAL.user_variance))
        found[3, i], _ = solved(sums[t - 1], 0.0)
    for name, value, std, truth in zip(FEATURES, *found[:2, -1], TRUTH, strict=True):
        print(f"{name:>9}: {value:6.3f} +- {1.96 * std:.3f} (truth: {truth})")
    errors = np.linalg.norm(found[[0, 2, 3]] - TRUTH, axis=2).T
    print("error: {:.4f}; with local privacy {:.4f}; without privacy {:.4f}".format(*errors[-1]))
    if len(sys.argv) > 1:
        draw(sys.argv[1], times, found[0], 1.96 * found[1], errors)


def draw(path: str, t: NDArray[np.int64], theta: Floats, bar: Floats, errors: Floats) -> None:
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    for j, (mid, far) in enumerate(zip(theta.T, bar.T, strict=True)):
        left.fill_between(t, mid - far, mid + far, color=COLOURS[j], alpha=0.2, lw=0)
        left.plot(t, mid, color=COLOURS[j], label=FEATURES[j])
    left.hlines(TRUTH, t[0], t[-1], COLOURS, "dashed", lw=1)
    right.set_prop_cycle(color=colours_of(MODELS))
    right.loglog(t, errors, label=MODELS)
    left.legend(frameon=False, ncols=2, loc=(0.45, 0.27))
    right.legend(frameon=False, loc="lower left")
    for ax, title in ((left, "Coefficients, 95 % (dashed: truth)"), (right, "Their error")):
        ax.set(title=title, xscale="log", xlabel="homes so far")
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
