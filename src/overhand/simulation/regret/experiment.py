"""All rivals in one environment, run by run, on as many processes as there are."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Thread
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from overhand import errors
from overhand.simulation.regret.environments import Environment
from overhand.simulation.regret.race import Regret, race
from overhand.simulation.regret.rivals import Rival

Floats = NDArray[np.float64]
Progress = Callable[[int], None]

_GROUP = 5  # runs side by side: results do not depend on the number of processes


@dataclass(frozen=True)
class Outcome:
    """What a rival missed in all runs: mean, spread, and how sure the mean is.

    >>> from overhand.model import Privacy
    >>> from overhand.simulation.regret import Diverse, Field, rival
    >>> exact = rival("not-private", Field(1000, 2, Privacy(1.0, 1e-6), dimension=3))
    >>> (outcome,) = measure(Diverse(3, 4), 1000, [exact], runs=5)
    >>> low, high = outcome.band()
    >>> bool(low[-1] < outcome.mean < high[-1])
    True
    """

    rival: Rival
    regret: Regret

    @property
    def runs(self) -> int:
        return len(self.regret.final)

    @property
    def mean(self) -> float:
        return float(self.regret.final.mean())

    @property
    def std(self) -> float:
        """The standard deviation over runs."""
        return float(self.regret.final.std(ddof=1)) if self.runs > 1 else math.nan

    @property
    def standard_error(self) -> float:
        return self.std / math.sqrt(self.runs)

    def band(self, confidence: float = 0.95) -> tuple[Floats, Floats]:
        """Student's interval for the mean regret, at all times of the curve."""
        curves = self.regret.curves
        middle = curves.mean(axis=0)
        if self.runs == 1:
            return middle, middle
        reach = float(student.ppf((1 + confidence) / 2, self.runs - 1))
        half = reach * curves.std(axis=0, ddof=1) / math.sqrt(self.runs)
        return np.maximum(middle - half, 0.0), middle + half


def measure(
    environment: Environment,
    horizon: int,
    rivals: Sequence[Rival],
    *,
    runs: int,
    seed: int = 0,
    jobs: int = 1,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Run all rivals on the users of so many runs, which are the same for all of them.

    Run r draws from the seeds (seed, r), in groups of five: a longer experiment begins with the
    same groups. `progress` is told of rounds as they are done.

    >>> from overhand.model import Privacy
    >>> from overhand.simulation.regret import Diverse, Field, rival
    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=3)
    >>> rivals = [rival(name, field) for name in ("not-private", "trusted", "local")]
    >>> [round(outcome.mean) for outcome in measure(Diverse(3, 4), 1000, rivals, runs=5)]
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
        found = _in_parallel(tasks, jobs, progress)
    return [
        Outcome(rival, _joined([of_group[index] for of_group in found]))
        for index, rival in enumerate(rivals)
    ]


def _joined(parts: Sequence[Regret]) -> Regret:
    curves = np.concatenate([part.curves for part in parts])
    return Regret(parts[0].name, parts[0].t, curves)


def _in_parallel(tasks: Sequence[Any], jobs: int, progress: Progress | None) -> list[Any]:
    """One process a group; each has a single thread, for the products are small."""
    try:
        from joblib import Parallel, delayed, parallel_config
    except ModuleNotFoundError:
        raise errors.OverhandError("many jobs need joblib: pip install 'overhand[cli]'") from None
    with (
        _told(progress) as tell,
        parallel_config(backend="loky", inner_max_num_threads=1),
    ):
        return list(
            Parallel(n_jobs=jobs, max_nbytes=None)(delayed(race)(*task, tell) for task in tasks)
        )


class _Tell:
    """Tells the progress of another process."""

    def __init__(self, queue: Any) -> None:
        self._queue = queue

    def __call__(self, rounds: int) -> None:
        self._queue.put(rounds)


@contextmanager
def _told(progress: Progress | None) -> Iterator[_Tell | None]:
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
            yield _Tell(queue)
        finally:
            queue.put(None)
            listener.join()
