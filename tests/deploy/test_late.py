"""Late batches where services make the noise: closed as they are, and never early."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.deploy.protocol.wire import Batch, Formats, LevelFormat, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.app import Admission, ShufflerMetrics
from overhand.deploy.shuffler.batching import Added, Gathered, Outcome, OwnNoise, build_release
from overhand.deploy.shuffler.running import BatchPadder
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Outgoing, Store
from overhand.errors import InvalidValue, ProtocolViolation
from support.database_fixtures import Places
from support.noise_chains import AnsweringServer, opened
from support.services_noise_plans import arrivals, served
from support.store_processes import ADMITTED, HORIZON, SHAPES, Where, admit, report, users_in

LOWEST = replace(SHAPES[0], size=3, is_filled=False, batches=HORIZON // 3)
LAST = 5 * LOWEST.size


class NoNoise:
    """There are no dummies: a release has its users' messages alone."""

    def start(self) -> bytes:
        return b""

    def draw(self, state: bytes, blocks: int) -> tuple[list[Added], bytes]:
        return [batching.NOTHING] * blocks, state


def open_empty(where: Where, level: LevelFormat = LOWEST) -> Store:
    noise: Any = NoNoise()
    return Store(where.place, Formats(bytes(32), (level,)), where.keys, noise)


def come(store: Store, users: Iterable[int]) -> list[Outcome]:
    return store.admit([report(user, levels=[LOWEST]) for user in users])


@pytest.fixture
def store(where: Where) -> Any:
    with closing(open_empty(where)) as opened:
        yield opened


def users_of(release: Any) -> list[int]:
    """Whose messages a release has: as many as it says."""
    assert len(release.body) == LOWEST.batch_bytes(release.own)
    users = users_in(release.body, LOWEST)
    assert len(users) == LOWEST.size - release.own
    return users


# --- what a store does ----------------------------------------------------------------------------


def test_a_late_batch_is_closed(store: Store) -> None:
    come(store, [1])
    assert (store.leave_empty(0), store.arrived, store.full()) == (2, 3, [Batch(1, 0)])
    come(store, [2, 3])
    assert (store.leave_empty(1), store.arrived) == (1, 6)
    releases = store.freeze_all(store.full())
    assert [(one.batch, one.own, users_of(one)) for one in releases] == [
        (Batch(1, 0), 2, [1]),
        (Batch(1, 1), 1, [2, 3]),
    ]
    assert store.freeze_all(store.full()) == releases


def test_only_the_open_batch_is_closed_once_and_if_somebody_is_in_it(store: Store) -> None:
    assert store.leave_empty(0) == 0, "nobody is in it"
    come(store, [1])
    for other in (-1, 1, 2):
        assert store.leave_empty(other) == 0
    assert store.arrived == 1
    assert [store.leave_empty(0) for _ in range(3)] == [2, 0, 0]
    assert store.leave_empty(1) == 0, "nobody is in the next one"
    come(store, [2, 3, 4])
    assert store.leave_empty(1) == 0, "it was full before"
    assert store.arrived == 6


def test_the_last_batch_of_a_plan_can_be_closed(store: Store) -> None:
    come(store, range(1, LAST - 1))
    assert (store.leave_empty(4), store.arrived) == (2, LAST)
    assert come(store, [77, LAST - 2]) == [Outcome.CLOSED, Outcome.REPEATED]
    assert store.leave_empty(5) == 0
    releases = store.freeze_all(store.full())
    assert [one.own for one in releases] == [0, 0, 0, 0, 2]
    for one in releases:
        store.acknowledge_all({one.batch: one.digest})
    store.scrub()
    assert store._read(lambda tables: tables.numbers(1)) == set()


def test_closing_is_tried_again_by_a_database_that_did_not_see_its_end(store: Store) -> None:
    """Once is enough: the second time it is another batch that is open."""
    come(store, [1])
    write = store._database.write

    def twice(work: Any) -> Any:
        return (write(work), write(work))

    store._database.write = twice  # type: ignore[method-assign]
    assert store.leave_empty(0) == (2, 0)  # type: ignore[comparison-overlap]
    assert store.arrived == 3


