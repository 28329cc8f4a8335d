"""All sections, their tasks side by side on as many processes or machines as there are."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy
from joblib import Parallel, delayed

from overhand import __version__, errors
from overhand.evidence import (
    composition,
    coverage,
    exponents,
    messages,
    models,
    regret,
    shufflers,
)
from overhand.evidence.findings import Finding, Task
from overhand.evidence.scale import Scale

SECTIONS = {
    "exponents": exponents.section,
    "shufflers": shufflers.section,
    "models": models.section,
    "composition": composition.section,
    "regret": regret.section,
    "messages": messages.section,
    "coverage": coverage.section,
}


@dataclass(frozen=True)
class Reproduction:
    """What was found, on what scale, by what, and how long it took."""

    scale: Scale
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def is_met(self) -> bool:
        return all(finding.is_met for finding in self.findings)

    def to_json(self) -> str:
        return json.dumps(
            {
                "overhand": __version__,
                "python": platform.python_version(),
                "numpy": np.__version__,
                "scipy": scipy.__version__,
                "scale": asdict(self.scale),
                "seconds": round(self.seconds, 1),
                "is_met": self.is_met,
                "findings": [finding.to_json() for finding in self.findings],
            },
            indent=1,
        )


def reproduce(
    scale: Scale,
    sections: Sequence[str] = tuple(SECTIONS),
    *,
    jobs: int = -1,
    progress: Callable[[str, int], object] | None = None,
) -> Reproduction:
    """Measure all claims of these sections.

    Tasks go through joblib, so they run wherever it is told to run them: inside
    `joblib.parallel_config(backend="dask")` on a Dask cluster, with Ray's backend on Ray. `jobs`
    is the number of processes here; -1 is all cores. `progress` hears the name of a section and
    how many tasks there are each time that one is done.
    """
    unknown = set(sections) - set(SECTIONS)
    if unknown or not sections:
        raise errors.InvalidValue(f"sections {sorted(unknown)} are none of {', '.join(SECTIONS)}")
    started = time.perf_counter()
    made = {key: SECTIONS[key](scale) for key in sections}
    tasks = [(key, place, task) for key in made for place, task in enumerate(made[key].tasks)]
    results: dict[str, dict[int, Any]] = {key: {} for key in made}
    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    for key, place, result in parallel(delayed(_done)(*task) for task in tasks):
        results[key][place] = result
        if progress is not None:
            progress(key, len(tasks))
    findings = tuple(
        section.conclude([results[key][place] for place in range(len(section.tasks))])
        for key, section in made.items()
    )
    return Reproduction(scale, findings, time.perf_counter() - started)


def _done(key: str, place: int, task: Task) -> tuple[str, int, Any]:
    return key, place, task.run()
