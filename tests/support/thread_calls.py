"""Sums and a recommender that run, calls of them in threads, and one that stops halfway."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import Recommender
from overhand.sums import SumServer
from support.learners import CONSTANT, GOOD, small_plan
from support.small_plans import REGULAR, coin_plan, without_runs

SECONDS = 60.0  # after which something hangs: none of it takes one
START = datetime(2026, 11, 1)
PLAN = coin_plan(REGULAR, combine=True)

Thing = Any
Call = Callable[[Thing], Any]


@cache
def plan_for(horizon: int) -> oh.Plan:
    return coin_plan(oh.RegularTree(horizon, (3, 2)))


MAKE: dict[str, Callable[[oh.Random | None], Thing]] = {
    "ContinualSum": lambda random: oh.ContinualSum(PLAN, random),
    "EndlessSum": lambda random: oh.EndlessSum(plan_for, random, first=10),
    "Recommender": lambda random: Recommender(small_plan(), random, constant=CONSTANT),
}


def add_one(thing: Thing) -> None:
    if isinstance(thing, Recommender):
        thing.update(GOOD, 1.0)
    elif thing.t % 2:
        thing.update(1, START)
    else:
        thing.update(1, at=START.isoformat())


def add_many(thing: Thing, users: int = 14) -> None:
    """More than one block, and for an endless sum more than one plan."""
    if isinstance(thing, Recommender):
        thing.update_many(np.tile(GOOD, (users, 1)), np.ones(users))
    else:
        thing.update_many([1] * users, at=[START] * users)


def state_of(thing: Thing) -> Any:
    return without_runs(thing.secret_state())


def before_a_release(kind: str) -> Thing:
    """The next user fills batches of two levels."""
    thing = MAKE[kind](oh.seeded_random(1))
    add_many(thing, 17)
    return thing


CHANGES = pytest.mark.parametrize("change", [add_one, add_many])
EACH = pytest.mark.parametrize("kind", MAKE)


def started(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """A call in a thread of its own, and what it answers or raises once it has ended."""
    answers: list[Any] = []

    def answer() -> None:
        try:
            answers.append(call())
        except BaseException as error:
            answers.append(error)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread, answers


def ended(thread: threading.Thread, answers: list[Any]) -> Any:
    thread.join(SECONDS)
    assert answers, "it hangs"
    if isinstance(answers[0], BaseException):
        raise answers[0]
    return answers[0]


class Halfway:
    """A call that stops once in its middle, after some step of it.

    Unless said otherwise, that is when a batch is received whose last user does not count yet.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        call: Callable[[], Any],
        owner: Any = SumServer,
        step: str = "receive_blocks",
    ) -> None:
        self._reached, self._go_on = threading.Event(), threading.Event()
        usual = getattr(owner, step)

        def stopping(*args: Any, **options: Any) -> Any:
            answer = usual(*args, **options)
            if not self._reached.is_set():
                self._reached.set()
                assert self._go_on.wait(SECONDS)
            return answer

        monkeypatch.setattr(owner, step, stopping)
        self._calling = started(call)
        assert self._reached.wait(SECONDS)

    def end(self) -> Any:
        self._go_on.set()
        return ended(*self._calling)
