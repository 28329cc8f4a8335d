"""Sums and recommenders are saved, restored and pickled in one way, and damage is seen."""

from __future__ import annotations

import copy
import json
import pickle
import warnings
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.bandits import Practical, Recommender, Theory
from overhand.errors import SecretState
from overhand.sums import Resumable
from support.kind_plans import kind_plan
from support.learners import CONSTANT, recommender, small_plan, stream
from support.small_plans import REGULAR, WIDE, coin_plan, without_runs

START = datetime(2026, 11, 1)
USERS = 53
BITS = np.random.default_rng(1).integers(0, 2, USERS).tolist()
HOURS = [START + timedelta(hours=int(h)) for h in np.random.default_rng(2).integers(0, 99, USERS)]
AT = sorted(HOURS)
FEATURES, REWARDS = stream(USERS)
PLAN = coin_plan(REGULAR, combine=True)


def plan_for(horizon: int) -> oh.Plan:
    """For an endless sum, whose pickle names it."""
    return coin_plan(oh.RegularTree(horizon, (3, 2)))


def fed_sum(total: Any, start: int, stop: int) -> None:
    total.update_many(BITS[start:stop], at=AT[start:stop])


def fed_recommender(at: Any, start: int, stop: int) -> None:
    for place in range(start, stop):
        at.recommend([[CONSTANT, 0.1], [CONSTANT, -0.1]])  # which may draw
        at.update(FEATURES[place], REWARDS[place])


def state_of(live: Any) -> Any:
    return without_runs(live.secret_state())


def seen_sum(total: Any) -> Any:
    return total.estimate, total.windows("1d"), total.between(3, total.t), state_of(total)


def seen_recommender(at: Any) -> Any:
    arms = [at.recommend([[CONSTANT, x], [CONSTANT, -x]]) for x in (0.0, 0.1, 0.5)]
    return at.t, arms, state_of(at)


THINGS: dict[str, tuple[Any, ...]] = {
    "ContinualSum": (lambda random: oh.ContinualSum(PLAN, random), PLAN, fed_sum, seen_sum),
    "EndlessSum": (
        lambda random: oh.EndlessSum(plan_for, random, first=30), plan_for, fed_sum, seen_sum
    ),
    "Recommender": (
        lambda random: Recommender(small_plan(), random, constant=CONSTANT),
        small_plan(), fed_recommender, seen_recommender,
    ),
}  # fmt: skip
EACH = pytest.mark.parametrize("kind", THINGS)


def restored(source: Any) -> list[Callable[[Any], Any]]:
    """The ways to make the same again."""
    return [
        lambda live: type(live).from_json(source, live.to_json()),
        lambda live: pickle.loads(pickle.dumps(live)),
        copy.deepcopy,
        copy.copy,
    ]


SAVES = st.tuples(st.integers(0, USERS), st.integers(0, 3))


def assert_the_future_is_the_same(kind: str, seed: int, cuts: list[int], ways: list[int]) -> None:
    """Saved at every cut, in one of the ways, and fed with the rest."""
    make, source, feed, seen = THINGS[kind]
    live = make(oh.seeded_random(seed))
    again, start = live, 0
    for cut, way in zip(cuts, ways, strict=True):
        feed(live, start, cut)
        if again is not live:
            feed(again, start, cut)
        start, again = cut, restored(source)[way](again)
    for one in (live, again):
        feed(one, start, USERS)
    assert seen(again) == seen(live)
    assert type(again) is type(live)


@EACH
def test_a_restored_one_has_the_same_future(kind: str) -> None:
    assert_the_future_is_the_same(kind, seed=1, cuts=[0, 14, 40], ways=[3, 0, 1])


@EACH
@pytest.mark.slow
@settings(max_examples=20)
@given(st.integers(0, 99), st.lists(SAVES, min_size=1, max_size=4))
def test_whenever_it_is_saved_the_future_is_the_same(
    kind: str, seed: int, saves: list[tuple[int, int]]
) -> None:
    cuts, ways = zip(*sorted(saves), strict=True)
    assert_the_future_is_the_same(kind, seed, list(cuts), list(ways))


