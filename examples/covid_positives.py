"""Positive COVID-19 tests so far, day by day, when nobody may see a single test result.

15,524 real tests at a children's hospital, 865 of them positive. Needs the extra `data`.

python examples/covid_positives.py [figure.png]
"""

from __future__ import annotations

import sys

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.baselines import local_counter
from overhand.lab.plots import colours_of, new_figure
from overhand.lab.recorded import Recorded, alternatives_to, covid_positives
from overhand.lab.simulation import Simulation, simulate

PRIVACY, SHUFFLERS, RUNS = oh.Privacy(epsilon=1.0, delta=1e-6), 4, 100


def main() -> None:
    tests = covid_positives()
    plan, twice, person = (
        oh.Plan.best(len(tests), SHUFFLERS, PRIVACY, mechanism="shares", reports=r)
        for r in (1, 2, 20)  # nobody had more than 20 tests
    )
    print(f"{len(tests):,} tests, {tests.rows.sum()} positive; {PRIVACY}")
    print(f"the guarantee is for {tests.unit}")
    sides = alternatives_to(plan)
    sides |= {"any 2 tests protected": twice, "persons protected": person}
    results = {name: simulate(side, tests.rows, runs=RUNS) for name, side in sides.items()}
    print(f"{'positives so far':<22}  rms error  largest error  messages per test")
    for name, result in results.items():
        errors = f"{result.rms_error:>9.1f}  {result.mean_max_error:>13.1f}"
        print(f"{name:<22}  {errors}  {sides[name].messages_per_user:>17}")
    if len(sys.argv) > 1:
        draw(sys.argv[1], tests, plan, results)


def by_day(tests: Recorded, plan: oh.Plan) -> tuple[NDArray[np.int64], list[oh.Estimate]]:
    """How many tests there had been at the end of every day, and the estimates then."""
    ends = np.flatnonzero(np.diff(tests.times, append=np.inf)) + 1
    # Seeded because this is a simulation that must draw the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(2))
    estimates = []
    for start, stop in zip([0, *ends], ends, strict=False):
        total.update_many(tests.rows[start:stop])
        estimates.append(total.estimate)
    return ends, estimates


def draw(path: str, tests: Recorded, plan: oh.Plan, results: dict[str, Simulation]) -> None:
    figure = new_figure(11, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=(1.35, 1))
    ends, ours = by_day(tests, plan)
    days, truth = tests.times[ends - 1], np.cumsum(tests.rows, dtype=int)[ends - 1]
    far = 1.96 * np.sqrt(local_counter(len(tests), PRIVACY, plan.values).user_variance * ends)
    label, band = f"{plan.tree.levels} shufflers", [estimate.interval(0.95) for estimate in ours]
    (low, high), (red, blue, black) = np.transpose(band), colours_of(("local", label, "truth"))
    left.fill_between(days, truth - far, truth + far, fc=red, alpha=0.15, label="local, 95 %")
    left.fill_between(days, low, high, fc=blue, alpha=0.4, label=f"{label}, 95 %")
    left.plot(days, [estimate.value for estimate in ours], color=blue, label=label)
    left.plot(days, truth, "--", color=black, lw=1.2, label="truth")
    left.set(title="Positive tests so far", xlabel="day of the pandemic", ylim=(-50, None))
    left.legend(frameon=False, loc="upper left")
    for name, colour in zip(results, colours_of(list(results)), strict=True):
        curve, style = results[name].curve, "--" if name == "trusted server" else "-"
        right.plot(curve.t / 1000, curve.rms, style, color=colour, label=name)
    right.set(title="rms error of the count", xlabel="thousand tests", yscale="log", ylim=(5, 1000))
    for axes, columns in ((left, 1), (right, 2)):
        axes.legend(frameon=False, loc="upper left", ncols=columns)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main()
