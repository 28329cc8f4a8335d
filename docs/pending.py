"""The error of three real streams at all times, pending users at the middle and at the rate.

Bits are run twice with the same noise, the second time with zeros and ones exchanged: what pending
users add to the error is then once with the noise and once against it, and few runs tell enough.

python docs/pending.py            about a minute; needs the extra `data`
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.lab.recorded import (
    Recorded,
    covid_positives,
    late_flights,
    stops_by_neighbourhood,
    stops_by_race,
)

PRIVACY, SHUFFLERS = oh.Privacy(epsilon=1.0, delta=1e-6), 4
STREAMS = {
    "covid_positives": (covid_positives, 100),
    "police_stops, where": (stops_by_neighbourhood, 4),
    "police_stops, what": (stops_by_race, 4),
    "late_flights": (late_flights, 8),
}
"""With the number of runs: one run of many sums tells as much as many of one."""


def main() -> None:
    print(f"{'rms error of every sum':<22}  users  middle    rate  ratio")
    for name, (load, runs) in STREAMS.items():
        records = load()
        plan = oh.Plan.best(
            len(records), SHUFFLERS, PRIVACY, values=records.values, mechanism="shares"
        )
        both = [records]
        if records.values == oh.Bits():
            both.append(replace(records, rows=1 - records.rows))
        squares = np.mean(
            [measured(plan, one, seed) for one in both for seed in range(runs)], axis=0
        )
        middle, rate = np.sqrt(squares)
        print(f"{name:<20} {len(records):>8,} {middle:>7.1f} {rate:>7.1f}  {rate / middle:.3f}")


def measured(plan: oh.Plan, records: Recorded, seed: int) -> NDArray[np.float64]:
    """Mean squared errors of one run over all times: at the middle, and at the rate."""
    rows = records.values.coordinates(records.rows).reshape(len(records), -1)
    truth = np.concatenate([np.zeros_like(rows[:1]), np.cumsum(rows, axis=0)]).astype(float)
    total = oh.ContinualSum(plan, oh.seeded_random(seed), pending="rate")
    lowest, users = plan.tree.lowest, len(records)
    at_end, squares = np.zeros_like(truth[:1]), np.zeros(2)
    for start in range(0, users, lowest):
        stop = min(users, start + lowest)
        total.update_rows(records.rows[start : stop - 1])
        # Between two ends an estimate goes up by the same for every user.
        pending = np.arange(stop - start)[:, np.newaxis]
        rate = np.ravel(total.estimate.value - at_end) / max(1, stop - start - 1)
        rising = [at_end + pending * one for one in (np.ravel(plan.imputed), rate)]
        squares += [np.sum((curve - truth[start:stop]) ** 2) for curve in rising]
        total.update_rows(records.rows[stop - 1 : stop])
        at_end = np.ravel(total.estimate.value)[np.newaxis]
    return np.asarray(squares / truth.size)


if __name__ == "__main__":
    main()
