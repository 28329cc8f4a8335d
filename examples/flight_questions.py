"""Questions about 327,346 flights: how late, which airline, this week compared with last week.

All flights from New York in 2013 that arrived. Flights are not secret: this shows what the answers
look like. There are three plans over the same flights: a flight is in all of them, so it has a
guarantee of three times this epsilon and delta. Needs the extra `data`.

python examples/flight_questions.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

import overhand as oh
from overhand.lab.recorded import LATE, table

PRIVACY, SHUFFLERS = oh.Privacy(epsilon=1.0, delta=1e-6), 4
EDGES = [*range(-90, 60, 5), *range(60, 180, 15), *range(180, 420, 60), 1440]
WEEK = np.timedelta64(7, "D")


def arrived() -> Any:
    flights = table("nycflights13", "flights")
    return flights[flights["arr_delay"].notna()].sort_values("time_hour", kind="stable")


def summed(values: oh.Values, held: Any, users: int) -> oh.ContinualSum:
    plan = oh.Plan.best(users, SHUFFLERS, PRIVACY, values=values, mechanism="shares")
    # Seeded because this is a simulation that must draw the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    total.update_many(held)
    return total


def how_late(delays: Any) -> None:
    total = summed(oh.Binned(edges=EDGES, clip=True), delays, len(delays))
    parts = [0.25, 0.5, 0.75, 0.95]
    print("minutes late        estimate     95 %, all at once     truth")
    found = total.estimate.quantile(parts, simultaneous=True)
    for q, one, truth in zip(parts, found, np.quantile(delays, parts), strict=True):
        interval = f"{one.low:>9g} to {one.high:<6g}"
        print(f"{q:>4.0%} of flights  {one.value:>10.1f}  {interval}{truth:>9g}")


def which_airline(carriers: Any, late: Any) -> None:
    labels = sorted(set(carriers))  # known beforehand: the codes are public
    total = summed(oh.Grouped(labels, of=oh.Bits()), (carriers, late), len(late))
    print("airline   flights  late, with a bar that holds for all airlines at once   truth")
    for bar in total.estimate.top(4, by="mean"):
        truth = (carriers == bar.label).sum(), late[carriers == bar.label].mean()
        said = f"{bar.value:>10.1%}  {bar.low:.1%} to {bar.high:.1%}"
        print(f"{bar.label:<7}  {truth[0]:>8,}{said:<47}  {truth[1]:>9.1%}")
    for group in total.estimate.groups():
        if group.mean is None:
            print(f"{group.label:<7}  {(carriers == group.label).sum():>8,}  {group.note}")


def this_week(hours: Any, late: Any) -> None:
    total = summed(oh.Bits(), late, len(late))
    places = np.searchsorted(hours, hours[0] + 22 * WEEK + np.arange(3) * WEEK)
    last, this = (total.between(int(a), int(b)) for a, b in zip(places, places[1:], strict=False))
    ratio, (low, high) = this.mean() / last.mean(), (this.mean() / last.mean()).interval()
    truth = late[this.start : this.t].mean() / late[last.start : last.t].mean()
    print(f"late flights, week 24 vs week 23: {ratio.value:.2f} times the share")
    print(f"95 %: {low:.2f} to {high:.2f}; truth: {truth:.2f}")


if __name__ == "__main__":
    flights = arrived()
    is_late = (flights["arr_delay"] > LATE).to_numpy()
    how_late(flights["arr_delay"].to_numpy())
    which_airline(flights["carrier"].to_numpy(str), is_late.astype(int))
    this_week(flights["time_hour"].str.removesuffix("Z").to_numpy("datetime64[s]"), is_late)
