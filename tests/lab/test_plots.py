"""Figures: what is written in them can be read, and a colour means one model."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from overhand.lab.plots import Line, Panel, colour_of, colours_of, frontier_figure


def line(label: str, x: list[int], y: list[float], marks: str) -> Line:
    return Line(label, np.array(x), np.array(y), marks=marks)


BITS = Panel(
    "bit",
    [
        line("coins", [3, 6, 11, 16, 21], [176.1, 65.1, 46.7, 40.5, 37.7], "12345"),
        line("shares", [10, 20, 38], [88.3, 35.9, 28.6], "124"),
    ],
)
VECTORS = Panel(
    "vector:20",
    [
        line("coins", [25_000, 180_000, 700_000], [390.0, 140.0, 86.0], "124"),
        line("shares", [220, 440, 840], [380.0, 135.0, 83.5], "124"),
        line("pairs", [1, 2, 4], [380.0, 135.0, 82.4], "124"),
    ],
)
LABELS = (
    *("local", "4 shufflers, published", "one shuffler", "4 shufflers, ours"),
    *("trusted: binary tree", "trusted: tree, combined", "trusted: best known"),
    *("coins", "shares", "pairs", "lower bound rep", "not private", "local, best known"),
)


def drawn(*panels: Panel) -> Figure:
    figure = frontier_figure(panels)
    figure.draw_without_rendering()
    return figure


def overlapping(figure: Figure, texts: list[Text]) -> list[tuple[str, str]]:
    boxes = [(text.get_text(), text.get_window_extent()) for text in texts if text.get_text()]
    return [(a, b) for (a, one), (b, other) in combinations(boxes, 2) if one.overlaps(other)]


@pytest.mark.parametrize("panels", [(BITS,), (BITS, VECTORS, BITS)], ids=["one", "three"])
def test_no_words_of_the_frontier_lie_on_others(panels: tuple[Panel, ...]) -> None:
    figure = drawn(*panels)
    texts: list[Text] = []
    for axes in figure.axes:
        texts += [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = axis.get_major_ticks()
            texts += [tick.label1 for tick in ticks if low <= tick.get_loc() <= high]
    assert len(texts) > 5 * len(panels)
    assert not overlapping(figure, texts)


def test_the_legend_of_the_frontier_is_below_its_curves() -> None:
    figure = drawn(BITS, VECTORS)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["coins", "shares", "pairs"]
    top = legend.get_window_extent().y1
    assert all(top < axes.get_window_extent().y0 for axes in figure.axes)


def test_the_numbers_of_the_frontier_are_in_its_points() -> None:
    figure = drawn(BITS)
    (axes,) = figure.axes
    places = [point for line in BITS.lines for point in zip(line.x, line.y, strict=True)]
    assert [text.get_text() for text in axes.texts] == list("12345124")
    for text, place in zip(axes.texts, places, strict=True):
        radius = axes.lines[0].get_markersize() / 2 * figure.dpi / 72
        middle = axes.transData.transform(place)
        box = text.get_window_extent()
        inked = min(box.width, box.height) / 2
        assert np.hypot(*(np.mean(box.get_points(), axis=0) - middle)) + inked <= radius


def test_a_model_has_one_colour_wherever_it_is_drawn() -> None:
    together = dict(zip(LABELS, colours_of(LABELS), strict=True))
    assert len(set(together.values())) == len(LABELS)
    for label in LABELS:
        assert colours_of([label]) == [together[label]]
    assert colours_of(["as published", "ours"]) == [
        together["4 shufflers, published"],
        together["4 shufflers, ours"],
    ]


def test_what_is_no_model_has_no_models_colour() -> None:
    features = colours_of(["cold", "area", "detached", "insulated", "Whittier", "EWR"])
    assert len(set(features)) == 6
    assert not set(features) & {colour_of(label) for label in (*LABELS, "truth", "hindsight")}


def test_a_model_is_known_by_each_of_its_names() -> None:
    assert colour_of("3 shufflers") == colour_of("4 shufflers, ours") == colour_of("ours")
    assert colour_of("trusted server") == colour_of("trusted: best known")
    assert colour_of("local privacy") == colour_of("local")
    assert len(set(colours_of(["4 shufflers, ours", "16 shufflers, binary"]))) == 2


@pytest.mark.parametrize("folder", ["examples", "docs"])
def test_figures_of_models_take_their_colours_from_here(folder: str) -> None:
    """A script that draws models has no palette of its own; greys of boxes and grids are none."""
    for script in (Path(__file__).parents[2] / folder).glob("*.py"):
        colours = set(re.findall(r"#[0-9a-f]{6}", script.read_text(encoding="utf-8")))
        assert not colours & set(colours_of([*LABELS, "truth", "hindsight"])), script.name
        assert folder == "docs" or not colours, script.name


def test_the_frontier_is_written(tmp_path: Path) -> None:
    frontier_figure([BITS]).savefig(tmp_path / "frontier.svg")
    assert (tmp_path / "frontier.svg").stat().st_size > 0
