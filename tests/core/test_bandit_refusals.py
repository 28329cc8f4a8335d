"""What learners, users and recommenders refuse, and that nothing of it is left behind."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import (
    Constants,
    LinUCB,
    Policy,
    Practical,
    Recommender,
    Theory,
    check_contexts,
    learner_for,
)
from overhand.errors import InvalidValue
from overhand.model import Floats
from overhand.randomness import SecureRandom
from overhand.values import RegressionStatistics
from support.learners import (
    CONSTANT,
    CONSTANTS,
    GOOD,
    assert_same_policy,
    by_hand,
    learner,
    recommender,
    small_plan,
    stream,
    with_constant,
)
from support.random_streams import UNSAFE
from support.small_plans import PRIVACY

# --- where chance comes from ----------------------------------------------------------------------

ROLES: dict[str, Callable[..., Any]] = {
    "recommender.Recommender": lambda *random: Recommender(small_plan(), *random),
}


@pytest.mark.parametrize("name", ROLES)
def test_noise_is_never_of_a_source_that_can_be_guessed(name: str) -> None:
    for kind, random in UNSAFE.items():
        with pytest.raises(InvalidValue, match=f"random is of type {kind}: deployed noise"):
            ROLES[name](random)


@pytest.mark.parametrize("name", ROLES)
def test_a_role_that_takes_any_source_would_be_caught(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = name.split(".")[0]
    monkeypatch.setattr(f"overhand.bandits.{module}.source_of", lambda random: Spawning(random))
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        test_noise_is_never_of_a_source_that_can_be_guessed(name)


@dataclass(frozen=True)
class Spawning:
    """Anything at all, taken for a source of chance."""

    random: Any

    def spawn(self, count: int) -> list[Any]:
        return [oh.seeded_random(1)] * count


@pytest.mark.parametrize("name", ROLES)
def test_nobody_has_to_say_where_chance_comes_from(name: str) -> None:
    role = ROLES[name]()
    assert isinstance(role._random, SecureRandom)
    assert ROLES[name](oh.seeded_random(1)) is not None


# --- a constant feature ---------------------------------------------------------------------------

BAD_CONSTANTS = [1.0, 1, 1.5, 0.0, 0, -0.0, -0.5, math.nan, math.inf, -math.inf, "0.5", True, 0.5j,
                 [0.5], 10**400]  # fmt: skip


@pytest.mark.parametrize("constant", BAD_CONSTANTS, ids=lambda c: repr(c)[:9])
def test_a_constant_that_is_none_is_refused(constant: Any) -> None:
    for made in (
        lambda: Practical(2, constant),
        lambda: Practical(2, constant=constant),
        lambda: Recommender(small_plan(), oh.seeded_random(1), constant=constant),
    ):
        with pytest.raises(InvalidValue, match="constant"):
            made()


def test_constants_of_a_recommender_are_told_by_name() -> None:
    make: Any = Recommender
    for anything in (Practical(2), CONSTANT):
        with pytest.raises(TypeError, match="positional"):
            make(small_plan(), oh.seeded_random(1), anything)


# The constant of the stream is 0.8, and thirteen users came before.
OTHER_FIRST: dict[str, tuple[Any, str]] = {
    "another": (np.array([0.5, 0.3]), "is 0.5, not the constant 0.8"),
    "another, as a list": ([0.5, 0.3], "is 0.5, not the constant 0.8"),
    "another by little": (np.array([0.80001, 0.3]), "is 0.80001, not the constant 0.8"),
    "below by little": (np.array([0.799998, 0.3]), "is 0.799998, not the constant 0.8"),
    "its opposite": (np.array([-0.8, 0.3]), "is -0.8, not the constant 0.8"),
    "none": (np.array([0.0, 0.3]), "is 0, not the constant 0.8"),
    "scaled already": (np.array([0.5, 0.5]), "is 0.5, not the constant 0.8"),
    "the last": (np.array([0.3, 0.8]), "is 0.3, not the constant 0.8"),
    "single precision": (np.array([0.6, 0.3], np.float32), "is 0.600000024, not the constant 0.8"),
    "whole numbers": ([1, 0], "is 1, not the constant 0.8"),
}


@pytest.mark.parametrize("case", OTHER_FIRST)
def test_rows_with_another_first_feature_are_refused(case: str) -> None:
    features, words = OTHER_FIRST[case]
    of, good = learner(constant=CONSTANT), [CONSTANT, 0.3]
    for before, first in ((0, 0), (4, 0), (2, 100)):
        x = [good] * before + [list(features)] + [good, list(features)]
        with pytest.raises(
            InvalidValue, match=re.escape(f"user {first + before + 1} {words}") + "$"
        ):
            of.rows(x, [1.0] * len(x), first=first)
    learner().rows([features], [1.0])  # no constant, no such rule


def test_a_first_feature_may_be_off_by_rounding() -> None:
    of = learner(constant=CONSTANT)
    single = np.array([[CONSTANT, 0.3]], np.float32)
    for x in (single, [[CONSTANT + 5e-7, 0.3]], [[CONSTANT - 5e-7, 0.3]]):
        expected = RegressionStatistics(2).rows(
            np.column_stack([by_hand(np.asarray(x), CONSTANT), [1.0]])
        )
        np.testing.assert_allclose(of.rows(x, [1.0]), expected, rtol=1e-6)


@pytest.mark.parametrize("case", OTHER_FIRST)
@pytest.mark.parametrize("at_once", [0, 1, 31], ids=["update", "one", "many"])
def test_another_first_feature_is_refused_and_leaves_nothing_behind(
    case: str, at_once: int
) -> None:
    wrong, words = OTHER_FIRST[case]
    features, rewards = stream()
    at = recommender(constant=CONSTANT)
    at.update_many(features[:13], rewards[:13])
    before = [GOOD] * (at_once - 1)
    step = update_many([*before, wrong], [1.0] * at_once) if at_once else update(wrong, 1.0)
    with pytest.raises(InvalidValue, match=re.escape(f"user {14 + len(before)} {words}")):
        step(at)
    assert_goes_on_after_13(at, CONSTANT)


@pytest.mark.parametrize("case", OTHER_FIRST)
def test_a_user_does_not_report_another_first_feature(case: str) -> None:
    wrong, words = OTHER_FIRST[case]
    of = learner(constant=CONSTANT)
    assert len(check_contexts([wrong], 2)) == 1  # an arm may be shown that may not be taken
    for t in (1, 60):
        with pytest.raises(InvalidValue, match=re.escape(f"user {t} {words}")):
            of.rows([wrong], [1.0], first=t - 1)


class Longer(Practical):
    """A mutant: features 1.1 times as long."""

    @cached_property
    def scales(self) -> Floats:
        return 1.1 * Practical(self.dimension, self.constant).scales


@pytest.mark.parametrize("constant", [None, *CONSTANTS])
def test_features_scaled_by_too_much_are_refused(constant: float | None) -> None:
    rng = np.random.default_rng(23)
    x = with_constant(rng, constant, 5, 2, length=1.0)
    with pytest.raises(InvalidValue, match=re.escape("user 1 has norm 1.1, above 1")):
        LinUCB(Longer(2, constant)).rows(x, np.ones(5))
    at = Recommender(small_plan(), oh.seeded_random(1), constants=Longer(2, constant))
    with pytest.raises(InvalidValue, match=re.escape("user 1 has norm 1.1, above 1")):
        at.update_many(x, np.ones(5))
    assert at.t == 0
    assert len(learner(constant=constant).rows(x, np.ones(5))) == 5


# --- bad input ------------------------------------------------------------------------------------

HUGE = np.longdouble("1e4000")
BAD_CONTEXTS: dict[str, tuple[Any, str]] = {
    "another dimension": ([[0.1, 0.2, 0.3]], "(1, 3)"),
    "too long": ([[0.1, 0.2], [0.9, 0.9]], "1.272792"),
    "too long by little": ([[1 + 2e-6, 0.0]], "1.000002"),
    "NaN": ([[0.1, 0.2], [0.1, math.nan]], "nan"),
    "NaN before a good one": ([[math.nan, 0.1], [0.1, 0.2]], "nan"),
    "infinite": ([[0.1, math.inf]], "inf"),
    "infinite both ways": ([[-math.inf, math.inf]], "inf"),
    "words": ([["a", "b"]], "<U1"),
    "numbers as words": ([["0.1", "0.2"]], "<U3"),
    "ragged": ([[0.1, 0.2], [0.1]], ""),
    "nothing": ([], "(0,)"),
    "no features": ([[]], "(1, 0)"),
    "no arms": (np.zeros((3, 0, 2)), "(3, 0, 2)"),
    "one row": ([0.1, 0.2], "(2,)"),
    "a number": (0.3, "()"),
    "four axes": (np.zeros((1, 1, 1, 2)), "(1, 1, 1, 2)"),
    "None": (None, "object"),
    "None inside": ([[None, 0.1]], "object"),
    "complex": ([[0.1j, 0.1]], "complex"),
    "a square that overflows": ([[1e200, 0.0]], ""),
    "a float32 whose square overflows": (np.array([[1e30, 0.0]], np.float32), ""),
    "a number too large for a float": (np.array([[HUGE, 0.0]]), ""),
    "a large whole number": ([[10**400, 0]], ""),
}
BAD_FEATURES: dict[str, tuple[Any, str]] = {
    "another dimension": ([0.1, 0.2, 0.3], "3)"),
    "too long": ([0.9, 0.9], "1.272792"),
    "too long, as an array": (np.array([0.9, 0.9]), "1.272792"),
    "too long by little": (np.array([1 + 2e-6, 0.0]), "1.000002"),
    "NaN": ([0.1, math.nan], "nan"),
    "NaN, as an array": (np.array([math.nan, 0.1]), "nan"),
    "infinite": (np.array([0.1, -math.inf]), "inf"),
    "words": (["a", "b"], ""),
    "numbers as words": (["0.1", "0.2"], ""),
    "ragged": ([[0.1, 0.2], [0.1]], ""),
    "nothing": ([], "0)"),
    "a table": ([[0.1, 0.2]], "(1, 1, 2)"),
    "a number": (0.3, "(1,)"),
    "None": (None, ""),
    "None inside": ([None, 0.1], ""),
    "complex": ([0.1j, 0.1], ""),
    "a square that overflows": (np.array([1e200, 0.0]), "1e+200"),
    "a number too large for a float": (np.array([HUGE, 0.0]), ""),
    "a large whole number": ([10**400, 0], ""),
}
BAD_REWARDS: dict[str, tuple[Any, str]] = {
    "negative": (-0.1, "-0.1"),
    "too large": (1.5, "1.5"),
    "NaN": (math.nan, "nan"),
    "infinite": (math.inf, "inf"),
    "None": (None, "object"),
    "a word": ("1", "<U1"),
    "a list": ([0.5], "(1, 1)"),
    "ragged": ([[1.0], [1.0, 1.0]], ""),
    "complex": (1j, "complex"),
    "a large whole number": (10**400, ""),
}

Step = Callable[[Recommender], object]

# Thirteen users came before.
BAD_TABLES: dict[str, tuple[Any, Any, str]] = {
    "too many rewards": ([GOOD], [1.0, 1.0], "2 rewards"),
    "too few rewards": ([GOOD, GOOD], [1.0], "1 rewards"),
    "no rewards": ([GOOD], [], "0 rewards"),
    "one number for all rewards": ([GOOD], 1.0, "()"),
    "rewards of two axes": ([GOOD], [[1.0]], "(1, 1)"),
    "ragged rewards": ([GOOD, GOOD], [[1.0], [1.0, 1.0]], ""),
    "None for rewards": ([GOOD], None, "()"),
    "one user's features": (GOOD, [1.0], "(2,)"),
    "users of different lengths": ([[0.1, 0.2], [0.1]], [1.0, 1.0], ""),
    "the last of many is too long": ([GOOD] * 30 + [[1.0, 1.0]], [1.0] * 31, "user 44"),
    "the last of many has a bad reward": ([GOOD] * 31, [1.0] * 30 + [2.0], "user 44"),
    "more users than are left": ([GOOD] * 48, [1.0] * 48, "48 users after 13"),
}


def said(words: str) -> str | None:
    """What an error must match: these very words, if there are any."""
    return re.escape(words) if words else None


def recommend(contexts: Any) -> Step:
    return lambda at: at.recommend(contexts)


def update(features: Any, reward: Any) -> Step:
    return lambda at: at.update(features, reward)


def update_many(features: Any, rewards: Any) -> Step:
    return lambda at: at.update_many(features, rewards)


def bad_steps() -> Iterator[tuple[str, Step, str]]:
    """What a recommender must refuse, each as one call, and what it must say."""
    for name, (contexts, words) in BAD_CONTEXTS.items():
        yield f"recommend: {name}", recommend(contexts), words
    for name, (features, words) in BAD_FEATURES.items():
        yield f"update: {name}", update(features, 1.0), words
        yield f"update_many: {name}", update_many([features], [1.0]), words
    for name, (reward, words) in BAD_REWARDS.items():
        yield f"update: reward {name}", update(GOOD, reward), words
        yield f"update_many: reward {name}", update_many([GOOD], [reward]), words
    for name, (table, rewards, words) in BAD_TABLES.items():
        yield f"update_many: {name}", update_many(table, rewards), words


@cache
def untouched(constant: float | None = None) -> tuple[Policy | None, ...]:
    """The policies of a stream in which nothing went wrong, after 13 users and after each more."""
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:13], rewards[:13])
    policies = [at.policy]
    for x, y in zip(features[13:], rewards[13:], strict=True):
        at.update(x, float(y))
        policies.append(at.policy)
    return tuple(policies)


def assert_goes_on_after_13(at: Recommender, constant: float | None) -> None:
    """It has learnt from 13 users of the stream, and from the rest it learns as if untouched."""
    features, rewards = stream()
    assert at.t == 13
    assert_same_policy(at.policy, untouched(constant)[0])
    for x, y, policy in zip(features[13:], rewards[13:], untouched(constant)[1:], strict=True):
        at.update(x, float(y))
        assert_same_policy(at.policy, policy)
    assert at.t == 60


def has_the_constant(name: str) -> bool:
    """Whether what is wrong has nothing to do with the first feature."""
    return name.startswith("recommend") or "reward" in name or "users than" in name


@pytest.mark.parametrize(
    ("step", "words", "constant"),
    [
        pytest.param(step, words, constant, id=f"{name}{'' if constant is None else ', constant'}")
        for constant in (None, CONSTANT)
        for name, step, words in bad_steps()
        if constant is None or has_the_constant(name)
    ],
)
def test_a_bad_call_is_refused_and_leaves_nothing_behind(
    step: Step, words: str, constant: float | None
) -> None:
    features, rewards = stream()
    at = recommender(constant=constant)
    at.update_many(features[:13], rewards[:13])  # a full batch, and four users of the next
    with pytest.raises(InvalidValue, match=said(words)):
        step(at)
    assert_goes_on_after_13(at, constant)


def test_a_user_after_the_horizon_is_refused() -> None:
    features, rewards = stream()
    at = recommender()
    at.update_many(features, rewards)
    policy = at.policy
    for step in (
        update(GOOD, 1.0),
        update(GOOD.tolist(), 1),
        update_many([GOOD], [1.0]),
        update_many([GOOD] * 100, [1.0] * 100),
    ):
        with pytest.raises(InvalidValue, match="users after 60 go beyond the horizon 60"):
            step(at)
        assert at.t == 60
        assert at.policy is policy
    at.update_many(np.empty((0, 2)), [])  # nobody at all is fine


@pytest.mark.parametrize("case", BAD_CONTEXTS)
def test_a_user_refuses_bad_contexts(case: str) -> None:
    contexts, words = BAD_CONTEXTS[case]
    with pytest.raises(InvalidValue, match=said(words)):
        check_contexts(contexts, dimension=2)


def test_what_may_be_chosen_may_be_reported() -> None:
    """Whoever took an arm is not told afterwards that its features are too long."""
    rng = np.random.default_rng(18)
    angles, lengths = rng.uniform(0, 2 * np.pi, 3000), 1 + rng.uniform(0, 2e-6, 3000)
    arms = np.column_stack([lengths * np.cos(angles), lengths * np.sin(angles)])
    accepted = 0
    for arm in [*arms, *arms.astype(np.float32)]:
        try:
            (features,) = check_contexts(arm[np.newaxis], dimension=2)
        except InvalidValue:
            continue
        accepted += 1
        assert learner().rows([features], [1.0]).shape == (1, 5)
    assert 1000 < accepted < 5000  # of 6,000, half of which are within the tolerance


BEYOND = pytest.mark.parametrize(
    ("constant", "off", "square"),
    [
        (math.sqrt(0.5), 0.0, 1 + 9e-7),
        (math.sqrt(0.5), -9e-7, 1.0),
        (0.9, 0.0, 1 + 1e-7),
        (0.9, 0.0, 1 + 9e-7),
        (math.sqrt(0.5), -9e-7, 1 + 9e-7),
        (0.99, 0.0, 1 + 1e-7),
    ],
)


def beyond(constant: float, off: float, square: float) -> Floats:
    """Features that are a little longer than 1, or whose constant is a little off."""
    return np.array([constant + off, math.sqrt(square - (constant + off) ** 2)])


@BEYOND
def test_what_may_be_chosen_with_a_constant_may_be_reported(
    constant: float, off: float, square: float
) -> None:
    """Scaling makes rounding errors larger: by 3 / (4 - 4 constant^2), if it is above 1/2."""
    (features,) = check_contexts([beyond(constant, off, square)], dimension=2)
    assert learner(constant=constant).rows([features], [1.0]).shape == (1, 5)


@BEYOND
def test_a_user_is_refused_at_once_or_learnt_from(
    constant: float, off: float, square: float
) -> None:
    """One by one, and not when the batch is full: the others in it would be lost."""
    at, good = recommender(constant=constant), np.array([constant, 0.1])
    x, lowest = beyond(constant, off, square), small_plan().tree.lowest
    taken = 0
    for features in (good, x, *[good] * lowest):
        try:
            at.update(features, 1.0)
        except InvalidValue:
            assert features is x
        else:
            taken += 1
        assert at.t == taken
    assert at.policy is not None
    assert at.policy.t == lowest


@pytest.mark.parametrize("dimension", [1, 3])
def test_a_learner_of_another_dimension_than_the_plan_is_refused(dimension: int) -> None:
    with pytest.raises(InvalidValue, match=f"regression:2 .* regression:{dimension}"):
        learner_for(small_plan(), learner(dimension))


@pytest.mark.parametrize(
    "constants", [Practical(9), Theory(dimension=9, horizon=60, entry_error=3.0)], ids=repr
)
def test_constants_of_another_dimension_than_the_plan_are_refused(constants: Constants) -> None:
    """They would make the shift too small for the noise, or too large."""
    with pytest.raises(InvalidValue, match="9"):
        Recommender(small_plan(), oh.seeded_random(1), constants=constants)


def test_a_plan_of_anything_but_regression_is_refused() -> None:
    bits = oh.Plan.best(100, 2, PRIVACY)
    with pytest.raises(InvalidValue, match="regression, not bit"):
        Recommender(bits, oh.seeded_random(1))
    with pytest.raises(InvalidValue, match="a plan for bit"):
        learner_for(bits, learner())


@pytest.mark.parametrize(
    ("name", "value"),
    [("exploration", 0.0), ("exploration", math.nan), ("exploration", "1"), ("dimension", 0),
     ("dimension", 1.5), ("dimension", True)],
    ids=str,
)  # fmt: skip
def test_constants_that_are_none_are_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidValue, match=name):
        Practical(**{"dimension": 2, name: value})
