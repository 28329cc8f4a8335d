"""How many shufflers, which tree, which epsilon: the exact errors decide.

Every figure printed here is computed, not simulated: a plan knows its own error.
"""

from __future__ import annotations

import overhand as oh
from overhand.planning import Composition

HORIZON, DELTA = 100_000, 1e-6
COMPOSITIONS: tuple[Composition, ...] = ("simple", "advanced", "exact")


def main() -> None:
    print("shufflers   error   messages per user")
    for shufflers in (1, 2, 3, 5, 8):
        plan = oh.Plan.best(HORIZON, shufflers, oh.Privacy(1.0, DELTA))
        print(f"{shufflers:>9}   {plan.rms_error:>5.1f}   {plan.messages_per_user:>17}")

    # Advanced composition beats simple composition only from about 30 levels on.
    print("\ncomposition   error   (3 shufflers, same tree, same guarantee)")
    for composition in COMPOSITIONS:
        plan = oh.Plan.best(HORIZON, 3, oh.Privacy(1.0, DELTA), composition=composition)
        print(f"{composition:<11}   {plan.rms_error:>5.1f}")

    plan = oh.Plan.for_error(HORIZON, 3, error=50.0, delta=DELTA)
    print(f"\nan rms error of 50 needs epsilon = {plan.privacy.epsilon:.2f} with 3 shufflers")


if __name__ == "__main__":
    main()
