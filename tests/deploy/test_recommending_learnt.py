"""What is read off the published moments of a recommender."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import LinUCB, Practical
from overhand.deploy.server.policy import arms_of, coefficients_of, reward_of
from overhand.deploy.server.store import Coordinate
from overhand.deploy.shuffler.running import BatchPadder
from support.loopback_system import System, run
from support.server_stores import history_of
from support.small_recommender import ARMS, CONTEXTS, LEARNING, plan


def sums_of(users: int, liking: float, seed: int) -> tuple[float, Any]:
    """The mean reward of people who take any arm, and the sum of their moments."""
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 3, users)
    rewards = (rng.random(users) < np.where(arms == 0, liking, 0.2)).astype(float)
    rows = LinUCB(LEARNING.constants).rows(CONTEXTS[arms], rewards)
    return float(rewards.mean()), rows.sum(axis=0)


def test_the_mean_reward_is_what_the_moments_say() -> None:
    mean, total = sums_of(500, 0.9, seed=1)
    point = Coordinate(500, float(total[0]), float(total[0]), float(total[0]))
    shown = reward_of(LEARNING, point, 500)
    assert shown is not None
    assert shown.value == pytest.approx(mean)
    assert reward_of(replace(LEARNING, constants=Practical(3), arms={}), point, 500) is None


def test_nothing_is_learnt_of_a_sum_whose_key_is_still_there(tmp_path: Path) -> None:
    """Sum, key and news change together: what is read in between would be ahead of the key."""

    async def test(system: System) -> None:
        with ThreadPoolExecutor(1) as threads:
            with system.publisher._lock:
                learnt = threads.submit(system.publisher.lessons)
                with pytest.raises(TimeoutError):
                    learnt.result(timeout=0.1)
            assert learnt.result(timeout=10.0)["policy"] is None

    run(tmp_path, test, plan=plan("pairs"), learning=LEARNING)


@pytest.mark.usefixtures("mean_noise")
@pytest.mark.parametrize("mechanism", ["shares", "pairs"])
def test_places_that_nobody_took_have_no_reward(tmp_path: Path, mechanism: str) -> None:
    """Counted as users, they would draw the mean towards 1/2."""
    lowest = plan(mechanism).tree.lowest

    async def test(system: System) -> None:
        filler = BatchPadder(system.store, system.admission, system.document, deadline=1e-9)
        for people in (2, lowest, 1):
            async with system.device() as crowd:
                await crowd.choose_many(np.repeat(CONTEXTS[:1, np.newaxis], people, axis=0))
                await crowd.report_many([1.0] * people)
            for _ in range(2):
                missing = filler._missing(system.store.arrived)
            if missing:
                await filler.fill(missing)
            await system.publish()
        reward, sums = system.publisher.lessons()["reward"], history_of(system.publisher)
        assert reward["t"] == [one["t"] for one in sums]
        for users, place in ((2, 0), (lowest + 3, -1)):  # the constant is made 1/2
            expected = 0.5 + sums[place]["value"][0] / users
            assert reward["value"][place] == pytest.approx(expected)

    run(tmp_path, test, plan=plan(mechanism), learning=LEARNING)


@pytest.mark.parametrize(("users", "std", "widest"), [(3000, 1.0, 0.3), (300, 40.0, 3.0)])
def test_what_was_learnt_is_within_its_interval(users: int, std: float, widest: float) -> None:
    """Also while noise prevails, and the shift pulls theta to nearly nothing."""
    inside = 0
    truth = np.linalg.lstsq(CONTEXTS, np.array([0.9, 0.2, 0.2]) - 0.5, rcond=None)[0]
    for seed in range(60):
        _, total = sums_of(users, 0.9, seed)
        total += np.random.default_rng([seed, 1]).normal(0.0, std, len(total))
        estimate = oh.Estimate(users, total, std=std)
        policy = LEARNING.learner.policy(users, total, std)
        learnt = coefficients_of(LEARNING, policy, estimate)
        inside += sum(
            one["low"] <= real <= one["high"] for one, real in zip(learnt, truth, strict=True)
        )
    assert inside >= 0.95 * 180
    assert max(one["high"] - one["low"] for one in learnt) < widest, "and tells something"
    assert sorted(arm["arm"] for arm in arms_of(LEARNING, policy)) == sorted(ARMS)
    if std == 1.0:
        assert arms_of(LEARNING, policy)[0]["arm"] == "left"
