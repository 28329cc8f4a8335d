"""Draw the picture of docs/shares.md: python docs/picture.py docs/shares.png"""

from __future__ import annotations

import sys

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from overhand.lab.plots import colour_of, colours_of, new_figure

COLOURS = colours_of(["service", "Ann", "Bob", "Cleo"])[1:]  # of no model
MODULUS = 100


def main(path: str) -> None:
    figure = new_figure(10.5, 4.2)
    axes = figure.subplots()
    axes.set_xlim(0, 10.5)
    axes.set_ylim(0, 4.2)
    axes.axis("off")
    rng = np.random.default_rng(20)
    shares: list[tuple[int, str]] = []
    for user, (value, noise, colour) in enumerate(zip((1, 0, 1), (0, 2, -1), COLOURS, strict=True)):
        y = 3.15 - 1.15 * user
        parts = [int(x) for x in rng.integers(0, MODULUS, 3)]
        parts.append((value + noise - sum(parts)) % MODULUS)
        box(axes, 0.05, y, 1.75, f"value {value}\nnoise {noise:+d}", colour)
        arrow(axes, (1.85, y + 0.35), (2.35, y + 0.35))
        for i, part in enumerate(parts):
            box(axes, 2.4 + 0.72 * i, y, 0.62, str(part), colour)
            shares.append((part, colour))
        arrow(axes, (5.35, y + 0.35), (6.0, 2.35 - 0.2 * (user - 1)))
    for place, index in enumerate(rng.permutation(len(shares))):
        row, column = divmod(place, 4)
        box(axes, 6.1 + 0.62 * column, 2.55 - 0.75 * row, 0.54, str(shares[index][0]), "#8a939c")
    total = sum(part for part, _ in shares)
    arrow(axes, (8.65, 2.15), (9.1, 2.15))
    result = total % MODULUS
    box(axes, 9.15, 1.8, 1.3, f"{total} mod {MODULUS}\n= {result}", colour_of("ours"))
    for x, text in ((0.9, "user"), (3.8, "shares modulo 100"), (7.3, "shuffled"), (9.8, "server")):
        axes.text(x, 4.0, text, ha="center", va="center", fontsize=11, weight="bold")
    axes.text(
        7.3, 0.55, "which share is whose is gone;\nthe sum, 2 with noise +1, is left",
        ha="center", va="center", fontsize=9, color="#444444",
    )  # fmt: skip
    figure.savefig(path)


def box(axes: Axes, x: float, y: float, width: float, text: str, colour: str) -> None:
    axes.add_patch(
        FancyBboxPatch(
            (x, y), width, 0.7, boxstyle="round,pad=0.02,rounding_size=0.08",
            fc=colour + "22", ec=colour, lw=1.4,
        )
    )  # fmt: skip
    axes.text(x + width / 2, y + 0.35, text, ha="center", va="center", fontsize=9.5)


def arrow(axes: Axes, start: tuple[float, float], stop: tuple[float, float]) -> None:
    axes.add_patch(
        FancyArrowPatch(start, stop, arrowstyle="-|>", mutation_scale=12, color="#444444")
    )


if __name__ == "__main__":
    main(sys.argv[1])
