"""`overhand demo --recommender`: people with tastes, and a rule that gets better as they come."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np

from overhand.bandits import plan_for_regret
from overhand.cli.crowd import Crowd, visiting
from overhand.cli.one_machine import Services, Stage, fetched, settled
from overhand.cli.output import console, new_table, number, print_json, progress_bar, working
from overhand.cli.recommender import MECHANISM, features_of
from overhand.model import Counts, Floats
from overhand.plan import Plan
from overhand.simulation.regret import Diverse, Field, Offers, measure, rival
from overhand.values import values_of

VALUES = "moments:4"
ARMS = 6
_RUNS = 20
_SEEDS = 1 << 32
_LABELS = {
    "random": "any arm",
    "local": "local privacy, simulated",
    "deployed": "this recommender",
    "concurrent": "the same, simulated",
    "not_private": "no privacy, simulated",
    "best": "the best rule",
}


def for_regret(values: str | None, *, mechanism: str | None, **options: Any) -> Callable[..., Plan]:
    """What makes the plan for so many users."""
    dimension = features_of(values_of(values or VALUES))
    Diverse(dimension, ARMS)  # or there is no such crowd
    return partial(
        plan_for_regret, dimension=dimension, mechanism=mechanism or MECHANISM, **options
    )


def show_learning(plan: Plan, users: int, stage: Stage) -> None:
    """A crowd of so many people is recommended something, and what they think of it."""
    seed = secrets.randbelow(_SEEDS)
    place = Diverse(features_of(plan.values), ARMS)
    people = place.audience(users, [np.random.default_rng([seed, 0])]).offers(users)
    with stage.set_up(plan, recommender=True, constant=place.constant) as services:
        came, arms, seconds = _served(services, people)
        rewards = _rewards(people.means[0][came], arms)
        with working("simulating what others would have got"):
            missed = _missed(plan, place, users, seed)
        rewards |= {name: rewards["best"] - regret for name, regret in missed.items()}
        policies = fetched(f"{services.server}/v1/learnt")["rule"]["number"]
        result = {
            **_named(rewards),
            "users": users,
            "policies": policies,
            "users_per_second": users / seconds,
            "seconds": seconds,
            "epsilon": plan.privacy.epsilon,
            "delta": plan.privacy.delta,
            "dimension": place.dimension,
            "arms": place.arms,
        }
        if stage.as_json:
            print_json(result)
        else:
            _show(plan, rewards, result)


def _served(services: Services, people: Offers) -> tuple[Counts, Counts, float]:
    """Who came, in order, what they took, and how long it was until all were learnt from."""
    features = people.features[0].astype(np.float64)
    users, news = len(features), list[tuple[Counts, Counts]]()
    offered = features, people.means[0], people.uniforms[0]
    members = visiting(services.shuffler, services.digest, *offered)
    with closing(Crowd(members)) as crowd:
        started = time.perf_counter()
        with progress_bar(f"{users:,} people come", users) as advance:

            def hear(visit: tuple[Counts, Counts]) -> None:
                news.append(visit)
                advance(len(visit[0]))

            crowd.go(hear)
    with working("waiting for the last batch"):
        settled(services.server, users)
    seconds = time.perf_counter() - started
    came, arms = (np.concatenate(column) for column in zip(*news, strict=True))
    return came, arms, seconds


def _rewards(means: Floats, arms: Counts) -> dict[str, Floats]:
    """Expected rewards of all people and of the last quarter of them, by how arms are chosen."""
    of_each = {
        "random": means.mean(axis=1),
        "deployed": means[np.arange(len(arms)), arms],
        "best": means.max(axis=1),
    }
    last = len(arms) * 3 // 4
    return {
        name: np.array([reward.mean(), reward[last:].mean()], np.float64)
        for name, reward in of_each.items()
    }


def _missed(plan: Plan, place: Diverse, users: int, seed: int) -> dict[str, Floats]:
    """What others miss, of all people and of the last quarter: the mean over crowds like this."""
    field = Field(plan.horizon, plan.shufflers, plan.privacy, place.dimension)
    rivals = [
        rival("local", field),
        field.of_plan("concurrent", "the same", "shufflers", plan),
        rival("not-private", field),
    ]
    found = measure(place, users, rivals, runs=_RUNS, seed=seed)
    last = users * 3 // 4
    missed = {}
    for regret in found:
        curve = regret.curves.mean(axis=0)
        before = float(np.interp(last, regret.t, curve))
        late = (regret.mean - before) / (users - last)
        missed[regret.rival.name.replace("-", "_")] = np.array([regret.mean / users, late])
    return missed


def _named(rewards: dict[str, Floats]) -> dict[str, float]:
    """Rewards by the names of the JSON object's fields."""
    found = {"mean_reward": rewards["deployed"][0], "last_quarter_reward": rewards["deployed"][1]}
    for name in ("random", "best", "local", "concurrent", "not_private"):
        found[f"{name}_reward"], found[f"last_quarter_{name}_reward"] = rewards[name]
    return {name: float(reward) for name, reward in found.items()}


def _show(plan: Plan, rewards: dict[str, Floats], result: dict[str, Any]) -> None:
    table = new_table("mean reward", "all users", "last quarter")
    for name, label in _LABELS.items():
        style = "bold" if name == "deployed" else ""
        table.add_row(label, *(f"{reward:.3f}" for reward in rewards[name]), style=style)
    console.print(
        f"{result['users']:,} users, {result['dimension']} features, {result['arms']} arms; "
        f"{plan.privacy}, {plan.tree.levels} shufflers, noise made by {plan.noise_by}"
    )
    console.print(table)
    _, deployed = rewards["deployed"]
    (_, least), (_, most) = rewards["random"], rewards["best"]
    learnt = (deployed - least) / (most - least)
    console.print(
        f"{result['policies']:,} rules; the last quarter has {learnt:.0%} of what the best rule is "
        f"above any arm; {number(result['users_per_second'])} users per second"
    )
