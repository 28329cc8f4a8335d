"""What rounding adds to the sums of nodes, level by level, in the `counts` engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.mechanisms import Mechanism
from overhand.plan import Plan
from overhand.randomness import Random

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

_BUFFER = 1 << 15  # numbers that are rounded at once: fits the first-level cache


class RoundingErrors:
    """Rounded less true sums of the nodes that close, for every level.

    A level has one open node at a time, so of the past it keeps what rounding has added to that.
    """

    def __init__(self, plan: Plan, random: Random) -> None:
        self._plan = plan
        self._lowest = plan.tree.lowest
        self._streams = random.spawn(plan.tree.levels)
        self._mechanisms = [of_level[0] for of_level in plan.mechanisms]
        self._carried: list[Any] = [np.zeros(plan.values.shape)] * plan.tree.levels
        self._errors: list[Floats] = []
        self._first = 0

    def advance(self, first: int, blocks: NDArray[Any]) -> None:
        """Round the values of the next blocks, of shape (blocks, users, ...)."""
        self._first = first
        with ThreadPoolExecutor(max_workers=2) as workers:
            jobs = [
                workers.submit(_rounding_errors, mechanism, blocks, stream)
                for mechanism, stream in zip(self._mechanisms, self._streams, strict=True)
            ]
            self._errors = [job.result() for job in jobs]

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
                carried: Any = np.zeros(self._plan.values.shape)
            elif (start := node.start // self._lowest - self._first) >= 0:
                carried = errors[-1] - errors[start]
            else:
                carried = self._carried[level - 1] + errors[-1]
            self._carried[level - 1] = carried


def _rounding_errors(mechanism: Mechanism, blocks: NDArray[Any], random: Random) -> Floats:
    """Running sums over blocks of what rounding adds, from 0 on."""
    result = np.zeros((len(blocks) + 1, *mechanism.values.shape))
    rows = max(1, _BUFFER // max(1, blocks[0].size)) if len(blocks) else 1
    for start in range(0, len(blocks), rows):
        part = blocks[start : start + rows]
        exact = (
            part - mechanism.values.lows
            if mechanism.values.shape
            else part - float(mechanism.values.lows[0])
        )
        exact /= mechanism.unit
        rounded = random.uniforms(exact.size).reshape(exact.shape)
        rounded += exact
        np.floor(rounded, out=rounded)
        rounded -= exact
        result[start + 1 : start + 1 + len(part)] = rounded.sum(axis=1)
    result *= mechanism.unit
    np.cumsum(result, axis=0, out=result)
    return result
