"""Algorithm 1 with a server that learns: the next mechanism depends on earlier batches.

One shuffler watches for a signal in small batches. Once a batch shows one, the server activates
the second shuffler, on a large batch with little noise per user. Whatever the server decides, a
user is in at most two batches, so the most privacy it can lose is known beforehand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import overhand as oh
from overhand.accounting import Level, certified_delta
from overhand.model import Messages, Shuffled
from overhand.shuffle import shuffle

PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)
SCOUT = oh.CoinSum.with_variance(size=200, variance=36.0)
SURVEY = oh.CoinSum.with_variance(size=5_000, variance=36.0)


class CuriousServer:
    """Looks closely only where there is something to see."""

    def __init__(self) -> None:
        self.interested = False
        self.surveys: list[tuple[int, float]] = []

    def activate(self, idle: set[int]) -> Mapping[int, oh.CoinSum]:
        wanted = {0: SCOUT}
        if self.interested:
            wanted[1] = SURVEY
        return {shuffler: wanted[shuffler] for shuffler in idle if shuffler in wanted}

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        if shuffler == 0:
            self.interested = SCOUT.sum_of(shuffled) > 60
        else:
            self.surveys.append((t, SURVEY.sum_of(shuffled) / SURVEY.size))


def main() -> None:
    # A user is in at most one scouting and one survey batch.
    spent = certified_delta([Level(SCOUT.noise()), Level(SURVEY.noise())], PRIVACY.epsilon)
    print(f"a user spends at most delta = {spent:.2g} at epsilon = {PRIVACY.epsilon:g}")
    assert spent <= PRIVACY.delta

    rate = np.where(np.arange(30_000) < 12_000, 0.05, 0.6)  # something begins at user 12,000
    values = np.random.default_rng(1).random(30_000) < rate
    server, random = CuriousServer(), oh.secure_random()
    active: dict[int, tuple[oh.CoinSum, list[Messages]]] = {}
    for t, value in enumerate(values, start=1):
        for shuffler, mechanism in server.activate({0, 1}.difference(active)).items():
            active[shuffler] = mechanism, []
        for shuffler, (mechanism, sent) in list(active.items()):
            sent.append(mechanism.encode_many([value], random))
            if len(sent) == mechanism.size:
                del active[shuffler]
                batch = Messages.concatenate(sent).gather(mechanism.size)
                server.receive(t, shuffler, shuffle(batch, random))
    for t, measured in server.surveys:
        print(f"survey that ended with user {t:,}: rate {measured:.3f}")


if __name__ == "__main__":
    main()
