"""What mechanisms cost by every outcome of every coin: the slow truth of accounting."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import cast

import numpy as np

from overhand.accounting import Level, certified_delta
from overhand.accounting.composition import search_delta
from overhand.model import Floats
from overhand.noise import CoinNoise, Noise
from overhand.randomness import HALF, BinaryFraction
from overhand.values import Sensitivity
from support.chosen_coins import EIGHTH
from support.reference_twins import ones_law

Pair = tuple[Floats, Floats]

MOST = BinaryFraction(7, 3)


def fair(coins: int) -> CoinNoise:
    return CoinNoise(((coins, HALF),))


def skewed(coins: int, probability: BinaryFraction = EIGHTH) -> CoinNoise:
    return CoinNoise(((coins, probability),))


def opposed(coins: int) -> CoinNoise:
    return CoinNoise(((coins, EIGHTH), (coins, MOST)))


def delta_by_enumeration(noise: CoinNoise, epsilon: float, shift: int) -> float:
    """The least delta of one direction: noise + shift against noise, as the definition reads."""
    law, scale = ones_law(noise), Fraction(math.exp(epsilon))
    moved = {outcome + shift: chance for outcome, chance in law.items()}
    excess = (chance - scale * law.get(outcome, Fraction(0)) for outcome, chance in moved.items())
    return float(sum((max(Fraction(0), e) for e in excess), Fraction(0)))


def probabilities(noise: Noise) -> Floats:
    """The same law as `ones_law`, coin after coin, for laws of more coins."""
    assert isinstance(noise, CoinNoise)
    law = np.ones(1)
    for trials, p in noise.binomials:
        for _ in range(trials):
            law = np.convolve(law, [1 - float(p), float(p)])
    return law


def pair(noise: Noise, shift: int) -> Pair:
    """The laws of noise + shift and of noise; the other way round if the shift is down."""
    law, gap = probabilities(noise), np.zeros(abs(shift))
    moved, still = np.concatenate([gap, law]), np.concatenate([law, gap])
    return (moved, still) if shift >= 0 else (still, moved)


def composed(pairs: Sequence[Pair], epsilon: float) -> float:
    """The delta of all together: over every combination of their outcomes."""
    upper = lower = np.ones(1)
    for moved, still in pairs:
        upper, lower = np.outer(upper, moved).ravel(), np.outer(lower, still).ravel()
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0.0).sum())


def partitions(items: Sequence[int]) -> Iterator[list[list[int]]]:
    """All ways to put the items into batches."""
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for groups in partitions(rest):
        yield [[first], *groups]
        for i, group in enumerate(groups):
            yield [*groups[:i], [first, *group], *groups[i + 1 :]]


def composed_by_enumeration(levels: Sequence[Level], epsilon: float) -> float:
    """The worst case over who is in which batch, and what changes how."""
    reports = levels[0].reports
    placements: list[list[tuple[list[list[int]], Noise]]] = [
        [(groups, level.law) for groups in partitions(range(reports))] for level in levels
    ]
    worst = 0.0
    for signs in itertools.product((1, -1), repeat=reports):
        for chain in itertools.product(*placements):
            pairs = [
                pair(law, sum(signs[report] for report in group))
                for groups, law in chain
                for group in groups
            ]
            worst = max(worst, composed(pairs, epsilon))
    return worst


def assert_accounts_for(claimed: float, truth: float) -> None:
    """Never below the truth, and close to it where it can be resolved."""
    assert claimed >= truth * (1 - 1e-12), f"{claimed:g} understates {truth:g}"
    if truth > 1e-9:
        assert claimed <= 1.01 * truth, f"{claimed:g} overstates {truth:g}"


@dataclass(frozen=True)
class _CutOff:
    probabilities: Floats
    missing: float
    is_symmetric: bool
    variance: float = 1.0

    @property
    def pmf(self) -> _CutOff:
        return self

    def at_most(self, variance: float) -> _CutOff:
        return self


def cut_off(law: Floats, missing: float, *, is_symmetric: bool = False) -> Noise:
    """Noise whose pmf leaves some outcomes out: as much of a law as accountants look at."""
    return cast(Noise, _CutOff(law, missing, is_symmetric))


def one_law(*laws: Noise, reports: int = 1) -> list[Level]:
    return [Level(law, reports) for law in laws]


COMPOSED: dict[str, list[Level]] = {
    "one level": one_law(fair(10)),
    "two equal": one_law(fair(10), fair(10)),
    "two of 60 coins": one_law(fair(60), fair(60)),
    "three equal": one_law(fair(12), fair(12), fair(12)),
    "three of 40 coins": one_law(fair(40), fair(40), fair(40)),
    "different noise": one_law(fair(8), fair(14)),
    "three different": one_law(fair(6), fair(9), fair(12)),
    "two of three equal": one_law(fair(9), fair(12), fair(9)),
    "skewed": one_law(skewed(40), skewed(40)),
    "skewed upwards": one_law(skewed(30, MOST), skewed(30, MOST)),
    "three skewed": one_law(skewed(20), skewed(24), skewed(28)),
    "skewed and fair": one_law(skewed(40), fair(20)),
    "skewed both ways": one_law(skewed(40), skewed(40, MOST)),
    "opposed": one_law(opposed(12), opposed(12)),
    "opposed and fair": one_law(opposed(12), fair(12), opposed(12)),
}
ACCOUNTANTS: dict[str, Callable[[Sequence[Level], float], float]] = {
    "search": search_delta,
    "certified": certified_delta,
}
REPORTS: dict[str, list[Level]] = {
    "two of one level": one_law(fair(16), reports=2),
    "three of one level": one_law(fair(20), reports=3),
    "two of two levels": one_law(fair(12), fair(13), reports=2),
    "two of an opposed level": one_law(opposed(14), reports=2),
}


def choices(change: Sensitivity, reports: int) -> list[tuple[int, ...]]:
    """What one report may do: go up or down, or leave a bucket for another."""
    if change.l0 == 1:
        return [(1,), (-1,)]
    return list(itertools.permutations(range(2 * reports), 2))


def moved_by(change: Sensitivity, choice: tuple[int, ...]) -> list[dict[int, int]]:
    """By count, the moves that a report of this choice may come to."""
    if change.l0 == 1:
        return [{0: choice[0] * steps} for steps in range(1, int(change.linf) + 1)]
    return [{choice[0]: -1, choice[1]: 1}]


def changes_at(level: Level, chosen: Sequence[tuple[int, ...]]) -> Iterator[list[Pair]]:
    """One level, whoever is in which batch and however values are rounded."""
    for groups in partitions(range(level.reports)):
        for moves in itertools.product(*(moved_by(level.sensitivity, c) for c in chosen)):
            yield [
                pair(level.law, shift)
                for group in groups
                for shift in added(moves[report] for report in group)
            ]


def added(moves: Iterable[dict[int, int]]) -> list[int]:
    """How far each count is moved by all of these."""
    total: Counter[int] = Counter()
    for move in moves:
        total.update(move)
    return list(total.values())


@cache
def changed_by_enumeration(levels: tuple[Level, ...], epsilon: float) -> float:
    worst, reports = 0.0, levels[0].reports
    for chosen in itertools.product(choices(levels[0].sensitivity, reports), repeat=reports):
        if chosen[0] not in ((1,), (-1,), (0, 1)):
            continue  # buckets have no names
        for chain in itertools.product(*(changes_at(level, chosen) for level in levels)):
            worst = max(worst, composed(list(itertools.chain(*chain)), epsilon))
    return worst


BUCKETS = Sensitivity(1, l0=2)
CHANGES: dict[str, tuple[Level, ...]] = {
    "three steps": (Level(fair(40), sensitivity=Sensitivity(3)),),
    "steps at two levels": (
        Level(fair(30), sensitivity=Sensitivity(3)),
        Level(fair(24), sensitivity=Sensitivity(2)),
    ),
    "skewed steps": (Level(skewed(60), sensitivity=Sensitivity(2)),) * 2,
    "skewed steps, upwards": (Level(skewed(60, MOST), sensitivity=Sensitivity(2)),) * 2,
    "opposed steps": (Level(opposed(20), sensitivity=Sensitivity(2)),) * 2,
    "buckets": (Level(fair(14), sensitivity=BUCKETS),),
    "buckets at two levels": (
        Level(fair(10), sensitivity=BUCKETS),
        Level(fair(12), sensitivity=BUCKETS),
    ),
    "buckets under opposed coins": (Level(opposed(14), sensitivity=BUCKETS),),
    "two reports of steps": (Level(fair(60), 2, Sensitivity(2)),),
    "three reports of steps": (Level(fair(24), 3, Sensitivity(2)),),
    "two reports of buckets": (Level(fair(12), 2, BUCKETS),),
}


def level(
    law: Noise, *, largest: int, norm: float, coordinates: int = 1, reports: int = 1
) -> Level:
    return Level(law, reports, Sensitivity(largest, coordinates, norm))


def product(parts: Sequence[Floats]) -> Floats:
    """The probabilities of all combinations of outcomes."""
    outcomes = np.ones(1)
    for part in parts:
        outcomes = np.multiply.outer(outcomes, part).ravel()
    return outcomes


def assert_bounds(claimed: float, truth: float) -> None:
    assert claimed >= truth * (1 - 1e-12), f"{claimed:g} understates {truth:g}"
