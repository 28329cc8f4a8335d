"""Figures: errors against time, shufflers and messages; regret; what a report shows."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from overhand.errors import OverhandError
from overhand.model import Counts, Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
"""What a figure's file name may end in."""
_FAMILIES = {
    "truth": ("#222222",),
    "lower bound": ("#222222",),
    "not private": ("#7d8a97",),
    "hindsight": ("#d81b60",),
    "trusted best known": ("#0b5345",),
    "trusted server": ("#0b5345",),
    "trusted tree combined": ("#7dbb8a",),
    "trusted": ("#1e8449",),
    "local best known": ("#e59866",),
    "local": ("#b03a2e",),
    "published": ("#d98c1f",),
    "one growing": ("#5d4037",),
    "one": ("#8d6e63", "#c3a79b"),
    "ballots": ("#b7950b",),
    "coins": ("#2e86c1",),
    "shares": ("#117a65",),
    "pairs": ("#6c3483",),
    "ours": ("#1769aa",),
    "shufflers binary": ("#a9cce3",),
    "shufflers": ("#1769aa", "#5dade2", "#a9cce3"),
}
"""What a curve is of, by words of its label: a model has the same colour in all figures."""
_OTHERS = ("#4e5d6c", "#45b39d", "#873600", "#af7ac5", "#7f8c0d", "#f1948a")
"""For curves of no model: of labels, features, places."""
_PHONE_WIDTH, _PHONE_HEIGHT, _PHONE_FONT = 4.7, 4.2, 9.5
"""In inches and points: shown 358 pixels wide, a point is a little more than a pixel."""
_SOME_DECADES, _MANY_DECADES = 1.2, 2.5
_FEW = 12  # points of a curve that are marked one by one


@dataclass(frozen=True)
class Line:
    """One labelled curve."""

    label: str
    x: Sequence[float] | Counts | Floats
    y: Sequence[float] | Floats
    style: str = "-"
    marks: Sequence[str] = field(default=(), repr=False)
    """Text in its points, if any."""


@dataclass(frozen=True, eq=False)
class Band:
    """A labelled curve and its uncertainty."""

    label: str
    x: Counts
    middle: Floats
    low: Floats
    high: Floats
    style: str = "-"
    is_ours: bool = False


@dataclass(frozen=True)
class Panel:
    """Curves that share axes, under a title."""

    title: str
    lines: Sequence[Line]


def colours_of(labels: Sequence[str]) -> list[str]:
    """The colours of the curves of a figure: those of their models.

    >>> colours_of(["4 shufflers, ours", "local"]) == colours_of(["local", "ours"])[::-1]
    True
    >>> len(set(colours_of(["one, batches n^0.5", "one, batches n^0.6", "bit", "real"])))
    4
    """
    seen: Counter[str] = Counter()
    colours = []
    for label in labels:
        words = " ".join(label.replace(":", " ").replace(",", " ").split())
        family = next((name for name in _FAMILIES if f" {name} " in f" {words} "), "")
        shades = _FAMILIES.get(family, _OTHERS)
        colours.append(shades[seen[family] % len(shades)])
        seen[family] += 1
    return colours


def colour_of(label: str) -> str:
    """The colour of one curve, whatever else is in its figure.

    >>> colour_of("3 shufflers") == colour_of("ours") != colour_of("local")
    True
    """
    return colours_of([label])[0]


def error_over_time(lines: Sequence[Line], path: Path, *, title: str) -> None:
    """Error against users so far, one line per model."""
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
    for line, colour in _with_colours(by_shufflers):
        _draw(right, line, colour, marker="o", ms=4)
    for label, error in levels:
        right.axhline(error, ls=":", lw=1.2, color=colour_of(label), label=label)
    right.set(xlabel="shufflers", ylabel="rms error over all users", yscale="log")
    right.set_title("More shufflers, less error")
    right.set_xticks(by_shufflers[0].x)
    _write_in_full(right.yaxis)
    right.legend(
        frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.11)
    )
    figure.savefig(path)


def frontier_figure(panels: Sequence[Panel]) -> Figure:
    """Error against messages; the number in a point is that of the shufflers.

    Labels stand in points and below the axes: on no curve.
    """
    figure = new_figure(max(8.0, 5.2 * len(panels)), 5.4)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for line, colour in _with_colours(panel.lines):
            _draw(axes, line, colour, marker="o", ms=9, markeredgecolor="white")
            for mark, *point in zip(line.marks, line.x, line.y, strict=True):
                text = axes.annotate(mark, point, ha="center", va="center_baseline")
                text.set(fontsize=6.5, color="white")
        axes.set(xlabel="messages per user", ylabel="rms error", xscale="log", yscale="log")
        axes.set_title(panel.title)
        axes.margins(0.08)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(_round_numbers(*_ticks(*axis.get_data_interval())))
            _write_in_full(axis)
        axes.xaxis.set_major_formatter(_format_short)
    handles = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    figure.legend(
        handles.values(), map(str, handles), loc="outside lower center", ncols=len(handles),
        frameon=False, title="in a point: the number of shufflers", title_fontsize=9,
    )  # fmt: skip
    return figure


