"""Police stops so far, by neighbourhood and by race, when nobody may see the record of a stop.

All 51,920 stops in Minneapolis in 2017. Where a stop was is a bucket of a histogram; what it was is
a vector, because it may be several things at once. Needs the extra `data`.

python examples/police_stops.py [figure.png]
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import overhand as oh
from overhand.lab import recorded
from overhand.lab.plots import colour_of, new_figure
from overhand.lab.simulation import simulate

PRIVACY, SHUFFLERS, PARTS = oh.Privacy(epsilon=1.0, delta=1e-6), 4, 60
SEARCHED = 1 + recorded.QUESTIONS.index("person searched")


def main() -> None:
    compared = []
    for stops in (recorded.stops_by_neighbourhood(), recorded.stops_by_race()):
        plan = oh.Plan.best(len(stops), SHUFFLERS, PRIVACY, values=stops.values, mechanism="shares")
        print(f"{len(stops):,} stops, {plan.values.dimension} sums; {PRIVACY}")
        print(f"{'every sum so far':<18}  rms error  largest error  messages per stop")
        for name, side in (sides := recorded.alternatives_to(plan)).items():
            result = simulate(side, stops.rows, runs=4 if name == "local" else 1)  # a random walk
            errors = f"{result.rms_error:>9.1f}  {result.mean_max_error:>13.1f}"
            print(f"{name:<18}  {errors}  {side.messages_per_user:>17,}")
        compared.append((stops, sides, plan))
    print(f"the guarantee is for {stops.unit}")
    print("both are of the same stops: published together, they cost twice the epsilon and delta")
    if len(sys.argv) > 1:
        figure = new_figure(11, 4.8)
        left, right = figure.subplots(1, 2, subplot_kw={"frame_on": False})
        draw_counts(left, *compared[0])
        draw_searches(right, *compared[1][:2])
        figure.savefig(sys.argv[1])


def draw_counts(axes: Any, stops: recorded.Recorded, sides: recorded.Sides, plan: oh.Plan) -> None:
    """The neighbourhoods that, by the last estimate, had most stops."""
    # Seeded because this is a simulation that must draw the same again: deploy secure_random().
    total, estimates = oh.ContinualSum(plan, random=oh.seeded_random(1)), []
    for part in np.array_split(stops.rows, PARTS):
        total.update_many(part)
        estimates.append(total.estimate)
    t = np.array([estimate.t for estimate in estimates])
    far = 1.96 * sides["local"].rms_error * np.sqrt(2 * t / len(stops))  # it grows as sqrt(t)
    bands = np.transpose([estimate.interval(0.95) for estimate in estimates])
    for (place, *_), style in zip(estimates[-1].top(3), ("-", "--", ":"), strict=True):
        truth = np.cumsum(stops.rows == place)[t - 1]
        axes.fill_between(t, truth - far, truth + far, color=colour_of("local"), alpha=0.1, lw=0)
        axes.fill_between(t, *bands[place], color=colour_of("ours"), alpha=0.4, lw=0)
        label = f"{stops.groups[place]}, truth"
        axes.plot(t, truth, style, color=colour_of("truth"), lw=1.2, label=label)
    axes.set(title="Stops so far, 95 %: ours (blue), local (red)", xlabel="stops in all")
    axes.legend(frameon=False)


def draw_searches(axes: Any, stops: recorded.Recorded, sides: recorded.Sides) -> None:
    """How many in 100 were searched, 50 (1 + (yes - no) / stops), with its first-order error."""
    count, more = stops.rows.sum(axis=0).reshape(len(stops.groups), -1)[:, [0, SEARCHED]].T
    truth, places = 50 * (1 + more / count), np.arange(len(stops.groups))
    for row, (name, side) in enumerate(sides.items()):
        far = 1.96 * side.worst_std * 50 * np.hypot(count, more) / count**2
        axes.barh(places + row / 6, 2 * far, 0.15, truth - far, color=colour_of(name), label=name)
    axes.plot(truth, places + 0.25, "|", ms=24, color=colour_of("truth"), label="truth")
    axes.set(title="Searched, of 100 people stopped: 95 % at the end", xlim=(0, 60))
    axes.set_yticks(places + 0.25, stops.groups)
    axes.legend(frameon=False, markerscale=0.5)


if __name__ == "__main__":
    main()