@EACH
@pytest.mark.filterwarnings("ignore::overhand.errors.SecretState")
def test_secure_noise_goes_on_where_it_was(kind: str) -> None:
    make, source, feed, seen = THINGS[kind]
    live = make(None)
    feed(live, 0, 20)
    for way in restored(source)[:2]:
        again = way(live)
        assert again.secret_state() == live.secret_state()
    feed(live, 20, 30)  # the next plan of an endless sum has keys of its own
    feed(again, 20, 30)
    assert seen(again) == seen(live)


@EACH
def test_what_is_secret_warns_and_has_no_copy(kind: str) -> None:
    make = THINGS[kind][0]
    live = make(oh.secure_random())
    for saving in (lambda: live.to_json(), lambda: pickle.dumps(live)):
        with pytest.warns(SecretState, match=f"the saved {kind} holds secrets") as shown:
            saving()
        assert [one.filename for one in shown] == [__file__]  # once, where it is saved
    for copying in (copy.copy, copy.deepcopy):
        with pytest.raises(oh.ProtocolViolation, match="use the same noise again"):
            copying(live)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        seeded = make(oh.seeded_random(1))
        assert pickle.loads(pickle.dumps(seeded)).to_json() == seeded.to_json()


def test_a_copy_is_another_one() -> None:
    live = oh.ContinualSum(PLAN, oh.seeded_random(1))
    fed_sum(live, 0, 10)
    other = copy.copy(live)
    fed_sum(other, 10, 30)
    assert (live.t, other.t) == (10, 30)
    assert live.windows("1d") != other.windows("1d")


def saved(kind: str) -> str:
    make, _, feed, _ = THINGS[kind]
    live = make(oh.seeded_random(1))
    feed(live, 0, 20)
    text: str = live.to_json()
    return text


NOT_SAVED: list[Any] = [
    "", "{}", "null", "[]", "7", '"text"', "{", "not JSON", "[" * 100_000, '{"plan": 1}', "\x00",
    '{"saved": "ContinualSum"}', "NaN", b"\xff", None, 7, {},
]  # fmt: skip


@EACH
def test_what_was_not_saved_is_refused(kind: str) -> None:
    source, of = THINGS[kind][1], type(THINGS[kind][0](oh.seeded_random(1)))
    for text in NOT_SAVED:
        with pytest.raises(oh.DamagedPlan, match=f"this is not a saved {kind}"):
            of.from_json(source, text)
    for other in set(THINGS) - {kind}:
        with pytest.raises(oh.DamagedPlan, match=f"not a saved {kind} of format 2, but '{other}'"):
            of.from_json(source, saved(other))


@EACH
def test_damage_is_seen_wherever_it_is(kind: str) -> None:
    """Cut short, one character another, or an entry changed: one error, whatever it was."""
    source, of = THINGS[kind][1], type(THINGS[kind][0](oh.seeded_random(1)))
    text, rng = saved(kind), np.random.default_rng(1)
    for place in rng.integers(0, len(text), 12).tolist():
        with pytest.raises(oh.DamagedPlan, match=f"saved {kind}"):
            of.from_json(source, text[:place])
        other = "1" if text[place] != "1" else "2"
        with pytest.raises(oh.DamagedPlan, match=f"saved {kind}"):
            of.from_json(source, text[:place] + other + text[place + 1 :])
    state = json.loads(text)
    for name in state:
        with pytest.raises(oh.DamagedPlan, match=f"saved {kind}"):
            of.from_json(source, json.dumps({k: v for k, v in state.items() if k != name}))


