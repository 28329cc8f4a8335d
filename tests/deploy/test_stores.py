"""Every store does the same: one suite, over a SQLite file and a real PostgreSQL server."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.deploy.protocol.wire import Batch, LevelFormat, Release
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.store import Store
from overhand.errors import InvalidValue, ProtocolViolation
from support.database_fixtures import Places
from support.store_processes import (
    ADMITTED,
    HORIZON,
    REPEATED,
    SHAPES,
    Where,
    admit,
    arrival,
    check_all,
    freeze,
    id_of,
    message,
    messages_in,
    open_store,
    report,
    shape,
    users_in,
)

TOKEN_USED, CLOSED = Outcome.TOKEN_USED, Outcome.CLOSED
NOT_NEEDED = Outcome.NOT_NEEDED


# --- the life of a batch --------------------------------------------------------------------------


def test_a_batch_is_filled_frozen_acknowledged_and_scrubbed(store: Store) -> None:
    lowest, name = SHAPES[0], Batch(1, 0)
    assert (store.arrived, store.full()) == (0, [])
    assert admit(store, [7]) == [ADMITTED]
    assert (store.arrived, store.full()) == (1, [])
    assert admit(store, [8, 9]) == [ADMITTED, ADMITTED]
    assert (store.arrived, store.full()) == (3, [name])
    release = freeze(store, name)
    assert (release.batch, release.own, release.repeats) == (name, 0, 0)
    assert users_in(release.body, lowest) == [7, 8]
    assert store.full() == [name]
    store.acknowledge_all({name: release.digest})
    assert store.full() == []
    assert freeze(store, name) == release
    assert (store.scrub(), store.scrub()) == (1, 0)
    store.acknowledge_all({name: release.digest})
    assert store.freeze_all([name]) == []
    assert admit(store, [7, 8, 9]) == [REPEATED] * 3


def test_a_group_is_cut_where_batches_end(store: Store) -> None:
    admit(store, range(13))
    assert [tuple(name) for name in store.full()] == [*((1, i) for i in range(6)), (2, 0), (2, 1)]
    assert users_in(freeze(store, Batch(1, 4)).body, SHAPES[0]) == [8, 9]
    assert check_all(store) == set(range(12))


def test_the_horizon_closes_the_store_and_leaves_no_trace_of_the_rest(where: Where) -> None:
    with closing(where.open(horizon=2)) as store:
        assert admit(store, [1, 2, 3, 1]) == [ADMITTED, ADMITTED, CLOSED, REPEATED]
        assert admit(store, [3, 2]) == [CLOSED, REPEATED]
        assert store.arrived == 2


def test_no_reports_are_no_work(store: Store) -> None:
    assert store.admit([]) == []
    assert (store.arrived, store.scrub()) == (0, 0)


def test_own_reports_are_counted_for_every_batch(store: Store) -> None:
    own = [report(2, fills=0), report(6, fills=2)]
    store.admit([report(1), own[0], report(3)])
    store.admit([report(4), report(5), own[1]])
    counts = [freeze(store, name).own for name in store.full()]
    assert counts == [1, 0, 1, 2]


def test_an_own_report_fills_a_batch_and_never_begins_one(store: Store) -> None:
    own = [report(user, fills=0) for user in range(1, 6)]
    assert store.admit([own[0], report(7)]) == [NOT_NEEDED, ADMITTED]
    assert store.admit(own[1:4]) == [ADMITTED, NOT_NEEDED, NOT_NEEDED]
    assert store.arrived == 2
    assert store.admit([report(8), own[2]]) == [ADMITTED, NOT_NEEDED]  # it is not for this batch
    assert store.admit([report(3, fills=1)]) == [ADMITTED]  # and it left no trace


# --- repeats and tokens ---------------------------------------------------------------------------


def test_a_report_is_counted_once_within_and_across_groups(store: Store) -> None:
    assert admit(store, [1, 1, 2]) == [ADMITTED, REPEATED, ADMITTED]
    assert admit(store, [2, 3, 1]) == [REPEATED, ADMITTED, REPEATED]
    assert store.arrived == 3


def test_a_second_report_with_the_same_id_is_counted_once(store: Store) -> None:
    other = arrival(report(9).parts, id=id_of(1))
    assert store.admit([report(1), other]) == [ADMITTED, REPEATED]
    assert store.admit([other, report(9)]) == [REPEATED, ADMITTED]
    assert users_in(freeze(store, Batch(1, 0)).body, SHAPES[0]) == [1, 9]


def test_parts_of_others_in_a_new_report_are_struck_out(store: Store) -> None:
    """It takes a place, as any garbage does, and none of them counts twice."""
    mixed = arrival([report(1).parts[0], report(9).parts[1]])
    assert store.admit([report(1), mixed]) == [ADMITTED, ADMITTED]
    release = freeze(store, Batch(1, 0))
    found = messages_in(release.body, SHAPES[0])
    assert release.repeats == 2
    assert len(set(found)) == 4
    assert set(messages_in(report(1).parts[0], SHAPES[0])) < set(found)


def test_a_token_admits_one_report_and_its_retries(store: Store) -> None:
    assert store.admit([report(1, b"a"), report(2, b"a")]) == [ADMITTED, TOKEN_USED]
    assert store.admit([report(1, b"a"), report(3, b"a")]) == [REPEATED, TOKEN_USED]
    assert store.admit([report(2, b"b"), report(3)]) == [ADMITTED, ADMITTED]


def test_a_refused_report_spends_no_token(store: Store) -> None:
    assert store.admit([report(1), report(1, b"a"), report(2, b"a")]) == [
        ADMITTED,
        REPEATED,
        ADMITTED,
    ]


def test_equal_messages_are_kept_once_and_void_nothing(store: Store) -> None:
    lowest, first = SHAPES[0], report(1)
    stolen = message(1, lowest, 0) + message(2, lowest, 1)
    assert store.admit([first, arrival([stolen, report(2).parts[1]])]) == [ADMITTED] * 2
    release = freeze(store, Batch(1, 0))
    found = messages_in(release.body, lowest)
    known = {message(1, lowest, 0), message(1, lowest, 1), message(2, lowest, 1)}
    assert release.repeats == 1
    assert len(found) == len(set(found)) == 4
    assert known < set(found)


@pytest.mark.parametrize(
    "wrong",
    [
        arrival([*report(1).parts, b""]),
        arrival(report(1).parts[:1]),
        arrival([report(1).parts[0][1:], report(1).parts[1]]),
        arrival(report(1).parts, id=b"short"),
    ],
    ids=["a part too many", "a part too few", "a byte too few", "a short id"],
)
def test_reports_of_another_shape_never_touch_the_database(store: Store, wrong: Arrival) -> None:
    with pytest.raises(InvalidValue):
        store.admit([report(2), wrong])
    assert store.arrived == 0


# --- steps that are not allowed -------------------------------------------------------------------


def test_no_batch_is_frozen_early(store: Store) -> None:
    for users in range(6):
        for name in (Batch(2, 0), Batch(1, users // 2), Batch(1, 10**6)):
            with pytest.raises(ProtocolViolation, match="cannot be frozen at"):
                freeze(store, name)
        admit(store, [users])
    assert freeze(store, Batch(2, 0)).own == 0


def test_only_the_digest_of_the_release_acknowledges_it(store: Store) -> None:
    name = Batch(1, 0)
    admit(store, [1, 2])
    with pytest.raises(ProtocolViolation, match="before it was frozen"):
        store.acknowledge_all({name: bytes(32)})
    digest = freeze(store, name).digest
    with pytest.raises(ProtocolViolation, match=digest.hex()):
        store.acknowledge_all({name: bytes(32)})
    assert (store.full(), store.scrub()) == ([name], 0)


@pytest.mark.parametrize("name", [Batch(3, 0), Batch(0, 0), Batch(1, -1)])
def test_batches_outside_the_plan_are_refused(store: Store, name: Batch) -> None:
    with pytest.raises(InvalidValue, match="no batch"):
        freeze(store, name)
    with pytest.raises(InvalidValue, match="no batch"):
        store.acknowledge_all({name: bytes(32)})


@pytest.mark.parametrize(
    ("levels", "horizon"),
    [
        ((), 1),
        (SHAPES[::-1], 1),
        ((SHAPES[0], SHAPES[0]), 1),
        ((shape(0, 2, 2),), 1),
        ((shape(1, 0, 2),), 1),
        ((shape(1, 2, 0),), 1),
        ((shape(1, 10**6, 100, 49),), 1),
        (SHAPES, 0),
    ],
)
def test_plans_that_no_store_can_serve_are_refused(
    where: Where, levels: Sequence[LevelFormat], horizon: int
) -> None:
    with pytest.raises(InvalidValue):
        where.open(levels, horizon)


def test_a_store_is_not_opened_for_another_plan(where: Where, store: Store) -> None:
    admit(store, [1])
    for levels, horizon in ((SHAPES, HORIZON + 2), (SHAPES[:1], HORIZON)):
        with pytest.raises(InvalidValue, match="made for .*'batches': 8.* not .*: [89]"):
            where.open(levels, horizon)
    with closing(where.open()) as again:
        assert again.arrived == 1


def test_a_store_is_not_opened_for_another_document(where: Where) -> None:
    """The same plan with another key: its reports must not get into the same batches."""
    with closing(open_store(where.place, SHAPES, HORIZON, where.keys, "a" * 64)) as store:
        admit(store, [1])
    with pytest.raises(InvalidValue, match="the document aaaaaaaaaaaa, not bbbbbbbbbbbb"):
        open_store(where.place, SHAPES, HORIZON, where.keys, "b" * 64)
    with closing(open_store(where.place, SHAPES, HORIZON, where.keys, "a" * 64)) as store:
        assert store.arrived == 1


# --- any sequence of steps, against a model -------------------------------------------------------

USERS = 24
reports_drawn = st.builds(
    lambda user, part, name, token, fills: arrival(
        [report(part or user).parts[0], report(user).parts[1]],
        token,
        fills=fills,
        id=name or id_of(user),
    ),
    st.integers(1, USERS),
    st.one_of(st.none(), st.none(), st.integers(1, USERS)),
    st.one_of(st.none(), st.none(), st.integers(1, 2 * USERS).map(id_of)),
    st.sampled_from([None, None, None, b"a", b"b", b"c"]),
    st.one_of(st.none(), st.integers(0, 4)),
)
steps_drawn = st.lists(
    st.one_of(
        st.lists(reports_drawn, max_size=8),
        st.lists(reports_drawn, max_size=8),
        st.sampled_from(["freeze", "acknowledge", "scrub", "restart"]),
    ),
    max_size=14,
)


class Model:
    """What a store promises, as plainly as it can be said."""

    def __init__(self) -> None:
        self.admitted: list[Arrival] = []
        self.tokens: set[bytes] = set()
        self.releases: dict[Batch, Release] = {}
        self.acknowledged: list[Batch] = []
        self.scrubbed = 0

    def admit(self, new: Arrival) -> Outcome:
        if new.id in {old.id for old in self.admitted}:
            return REPEATED
        if new.token in self.tokens:
            return TOKEN_USED
        if len(self.admitted) == HORIZON:
            return CLOSED
        number, taken = divmod(len(self.admitted), SHAPES[0].size)
        if new.fills is not None and (new.fills != number or taken == 0):
            return NOT_NEEDED
        self.admitted.append(new)
        self.tokens |= set() if new.token is None else {new.token}
        return ADMITTED

    def batch(self, name: Batch) -> list[Arrival]:
        size = SHAPES[name.level - 1].size
        return self.admitted[name.number * size : (name.number + 1) * size]

    def full(self) -> list[Batch]:
        names = [
            Batch(level.level, number)
            for level in SHAPES
            for number in range(len(self.admitted) // level.size)
        ]
        return [name for name in names if name not in self.acknowledged]

    def check(self, release: Release) -> None:
        """Exact contents, but for copies of a message: bytes that nobody sent replace them."""
        batch, level = self.batch(release.batch), SHAPES[release.batch.level - 1]
        parts = [messages_in(one.parts[level.level - 1], level) for one in batch]
        sent, found = Counter(itertools.chain(*parts)), Counter(messages_in(release.body, level))
        assert found.total() == sent.total()
        assert set(found.values()) == {1}
        assert set(sent) <= set(found)
        assert release.repeats == sent.total() - len(sent)
        assert release.own == sum(one.is_own for one in batch)
        assert self.releases.setdefault(release.batch, release) == release


def run(steps: Sequence[Any], where: Where) -> None:
    model, store = Model(), where.open()
    try:
        for step in steps:
            if isinstance(step, list):
                assert store.admit(step) == [model.admit(one) for one in step]
            elif step == "restart":
                store.close()
                store = where.open()
            elif step == "scrub":
                assert store.scrub() == len(model.acknowledged) - model.scrubbed
                model.scrubbed = len(model.acknowledged)
            else:
                take(step, store, model)
            assert (store.arrived, store.full()) == (len(model.admitted), model.full())
    finally:
        store.close()


def take(step: str, store: Store, model: Model) -> None:
    """Freeze all batches, or half of them and acknowledge these."""
    names = store.full()
    for name in names if step == "freeze" else names[::2]:
        release = freeze(store, name)
        model.check(release)
        if step == "acknowledge":
            store.acknowledge_all({name: release.digest})
            model.acknowledged.append(name)


@settings(max_examples=40)
@given(steps=steps_drawn)
def test_any_sequence_of_steps_does_what_the_model_does(places: Places, steps: list[Any]) -> None:
    run(steps, places.new())


class CountsTwice(Model):
    def admit(self, new: Arrival) -> Outcome:
        self.admitted.append(new)
        return ADMITTED


def test_the_model_sees_a_report_that_is_counted_twice(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_stores.Model", CountsTwice)
    with pytest.raises(AssertionError):
        run([[report(1)], [report(1)]], places.new())
