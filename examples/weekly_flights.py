"""Late flights week by week: windows by time, read off one private running count.

All flights from New York in 2013 that arrived, with the minute of their arrival. When a flight
arrived is public here; whether it was late is protected. Needs the extra `data`.

python examples/weekly_flights.py
"""

from __future__ import annotations

import overhand as oh
from overhand.lab.recorded import LATE, late_flights

PRIVACY, SHUFFLERS, WORST = oh.Privacy(epsilon=1.0, delta=1e-6), 4, 5


def main() -> None:
    flights = late_flights()
    plan = oh.Plan.best(len(flights), SHUFFLERS, PRIVACY, mechanism="shares")
    # Seeded because this is a simulation that must print the same again: deploy secure_random().
    total = oh.ContinualSum(plan, random=oh.seeded_random(1))
    total.update_many(flights.rows, at=flights.times)
    weeks, size = total.windows("7d"), plan.tree.lowest
    print(f"{len(flights):,} flights in {len(weeks)} weeks, in blocks of {size} flights")
    print(f"the {WORST} weeks with the most flights over {LATE} minutes late; {PRIVACY}")
    print("from        last of its flights  flights  late, 95 %              truth")
    for week in sorted(weeks, key=lambda week: -week.estimate.value)[:WORST]:
        found, (low, high) = week.estimate, week.estimate.interval(0.95)
        truth = flights.rows[found.start : found.t].sum()
        late = f"{found.value:,.0f} ({low:,.0f} to {high:,.0f})"
        when = f"{week.start:%Y-%m-%d}  {week.last:%Y-%m-%d %H:%M}   "
        print(f"{when}  {found.users:>7,}  {late:<22}  {truth:,}")
    spring = total.between("2013-03-01", "2013-06-01")
    print(f"March to May: {spring.value:,.0f} of {spring.users:,}, std {spring.std:.1f}")


if __name__ == "__main__":
    main()
