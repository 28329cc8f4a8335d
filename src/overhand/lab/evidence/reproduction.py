"""All sections, their tasks side by side on as many processes or machines as there are; the report.

The report is one HTML file with everything in it, that a phone can show.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any, NamedTuple

import numpy as np
import scipy
from joblib import Parallel, delayed

from overhand import __version__, errors
from overhand.lab.evidence.accuracy import composition, messages, models, shufflers
from overhand.lab.evidence.blocks import blocks
from overhand.lab.evidence.coverage import coverage, hindsight, readings
from overhand.lab.evidence.growth import exponents, regret
from overhand.lab.evidence.sections import Check, Evidence, Figure, Scale, Task
from overhand.lab.plots import phone_svg

_ALL = (exponents, shufflers, models, composition, regret, messages, coverage, readings)
SECTIONS = {section.__name__: section for section in (*_ALL, hindsight, blocks)}
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

    >>> from overhand.lab.evidence import QUICK
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
    >>> from overhand.lab.evidence import QUICK
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
    evidence = tuple(section.conclude(results) for section in made)
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
    for place, result in _parallel(jobs)(delayed(_run_task)(p, tasks[p]) for p in longest_first):
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


def _run_task(place: int, task: Task) -> tuple[int, Any]:
    return place, task.run()


_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1e8449; --bad: #b03a2e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
blockquote { margin: 0; padding-left: .8rem; border-left: 3px solid var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
figure { margin: 1rem 0; } svg { width: 100%; max-width: 34rem; height: auto; }
.met { color: var(--good); } .missed { color: var(--bad); font-weight: 600; }
@media (prefers-color-scheme: dark) {
  :root { --good: #58d68d; --bad: #ec7063; }
  svg { filter: invert(.9) hue-rotate(180deg); }
}
"""


def html(reproduction: Reproduction) -> str:
    """The whole report.

    >>> from overhand.lab.evidence import QUICK
    >>> "All checks are met." in html(Reproduction(QUICK, evidence=(), seconds=1.0))
    True
    """
    verdict = "All checks are met." if reproduction.is_met else "Some checks are not met."
    scale = reproduction.scale
    contents = "".join(
        f'<li><a href="#{found.key}">{escape(found.title)}</a> '
        # Nothing is met where nothing is checked.
        f"{_mark(found.is_met) if found.checks else '(shown, not checked)'}</li>"
        for found in reproduction.evidence
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>overhand: claims reproduced</title><style>{_STYLE}</style></head><body>"
        "<h1>Concurrent shuffle differential privacy, reproduced</h1>"
        f"<p>{escape(scale.name)} scale, {escape(str(scale.privacy))}, seed {scale.seed}; "
        f"{reproduction.seconds:,.0f} seconds. <strong>{verdict}</strong></p>"
        f"<ol>{contents}</ol>{''.join(map(_section, reproduction.evidence))}</body></html>\n"
    )


def _section(found: Evidence) -> str:
    return (
        f'<section id="{found.key}"><h2>{escape(found.title)}</h2>'
        f"<blockquote>{escape(found.claim)}</blockquote>"
        + "".join(_figure(figure) for figure in found.figures)
        + _table(found.columns, found.rows)
        + "".join(_check(check) for check in found.checks)
        + f"<p>{escape(found.method)}</p></section>"
    )


def _figure(figure: Figure) -> str:
    svg = phone_svg(figure.lines, x=figure.x, y=figure.y, scale=figure.scale)
    label = escape(f"{figure.y} against {figure.x}")
    return f'<figure role="img" aria-label="{label}">{svg}</figure>'


def _check(check: Check) -> str:
    limits = f"{check.least:.4g} to {check.most:.4g}"
    if check.most == float("inf"):
        limits = f"at least {check.least:g}"
    return (
        f"<p>{_mark(check.is_met)} {escape(check.what)}: <strong>{check.value:.4g}</strong> "
        f"(must be {limits})</p>"
    )


def _mark(is_met: bool) -> str:
    return '<span class="met">met</span>' if is_met else '<span class="missed">missed</span>'


def _table(columns: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    cells = (
        [f"{cell:,}" if isinstance(cell, (int, float)) else str(cell) for cell in row]
        for row in rows
    )
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'