def test_a_block_that_nobody_is_in_can_be_released(store: Store) -> None:
    """The services make its noise: nobody is less hidden in it."""
    gathered = Gathered.of(Batch(1, 0), LOWEST, [batching.Piece(Batch(1, 0), LOWEST.size, b"")])
    assert build_release(LOWEST, gathered).body == b""
    with pytest.raises(ProtocolViolation, match="0 of 4 messages of 2 users"):
        Gathered.of(Batch(1, 0), SHAPES[0], [batching.Piece(Batch(1, 0), 2, b"")])


@pytest.mark.parametrize("own", [0, 2])
def test_a_batch_has_the_messages_of_as_many_users_as_it_says(own: int) -> None:
    sent = [report(user, levels=[LOWEST]) for user in (1, 2)]
    (piece,) = batching.pieces([LOWEST], sent, arrived=0)
    with pytest.raises(ProtocolViolation, match=f"of {2 * (3 - own)} messages"):
        Gathered.of(Batch(1, 0), LOWEST, [piece._replace(own=own)])


def test_a_plan_fills_places_or_leaves_them_empty(where: Where, places: Places) -> None:
    """Own reports would be users that are not there, and empty places would lack noise."""
    with closing(open_empty(where)) as store:
        come(store, [1])
        with pytest.raises(InvalidValue, match="no reports of its own"):
            store.admit([report(2, fills=0, levels=[LOWEST])])
        assert store.arrived == 1
    with closing(places.new().open()) as store:
        admit(store, [1])
        with pytest.raises(InvalidValue, match="be filled with reports"):
            store.leave_empty(0)
        assert store.arrived == 1


def test_nobody_is_lost_between_admitting_and_closing(where: Where) -> None:
    """Every user is in one batch, however the two race."""
    level, users = replace(LOWEST, batches=200), range(1, 61)
    with (
        closing(open_empty(where, level)) as store,
        closing(open_empty(where, level)) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        reporting = pool.submit(lambda: [come(store, [user]) for user in users])
        closed = 0
        while not reporting.done():
            closed += other.leave_empty(other.arrived // LOWEST.size)
        assert reporting.result() == [[ADMITTED]] * len(users)
        late = itertools.count(users.stop)
        while store.arrived % LOWEST.size or not closed:  # so that everybody is in a full batch
            come(store, [next(late)])
            closed += store.leave_empty(store.arrived // LOWEST.size)
        found = [user for one in store.freeze_all(store.full()) for user in users_of(one)]
        assert len(found) == len(set(found)) == store.arrived - closed
        assert set(users) <= set(found)


# --- any sequence of steps, against a model -------------------------------------------------------

steps_drawn = st.lists(
    st.one_of(
        st.integers(1, 4),
        st.sampled_from(["close", "close", "close other", "freeze", "send", "restart"]),
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
        names = [Batch(1, number) for number in range(len(self.places) // LOWEST.size)]
        return [name for name in names if name not in self.sent]

    def check(self, release: Outgoing) -> None:
        assert isinstance(release, Release)
        places = self.places[release.batch.number * LOWEST.size :][: LOWEST.size]
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
        assert come(store, coming) == [ADMITTED] * len(coming)
        model.places += coming
    elif step.startswith("close"):
        of = number + (step == "close other")
        assert store.leave_empty(of) == model.close(of)
    elif step in ("freeze", "send"):
        for release in store.freeze_all(store.full()):
            model.check(release)
            if step == "send":
                store.acknowledge_all({release.batch: release.digest})
                model.sent.add(release.batch)
        store.scrub()


# --- what the service does ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_a_batch_that_is_late_is_closed_and_sent(tmp_path: Path, kind: str) -> None:
    document = served(kind)
    server = AnsweringServer(document)

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

    with closing(
        Store(tmp_path / "store.db", document.formats, noise=OwnNoise.of(document))
    ) as store:
        asyncio.run(main(store))
    sent: dict[int, Any] = {**server.releases(), **server.sums()}
    assert {number: one.own for number, one in sent.items()} == {0: 1, 1: 0}
    for number, release in server.releases().items():
        mechanism = document.mechanisms[0].with_users(3 - release.own)
        total, noise = mechanism.sum_of(opened(document, release)), mechanism.noise(1)
        assert abs(total - 2) <= noise.tail_quantile(1e-12), number


def test_who_comes_while_a_batch_is_closed_is_in_it_or_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch that was looked at is the one that is closed, with whom it has by then."""
    document = served("pairs")
    store = Store(tmp_path / "store.db", document.formats, noise=OwnNoise.of(document))

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
        assert [one.own for one in store.freeze_all(store.unfrozen())] == [2, 1, 0]
