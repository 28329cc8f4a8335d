"""Sums and recommenders in several threads: every call is whole, and what is read of one moment."""

from __future__ import annotations

import asyncio
import json
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.bandits.recommender import Rounds
from overhand.randomness import SeededRandom
from overhand.sums import SumServer
from support.learners import CONSTANT, GOOD
from support.small_plans import coin_plan, without_runs
from support.thread_calls import (
    CHANGES,
    EACH,
    MAKE,
    SECONDS,
    START,
    Call,
    Halfway,
    Thing,
    add_many,
    add_one,
    before_a_release,
    ended,
    plan_for,
    started,
    state_of,
)

A_WHILE = 0.1  # for a call that has to wait; none has to be done by then
THREADS = 8
VOTES = Path(__file__).parents[2] / "examples" / "fastapi_votes.py"

READ: dict[str, Call] = {
    "t": lambda thing: thing.t,
    "repr": repr,
    "state": state_of,
    "saved": lambda thing: {**without_runs(json.loads(thing.to_json())), "digest": None},
}
READ_SUM: dict[str, Call] = {
    "estimate": lambda total: total.estimate,
    "between": lambda total: total.between(0, 15),
    "window": lambda total: total.window(START, START + timedelta(days=1)),
    "windows": lambda total: total.windows("1d"),
    "hindsight": lambda total: total.hindsight().value.tolist(),
}
READ_POLICY: dict[str, Call] = {
    "policy": lambda at: at.policy.theta.tolist(),
    "recommend": lambda at: at.recommend([[CONSTANT, 0.1], [CONSTANT, -0.1]]),
}


