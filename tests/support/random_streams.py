"""Streams of chance for tests: all kinds of them, and some that a test writes itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.randomness import Random, restore_random, seeded_random


def keyed(key: int) -> Random:
    """The secure stream under a literal key, so that a test repeats."""
    return restore_random({"kind": "secure", "key": f"{key:064x}", "used": 0})


STREAMS: dict[str, Callable[[int], Random]] = {"secure": keyed, "seeded": seeded_random}

UNSAFE: dict[str, Any] = {
    "Generator": np.random.default_rng(1),
    "RandomState": np.random.RandomState(1),
    "PCG64": np.random.PCG64(1),
    "SeedSequence": np.random.SeedSequence(1),
    "Random": random.Random(1),
    "SystemRandom": random.SystemRandom(),
    "int": 42,
    "bool": False,
    "float": 0.0,
    "str": "secure",
    "function": seeded_random,
    "ABCMeta": Random,
}
"""No sources of noise, by their types."""


class Delegate(Random):
    """A stream with the words of another: what a mutant changes, and what a script replaces."""

    def __init__(self, words: Random) -> None:
        self._words = words

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        return self._words.words(count, dtype)

    @property
    def state(self) -> dict[str, Any]:
        return self._words.state

    def spawn(self, count: int) -> list[Random]:
        return self._words.spawn(count)


class Scripted(Delegate):
    """Hands out the given words, one list a call, and then those of a true stream."""

    def __init__(self, script: Sequence[Sequence[int]], after: Random) -> None:
        super().__init__(after)
        self._script = list(script)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        if not self._script:
            return super().words(count, dtype)
        words = self._script.pop(0)
        assert len(words) == count
        return np.array(words, dtype)
