"""The air of a city, from eight sensors in each of 200,000 homes that reveal no reading.

The readings of a home are one vector: fractions of the legal limits, divided by sqrt(8), so that
its norm is at most 1 unless limits are exceeded. A longer one is scaled back. Day 10 has smog.

python examples/sensor_vectors.py [figure.png]
"""

from __future__ import annotations

import math
import sys

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.plots import colours_of, new_figure

HOMES, A_DAY, CHUNK, WINDOW = 200_000, 10_000, 50_000, 5_000
PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)
SENSORS = ("PM2.5", "PM10", "NO₂", "O₃", "CO", "SO₂", "NH₃", "VOC")
USUAL = np.array([0.45, 0.40, 0.50, 0.55, 0.30, 0.20, 0.25, 0.35])
SMOG = np.array([0.60, 0.45, 0.30, -0.30, 0.25, 0.15, 0.00, 0.20])
SCALE = math.sqrt(len(SENSORS))
VECTORS = oh.Vectors(len(SENSORS), norm=1.0, clip=True)
LOCAL_STD = math.sqrt(local_counter(HOMES, PRIVACY, VECTORS).user_variance)  # of one home
RED, BLUE, BLACK = colours_of(("local", "5 shufflers", "truth"))


def readings() -> NDArray[np.float64]:
    """As fractions of the limits; homes differ by a factor of about 1.4."""
    smog = np.exp(-(((np.arange(HOMES) / A_DAY - 10) / 1.5) ** 2))
    level = USUAL + smog[:, np.newaxis] * SMOG
    return np.asarray(level * np.random.default_rng(1).lognormal(-0.06, 0.35, level.shape))


def main() -> None:
    values = readings() / SCALE
    print(f"{(np.linalg.norm(values, axis=1) > 1).mean():.2%} of the homes are clipped")
    plan = oh.Plan.best(HOMES, 5, PRIVACY, values=VECTORS)
    # Seeded because this is a simulation: exact coins from secure_random() take half a minute here.
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    for start in range(0, HOMES, CHUNK):
        total.update_many(values[start : start + CHUNK])
        print(f"{total.t:>7,} homes:", *(f"{SCALE * x:.1%}" for x in total.estimate.mean().value))
    low, high = total.estimate.mean().interval(0.95)
    for name, a, b in zip(SENSORS, SCALE * low, SCALE * high, strict=True):
        print(f"{name:>5}: {a:.2%} to {b:.2%} of the limit")
    if len(sys.argv) > 1:
        draw(sys.argv[1], total, VECTORS.rows(values))


def draw(path: str, total: oh.ContinualSum, values: NDArray[np.float64]) -> None:
    figure = new_figure(11, 5)
    width = WINDOW - WINDOW % total.plan.tree.lowest  # whole blocks: no home of it is pending
    windows = [total.between(a, a + width).mean() for a in range(0, HOMES - width + 1, width)]
    day = np.array([w.t for w in windows]) / A_DAY
    truth = SCALE * np.transpose([values[w.start : w.t].mean(axis=0) for w in windows])
    bands = SCALE * np.transpose([w.interval(0.95) for w in windows])
    far = 1.96 * SCALE * LOCAL_STD / math.sqrt(width)
    for j, ax in enumerate(figure.subplots(2, 4, sharex=True, sharey=True).flat):
        low, high = truth[j] - far, truth[j] + far
        ax.fill_between(day, low, high, fc=RED, alpha=0.15, label="local, 95 %")
        ax.fill_between(day, *bands[j], fc=BLUE, alpha=0.4, label="5 shufflers, 95 %")
        ax.plot(day, bands[j].mean(axis=0), color=BLUE, lw=1.2, label="5 shufflers")
        ax.plot(day, truth[j], "--", color=BLACK, lw=1.2, label="truth")
        ax.set_title(SENSORS[j])
        ax.yaxis.set_major_formatter("{x:.0%}")
        ax.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("days")
    figure.supylabel(f"mean of {width:,} homes, in parts of the limit")
    labels = ax.get_legend_handles_labels()
    figure.legend(*labels, ncols=4, loc="outside upper center", frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