@EACH
@CHANGES
@pytest.mark.parametrize("later", [add_one, add_many])
def test_a_change_waits_for_the_one_under_way(
    kind: str, change: Call, later: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing, twin = before_a_release(kind), before_a_release(kind)
    change(twin)
    later(twin)
    halfway = Halfway(monkeypatch, lambda: change(thing))
    other = started(lambda: later(thing))
    other[0].join(A_WHILE)
    halfway.end()
    ended(*other)
    assert state_of(thing) == state_of(twin)


@EACH
@CHANGES
def test_what_is_read_is_of_one_moment(
    kind: str, change: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = {**READ, **(READ_POLICY if kind == "Recommender" else READ_SUM)}
    thing, twin = before_a_release(kind), before_a_release(kind)
    before = {name: read(twin) for name, read in reads.items()}
    change(twin)
    after = {name: read(twin) for name, read in reads.items()}
    halfway = Halfway(monkeypatch, lambda: change(thing))
    others = {name: started(lambda r=read: r(thing)) for name, read in reads.items()}  # type: ignore[misc]
    for thread, _ in others.values():
        thread.join(A_WHILE / len(others))
    halfway.end()
    for name, other in others.items():
        assert ended(*other) in (before[name], after[name]), name


@pytest.mark.parametrize(
    ("kind", "change", "owner", "step"),
    [
        pytest.param("EndlessSum", add_many, SumServer, "__init__", id="between two plans"),
        pytest.param("Recommender", add_one, Rounds, "_room", id="between policy and count"),
    ],
)
def test_what_is_told_together_goes_together(
    kind: str, change: Call, owner: Any, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    thing, twin = before_a_release(kind), before_a_release(kind)
    before = twin.t, repr(twin)
    change(twin)
    halfway = Halfway(monkeypatch, lambda: change(thing), owner, step)
    others = [started(lambda: thing.t), started(lambda: repr(thing))]
    for thread, _ in others:
        thread.join(A_WHILE)
    halfway.end()
    for place, other in enumerate(others):
        assert ended(*other) in (before[place], (twin.t, repr(twin))[place])


@pytest.mark.parametrize("kind", ["ContinualSum", "EndlessSum"])
@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("estimate", "estimate"),
        ("between", "between"),
        ("window", "between"),
        ("windows", "between"),
        ("hindsight", "hindsight"),
        ("repr", "estimate"),
        ("state", "state"),
    ],
)
def test_a_change_waits_for_what_is_being_read(
    kind: str, name: str, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who reads makes room in an archive, which must not lose what another thread puts there."""
    total, read = before_a_release(kind), {**READ, **READ_SUM}[name]
    before = read(total)
    halfway = Halfway(monkeypatch, lambda: read(total), SumServer, step)
    change = started(lambda: total.update(1, START))
    change[0].join(A_WHILE)
    assert change[0].is_alive()
    assert halfway.end() == before
    ended(*change)


def test_two_who_choose_at_random_do_not_choose_by_the_same_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream is not made for two threads; before the first policy, arms are drawn from one."""
    at, contexts = MAKE["Recommender"](oh.seeded_random(1)), [[CONSTANT, 0.1], [CONSTANT, -0.1]]
    halfway = Halfway(monkeypatch, lambda: at.recommend(contexts), SeededRandom, "uniforms")
    other = started(lambda: at.recommend(contexts))
    other[0].join(A_WHILE)
    assert other[0].is_alive()
    halfway.end()
    assert ended(*other) in (0, 1)


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads change places as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def in_threads(call: Callable[[], None]) -> None:
    together = threading.Barrier(THREADS)

    def run() -> None:
        together.wait(SECONDS)
        call()

    for one in [started(run) for _ in range(THREADS)]:
        ended(*one)


STRESSED: dict[str, tuple[Callable[[], Thing], int]] = {
    "ContinualSum": (
        lambda: oh.ContinualSum(
            coin_plan(oh.RegularTree(THREADS * 1000, (3, 4, 5)), combine=True), oh.seeded_random(1)
        ),
        1000,
    ),
    "EndlessSum": (lambda: oh.EndlessSum(plan_for, oh.seeded_random(1), first=10), 250),
    "Recommender": (lambda: MAKE["Recommender"](oh.seeded_random(1)), 60 // THREADS),
}


@EACH
@pytest.mark.usefixtures("impatient")
def test_threads_count_every_user_once_and_use_no_noise_twice(kind: str) -> None:
    """The users are alike, so each batch must have the sum and the noise that one thread gives."""
    make, users = STRESSED[kind]
    thing, twin = make(), make()

    def add(one: Thing) -> None:
        one.update(GOOD, 1.0) if kind == "Recommender" else one.update(1)

    def use() -> None:
        for number in range(users):
            add(thing)
            if number % 50 == 0:
                repr(thing)

    in_threads(use)
    for _ in range(THREADS * users):
        add(twin)
    assert thing.t == THREADS * users
    assert state_of(thing) == state_of(twin)


@pytest.mark.usefixtures("impatient")
def test_the_votes_of_the_example_are_all_counted() -> None:
    """Requests meet in the threads of the pool in which FastAPI runs plain functions."""
    pytest.importorskip("fastapi")
    httpx = pytest.importorskip("httpx")
    voting = runpy.run_path(str(VOTES))
    total, twin = (oh.ContinualSum(voting["PLAN"], oh.seeded_random(1)) for _ in range(2))
    for _ in range(300):
        twin.update(1)

    async def vote() -> tuple[list[int], Any]:
        transport = httpx.ASGITransport(voting["app_for"](total))
        async with httpx.AsyncClient(transport=transport, base_url="http://votes") as web:
            sent = [web.post("/vote", json={"yes": True}) for _ in range(300)]
            answers = await asyncio.gather(*sent)
            refused = await web.post("/vote", json={"yes": "perhaps"})
            return [a.status_code for a in [*answers, refused]], (await web.get("/total")).json()

    codes, published = asyncio.run(vote())
    assert codes == [204] * 300 + [422]
    assert state_of(total) == state_of(twin)
    assert published["voters"] == 300
    assert published["yes"] == round(twin.estimate.value)
