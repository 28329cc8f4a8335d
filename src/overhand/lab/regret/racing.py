"""Run rivals on the same users, on as many processes as there are, and measure what each misses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any
from zlib import crc32

import numpy as np
from scipy.stats import t as student

from overhand import errors
from overhand.bandits import Rounds
from overhand.lab.regret.environments import Environment, Offers, Singles
from overhand.lab.regret.rivals import Rival
from overhand.model import Counts, Floats
from overhand.randomness import Random, SeededRandom, generator_of

Advance = Callable[[int], None]

_CURVE_POINTS = 200
_BUFFER = 1 << 18  # features of one run at a time
_PIECE = 1 << 17  # features whose scores fit the cache
_GROUP = 5  # runs side by side: results do not depend on the number of processes


@dataclass(frozen=True)
class Regret:
    """What a rival missed: cumulative regret at these times, run by run, and its mean.

    >>> from overhand.model import Privacy
    >>> from overhand.lab.regret import Diverse, Field, rival
    >>> exact = rival("not-private", Field(1000, 2, Privacy(1.0, 1e-6), dimension=3))
    >>> (regret,) = measure(Diverse(3, 4), 1000, [exact], runs=5)
    >>> low, high = regret.band()
    >>> bool(low[-1] < regret.mean < high[-1])
    True
    """

    rival: Rival
    t: Counts
    curves: Floats

    @classmethod
    def join(cls, parts: Sequence[Regret]) -> Regret:
        """That of one rival, of all runs of these."""
        return replace(parts[0], curves=np.concatenate([part.curves for part in parts]))

    @property
    def final(self) -> Floats:
        """The regret of every run."""
        return np.asarray(self.curves[:, -1])

    @property
    def runs(self) -> int:
        return len(self.curves)

    @property
    def mean(self) -> float:
        return float(self.final.mean())

    @property
    def std(self) -> float:
        """The standard deviation over runs."""
        return float(self.final.std(ddof=1)) if self.runs > 1 else math.nan

    @property
    def standard_error(self) -> float:
        return self.std / math.sqrt(self.runs)

    def band(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Student's interval for the mean regret, at all times of the curve."""
        middle = self.curves.mean(axis=0)
        if self.runs == 1:
            return middle, middle
        reach = float(student.ppf((1 + confidence) / 2, self.runs - 1))
        half = reach * self.curves.std(axis=0, ddof=1) / math.sqrt(self.runs)
        return np.maximum(middle - half, 0.0), middle + half


