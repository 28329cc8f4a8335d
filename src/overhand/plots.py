"""Figures: errors against time, shufflers and messages; regret against time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue, OverhandError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIVAL_COLOURS = (
    "#7d8a97",
    "#444444",
    "#b03a2e",
    "#e59866",
    "#b7950b",
    "#1e8449",
    "#6c3483",
    "#1769aa",
    "#d35400",
    "#0b5345",
)
SUFFIXES = (".png", ".svg", ".pdf")
_COLOURS = (
    "#b03a2e",
    "#d98c1f",
    "#7d8a97",
    "#2e86c1",
    "#12507b",
    "#6c3483",
    "#1e8449",
    "#0b5345",
)


@dataclass(frozen=True)
class Line:
    """One labelled curve."""

    label: str
    x: NDArray[Any]
    y: NDArray[Any]
    style: str = "-"


@dataclass(frozen=True, eq=False)
class Band:
    """A labelled curve and how sure it is."""

    label: str
    x: NDArray[Any]
    middle: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    style: str = "-"
    is_ours: bool = False


def check_figure_path(path: Path) -> None:
    """Refuse, before any work is done, a path that no figure can be written to."""
    if path.suffix not in SUFFIXES:
        raise InvalidValue(f"figure {path} must end in one of {', '.join(SUFFIXES)}")
    if not path.parent.is_dir():
        raise InvalidValue(f"figure {path}: there is no directory {path.parent}")
    new_figure(1, 1)


def error_over_time(lines: Sequence[Line], path: Path, *, title: str) -> None:
    """Error against users so far, one line a model."""
    figure = new_figure(8.0, 4.8)
    _draw_over_time(figure.subplots(), lines, title)
    figure.savefig(path)


def comparison(
    over_time: Sequence[Line],
    by_shufflers: Sequence[Line],
    levels: Sequence[tuple[str, float]],
    path: Path,
    *,
    title: str,
) -> None:
    """Two panels: error against time, and against the number of shufflers.

    `levels` are errors that do not depend on the number of shufflers, drawn as dotted lines.
    """
    figure = new_figure(13.0, 5.2)
    left, right = figure.subplots(1, 2)
    _draw_over_time(left, over_time, title)
    for index, line in enumerate(by_shufflers):
        right.plot(
            line.x,
            line.y,
            line.style,
            marker="o",
            ms=4,
            label=line.label,
            color=_COLOURS[(2 * index + 2) % len(_COLOURS)],
        )
    for label, error in levels:
        right.axhline(error, ls=":", lw=1, color="#444444")
        right.annotate(
            label,
            (1.0, error),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color="#444444",
            xytext=(-4, 1),
            textcoords="offset points",
        )
    right.set(
        xlabel="shufflers",
        ylabel="rms error over all users",
        yscale="log",
        title="More shufflers, less error",
    )
    right.set_xticks(by_shufflers[0].x)
    right.yaxis.set_major_formatter(_plain)
    right.yaxis.set_minor_formatter(_unlabelled)
    right.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def frontier_figure(lines: Sequence[Line], path: Path, *, title: str) -> None:
    """Error against messages, a point for every number of shufflers, which grow along a line."""
    figure = new_figure(8.0, 4.8)
    axes = figure.subplots()
    for index, line in enumerate(lines):
        colour = _COLOURS[(3 * (index // 2)) % len(_COLOURS)]
        axes.plot(line.x, line.y, line.style, marker="o", ms=5, label=line.label, color=colour)
        for shufflers, (x, y) in enumerate(zip(line.x, line.y, strict=True), start=1):
            axes.annotate(
                str(shufflers), (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7
            )
    axes.set(xlabel="messages a user", ylabel="rms error", xscale="log", yscale="log", title=title)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(_round_numbers())
        axis.set_major_formatter(_plain)
        axis.set_minor_formatter(_unlabelled)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path)


def regret_figure(bands: Sequence[Band], path: Path, *, title: str) -> None:
    """Regret against users, with a band each: those that learn on the left, all on the right."""
    figure = new_figure(13.0, 5.2)
    left, right = figure.subplots(1, 2)
    last = sorted(float(band.middle[-1]) for band in bands)
    most = 2.5 * last[len(last) // 2]
    for axes, shown, scale in (
        (left, [b for b in bands if b.middle[-1] <= most], "linear"),
        (right, list(bands), "log"),
    ):
        for band in shown:
            colour = _RIVAL_COLOURS[list(bands).index(band) % len(_RIVAL_COLOURS)]
            width = 2.4 if band.is_ours else 1.4
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.14, lw=0)
            axes.plot(band.x, band.middle, band.style, color=colour, lw=width, label=band.label)
        axes.set(xlabel="users so far", ylabel="regret", yscale=scale)
        axes.margins(x=0.01)
        axes.xaxis.set_major_formatter(_plain)
        axes.yaxis.set_major_formatter(_plain)
        axes.yaxis.set_minor_formatter(_unlabelled)
    right.set_ylim(bottom=max(1.0, last[0] / 50))
    left.set_title(title)
    right.set_title("All of them, with 95 % bands for the mean")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path)


def _draw_over_time(axes: Axes, lines: Sequence[Line], title: str) -> None:
    for index, line in enumerate(lines):
        axes.plot(
            line.x,
            line.y,
            line.style,
            lw=1.6,
            label=line.label,
            color=_COLOURS[index % len(_COLOURS)],
        )
    axes.set(xlabel="users so far", ylabel="root mean square error", yscale="log", title=title)
    lowest = min((float(np.min(line.y[line.y > 0], initial=math.inf)) for line in lines), default=1)
    axes.set_ylim(bottom=max(1.0, lowest * 0.8))
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0, 1))
    axes.margins(x=0.01)
    axes.xaxis.set_major_formatter(_plain)
    axes.yaxis.set_major_formatter(_plain)
    axes.yaxis.set_minor_formatter(_unlabelled)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)  # room for the legend above the curves


def _plain(value: float, _: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _round_numbers() -> Any:
    """Ticks at 1, 2, 3, 5, 7 and 10 times a power of ten."""
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=(1.0, 2.0, 3.0, 5.0, 7.0))


def _unlabelled(value: float, _: float) -> str:
    return ""


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise OverhandError("figures need matplotlib: pip install 'overhand[plots]'") from None
    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    return figure
