"""Late flights so far, estimated again once all batches are in.

327,346 real flights. Needs the extra `data`.

python examples/hindsight.py [figure.png]
"""

from __future__ import annotations

import sys

import numpy as np

import overhand as oh
from overhand.lab.plots import colour_of, new_figure
from overhand.lab.recorded import late_flights
from overhand.sums import Hindsight

PRIVACY, SHUFFLERS, RUNS = oh.Privacy(epsilon=1.0, delta=1e-6), 4, 40
SHOWN = slice(3_200, 4_500)  # ends of lowest batches


def main() -> None:
    flights = late_flights()
    plan = oh.Plan.best(len(flights), SHUFFLERS, PRIVACY, mechanism="shares")
    squares = np.zeros(3)
    for seed in range(RUNS):
        # Seeded because this is a simulation that must draw the same again: leave it out to deploy.
        total = oh.ContinualSum(plan, random=oh.seeded_random(seed))
        total.update_rows(flights.rows)
        history = total.hindsight()
        truth = np.cumsum(flights.rows, dtype=np.int64)[history.t - 1]
        told = history.published.value, history.value, history.possible()
        squares += [np.mean((curve - truth) ** 2) for curve in told]
    print(f"late flights so far, after each of {len(history):,} lowest batches; {PRIVACY}")
    published, hindsight, possible = np.sqrt(squares / RUNS)
    print(f"rms error of {RUNS} runs   computed")
    print(f"published  {published:>12.1f} {history.published.rms:>10.1f}")
    print(f"hindsight  {hindsight:>12.1f} {history.rms:>10.1f}")
    print(f"possible   {possible:>12.1f}")
    print(f"ratio      {hindsight / published:>12.3f} {history.ratio:>10.3f}")
    if len(sys.argv) > 1:
        draw(sys.argv[1], history, truth)


def draw(path: str, history: Hindsight, truth: np.ndarray) -> None:
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    thousands = history.t[SHOWN] / 1000
    low, high = history.interval(0.95)
    band = (low - truth)[SHOWN], (high - truth)[SHOWN]
    fill = colour_of("hindsight")
    left.fill_between(thousands, *band, fc=fill, alpha=0.2, label="hindsight, 95 %")
    for curve, colour, label in (
        (history.published, colour_of("ours"), "published"),
        (history, colour_of("hindsight"), "hindsight"),
    ):
        left.plot(thousands, (curve.value - truth)[SHOWN], color=colour, lw=1, label=label)
        right.plot(thousands, curve.std[SHOWN], color=colour, lw=1, label=label)
    left.axhline(0.0, color=colour_of("truth"), linestyle="--", label="truth")
    left.set(title="Late flights so far: error", xlabel="thousand flights so far", ylim=(-90, None))
    right.set(title="Standard deviation", xlabel="thousand flights so far", ylim=(0, None))
    for axes in (left, right):
        axes.legend(frameon=False, loc="lower left", ncols=2)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
