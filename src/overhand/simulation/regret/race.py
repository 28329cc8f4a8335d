"""Run rivals on the same users and measure what each of them misses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from overhand.bandits import Policy
from overhand.bandits.linucb import ALIKE
from overhand.errors import InvalidValue
from overhand.randomness import Random, SeededRandom
from overhand.simulation.regret.environments import Environment, Offers
from overhand.simulation.regret.rivals import Rival

Floats = NDArray[np.float64]

_CURVE_POINTS = 200
_BUFFER = 1 << 18  # features of one run at a time
_PIECE = 1 << 17  # features whose scores fit the cache


@dataclass(frozen=True)
class Regret:
    """What a rival missed: cumulative regret, run by run, at these times."""

    name: str
    t: NDArray[np.int64]
    curves: Floats

    @property
    def final(self) -> Floats:
        """The regret of every run."""
        return np.asarray(self.curves[:, -1])


def race(
    environment: Environment,
    horizon: int,
    rivals: Sequence[Rival],
    runs: Sequence[int],
    seed: int,
    progress: Callable[[int], None] | None = None,
) -> list[Regret]:
    """All rivals on the users of these runs, side by side.

    Every run has users of its own, the same for all rivals. `progress` is told of rounds.

    >>> from overhand.model import Privacy
    >>> from overhand.simulation.regret import Diverse, Field, rival
    >>> exact = rival("not-private", Field(1000, 2, Privacy(1.0, 1e-6), dimension=3))
    >>> (regret,) = race(Diverse(3, 4), 1000, [exact], runs=[0, 1], seed=1)
    >>> regret.curves.shape, bool((np.diff(regret.curves) >= 0).all())
    ((2, 201), True)
    """
    for rival in rivals:
        _check_constant(rival.learner.constants.constant, environment.constant)
    users = [np.random.default_rng([seed, run]) for run in runs]
    crowd = environment.crowd(horizon, users)
    seats = [_Seat(rival, _streams(seed, runs, rival.name)) for rival in rivals]
    # The same whatever runs there are, for users are drawn by the chunk.
    chunk = max(1, _BUFFER // (environment.arms * environment.dimension))
    times = np.unique(np.linspace(0, horizon, _CURVE_POINTS + 1).astype(np.int64))
    curves = np.zeros((len(rivals), len(runs), len(times)))
    t = 0
    for point, stop in enumerate(times[1:], start=1):
        while t < stop:
            step = min(chunk, int(stop) - t)
            offers = crowd.offers(step)
            best = offers.means.max(axis=-1)
            for seat in seats:
                seat.play(offers, best)
                if progress is not None:
                    progress(step * len(runs))
            t += step
        curves[:, :, point] = [seat.regret for seat in seats]
    return [Regret(rival.name, times, curve) for rival, curve in zip(rivals, curves, strict=True)]


def _check_constant(learnt: float | None, offered: float) -> None:
    if learnt is not None and abs(learnt - offered) > ALIKE:
        raise InvalidValue(
            f"a learner for the constant {learnt:.9g}, where all arms have {offered:.9g}"
        )


def _streams(seed: int, runs: Sequence[int], name: str) -> list[Random]:
    """Of a rival's own, whoever else takes part."""
    key = crc32(name.encode())
    return [SeededRandom(np.random.default_rng([seed, run, key])) for run in runs]


class _Seat:
    """A rival at work on some runs."""

    def __init__(self, rival: Rival, randoms: Sequence[Random]) -> None:
        self.regret = np.zeros(len(randoms))
        self._runs = np.arange(len(randoms))[:, np.newaxis]
        self._rival = rival
        self._learner = rival.learner
        own = randoms[0].spawn(1)[0]
        assert isinstance(own, SeededRandom)
        self._random = own.generator
        self._releases = rival.sums.start(randoms)
        self._policy: Policy | None = None
        self._waiting: list[Floats] = []
        self._t = 0
        self._next = rival.sums.next_release(0)

    def play(self, offers: Offers, best: NDArray[np.float32]) -> None:
        """Serve these users, with a new rule after every release."""
        users, start = offers.uniforms.shape[1], 0
        while start < users:
            stop = min(users, start + self._next - self._t)
            self._serve(offers, best, start, stop)
            self._t += stop - start
            start = stop
            if self._t == self._next:
                self._learn()

    def _serve(self, offers: Offers, best: NDArray[np.float32], start: int, stop: int) -> None:
        alike = offers.features.shape[1] == 1
        features = offers.features if alike else offers.features[:, start:stop]
        means = offers.means if alike else offers.means[:, start:stop]
        arms = self._chosen(features, stop - start)
        runs = self._runs
        offered = 0 if alike else np.arange(arms.shape[1])
        chosen = means[runs, offered, arms]
        missed = (best if alike else best[:, start:stop]) - chosen
        self.regret += missed.sum(axis=1, dtype=np.float64) * ((stop - start) / missed.shape[1])
        rewards = offers.uniforms[:, start:stop] < chosen
        x = features[runs, offered, arms]
        x = np.broadcast_to(x, (*rewards.shape, x.shape[-1])).reshape(-1, x.shape[-1])
        rows = self._learner.unchecked_rows(x.astype(np.float64), rewards.reshape(-1) * 1.0)
        self._waiting.append(rows.reshape(*rewards.shape, -1))

    def _chosen(self, features: NDArray[np.float32], users: int) -> NDArray[np.int64]:
        """Arms by the rule, or at random as long as there is none."""
        runs, offered, arms, dimension = features.shape
        if self._policy is None:
            return self._random.integers(0, arms, (runs, users))
        piece = max(1, _PIECE // (runs * arms * dimension))
        pieces = [
            self._policy.choose(features[:, first : first + piece])
            for first in range(0, offered, piece)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)

    def _learn(self) -> None:
        rows = self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting, 1)
        self._waiting = []
        sums = self._rival.sums
        total = self._releases.after(rows)
        self._policy = self._learner.policy(self._t, total, sums.std(self._t))
        self._next = sums.next_release(self._t)
