"""Local answers about reals: their law, and that no published mechanism is better."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import linprog

import overhand as oh
from overhand.lab.baselines import GaussianResponse
from overhand.lab.baselines.local import WindowResponse
from overhand.model import Floats
from overhand.randomness import BinaryFraction, Random
from overhand.values import Reals
from support.local_mechanisms import EPSILONS, local
from support.sampling import Outcomes, assert_follows, kolmogorov, samples_for
from support.small_plans import PRIVACY

UNIT = Reals(-1.0, 1.0)


def window_laws(response: WindowResponse) -> Floats:
    """By window, the probability of every place, as it is defined."""
    places, miss = range(len(response.worths)), float(response.miss)
    inside, outside = (1 - miss) / response.window, miss / (len(places) - response.window)
    return np.array(
        [
            [inside if start <= place < start + response.window else outside for place in places]
            for start in range(len(places) - response.window + 1)
        ]
    )


def place_law(response: WindowResponse, value: float) -> Floats:
    """The same for a value: of the two windows whose means are next to it."""
    return place_laws(window_laws(response), np.array(response.worths), value)


def place_laws(laws: Floats, worths: Floats, value: float) -> Floats:
    means = laws @ worths
    above = int(np.clip(np.sum(means <= value), 1, len(means) - 1))
    share = (value - means[above - 1]) / (means[above] - means[above - 1])
    return np.asarray((1 - share) * laws[above - 1] + share * laws[above])


def ranked(response: WindowResponse, law: Floats) -> Outcomes:
    """The law of the rank of an answer among all answers there are."""
    distinct, rank = np.unique(response.worths, return_inverse=True)
    masses = np.bincount(rank, weights=law, minlength=len(distinct))
    return Outcomes(0, np.asarray(masses, np.float64))


def ranks(response: WindowResponse, value: float, users: int, seed: int) -> NDArray[np.int64]:
    answers = response.answers(np.full(users, value), oh.seeded_random(seed))
    return np.searchsorted(np.unique(response.worths), answers)


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_answers_about_reals_have_their_mean_variance_and_epsilon(epsilon: float) -> None:
    response = WindowResponse.best(100, oh.Privacy(epsilon, 1e-6), UNIT)
    worths = np.array(response.worths)
    points = np.linspace(-1, 1, 1001)
    windows = window_laws(response)
    laws = np.array([place_laws(windows, worths, point) for point in points])
    assert laws.sum(axis=1) == pytest.approx(np.ones(1001))
    assert laws @ worths == pytest.approx(points)
    variances = laws @ worths**2 - points**2
    assert variances.max() == pytest.approx(response.user_variance, rel=1e-3)
    assert variances.max() <= response.user_variance * (1 + 1e-9)
    assert variances.min() > 0.99 * response.user_variance
    loss = np.log(laws.max(axis=0) / laws.min(axis=0)).max()
    assert loss == pytest.approx(response.epsilon_spent)


def test_wider_intervals_have_larger_errors() -> None:
    unit, wide = (local(spec, 1.0) for spec in ("real:-1:1", "real:-3:5"))
    assert wide.user_variance == pytest.approx(16 * unit.user_variance)
    assert wide.spread == pytest.approx(4 * unit.spread)


BETWEEN = 0.21  # a little off the middle between two means at epsilon 4
REAL = WindowResponse.best(100, oh.Privacy(4.0, 1e-6), UNIT)
# So few that one outside of the window counts as much as one inside.
FEW_PLACES = WindowResponse.with_window(100, oh.Privacy(0.25, 1e-6), UNIT, window=2, places=5)


class NeverRoundsUp(WindowResponse):
    def _round(self, points: Floats, random: Random) -> NDArray[np.int64]:
        return np.searchsorted(self._means, points, side="right") - 1


def real_mutants() -> list[tuple[WindowResponse, Floats]]:
    """Mutants, and the laws of their places."""
    less = replace(REAL, miss=BinaryFraction.near(float(REAL.miss) - 0.02))
    lower = NeverRoundsUp(REAL.horizon, UNIT, REAL.window, REAL.worths, REAL.miss)
    laws = window_laws(REAL)
    below = int(np.sum(laws @ REAL.worths <= BETWEEN)) - 1
    return [(less, place_law(less, BETWEEN)), (lower, laws[below])]


@pytest.mark.parametrize("value", [-1.0, BETWEEN, 1.0])
@pytest.mark.parametrize("response", [REAL, FEW_PLACES], ids=["many places", "few places"])
def test_answers_about_reals_follow_their_law(response: WindowResponse, value: float) -> None:
    samples = ranks(response, value, samples_for(0.01), seed=20231)
    assert_follows(samples, ranked(response, place_law(response, value)), discrepancy=0.01)


@pytest.mark.parametrize(("mutant", "law"), real_mutants(), ids=["misses less", "never up"])
def test_the_law_of_reals_sees(mutant: WindowResponse, law: Floats) -> None:
    truth, lie = ranked(REAL, place_law(REAL, BETWEEN)), ranked(REAL, law)
    assert kolmogorov(truth, lie, range(len(REAL.worths))) >= 0.01
    samples = ranks(mutant, BETWEEN, samples_for(0.01), seed=20231)
    with pytest.raises(AssertionError, match="Kolmogorov"):
        assert_follows(samples, truth, discrepancy=0.01)


def duchi(epsilon: float) -> float:
    """Worst at 0, where both answers are as likely."""
    return 1 / math.tanh(epsilon / 2) ** 2


def piecewise(epsilon: float, square: float) -> float:
    """Wang et al. 2019, Lemma 2: at a value of this square."""
    root = math.exp(epsilon / 2)
    return square / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)


def hybrid(epsilon: float) -> float:
    """The mixture whose variance is the same at all values; of no use below epsilon 0.61."""
    share = -math.expm1(-epsilon / 2)
    return share * piecewise(epsilon, 0.0) + (1 - share) * duchi(epsilon)


def test_published_mechanisms_are_windows_with_other_worths() -> None:
    two = WindowResponse.with_window(100, PRIVACY, UNIT, window=1, places=2)
    assert two.user_variance == pytest.approx(duchi(1.0))
    root = math.exp(0.5)
    end = (root + 1) / (root - 1)
    window = round(1000 * (end - 1) / (2 * end))
    worths = tuple(np.linspace(-end, end, 1000).tolist())
    even = WindowResponse(100, UNIT, window, worths, BinaryFraction.near(1 / (root + 1)))
    assert even.epsilon_spent == pytest.approx(1.0, abs=0.01)
    assert even.user_variance == pytest.approx(piecewise(1.0, 1.0), rel=0.01)


@pytest.mark.parametrize("epsilon", [0.05, *EPSILONS, 8.0, 16.0])
def test_no_published_mechanism_for_reals_is_better(epsilon: float) -> None:
    ours = local("real:-1:1", epsilon).user_variance
    rivals = (duchi(epsilon), piecewise(epsilon, 1.0), hybrid(epsilon))
    assert ours < min(rivals)
    assert GaussianResponse(1, UNIT, oh.Privacy(epsilon, 1e-6)).user_variance > ours


def least_variance(epsilon: float, values: int = 21, answers: int = 61) -> float:
    """The best unbiased mechanism on a grid of values and answers, as a linear program.

    Its variables are the probabilities by value and answer, the least probability of every
    answer, and the largest variance.
    """
    root = math.exp(epsilon / 2)
    points = np.linspace(-1, 1, values)
    worths = np.linspace(-1, 1, answers) * (root + 1) / (root - 1)
    each, by_value = np.eye(values * answers), np.eye(values)
    least = np.kron(np.ones((values, 1)), np.eye(answers))
    total, mean, square = (np.kron(by_value, row) for row in (worths**0, worths, worths**2))
    none, unused = np.zeros((values * answers, 1)), np.zeros((values, answers))
    ratios = np.block([[each, -math.exp(epsilon) * least, none], [-each, least, none]])
    variances = np.block([square, unused, -np.ones((values, 1))])
    program = linprog(
        np.eye(ratios.shape[1])[-1],
        A_ub=np.concatenate([ratios, variances]),
        b_ub=np.concatenate([np.zeros(len(ratios)), points**2]),
        A_eq=np.block([[total, unused, none[:values]], [mean, unused, none[:values]]]),
        b_eq=np.concatenate([np.ones(values), points]),
    )
    assert program.fun is not None
    return program.fun


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_reals_are_answered_about_as_well_as_can_be(epsilon: float) -> None:
    assert local("real:-1:1", epsilon).user_variance < 1.02 * least_variance(epsilon)
