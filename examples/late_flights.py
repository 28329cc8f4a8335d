"""Late flights so far, over a year and 327,346 landings: what a longer stream gains.

All flights from New York in 2013 that arrived. Flights are not secret: this shows scale, on a real
stream, with its storms and quiet weeks. Needs the extra `data`.

python examples/late_flights.py [figure.png]
"""

from __future__ import annotations

import sys

import numpy as np

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.plots import colour_of, colours_of, new_figure
from overhand.lab.recorded import LATE, Recorded, alternatives_to, late_flights
from overhand.lab.simulation import Simulation, simulate

PRIVACY, SHUFFLERS, RUNS = oh.Privacy(epsilon=1.0, delta=1e-6), 4, 20
WEEK = np.timedelta64(7, "D")


def main() -> None:
    flights = late_flights()
    plan = oh.Plan.best(len(flights), SHUFFLERS, PRIVACY, mechanism="shares")
    print(f"{len(flights):,} flights, {flights.rows.sum():,} over {LATE} minutes late; {PRIVACY}")
    print(f"this protects {flights.unit}")
    sides = alternatives_to(plan)
    results = {name: simulate(side, flights.rows, runs=RUNS) for name, side in sides.items()}
    print(f"{'late flights so far':<20}  rms error  largest error  messages per flight")
    for name, result in results.items():
        errors = f"{result.rms_error:>9.1f}  {result.mean_max_error:>13.1f}"
        print(f"{name:<20}  {errors}  {sides[name].messages_per_user:>19}")
    if len(sys.argv) > 1:
        draw(sys.argv[1], flights, plan, results)


def weekly(flights: Recorded, plan: oh.Plan) -> list[oh.Estimate]:
    """How many of a week's flights were late, for every whole week."""
    # Seeded because this is a simulation that must draw the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    total.update_many(flights.rows)
    starts = np.searchsorted(flights.times, np.arange(flights.times[0], flights.times[-1], WEEK))
    return [total.between(int(a), int(b)) for a, b in zip(starts, starts[1:], strict=False)]


def draw(path: str, flights: Recorded, plan: oh.Plan, results: dict[str, Simulation]) -> None:
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2)
    days = (flights.times - flights.times[0]) / np.timedelta64(1, "D")
    for name, result in results.items():
        style, colour = "--" if name == "trusted server" else "-", colour_of(name)
        left.plot(days[result.curve.t - 1], result.curve.rms, style, color=colour, label=name)
    left.set(title="rms error of late flights so far", ylim=(0, None))
    weeks = [week.mean() for week in weekly(flights, plan)]
    when, users = np.transpose([(days[w.start], w.users) for w in weeks])
    late = np.array([flights.rows[w.start : w.t].mean() for w in weeks])
    far = 1.96 * np.sqrt(local_counter(len(flights), PRIVACY, plan.values).user_variance / users)
    label, band = f"{plan.tree.levels} shufflers", [w.interval(0.95) for w in weeks]
    (low, high), (red, blue, black) = np.transpose(band), colours_of(("local", label, "truth"))
    right.fill_between(when, late - far, late + far, fc=red, alpha=0.15, label="local, 95 %")
    right.fill_between(when, low, high, fc=blue, alpha=0.4, label=f"{label}, 95 %")
    right.plot(when, [w.value for w in weeks], color=blue, label=label)
    right.plot(when, late, "--", color=black, lw=1.2, label="truth")
    right.set(title="Share of late flights, week by week")
    right.yaxis.set_major_formatter("{x:.0%}")
    for axes in (left, right):
        axes.legend(frameon=False)
        axes.set(xlabel="day of the year")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