def race(
    environment: Environment,
    horizon: int,
    rivals: Sequence[Rival],
    runs: Sequence[int],
    seed: int,
    progress: Advance | None = None,
) -> list[Regret]:
    """All rivals on the users of these runs, side by side.

    Every run has users of its own, the same for all rivals. `progress` is told of rounds.

    >>> from overhand.model import Privacy
    >>> from overhand.lab.regret import Diverse, Field, rival
    >>> exact = rival("not-private", Field(1000, 2, Privacy(1.0, 1e-6), dimension=3))
    >>> (regret,) = race(Diverse(3, 4), 1000, [exact], runs=[0, 1], seed=1)
    >>> regret.curves.shape, bool((np.diff(regret.curves) >= 0).all())
    ((2, 201), True)
    """
    for rival in rivals:
        rival.learner.check_constant(np.array([environment.constant]), lambda _: "all arms")
    users = [np.random.default_rng([seed, run]) for run in runs]
    audience = environment.audience(horizon, users)
    seats = [_Seat(rival, _streams(seed, runs, rival.name)) for rival in rivals]
    # The same whatever runs there are, for users are drawn by the chunk.
    chunk = max(1, _BUFFER // (environment.arms * environment.dimension))
    times = np.unique(np.linspace(0, horizon, _CURVE_POINTS + 1).astype(np.int64))
    curves = np.zeros((len(rivals), len(runs), len(times)))
    t = 0
    for point, stop in enumerate(times[1:], start=1):
        while t < stop:
            step = min(chunk, int(stop) - t)
            offers = audience.offers(step)
            best = offers.means.max(axis=-1)
            for seat in seats:
                seat.play(offers, best)
                if progress is not None:
                    progress(step * len(runs))
            t += step
        curves[:, :, point] = [seat.regret for seat in seats]
    return [Regret(rival, times, curve) for rival, curve in zip(rivals, curves, strict=True)]


def _streams(seed: int, runs: Sequence[int], name: str) -> list[Random]:
    """Of a rival's own, whoever else takes part."""
    key = crc32(name.encode())
    return [SeededRandom(np.random.default_rng([seed, run, key])) for run in runs]


class _Seat:
    """A rival at work on some runs."""

    def __init__(self, rival: Rival, randoms: Sequence[Random]) -> None:
        self.regret = np.zeros(len(randoms))
        self._runs = np.arange(len(randoms))[:, np.newaxis]
        self._random = generator_of(randoms[0].spawn(1)[0])
        releases = rival.sums.start(randoms)
        rows = rival.learner.unchecked_rows
        self._rounds = Rounds(rival.learner, releases, rows, runs=(len(randoms),))

    def play(self, offers: Offers, best: Singles) -> None:
        """Serve these users, with a new policy after every release."""
        users, start = offers.uniforms.shape[1], 0
        while start < users:
            stop = min(users, start + self._rounds.due - self._rounds.t)
            self._serve(offers, best, start, stop)
            start = stop

    def _serve(self, offers: Offers, best: Singles, start: int, stop: int) -> None:
        alike = offers.features.shape[1] == 1
        features = offers.features if alike else offers.features[:, start:stop]
        means = offers.means if alike else offers.means[:, start:stop]
        arms = self._choose(features, stop - start)
        offered = 0 if alike else np.arange(arms.shape[1])
        chosen = means[self._runs, offered, arms]
        missed = (best if alike else best[:, start:stop]) - chosen
        self.regret += missed.sum(axis=1, dtype=np.float64) * ((stop - start) / missed.shape[1])
        rewards = offers.uniforms[:, start:stop] < chosen
        self._rounds.keep(features[self._runs, offered, arms], rewards, stop - start)

    def _choose(self, features: Singles, users: int) -> Counts:
        """Arms by the policy, or at random as long as there is none."""
        runs, offered, arms, dimension = features.shape
        policy = self._rounds.policy
        if policy is None:
            return self._random.integers(0, arms, (runs, users))
        piece = max(1, _PIECE // (runs * arms * dimension))
        pieces = [
            policy.choose(features[:, first : first + piece]) for first in range(0, offered, piece)
        ]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces, axis=1)


def measure(
    environment: Environment,
    horizon: int,
    rivals: Sequence[Rival],
    *,
    runs: int,
    seed: int = 0,
    jobs: int = 1,
    progress: Advance | None = None,
) -> list[Regret]:
    """Run all rivals on the users of so many runs, which are the same for all of them.

    Run r draws from the seeds (seed, r), in groups of five: a longer experiment begins with the
    same groups. `progress` is told of rounds as they are done.

    >>> from overhand.model import Privacy
    >>> from overhand.lab.regret import Diverse, Field, rival
    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=3)
    >>> rivals = [rival(name, field) for name in ("not-private", "trusted", "local")]
    >>> [round(regret.mean) for regret in measure(Diverse(3, 4), 1000, rivals, runs=5)]
    [4, 66, 148]
    """
    errors.whole("horizon", horizon, least=2)
    errors.whole("runs", runs, least=1)
    errors.whole("seed", seed, least=0)
    errors.whole("jobs", jobs, least=1)
    groups = [range(first, min(first + _GROUP, runs)) for first in range(0, runs, _GROUP)]
    tasks = [(environment, horizon, rivals, group, seed) for group in groups]
    if jobs == 1:
        found = [race(*task, progress) for task in tasks]
    else:
        found = _race_in_parallel(tasks, jobs, progress)
    return [Regret.join(of_rival) for of_rival in zip(*found, strict=True)]


def _race_in_parallel(tasks: Sequence[Any], jobs: int, progress: Advance | None) -> list[Any]:
    """One process a group; each has a single thread, for the products are small."""
    try:
        from joblib import Parallel, delayed, parallel_config
    except ModuleNotFoundError:
        raise errors.OverhandError("many jobs need joblib: pip install 'overhand[lab]'") from None
    with (
        _forward_progress(progress) as tell,
        parallel_config(backend="loky", inner_max_num_threads=1),
    ):
        return list(
            Parallel(n_jobs=jobs, max_nbytes=None)(delayed(race)(*task, tell) for task in tasks)
        )


@contextmanager
def _forward_progress(progress: Advance | None) -> Iterator[Advance | None]:
    """A way for other processes to tell how far they are."""
    if progress is None:
        yield None
        return
    from multiprocessing import Manager

    with Manager() as manager:
        queue = manager.Queue()

        def listen() -> None:
            while (rounds := queue.get()) is not None:
                progress(rounds)

        listener = Thread(target=listen, daemon=True)
        listener.start()
        try:
            yield queue.put
        finally:
            queue.put(None)
            listener.join()
