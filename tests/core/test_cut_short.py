"""A call that raises has changed nothing; one that is cut short is the last, as is a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.mechanisms import Mechanism
from overhand.sums import SumServer, saving
from support.learners import GOOD, small_plan
from support.thread_calls import (
    CHANGES,
    EACH,
    MAKE,
    PLAN,
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


@EACH
@CHANGES
@pytest.mark.parametrize("draw", [1, 2])
def test_a_call_that_cannot_draw_its_noise_changes_nothing(
    kind: str, change: Call, draw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither at the lowest level nor, once that noise is drawn, at the next one."""
    thing, twin = (MAKE[kind](oh.seeded_random(1)) for _ in range(2))
    users = 1 if change is add_one else 3 if kind == "EndlessSum" else 12
    while twin.t < 36:
        add_many(twin, users)
    failures = iter([False] * (draw - 1) + [True])

    def failing(usual: Any) -> Any:
        def drawn(mechanism: Mechanism, random: oh.Random, batches: int) -> Any:
            if next(failures, False):
                raise MemoryError
            return usual(mechanism, random, batches)

        return drawn

    for mechanism in {type(m) for m in (*PLAN.mechanisms, *small_plan().mechanisms)}:
        monkeypatch.setattr(mechanism, "draw_noise", failing(mechanism.draw_noise))
    failed: list[int] = []
    while thing.t < 36:
        before = thing.t
        try:
            add_one(thing) if change is add_one else add_many(thing, users)
        except MemoryError:
            failed.append(before)
            assert thing.t == before
    assert len(failed) == 1
    assert state_of(thing) == state_of(twin)


class NoDaylightSaving(tzinfo):
    """It knows its offset, and not whether it is summer: Python cannot convert to it."""

    def utcoffset(self, when: datetime | None) -> timedelta:
        return timedelta(hours=1)

    def dst(self, when: datetime | None) -> None:
        return None

    def tzname(self, when: datetime | None) -> str:
        return "odd"


@pytest.mark.parametrize("kind", ["ContinualSum", "EndlessSum"])
def test_a_time_that_cannot_be_kept_counts_nobody(kind: str) -> None:
    total, at = MAKE[kind](oh.seeded_random(1)), START.replace(tzinfo=NoDaylightSaving())
    with pytest.raises(ValueError, match="dst"):
        total.update(1, at)
    with pytest.raises(ValueError, match="dst"):
        total.update_many([1] * 4, [at] * 4)
    twin = MAKE[kind](oh.seeded_random(1))
    for one in (total, twin):
        one.update_many([1] * 4, [START] * 4)
    assert state_of(total) == state_of(twin)


@EACH
@CHANGES
def test_a_call_that_is_cut_short_is_the_last(
    kind: str, change: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the users of its batch would be in the next one as well, with other noise."""
    thing = before_a_release(kind)
    before = repr(thing)

    def interrupted(server: SumServer, *_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SumServer, "receive_blocks", interrupted)
        with pytest.raises(KeyboardInterrupt):
            change(thing)
    for later in (add_one, add_many, lambda one: one.to_json(), state_of):
        with pytest.raises(oh.ProtocolViolation, match=r"takes no more: .* was cut short"):
            later(thing)
    assert repr(thing) == before


def test_an_endless_sum_cut_short_between_two_plans_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    total = oh.EndlessSum(plan_for, oh.seeded_random(1), first=10)
    usual = oh.ContinualSum.update_rows

    def interrupted(current: oh.ContinualSum, rows: Any, at: Any = None) -> None:
        if current.plan.horizon > 9:
            raise KeyboardInterrupt
        usual(current, rows, at)

    with monkeypatch.context() as patched:
        patched.setattr(oh.ContinualSum, "update_rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            total.update_many([1] * 14)
    with pytest.raises(oh.ProtocolViolation, match="EndlessSum takes no more"):
        total.update(1)


def test_an_endless_sum_cut_short_while_a_plan_begins_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The plan before it would be settled twice."""
    total = oh.EndlessSum(plan_for, oh.seeded_random(1), first=10)
    total.update_many([1] * 9)

    def interrupted(server: SumServer, *_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(SumServer, "__init__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            total.update(1)
    with pytest.raises(oh.ProtocolViolation, match="EndlessSum takes no more"):
        total.update(1)


def test_a_recommender_whose_sums_have_learnt_more_than_it_takes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = before_a_release("Recommender")
    with monkeypatch.context() as patched:
        patched.setattr(np.linalg, "eigh", lambda gram: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            at.update(GOOD, 1.0)
    with pytest.raises(oh.ProtocolViolation, match="Recommender takes no more"):
        at.update(GOOD, 1.0)


def test_a_function_that_makes_plans_may_look_at_the_sum() -> None:
    seen: list[int] = []

    def looking(horizon: int) -> oh.Plan:
        if horizon > 10:
            seen.append(total.t)
        return plan_for(horizon)

    total = oh.EndlessSum(looking, oh.seeded_random(1), first=10)
    total.update_many([1] * 14)
    assert seen == [0]


forking = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows does not fork")


def in_a_forked_child(call: Callable[[], Any]) -> str:
    """What a call answers or raises there, as text."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(sending, repr(ended(*started(call))).encode())
        except BaseException as error:
            os.write(sending, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, encoding="utf-8") as pipe:
        answer = pipe.read()
    assert os.waitpid(child, 0)[1] == 0
    return answer


@EACH
@forking
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_may_read_but_not_go_on(kind: str) -> None:
    thing = MAKE[kind](None)
    add_many(thing, 17)
    for later in (add_one, add_many, state_of):
        answer = in_a_forked_child(lambda call=later: call(thing))  # type: ignore[misc]
        assert answer.startswith(f"ProtocolViolation: this {kind} belongs to the process that made")
    assert in_a_forked_child(lambda: thing) == repr(thing)
    add_one(thing)  # as if nothing had been
    simulated, twin = before_a_release(kind), before_a_release(kind)
    add_one(twin)

    def gone_on() -> Thing:
        add_one(simulated)
        return simulated

    assert in_a_forked_child(gone_on) == repr(twin)


@EACH
@forking
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_forked_within_a_change_is_told_so(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is held by a thread that the child does not have."""
    thing, twin = before_a_release(kind), before_a_release(kind)
    halfway = Halfway(monkeypatch, lambda: add_one(thing))
    assert "was cut short" in in_a_forked_child(lambda: add_one(thing))
    halfway.end()
    add_one(twin)
    assert state_of(thing) == state_of(twin)


def test_what_is_inherited_has_a_lock_of_its_own() -> None:
    """What the child does, in this process, where coverage can see it."""
    thing = MAKE["ContinualSum"](oh.seeded_random(1))
    held = thing._lock
    saving._close_after_fork()
    assert thing._lock is not held
    add_one(thing)
    assert thing.t == 1