@EACH
def test_a_state_that_was_made_up_is_refused(kind: str) -> None:
    """With a digest that is right: what does not fit is one error all the same."""
    from overhand.sums.saving import _digest

    source, of = THINGS[kind][1], type(THINGS[kind][0](oh.seeded_random(1)))
    state = json.loads(saved(kind))
    del state["digest"]
    for name in set(state) - {"saved", "format"}:
        for wrong in ({k: v for k, v in state.items() if k != name}, {**state, name: "?"}):
            if name in ("t", "growth", "next_horizon", "archive") and name in wrong:
                continue  # which are taken as they are
            with pytest.raises(oh.DamagedPlan, match=f"not a (saved {kind}|plan)|belongs to|const"):
                of.from_json(source, json.dumps({**wrong, "digest": _digest(wrong)}))


def test_keys_may_be_in_any_order() -> None:
    text = saved("ContinualSum")
    sorted_text = json.dumps(json.loads(text), sort_keys=True, indent=1)
    assert oh.ContinualSum.from_json(PLAN, sorted_text).to_json() == text


def test_a_state_of_another_plan_is_refused() -> None:
    with pytest.raises(oh.DamagedPlan, match="belongs to plan"):
        oh.ContinualSum.from_json(coin_plan(WIDE), saved("ContinualSum"))
    other = oh.Plan.best(60, 1, oh.Privacy(8.0, 1e-3), values=oh.RegressionStatistics(2))
    with pytest.raises(oh.DamagedPlan, match="belongs to plan"):
        Recommender.from_json(other, saved("Recommender"))


def test_constants_of_a_recommender() -> None:
    """Those of `Practical` are in the state; others are given again, and must be the same."""
    plan, theory = small_plan(), Theory(dimension=2, horizon=60, entry_error=3.0)
    own = Recommender(plan, oh.seeded_random(1), constants=theory)
    fed_recommender(own, 0, 20)
    text = own.to_json()
    assert Recommender.from_json(plan, text, theory).to_json() == text
    assert pickle.loads(pickle.dumps(own)).to_json() == text
    wrong = Theory(dimension=2, horizon=60, entry_error=4.0)
    for constants in (None, wrong, Practical(2)):
        with pytest.raises(oh.DamagedPlan, match="constants=Theory.*entry_error=3.0"):
            Recommender.from_json(plan, text, constants)
    explored = Recommender(plan, oh.seeded_random(1), constants=Practical(2, exploration=0.1))
    again = Recommender.from_json(plan, explored.to_json())
    assert again._learner.constants == Practical(2, exploration=0.1)


def test_an_endless_sum_of_a_local_function_is_saved_but_not_pickled() -> None:
    total = oh.EndlessSum(lambda n: plan_for(n), oh.seeded_random(1), first=10)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(total)
    assert oh.EndlessSum.from_json(plan_for, total.to_json()).t == 0


def test_representations_say_where_things_are() -> None:
    total = oh.ContinualSum(coin_plan(REGULAR, noise_bits=0), oh.seeded_random(1))
    total.update_many([1] * 32)
    assert repr(total) == "ContinualSum(t=32 of 53, value=31, std=0)"
    endless = oh.EndlessSum(
        lambda n: coin_plan(oh.RegularTree(n, (3,)), noise_bits=0), oh.seeded_random(1), first=10
    )
    endless.update_many([1] * 12)
    assert repr(endless) == "EndlessSum(t=12, plan 2 for 18, value=12, std=0)"
    learning = recommender()
    assert repr(learning) == "Recommender(t=0 of 60, learnt from 0 users)"
    learning.update_many(FEATURES[:20], REWARDS[:20])
    assert repr(learning) == "Recommender(t=20 of 60, learnt from 18 users)"
    many = oh.ContinualSum(kind_plan(REGULAR, oh.Vectors(500), noise_bits=2), oh.seeded_random(1))
    many.update_many(np.zeros((50, 500)))
    for thing in (many, many.plan):
        assert len(repr(thing)) < 160
        assert "\n" not in repr(thing)


def test_a_thing_that_is_resumed_says_how() -> None:
    with pytest.raises(TypeError, match="abstract"):
        Resumable()  # type: ignore[abstract]
