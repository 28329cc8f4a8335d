"""All sections, their tasks side by side on as many processes or machines as there are."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import scipy
from joblib import Parallel, delayed

from overhand import __version__, errors
from overhand.evidence.accuracy import composition, messages, models, shufflers
from overhand.evidence.coverage import coverage
from overhand.evidence.growth import exponents, regret
from overhand.evidence.hindsight import hindsight
from overhand.evidence.readings import readings
from overhand.evidence.sections import Evidence, Scale, Task

_ALL = (exponents, shufflers, models, composition, regret, messages, coverage, readings, hindsight)
SECTIONS = {section.__name__: section for section in _ALL}
"""What can be measured, by the key of its evidence."""


class Progress(NamedTuple):
    """How far a reproduction is: the task that was done last, and parts of all work.

    >>> Progress("bands of bit", tasks_done=3, tasks=4, work_done=0.9).tasks
    4
    """

    task: str
    tasks_done: int
    tasks: int
    work_done: float
    """Tasks differ in length: this is about what part of the time it took or will take."""


@dataclass(frozen=True)
class Reproduction:
    """What was found, on what scale, by what, and how long it took.

    >>> from overhand.evidence import QUICK
    >>> Reproduction(QUICK, evidence=(), seconds=0.0).is_met
    True
    """

    scale: Scale
    evidence: tuple[Evidence, ...]
    seconds: float

    @property
    def is_met(self) -> bool:
        """Whether every check is."""
        return all(found.is_met for found in self.evidence)

    def to_json(self) -> str:
        """All numbers, and what they were made with."""
        return json.dumps(
            {
                "overhand": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                "scale": asdict(self.scale),
                "seconds": round(self.seconds, 1),
                "is_met": self.is_met,
                "findings": [found.summary() for found in self.evidence],
            },
            indent=1,
            allow_nan=False,
        )


def reproduce(
    scale: Scale,
    sections: Sequence[str] = tuple(SECTIONS),
    *,
    jobs: int = -1,
    progress: Callable[[Progress], object] | None = None,
) -> Reproduction:
    """Measure all claims of these sections.

    Tasks go through joblib, so they run wherever it is told to run them: inside
    `joblib.parallel_config(backend="dask")` on a Dask cluster, with Ray's backend on Ray. `jobs`
    is the number of processes; -1 is all there are. Every task has random numbers of its own, so
    that results are the same wherever they are made. `progress` is called after every task, and
    once before the first.

    >>> from dataclasses import replace
    >>> from overhand.evidence import QUICK
    >>> (found,) = reproduce(replace(QUICK, users=2000), ("composition",), jobs=1).evidence
    >>> found.is_met
    True
    """
    unknown = set(sections) - set(SECTIONS)
    if unknown or not sections:
        raise errors.InvalidValue(f"sections {sorted(unknown)} are not among {', '.join(SECTIONS)}")
    errors.whole("seed", scale.seed, least=0)
    started = time.perf_counter()
    made = [SECTIONS[key](scale) for key in dict.fromkeys(sections)]
    results = iter(_run([task for section in made for task in section.tasks], jobs, progress))
    evidence = tuple(s.conclude(list(islice(results, len(s.tasks)))) for s in made)
    return Reproduction(scale, evidence, time.perf_counter() - started)


def _run(
    tasks: Sequence[Task], jobs: int, progress: Callable[[Progress], object] | None
) -> list[Any]:
    """The results of all tasks; the longest are begun first, so that all workers end together."""
    longest_first = sorted(range(len(tasks)), key=lambda place: -tasks[place].cost)
    work = sum(task.cost for task in tasks)
    done = 0.0
    results: dict[int, Any] = {}
    tell = progress or (lambda _: None)
    tell(Progress("nothing yet", 0, len(tasks), 0.0))
    for place, result in _parallel(jobs)(delayed(_done)(p, tasks[p]) for p in longest_first):
        results[place] = result
        done += tasks[place].cost
        tell(Progress(tasks[place].name, len(results), len(tasks), done / work))
    return [results[place] for place in range(len(tasks))]


def _parallel(jobs: int) -> Parallel:
    """Results as they come, or all at the end from a backend that can do no better, as Ray's."""
    try:
        return Parallel(n_jobs=jobs, batch_size=1, return_as="generator_unordered")
    except ValueError:
        return Parallel(n_jobs=jobs, batch_size=1)


def _done(place: int, task: Task) -> tuple[int, Any]:
    return place, task.run()
