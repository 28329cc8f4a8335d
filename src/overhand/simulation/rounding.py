"""What rounding adds to the sums of nodes, level by level, in the `counts` engine."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.plan import Plan
from overhand.randomness import Random

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_BUFFER = 1 << 15  # numbers that are rounded at once: fits the first-level cache


class RoundingErrors:
    """Rounded less true sums of the nodes that close, for every level.

    A level has one open node at a time, so of the past it keeps what rounding has added to that.
    """

    def __init__(self, plan: Plan, random: Random, shape: tuple[int, ...]) -> None:
        self._plan = plan
        self._shape = shape  # of a sum, or of those of several runs
        self._lowest = plan.tree.lowest
        self._streams = random.spawn(plan.tree.levels)
        self._mechanisms = [of_level[0] for of_level in plan.mechanisms]
        self._carried: list[Any] = [np.zeros(shape)] * plan.tree.levels
        runs = math.prod(shape) // plan.values.dimension
        self._lows = np.tile(plan.values.lows, runs)[:, np.newaxis, np.newaxis]
        self._errors: list[Floats] = []
        self._first = 0

    def advance(self, first: int, rows: NDArray[Any]) -> None:
        """Round the values of the next blocks, level by level."""
        self._first = first
        # Coordinate by coordinate, so that a block's values of one stand side by side.
        columns = np.ascontiguousarray(rows.reshape(len(rows), math.prod(self._shape)).T)
        columns = columns.reshape(len(columns), -1, self._lowest) - self._lows
        sums = columns.sum(axis=2)
        # One after the other: threads would only wait for each other between the short steps.
        self._errors = [
            _rounding_errors(mechanism.unit, columns, sums, stream).reshape(-1, *self._shape)
            for mechanism, stream in zip(self._mechanisms, self._streams, strict=True)
        ]

    def of_blocks(self) -> Floats:
        """The errors of the lowest nodes."""
        return np.diff(self._errors[0], axis=0)

    def of_closing(self, level: int, sizes: Counts, stops: Counts) -> Floats:
        """The errors of nodes of a level above, given where they end."""
        errors = self._errors[level - 1]
        starts = stops - sizes // self._lowest - self._first
        result = errors[stops - self._first] - errors[np.maximum(starts, 0)]
        result[starts < 0] += self._carried[level - 1]
        return np.asarray(result)

    def forget(self, last: int) -> None:
        """Keep what the nodes that are still open after `last` blocks have gathered."""
        tree = self._plan.tree
        place = last * self._lowest
        open_nodes = {} if place >= tree.horizon else {n.level: n for n in tree.nodes_above(place)}
        for level in range(2, tree.levels + 1):
            errors = self._errors[level - 1]
            node = open_nodes.get(level)
            if node is None:
                carried: Any = np.zeros(self._shape)
            elif (start := node.start // self._lowest - self._first) >= 0:
                carried = errors[-1] - errors[start]
            else:
                carried = self._carried[level - 1] + errors[-1]
            self._carried[level - 1] = carried


def _rounding_errors(unit: float, columns: Floats, sums: Floats, random: Random) -> Floats:
    """Running sums over blocks of what rounding adds, from 0 on.

    A column is a coordinate's values above its lowest, by block and user, in one run; `sums` are
    over users. Uniforms of 32 bits do: what is deployed has 53, and no simulation can tell.
    """
    coordinates, blocks, users = columns.shape
    rows = columns.reshape(-1, users)
    rounded = np.empty(len(rows))
    piece = max(1, _BUFFER // users)
    for start in range(0, len(rows), piece):
        steps = rows[start : start + piece] * (1 / unit)
        steps += random.words(steps.size, np.uint32).reshape(steps.shape) * 2.0**-32
        np.floor(steps, out=steps)
        np.add.reduce(steps, axis=1, out=rounded[start : start + piece])
    errors = rounded.reshape(coordinates, blocks) * unit - sums
    result = np.zeros((blocks + 1, coordinates))
    np.cumsum(errors.T, axis=0, out=result[1:])
    return result
