"""Races of learners: who takes part, and what they miss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import LinUCB, Practical, Theory
from overhand.lab.regret.environments import (
    Audience,
    Diverse,
    Environment,
    Fixed,
    Offers,
    Segments,
)
from overhand.lab.regret.racing import Regret, race
from overhand.lab.regret.rivals import (
    RIVALS,
    ExactSums,
    Field,
    GrowingBatches,
    LocalSums,
    PlanSums,
    Releases,
    Rival,
    Sums,
    TrustedSums,
    rival,
)
from overhand.model import Floats
from overhand.randomness import Random
from overhand.values import RegressionStatistics
from support.small_plans import PRIVACY
from support.small_races import PLANNED, ROOT, SMALL, release_times, small

# --- rivals ---------------------------------------------------------------------------------------


def delta_of(sums: Sums) -> float:
    """What it costs, from what it is made of."""
    match sums:
        case PlanSums():
            return sums.source.delta_spent
        case TrustedSums():
            return sums.source.delta_spent
        case GrowingBatches():
            return sums.delta_spent
        case LocalSums():
            assert sums.source.epsilon_spent <= PRIVACY.epsilon
            return sums.source.delta_spent
    raise AssertionError(f"{sums} is not private")


@pytest.mark.parametrize("name", RIVALS)
def test_every_rival_pays_for_the_guarantee(name: str) -> None:
    made = small(name)
    assert made.name == name
    assert made.label
    assert made.trusted
    if name == "not-private":
        assert isinstance(made.sums, ExactSums)
    else:
        assert delta_of(made.sums) <= PRIVACY.delta * (1 + 1e-9)
        assert made.sums.std(1000) > 1
    assert made.learner.constants == Practical(5, constant=ROOT)
    assert made.learner.dimension == 5
    assert (made.plan is not None) == (name in PLANNED)
    if made.plan is not None:
        assert made.plan.values == RegressionStatistics(5)
        assert made.plan.horizon == 2000
        assert made.plan.tree.levels <= 3 or name == "binary"


def test_rivals_are_those_that_their_names_say() -> None:
    """Less trust, more noise; and the stand-in has the noise of the plan it stands in for."""
    stds = {name: small(name).sums.std(1900) for name in RIVALS}
    assert stds["not-private"] == 0
    assert stds["stand-in"] == stds["concurrent"]
    assert stds["local"] > stds["local-best"] > stds["one-shuffler-0.5"]
    assert stds["one-shuffler-0.5"] > stds["one-shuffler-0.6"] > stds["concurrent"]
    powers = [small(f"one-shuffler-{power}").sums.lowest for power in (0.5, 0.6)]
    assert powers == [round(2000**0.5), round(2000**0.6)]
    assert small("binary").sums.lowest == 2
    real, stand_in = small("concurrent").sums, small("stand-in").sums
    assert isinstance(real, PlanSums)
    assert isinstance(stand_in, PlanSums)
    assert (real.gaussian, stand_in.gaussian) == (False, True)
    assert real.source == stand_in.source


@pytest.mark.parametrize("constant", [None, 0.3, 0.9])
def test_rivals_learn_with_the_constant_of_their_field(constant: float | None) -> None:
    made = rival("not-private", replace(SMALL, constant=constant))
    assert made.learner.constants == Practical(5, constant=constant)
    theory = rival("not-private", replace(SMALL, constant=constant, constants="theory"))
    assert theory.learner.constants.constant is None
    if constant is not None:  # which is not that of these arms
        with pytest.raises(
            oh.InvalidValue, match=r"all arms is 0\.7071\d*, not the constant 0\.\d"
        ):
            race(Diverse(5, 10), 100, [made], [0], 1)


def test_learners_without_a_constant_are_others_and_no_better() -> None:
    """Rewards of half the range and shorter features, in the same noise."""
    ours = rival("concurrent", replace(SMALL, privacy=oh.Privacy(8.0, 1e-6)))
    plain = replace(ours, learner=LinUCB(Practical(5)))
    with_it, without = race(Diverse(5, 10), 2000, [ours, plain], range(4), seed=1)
    assert with_it.final.mean() < without.final.mean()


@pytest.mark.parametrize("name", ["", "nobody", "Concurrent", "one-shuffler"])
def test_unknown_rivals_are_refused(name: str) -> None:
    with pytest.raises(oh.InvalidValue, match="must be one of not-private, trusted"):
        rival(name, SMALL)


@pytest.mark.parametrize("name", [name for name in RIVALS if name != "binary"])
def test_a_rival_may_have_the_constants_of_the_theorem(name: str) -> None:
    made = rival(name, replace(SMALL, constants="theory"))
    constants = made.learner.constants
    assert isinstance(constants, Theory)
    assert constants == made.theory
    assert constants.horizon == 2000
    assert constants.dimension == 5
    # The bound on all entries is one: four standard deviations and more, at the worst time.
    times = [t for t in release_times(made.sums, 2000) if t <= 2000]
    assert constants.entry_error >= max(1.0, 4 * max(made.sums.std(t) for t in times))
    assert not isinstance(small(name).learner.constants, Theory)


# --- races ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorded(Environment):
    """Another environment, of which all offers are kept."""

    inner: Environment = field(default_factory=lambda: Diverse(3, 2))
    seen: list[Offers] = field(default_factory=list, compare=False)

    def audience(self, horizon: int, randoms: Sequence[np.random.Generator]) -> Audience:
        return _RecordedAudience(self.inner.audience(horizon, randoms), self.seen)


class _RecordedAudience(Audience):
    def __init__(self, inner: Audience, seen: list[Offers]) -> None:
        self._inner, self._seen = inner, seen

    def offers(self, users: int) -> Offers:
        offers = self._inner.offers(users)
        self._seen.append(offers)
        return offers


@dataclass(frozen=True)
class RecordedSums(Sums):
    """Other sums, of which rows and releases are kept."""

    inner: Sums
    rows: list[Floats] = field(default_factory=list)
    released: list[Floats] = field(default_factory=list)

    def next_release(self, t: int) -> int:
        return self.inner.next_release(t)

    def std(self, t: int) -> float:
        return self.inner.std(t)

    @property
    def delta_spent(self) -> float:
        return self.inner.delta_spent

    def start(self, randoms: Sequence[Random]) -> Releases:
        return _RecordedReleases(self, self.inner.start(randoms))


class _RecordedReleases(Releases):
    def __init__(self, sums: RecordedSums, inner: Releases) -> None:
        super().__init__(sums)
        self._recorded, self._inner = sums, inner

    def after(self, rows: Floats) -> tuple[Floats, float]:
        self._recorded.rows.append(np.array(rows))
        released, std = self._inner.after(rows)
        self._recorded.released.append(np.array(released))
        return released, std


TIE = 3e-6


def as_reported(features: Floats) -> Floats:
    """Features of which the first is sqrt(1/2), as learners of the constant report them.

    It becomes 1/2, so that there is room for 3/4 instead of 1/2 in the square of the others.
    """
    reported = features * math.sqrt(3 / 2)
    reported[..., 0] = features[..., 0] / math.sqrt(2)
    return reported


def slow_regret(
    features: Floats,
    means: Floats,
    uniforms: Floats,
    sums: RecordedSums,
    run: int,
    *,
    exploration: float = 0.5,
) -> tuple[float, int]:
    """Algorithm 4, user by user, with the noise that was recorded, and how often it was told.

    Where arms are alike, the one on record is taken: before the first release, as all are, and
    where single precision cannot tell (without noise all arms of a new audience promise the same).
    """
    users, _, d = features.shape
    vector, gram = np.zeros(d), np.zeros((d, d))
    regret, released, due, noise = 0.0, 0, sums.inner.next_release(0), np.zeros(0)
    theta, spread, told = np.zeros(d), np.zeros((d, d)), 0
    features = as_reported(features)
    taken = np.concatenate([rows[run, :, :d] for rows in sums.rows])  # x (2 y - 1), x_0 > 0
    taken *= np.sign(taken[:, :1])
    for user in range(users):
        x_of = features[user]
        bonuses = [math.sqrt(max(0.0, x @ spread @ x)) for x in x_of]
        scores = np.array([theta @ x + bonus for x, bonus in zip(x_of, bonuses, strict=True)])
        arm = int(scores.argmax())
        alike = np.flatnonzero(scores > scores.max() - TIE)
        if len(alike) > 1 and user < len(taken):
            arm = next(int(a) for a in alike if np.allclose(x_of[a], taken[user], atol=1e-6))
            told += 1
        x, y = x_of[arm], float(uniforms[user] < means[user, arm])
        regret += means[user].max() - means[user, arm]
        vector += x * (2 * y - 1)
        gram += np.outer(x, x)
        if user + 1 == due:
            std = sums.inner.std(due)
            upper = gram[np.triu_indices(d)] * np.where(
                np.eye(d)[np.triu_indices(d)], 1, math.sqrt(2)
            )
            rows = np.concatenate([part[run] for part in sums.rows[: released + 1]])
            assert len(rows) == due
            noise = sums.released[released][run] - rows.sum(axis=0)
            vector_noisy = vector + noise[:d]
            gram_noisy = np.zeros((d, d))
            gram_noisy[np.triu_indices(d)] = (upper + noise[d:]) / math.sqrt(2)
            gram_noisy += np.triu(gram_noisy, 1).T
            diagonal = [0, *accumulate(range(d, 1, -1))]
            gram_noisy[range(d), range(d)] = (upper + noise[d:])[diagonal]
            shift = 1 + 2 * std * math.sqrt(2 * d)
            shifted = gram_noisy + shift * np.eye(d)
            assert np.linalg.eigvalsh(shifted)[0] > shift / 4
            inverse = np.linalg.inv(shifted)
            theta = inverse @ vector_noisy
            # One standard deviation of rewards in [-1, 1], half of one of the noise.
            spread = inverse @ (shifted + 2 * (exploration * std) ** 2 * np.eye(d)) @ inverse
            released, due = released + 1, sums.inner.next_release(due)
    return regret, told


RACES: list[tuple[Environment, int]] = [
    (Diverse(4, 5), 1200),
    (Fixed(4, 6), 900),
    (Segments(9, 4), 1201),
]


@pytest.mark.parametrize(("inner", "horizon"), RACES, ids=str)
def test_regret_is_that_of_a_slow_learner_on_the_same_users(
    inner: Environment, horizon: int
) -> None:
    """Both rivals of the race, two runs, on one record of the users: so they are the same."""
    d = inner.dimension
    privacy = oh.Privacy(8.0, 1e-4)
    plan = replace(SMALL, horizon=horizon, dimension=d, privacy=privacy).plan((20, 5))
    learner = LinUCB(Practical(d, inner.constant))
    theory = Theory(d, horizon, 1.0)
    sums = [RecordedSums(ExactSums()), RecordedSums(PlanSums(plan))]
    rivals = [Rival(f"{i}", "", "", of, learner, theory) for i, of in enumerate(sums)]
    environment = Recorded(d, inner.arms, inner)
    results = race(environment, horizon, rivals, [3, 8], seed=4)
    steps = [offers.uniforms.shape[1] for offers in environment.seen]
    assert sum(steps) == horizon
    for run in range(2):
        features, means = (
            np.concatenate(
                [np.broadcast_to(part[run], (step, *part.shape[2:])) for part, step in
                 zip(parts, steps, strict=True)]
            ).astype(float)
            for parts in (
                [offers.features for offers in environment.seen],
                [offers.means for offers in environment.seen],
            )
        )  # fmt: skip
        uniforms = np.concatenate([offers.uniforms[run] for offers in environment.seen])
        for result, of in zip(results, sums, strict=True):
            slow, told = slow_regret(features, means, uniforms.astype(float), of, run)
            assert result.final[run] == pytest.approx(slow, rel=1e-4)
            at_first = of.inner.next_release(0)
            audiences = 4 if isinstance(inner, Segments) and of is sums[0] else 1
            assert at_first <= told <= audiences * at_first + 1 < horizon / 10
        doubtful, _ = slow_regret(features, means, uniforms, sums[1], run, exploration=5.0)
        assert results[1].final[run] != pytest.approx(doubtful, rel=1e-3)


@cache
def raced(names: tuple[str, ...], horizon: int = 2000) -> list[Regret]:
    return race(Diverse(5, 10), horizon, [small(name) for name in names], [0, 1, 2], seed=1)


def test_regret_is_never_negative_and_grows() -> None:
    results = raced(RIVALS)
    assert [result.rival.name for result in results] == list(RIVALS)
    for result in results:
        assert result.curves.shape == (3, len(result.t))
        assert result.t[0] == 0
        assert result.t[-1] == 2000
        assert not result.curves[:, 0].any()
        assert np.all(np.diff(result.curves, axis=1) >= 0)
        assert result.final.tolist() == result.curves[:, -1].tolist()
        assert np.all(result.final > 0)
        assert np.all(result.final < 2000)


def test_who_learns_without_noise_beats_chance_by_far() -> None:
    (exact,) = raced(("not-private",))
    assert exact.final.max() < 0.1 * 0.364 * 2000
    half = exact.curves[:, np.searchsorted(exact.t, 1000)]
    assert np.all(exact.final - half < half)


def test_a_rival_is_not_disturbed_by_others_who_come_after_it() -> None:
    """The same users and the same random arms: what it draws depends on its place only."""
    alone, first = raced(("not-private",))[0], raced(RIVALS)[0]
    assert first.curves.tolist() == alone.curves.tolist()
    again = race(Diverse(5, 10), 2000, [small("not-private")], [0, 1, 2], seed=1)[0]
    assert again.curves.tolist() == alone.curves.tolist()
    other = race(Diverse(5, 10), 2000, [small("not-private")], [0, 1, 2], seed=2)[0]
    assert not np.any(other.final == alone.final)


def test_progress_is_told_of_every_round_of_every_rival() -> None:
    told: list[int] = []
    race(Fixed(5, 10), 333, [small("not-private"), small("trusted")], [4, 5], 1, told.append)
    assert sum(told) == 333 * 2 * 2


@pytest.mark.parametrize("horizon", [1, 7, 199, 200, 201, 450])
def test_curves_end_at_the_horizon(horizon: int) -> None:
    (result,) = race(Segments(9, 3), horizon, [small_not_private(9)], [0], 1)
    assert result.t[-1] == horizon
    assert result.t.tolist() == sorted(set(result.t.tolist()))
    assert len(result.t) <= 201


def small_not_private(dimension: int) -> Rival:
    return rival("not-private", replace(SMALL, dimension=dimension))


def scaled_noise(made: Rival, scale: float) -> Rival:
    """A mutant of the stand-in: its learner does not know how much noise there is."""
    return replace(made, sums=_Scaled(made.sums, scale))


@dataclass(frozen=True)
class _Scaled(RecordedSums):
    scale: float = 1.0

    def __init__(self, inner: Sums, scale: float) -> None:
        super().__init__(inner)
        object.__setattr__(self, "scale", scale)

    def start(self, randoms: Sequence[Random]) -> Releases:
        return _ScaledReleases(self, self.inner.start(randoms), self.scale)


class _ScaledReleases(Releases):
    def __init__(self, sums: Sums, inner: Releases, scale: float) -> None:
        super().__init__(sums)
        self._inner, self._scale, self._truth = inner, scale, np.zeros(0)

    def after(self, rows: Floats) -> tuple[Floats, float]:
        self._truth = rows.sum(axis=1) + (self._truth if self._truth.size else 0.0)
        released, std = self._inner.after(rows)
        return np.asarray(self._truth + self._scale * (released - self._truth)), std


@pytest.mark.slow
def test_normal_noise_stands_in_for_that_of_the_shufflers() -> None:
    """The same mean regret, within 4 standard errors of 32 runs on the same users.

    With the errors of means about normal, the truth fails with a probability of 1e-4 over seeds;
    the seed is fixed. Noise of twice the standard deviation is seen, and by far.
    """
    horizon, runs = 20_000, 32
    common = Field(horizon, 3, oh.Privacy(4.0, 1e-6), 9)
    real, stand_in = (rival(name, common) for name in ("concurrent", "stand-in"))
    mutant = scaled_noise(stand_in, 2.0)
    regrets = race(Segments(9, 10), horizon, [real, stand_in, mutant], range(runs), seed=7)
    shuffled, normal, twice = (result.final for result in regrets)
    assert off_by(shuffled, normal) < 4
    assert off_by(twice, normal) > 8
    assert shuffled.mean() < 0.2 * 0.232 * horizon


def off_by(one: Floats, other: Floats) -> float:
    """The difference of two means over the same runs, in its standard errors."""
    difference = one - other
    error = float(difference.std(ddof=1)) / math.sqrt(len(difference))
    return abs(float(difference.mean())) / error