def regret_figure(bands: Sequence[Band], path: Path, *, title: str) -> None:
    """Regret against users, with a band each: those that learn on the left, all on the right."""
    figure = new_figure(13.0, 5.2)
    left, right = figure.subplots(1, 2)
    last = sorted(float(band.middle[-1]) for band in bands)
    colours = colours_of([band.label for band in bands])
    most = 2.5 * last[len(last) // 2]
    for axes, highest, scale in ((left, most, "linear"), (right, math.inf, "log")):
        for band, colour in zip(bands, colours, strict=True):
            if band.middle[-1] > highest:
                continue
            width = 2.4 if band.is_ours else 1.4
            axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.14, lw=0)
            axes.plot(band.x, band.middle, band.style, color=colour, lw=width, label=band.label)
        axes.set(xlabel="users so far", ylabel="regret", yscale=scale)
        axes.margins(x=0.01)
        _write_in_full(axes.xaxis, axes.yaxis)
    right.set_ylim(bottom=max(1.0, last[0] / 50))
    left.set_title(title)
    right.set_title("All of them, with 95 % bands for the mean")
    right.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path)


def sum_figure(bands: Sequence[Band], path: Path, *, title: str) -> None:
    """Running sums against users, each with its band."""
    figure = new_figure(8.0, 4.8)
    axes = figure.subplots()
    colours = [colour_of("ours")] if len(bands) == 1 else _OTHERS
    for band, colour in zip(bands, cycle(colours), strict=False):
        axes.fill_between(band.x, band.low, band.high, color=colour, alpha=0.2, lw=0)
        axes.plot(band.x, band.middle, color=colour, lw=1.8, label=band.label)
    axes.set(xlabel="users so far", ylabel="sum, with 95 % bands", title=title)
    axes.margins(x=0.01)
    _write_in_full(axes.xaxis, axes.yaxis)
    if len(bands) > 1:
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path)


def phone_svg(lines: Sequence[Line], *, x: str, y: str, scale: str) -> str:
    """A figure as SVG whose letters a phone shows in a size that can be read.

    `scale` is as Matplotlib calls it: loglog, semilogx, semilogy or plot. On a logarithmic axis of
    x, every point of a curve has its tick.

    >>> svg = phone_svg([Line("ours", (1, 2), (3, 4))], x="users", y="error", scale="plot")
    >>> svg.startswith("<svg"), "users</text>" in svg
    (True, True)
    """
    figure = new_figure(_PHONE_WIDTH, _PHONE_HEIGHT)
    from matplotlib import rc_context
    from matplotlib.ticker import MaxNLocator

    with rc_context({"font.size": _PHONE_FONT, "svg.fonttype": "none", "svg.hashsalt": "overhand"}):
        axes = figure.subplots()
        for line, colour in _with_colours(lines):
            _draw(axes, line, colour, marker="o" if len(line.x) <= _FEW else None, ms=4, lw=1.4)
        if scale in ("loglog", "semilogx"):
            axes.set_xscale("log")
            axes.set_xticks(sorted({float(one) for line in lines for one in line.x}))
            axes.xaxis.set_minor_formatter("")
        else:
            # At most six ticks, at whole numbers: more do not fit a phone's width.
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if scale in ("loglog", "semilogy"):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(_round_numbers(1.0, 2.0, 5.0))
            _write_in_full(axes.yaxis)
        axes.xaxis.set_major_formatter(_format_short)
        axes.grid(True, alpha=0.25)
        # Below the curves, where it hides nothing.
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        axes.set(xlabel=x, ylabel=y)
        text = io.StringIO()
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _draw_over_time(axes: Axes, lines: Sequence[Line], title: str) -> None:
    for line, colour in _with_colours(lines):
        _draw(axes, line, colour, lw=1.6)
    axes.set(xlabel="users so far", ylabel="root mean square error", yscale="log", title=title)
    above = [np.asarray(line.y)[np.asarray(line.y) > 0] for line in lines]
    lowest = min((float(np.min(y, initial=math.inf)) for y in above), default=1)
    axes.set_ylim(bottom=max(1.0, lowest * 0.8))
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left", bbox_to_anchor=(0, 1))
    axes.margins(x=0.01)
    _write_in_full(axes.xaxis, axes.yaxis)
    low, high = axes.get_ylim()
    axes.set_ylim(low, high * 4)  # room for the legend above the curves


def _with_colours(lines: Sequence[Line]) -> Iterator[tuple[Line, str]]:
    return zip(lines, colours_of([line.label for line in lines]), strict=True)


def _draw(axes: Axes, line: Line, colour: str, **style: Any) -> None:
    axes.plot(line.x, line.y, line.style, color=colour, label=line.label, **style)


def _write_in_full(*shown: Axis) -> None:
    """Numbers without a power of ten, at major ticks only."""
    for axis in shown:
        axis.set_major_formatter(_format_plain)
        axis.set_minor_formatter("")


def _format_plain(value: float, _: float) -> str:
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _format_short(value: float, _: float) -> str:
    """A number in as few characters as possible.

    >>> [_format_short(value, 0) for value in (0.25, 3, 1000, 20_000, 1_500_000)]
    ['0.25', '3', '1000', '20k', '1.5M']
    """
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1000:g}k" if value >= 10_000 else f"{value:g}"


def _ticks(low: float, high: float) -> tuple[float, ...]:
    """More numbers of a decade where an axis has few decades.

    >>> _ticks(3, 40), _ticks(3, 400), _ticks(1, 1e6)
    ((1.0, 2.0, 3.0, 5.0, 7.0), (1.0, 3.0), (1.0,))
    """
    decades = math.log10(high / low)
    if decades > _MANY_DECADES:
        return (1.0,)
    return (1.0, 3.0) if decades > _SOME_DECADES else (1.0, 2.0, 3.0, 5.0, 7.0)


def _round_numbers(*times: float) -> Any:
    """Ticks at these multiples of powers of ten."""
    from matplotlib.ticker import LogLocator

    return LogLocator(subs=times)


def new_figure(width: float, height: float) -> Figure:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise OverhandError("figures need matplotlib: pip install 'overhand[plots]'") from None
    return Figure(figsize=(width, height), dpi=140, layout="constrained")
