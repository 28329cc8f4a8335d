"""The law of an estimate by the book, atom by atom, and the error that follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import overhand as oh
from overhand.model import Floats
from overhand.randomness import SeededRandom
from support.kind_plans import DISCREPANCY, coin_sum, points
from support.reference_twins import children, pending, slow_estimate
from support.sampling import Outcomes, assert_follows


@dataclass(frozen=True)
class Law:
    """Where a number can be, in ascending order, and how likely."""

    atoms: Floats
    probabilities: Floats

    @classmethod
    def of(cls, atoms: Floats, probabilities: Floats) -> Law:
        """Atoms that differ by floating-point noise are one."""
        order = np.argsort(atoms)
        atoms, probabilities = atoms[order], probabilities[order]
        which = np.cumsum(np.diff(atoms, prepend=-math.inf) > 1e-7) - 1
        first = np.unique(which, return_index=True)[1]
        return cls(atoms[first], np.bincount(which, probabilities).astype(np.float64))

    def __add__(self, other: Law) -> Law:
        atoms = np.add.outer(self.atoms, other.atoms)
        weights = np.multiply.outer(self.probabilities, other.probabilities)
        return Law.of(atoms.reshape(-1), weights.reshape(-1))

    def times(self, factor: float) -> Law:
        return Law.of(factor * self.atoms, self.probabilities)

    @property
    def variance(self) -> float:
        mean = float(self.probabilities @ self.atoms)
        return float(self.probabilities @ (self.atoms - mean) ** 2)

    @property
    def mean(self) -> float:
        return float(self.probabilities @ self.atoms)

    def distance(self, other: Law) -> float:
        """Kolmogorov's, seen between the atoms."""
        places = np.concatenate([self.atoms, other.atoms]) + 1e-6
        return float(np.abs(self._below(places) - other._below(places)).max())

    def _below(self, places: Floats) -> Floats:
        sums = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        return np.asarray(sums[np.searchsorted(self.atoms, places)])

    def assert_of(self, samples: Floats, *, discrepancy: float) -> None:
        """Every sample is an atom, and shows as often as it should."""
        ranks = np.searchsorted((self.atoms[1:] + self.atoms[:-1]) / 2, samples)
        assert np.abs(self.atoms[ranks] - samples).max() < 1e-6, "outside the support"
        assert_follows(ranks, Outcomes(0, self.probabilities), discrepancy=discrepancy)


def batch_law(mechanism: oh.CoinSum, column: Floats, low: float) -> Law:
    """One coordinate of a batch's analyzed sum: its users' rounding, and their coins."""
    exact = (column - low) / mechanism.quantizer.unit
    down = np.floor(exact + 1e-9)
    ups = np.ones(1)
    for rest in np.clip(exact - down, 0, 1):
        ups = np.convolve(ups, [1 - rest, rest])
    trials = mechanism.size * mechanism.noise_share.bits
    coins = stats.binom.pmf(np.arange(trials + 1), trials, 0.5)
    law = np.convolve(ups, coins)
    steps = down.sum() + np.arange(len(law)) - trials / 2
    return Law.of(steps * mechanism.quantizer.unit + mechanism.size * low, law)


def node_law(plan: oh.Plan, node: oh.Node, column: Floats, low: float) -> Law:
    own = batch_law(coin_sum(plan, node), column[node.start : node.stop], low)
    weight = plan.combination.own_weights[node.level - 1]
    if weight == 1.0:
        return own
    below = [node_law(plan, child, column, low) for child in children(plan.tree, node)]
    return own.times(weight) + reduce(Law.__add__, below).times(1 - weight)


def estimate_law(plan: oh.Plan, raw: list[Any], t: int, coordinate: int = 0) -> Law:
    """The law of the estimate at t by Definition 3.1: the nodes of the cover, and those pending."""
    column, low = points(plan.values, raw)[:, coordinate], float(plan.values.lows[coordinate])
    imputed = np.atleast_1d(plan.imputed)[coordinate] * pending(plan, t)
    law = Law.of(np.array([imputed]), np.ones(1))
    return reduce(Law.__add__, [node_law(plan, n, column, low) for n in plan.tree.cover(t)], law)


class Steady(SeededRandom):
    """Uniforms that are all the same: rounding no longer depends on who is rounded when."""

    SHARE = 0.3

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        return np.full(count, int(self.SHARE * 2 ** (8 * np.dtype(dtype).itemsize)), dtype)

    def uniforms(self, count: int) -> Floats:
        return np.full(count, self.SHARE)

    def spawn(self, count: int) -> list[Any]:
        return [Steady(generator) for generator in self.generator.spawn(count)]


def steady_estimates(plan: oh.Plan, raw: list[Any]) -> Floats:
    """What rounding of that kind comes to, by the book."""
    sums: dict[oh.Node, Floats] = {}
    lows, coordinates = plan.values.lows, points(plan.values, raw)
    estimates: list[Floats] = []
    for t in range(1, plan.horizon + 1):
        for node in plan.tree.closes(t):
            unit = plan.mechanism(node).quantizer.unit
            steps = np.floor((coordinates[node.start : node.stop] - lows) / unit + Steady.SHARE)
            if isinstance(plan.values, oh.Grouped):  # what a high cell has not, the low one has
                high, held = steps[:, : plan.values.groups], coordinates[node.start : node.stop]
                member = held[:, : plan.values.groups] + held[:, plan.values.groups :]
                steps = np.concatenate([high, np.round(member / unit) - high], axis=1)
            sums[node] = steps.sum(axis=0) * unit + node.size * lows
        estimates.append(slow_estimate(plan, sums, t)[0])
    return np.array(estimates).reshape(plan.horizon, *plan.values.shape)


def assert_law_of_coordinates(law: Law, samples: Floats) -> None:
    """All have this law, and two differ as two that are independent do."""
    law.assert_of(samples, discrepancy=DISCREPANCY)
    apart = law + law.times(-1.0)
    apart.assert_of(samples[::2] - samples[1::2], discrepancy=DISCREPANCY)


def expected_square(plan: oh.Plan, value: Any) -> float:
    """The mean over time and coordinates of the expected squared error if all hold this value."""
    numbers = points(plan.values, [value])[0]
    bias = np.atleast_1d(plan.imputed) - numbers

    @cache
    def variance(node: oh.Node) -> Floats:
        m = plan.mechanism(node)
        part = (numbers - plan.values.lows) / m.quantizer.unit % 1
        own = m.noise_variance + m.size * m.quantizer.unit**2 * part * (1 - part)
        weight = plan.combination.own_weights[node.level - 1]
        below = [variance(child) for child in children(plan.tree, node)] if weight < 1 else []
        return np.asarray(weight**2 * own + (1 - weight) ** 2 * sum(below))

    squares = [
        sum(variance(node) for node in plan.tree.cover(t)) + (pending(plan, t) * bias) ** 2
        for t in range(1, plan.horizon + 1)
    ]
    return float(np.mean(squares))
