"""Late batches where services make the noise: closed as they are, at all levels, never early."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import Batch, Formats, LevelFormat, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.app import Admission, ShufflerMetrics
from overhand.deploy.shuffler.batching import Added, Gathered, Outcome, build_release, dummies_for
from overhand.deploy.shuffler.running import BatchPadder
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue, ProtocolViolation
from support.database_fixtures import Places
from support.services_noise_plans import arrivals, served
from support.small_document import KEY
from support.store_processes import (
    ADMITTED,
    HORIZON,
    SHAPES,
    Where,
    admit,
    fold_all,
    freeze,
    report,
    users_in,
)

EMPTY = tuple(
    replace(level, is_filled=False, batches=HORIZON // level.size)
    for level in (replace(SHAPES[0], size=3), SHAPES[1])
)
"""Batches of 3 and of 6, with a part in the clear above."""
LOWEST, UPPER = EMPTY
LAST = 5 * LOWEST.size


def zeros(batch: Batch) -> Added:
    """Noise that happens to be 0, so that sums are those of users."""
    return (), np.zeros(EMPTY[batch.level - 1].clear_numbers, np.uint64)


def open_empty(where: Where, levels: Sequence[LevelFormat] = EMPTY) -> Store:
    return Store(where.place, Formats(bytes(32), tuple(levels)), where.keys, zeros)


@pytest.fixture
def store(where: Where) -> Any:
    with closing(open_empty(where)) as opened:
        yield opened


def users_of(release: Release) -> list[int]:
    """Whose messages and numbers a release has: as many as it says."""
    level = EMPTY[release.batch.level - 1]
    assert len(release.body) == level.batch_bytes(release.own)
    users = users_in(release.body, level)
    assert len(users) == level.size - release.own
    return users


# --- what a store does ----------------------------------------------------------------------------


def test_a_late_batch_is_closed_at_all_levels(store: Store) -> None:
    admit(store, [1])
    assert (store.leave_empty(0), store.arrived, store.full()) == (2, 3, [Batch(1, 0)])
    admit(store, [2, 3])
    assert (store.leave_empty(1), store.arrived) == (1, 6)
    releases = store.freeze_all(store.full())
    assert [(one.batch, one.own, users_of(one)) for one in releases] == [
        (Batch(1, 0), 2, [1]),
        (Batch(1, 1), 1, [2, 3]),
        (Batch(2, 0), 3, [1, 2, 3]),
    ]
    assert store.freeze_all(store.full()) == releases


def test_only_the_open_batch_is_closed_once_and_if_somebody_is_in_it(store: Store) -> None:
    assert store.leave_empty(0) == 0, "nobody is in it"
    admit(store, [1])
    for other in (-1, 1, 2):
        assert store.leave_empty(other) == 0
    assert store.arrived == 1
    assert [store.leave_empty(0) for _ in range(3)] == [2, 0, 0]
    assert store.leave_empty(1) == 0, "nobody is in the next one"
    admit(store, [2, 3, 4])
    assert store.leave_empty(1) == 0, "it was full before"
    assert store.arrived == 6


def test_closing_is_no_release_and_the_upper_batch_waits(store: Store) -> None:
    admit(store, [1])
    store.leave_empty(0)
    assert store.full() == [Batch(1, 0)]
    with pytest.raises(ProtocolViolation, match="cannot be frozen at 3 of 6"):
        freeze(store, Batch(2, 0))


def test_the_last_batch_of_a_plan_can_be_closed(store: Store) -> None:
    admit(store, range(1, LAST - 1))
    assert (store.leave_empty(4), store.arrived) == (2, LAST)
    assert admit(store, [77, LAST - 2]) == [Outcome.CLOSED, Outcome.REPEATED]
    assert store.leave_empty(5) == 0
    releases = store.freeze_all(store.full())
    assert sum(one.own for one in releases) == 2, "the third upper batch can never be full"
    for one in releases:
        store.acknowledge_all({one.batch: one.digest})
    store.scrub()
    assert store._read(lambda tables: [tables.numbers(1), tables.numbers(2)]) == [set(), set()]


def test_closing_is_tried_again_by_a_database_that_did_not_see_its_end(store: Store) -> None:
    """Once is enough: the second time it is another batch that is open."""
    admit(store, [1])
    write = store._database.write

    def twice(work: Any) -> Any:
        return (write(work), write(work))

    store._database.write = twice  # type: ignore[method-assign]
    assert store.leave_empty(0) == (2, 0)  # type: ignore[comparison-overlap]
    assert store.arrived == 3


def test_empty_pieces_are_cut_where_batches_end() -> None:
    """No tree of ours has such levels; catches a piece that belongs to two batches."""
    odd = [replace(level, size=size) for level, size in zip(EMPTY, (4, 3), strict=True)]
    found = [(one.batch, one.own) for one in batching.empty_pieces(odd, 3, arrived=5)]
    assert found == [(Batch(1, 1), 3), (Batch(2, 1), 1), (Batch(2, 2), 2)]


def test_empty_pieces_are_folded_and_counted_all_the_same(where: Where) -> None:
    upper = replace(UPPER, size=9, batches=1)
    with closing(open_empty(where, (LOWEST, upper))) as store:
        for batch in (0, 1):
            admit(store, [batch])
            store.leave_empty(batch)
        assert fold_all(store, [upper]) == 4, "two of users, and two of nobody"
        admit(store, [7, 8, 9])
        release = freeze(store, Batch(2, 0))
        assert (users_in(release.body, upper), release.own) == ([0, 1, 7, 8, 9], 4)


def test_a_batch_that_nobody_is_in_is_never_released() -> None:
    gathered = Gathered(LOWEST.size, *LOWEST.gather([]))
    with pytest.raises(ProtocolViolation, match="0 messages of 0 users"):
        build_release(Batch(1, 0), LOWEST, gathered)


@pytest.mark.parametrize("own", [0, 2])
def test_a_batch_has_the_messages_of_as_many_users_as_it_says(own: int) -> None:
    (piece,) = batching.pieces([LOWEST], [report(1), report(2)], arrived=0)
    gathered = Gathered.of(LOWEST, [piece])._replace(own=own)
    with pytest.raises(ProtocolViolation, match=f"of {2 * (3 - own)} messages"):
        build_release(Batch(1, 0), LOWEST, gathered)


def test_a_plan_fills_places_or_leaves_them_empty(where: Where, places: Places) -> None:
    """Own reports would be users that are not there, and empty places would lack noise."""
    with closing(open_empty(where)) as store:
        admit(store, [1])
        with pytest.raises(InvalidValue, match="no reports of its own"):
            store.admit([report(2, fills=0)])
        assert store.arrived == 1
    with closing(places.new().open()) as store:
        admit(store, [1])
        with pytest.raises(InvalidValue, match="be filled with reports"):
            store.leave_empty(0)
        assert store.arrived == 1


def test_nobody_is_lost_between_admitting_and_closing(where: Where) -> None:
    """Every user is in one batch of each level, however the two race."""
    horizon = 600
    levels = [replace(level, batches=horizon // level.size) for level in EMPTY]
    users = range(1, 61)
    with (
        closing(open_empty(where, levels)) as store,
        closing(open_empty(where, levels)) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        reporting = pool.submit(lambda: [admit(store, [user]) for user in users])
        closed = 0
        while not reporting.done():
            closed += other.leave_empty(other.arrived // LOWEST.size)
        assert reporting.result() == [[ADMITTED]] * len(users)
        late = itertools.count(users.stop)
        while store.arrived % UPPER.size or not closed:  # so that everybody is in a full batch
            admit(store, [next(late)])
            closed += store.leave_empty(store.arrived // LOWEST.size)
        releases = store.freeze_all(store.full())
        for level in EMPTY:
            here = [one for one in releases if one.batch.level == level.level]
            found = [user for one in here for user in users_of(one)]
            assert len(found) == len(set(found)) == store.arrived - closed
            assert set(users) <= set(found)


# --- any sequence of steps, against a model -------------------------------------------------------

steps_drawn = st.lists(
    st.one_of(
        st.integers(1, 4),
        st.sampled_from(["close", "close", "close other", "fold", "freeze", "send", "restart"]),
    ),
    max_size=16,
)


class Model:
    """Places in their order: a user, or None where nobody is."""

    def __init__(self) -> None:
        self.places: list[int | None] = []
        self.releases: dict[Batch, Release] = {}
        self.sent: set[Batch] = set()

    def close(self, number: int) -> int:
        batch, taken = divmod(len(self.places), LOWEST.size)
        missing = LOWEST.size - taken if taken and batch == number else 0
        self.places += [None] * missing
        return missing

    def full(self) -> list[Batch]:
        return [
            name
            for level in EMPTY
            for number in range(len(self.places) // level.size)
            if (name := Batch(level.level, number)) not in self.sent
        ]

    def check(self, release: Release) -> None:
        size = EMPTY[release.batch.level - 1].size
        places = self.places[release.batch.number * size :][:size]
        assert users_of(release) == [user for user in places if user is not None]
        assert self.releases.setdefault(release.batch, release) == release


@settings(max_examples=25)
@given(steps=steps_drawn)
def test_any_sequence_of_steps_does_what_the_model_does(places: Places, steps: list[Any]) -> None:
    where, model, users = places.new(), Model(), itertools.count(1)
    store = open_empty(where)
    try:
        for step in steps:
            take(step, store, model, users)
            if step == "restart":
                store.close()
                store = open_empty(where)
            assert (store.arrived, store.full()) == (len(model.places), model.full())
    finally:
        store.close()


def take(step: Any, store: Store, model: Model, users: Any) -> None:
    number = len(model.places) // LOWEST.size
    if isinstance(step, int):
        coming = list(itertools.islice(users, min(step, LAST - len(model.places))))
        assert admit(store, coming) == [ADMITTED] * len(coming)
        model.places += coming
    elif step.startswith("close"):
        of = number + (step == "close other")
        assert store.leave_empty(of) == model.close(of)
    elif step == "fold":
        fold_all(store, EMPTY)
    elif step in ("freeze", "send"):
        for release in store.freeze_all(store.full()):
            model.check(release)
            if step == "send":
                store.acknowledge_all({release.batch: release.digest})
                model.sent.add(release.batch)
        store.scrub()


# --- what the service does ------------------------------------------------------------------------


class Taking:
    """A server that takes everything."""

    def __init__(self, formats: Formats) -> None:
        self.taken: list[Release] = []
        self._formats = formats

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self.taken.append(self._formats.unpack_release(body or b""))
        return Answer(200, b"{}")

    async def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_a_batch_that_is_late_is_closed_and_sent(tmp_path: Path, kind: str) -> None:
    document = served(kind)
    formats, server = document.formats, Taking(document.formats)

    async def main(store: Store) -> None:
        filler = BatchPadder(store, Admission(store), document, deadline=0.02)
        stopping = asyncio.Event()
        running = asyncio.create_task(filler.run(stopping))
        store.admit(arrivals(document, [1, 1]))
        while store.arrived < 3:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.05)
        assert store.arrived == 3, "a batch that nobody is in stays open"
        stopping.set()
        await running
        store.admit(arrivals(document, [1, 0, 1]))
        await Sender(store, document, server, ShufflerMetrics()).send_all()

    store = Store(tmp_path / "store.db", formats, added=dummies_for(document))
    with closing(store):
        asyncio.run(main(store))
    assert {one.batch: one.own for one in server.taken} == {
        Batch(1, 0): 1,
        Batch(1, 1): 0,
        Batch(2, 0): 1,
    }
    for one in server.taken:
        assert len(one.body) == formats.level(one.batch.level).batch_bytes(one.own)
        shuffled, garbage = open_release(formats, one, Opener(KEY, formats.digest))
        mechanism = document.mechanisms[one.batch.level - 1]
        total = mechanism.with_users(mechanism.size - one.own).sum_of(shuffled)
        truth = {Batch(1, 0): 2, Batch(1, 1): 2, Batch(2, 0): 4}[one.batch]
        assert garbage == 0
        assert abs(total - truth) <= mechanism.honest_noise().tail_quantile(1e-12)


def test_who_comes_while_a_batch_is_closed_is_in_it_or_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that was looked at is the one that is closed, with whom it has by then."""
    document = served("pairs")
    store = Store(tmp_path / "store.db", document.formats, added=dummies_for(document))

    async def main(coming: int) -> int:
        filler = BatchPadder(store, Admission(store), document, deadline=1e-9)
        before = store.arrived
        store.admit(arrivals(document, [1]))
        filler._missing(store.arrived)
        missing = filler._missing(store.arrived)
        assert missing == 2
        store.admit(arrivals(document, [1] * coming))
        await filler.fill(missing)
        return store.arrived - before

    with closing(store):
        assert [asyncio.run(main(coming)) for coming in (0, 1, 2)] == [3, 3, 3]
        assert [freeze(store, Batch(1, number)).own for number in range(3)] == [2, 1, 0]
