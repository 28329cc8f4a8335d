"""Assertions on samples, each wrong with probability at most 1e-9 in either direction.

Correct code fails with probability at most `FALSE_FAIL`, and code that is off by at least the
stated discrepancy passes with probability at most `FALSE_PASS`. The bounds hold at every sample
size: Dvoretzky-Kiefer-Wolfowitz with Massart's constant, and exact binomial tails
(Clopper-Pearson). No normal approximation is used; `assert_normal` is for samples that are normal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FALSE_FAIL = 1e-9
FALSE_PASS = 1e-9

SAMPLES = 40_000
"""Enough for `assert_normal` at its own factor and offset."""


class TooFewSamples(Exception):
    """The sample cannot tell the truth from the lie: not a failure, and so no rejection either."""


@dataclass(frozen=True)
class Outcomes:
    """A law on the integers `first`, `first + 1`, ..., by its probabilities."""

    first: int
    probabilities: Floats

    def cdf(self, points: ArrayLike) -> Floats:
        below = np.concatenate([[0.0], np.cumsum(self.probabilities)])
        at = np.asarray(points, np.int64) - self.first + 1
        return np.asarray(below[np.clip(at, 0, len(below) - 1)], np.float64)


def samples_for(discrepancy: float) -> int:
    """How many samples resolve `discrepancy` at both error rates."""
    rates = math.sqrt(math.log(2 / FALSE_FAIL)) + math.sqrt(math.log(2 / FALSE_PASS))
    return math.ceil((rates / discrepancy) ** 2 / 2)


def kolmogorov(law: Any, other: Any, points: range) -> float:
    """The distance that `assert_follows` measures, between two laws with all mass at `points`."""
    at = np.asarray(points, np.int64)
    return float(np.abs(law.cdf(at) - other.cdf(at)).max())


def assert_follows(samples: Ints, law: Any, *, discrepancy: float) -> None:
    """The integer samples follow `law`, a frozen scipy distribution on the integers."""
    if len(samples) < samples_for(discrepancy):
        raise TooFewSamples(f"{len(samples)} < {samples_for(discrepancy)}")
    points, counts = np.unique(samples, return_counts=True)
    at = np.cumsum(counts) / len(samples)
    before = at - counts / len(samples)
    gaps = np.concatenate([at - law.cdf(points), before - law.cdf(points - 1)])
    distance, allowed = float(np.abs(gaps).max()), _radius(len(samples), FALSE_FAIL)
    assert distance <= allowed, f"Kolmogorov distance {distance:.4f} > {allowed:.4f}"


def assert_probability(
    successes: int, trials: int, probability: float, *, discrepancy: float
) -> None:
    """So many successes in so many independent trials have this probability each.

    A rate that is off by `discrepancy` or more is told from it, or the sample is refused.
    """
    fewest, most = _plausible(trials, probability, FALSE_FAIL, discrepancy)
    assert fewest <= successes <= most, (
        f"{successes} successes of {trials}: {fewest} to {most} at probability {probability:g}"
    )


def assert_uniform_over(
    samples: Iterable[Hashable], support: Sequence[Hashable], *, discrepancy: float
) -> None:
    """The samples are uniform over `support`, and all in it.

    The number of times an outcome shows is a binomial, whatever the others do, so each is held
    against exact tails and the rate is shared out among them (a union bound). A law that gives
    some outcome a probability off by `discrepancy` or more is rejected.
    """
    seen = Counter(samples)
    trials, probability = seen.total(), 1 / len(support)
    fewest, most = _plausible(trials, probability, FALSE_FAIL / len(support), discrepancy)
    strange = sorted(map(repr, set(seen).difference(support)))
    assert not strange, f"outside the support: {strange[:5]}"
    for outcome in support:
        assert fewest <= seen[outcome] <= most, (
            f"{outcome!r} shows {seen[outcome]} times of {trials}: {fewest} to {most} if uniform"
        )


def assert_normal(
    samples: Floats, variance: float, *, factor: float = 1.15, offset: float = 0.1, tests: int = 1
) -> None:
    """Independent normal samples have mean 0 and this variance: exact normal and chi-square tails.

    Other normal laws, of a variance `factor` times more or less, or with a mean that is `offset`
    standard deviations off, are told from it, or the sample is refused. So many `tests` share the
    rate at which the truth fails.
    """
    number, rate = samples.size, FALSE_FAIL / (4 * tests)
    squares, standard = stats.chi2(number), stats.norm()
    low, high = squares.ppf(rate), squares.isf(rate)
    radius = standard.isf(rate) / math.sqrt(number)
    unseen = max(squares.cdf(high / factor), squares.sf(low * factor))
    if unseen > FALSE_PASS or radius + standard.isf(FALSE_PASS) / math.sqrt(number) > offset:
        raise TooFewSamples(f"{number} samples")
    mean = float(samples.mean()) / math.sqrt(variance)
    assert abs(mean) <= radius, f"mean {mean:.4f} standard deviations > {radius:.4f}"
    ratio, (least, most) = (
        float(np.square(samples).mean()) / variance,
        (low / number, high / number),
    )
    assert least <= ratio <= most, f"variance ratio {ratio:.4f} outside [{least:.4f}, {most:.4f}]"


def _radius(samples: int, rate: float) -> float:
    """How far an empirical CDF strays from the true one with probability at most `rate`."""
    return math.sqrt(math.log(2 / rate) / (2 * samples))


@lru_cache(maxsize=1024)
def _plausible(trials: int, probability: float, rate: float, discrepancy: float) -> tuple[int, int]:
    """The counts that both tails leave, at half of `rate` each, or `TooFewSamples`.

    A binomial grows with its probability, so the nearest wrong rates are the hardest to see.
    """
    wrong_rates = [p for p in (probability - discrepancy, probability + discrepancy) if 0 <= p <= 1]
    if not wrong_rates or discrepancy <= 0:
        raise ValueError(f"no probability differs from {probability:g} by {discrepancy=:g}")
    fewest = int(stats.binom.ppf(rate / 2, trials, probability))
    most = int(stats.binom.isf(rate / 2, trials, probability))
    for wrong in wrong_rates:
        passes = stats.binom.cdf(most, trials, wrong) - stats.binom.cdf(fewest - 1, trials, wrong)
        if passes > FALSE_PASS:
            raise TooFewSamples(f"{trials=} pass a rate of {wrong:g} with probability {passes:g}")
    return fewest, most
