"""What the shuffling service adds where services make the noise: drawn once, and kept nowhere."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.deploy.databases.database import Transaction
from overhand.deploy.http.listening import Endpoint
from overhand.deploy.protocol import sealing
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.sealing import Opener, SealerPool, WorkersLost, open_release
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.batching import (
    Added,
    Adding,
    Arrival,
    Gathered,
    build_release,
    dummies_for,
    pieces,
)
from overhand.deploy.shuffler.running import ShufflerSettings, sealer_of
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from overhand.model import Shuffled
from support.services_noise_plans import arrivals, served
from support.small_document import KEY, workers_of
from support.store_processes import Where, freeze

VALUES = [1, 0, 1, 1, 1, 0]
FIRST = Batch(1, 0)


def open_for(where: Where, document: Document, added: Adding | None = None) -> Store:
    return Store(where.place, document.formats, where.keys, added or dummies_for(document))


def opened(document: Document, release: Release) -> Shuffled:
    formats = document.formats
    shuffled, garbage = open_release(formats, release, Opener(KEY, formats.digest))
    assert garbage == 0
    return shuffled


def sum_of(document: Document, release: Release) -> int:
    """What a release comes to, the shuffling service's noise included and the server's not."""
    mechanism = document.mechanisms[release.batch.level - 1]
    return round(float(mechanism.sum_of(opened(document, release))))


# --- ballots --------------------------------------------------------------------------------------


def test_a_release_has_the_users_and_the_dummies_in_messages_of_one_length(where: Where) -> None:
    document = served("ballots")
    sent = arrivals(document, VALUES)
    with closing(open_for(where, document)) as store:
        store.admit(sent)
        for batch in store.full():
            release, level = freeze(store, batch), document.formats.level(batch.level)
            assert len(release.body) == level.batch_bytes(), "so no message has another length"
            found = {row.tobytes() for row in level.ciphertexts(release.body)}
            users = sent[batch.number * level.size :][: level.size]
            assert {one.parts[batch.level - 1] for one in users} < found
            assert len(found) == level.size + level.added_messages
            messages = opened(document, release).sealed[0]
            noise = int(messages.sum()) - sum(VALUES[batch.number * level.size :][: level.size])
            assert 0 <= noise <= level.added_messages, "dummies are ballots, some of them ones"


def test_users_may_be_anywhere_among_dummies() -> None:
    """Catches a permutation of the users alone, or none.

    Of 13 places, 400 releases miss one with probability 13 (12/13)^400, which is 2e-13.
    """
    document = served("ballots")
    level, sent = document.formats.levels[0], arrivals(document, VALUES[:3])
    came = Gathered.of(level, pieces([level], sent, arrived=0))
    more, numbers = dummies_for(document)(FIRST)
    added: Added = list(more), numbers
    places = set[int]()
    for _ in range(400):
        rows = level.ciphertexts(build_release(FIRST, level, came, added).body)
        places.add([row.tobytes() for row in rows].index(sent[0].parts[0]))
    assert places == set(range(level.batch_messages()))


def test_workers_seal_what_the_parent_draws() -> None:
    """One pool: that workers are replaced and end is seen to in `test_sealing`."""
    document, digest = served("ballots"), served("ballots").formats.digest
    with SealerPool(document.public_key, digest, workers=1) as pool:
        assert pool._check_edges == (document.public_key, digest), "nothing else goes to a worker"
        plaintexts = [number.to_bytes(2, "little") for number in range(2 * sealing.CHUNK + 3)]
        sealed = list(pool.seal(2, plaintexts))
        assert Opener(KEY, digest).open(2, sealed) == plaintexts
        assert Opener(KEY, digest).open(1, sealed[:1]) == [None]
        more, _ = dummies_for(document, pool)(FIRST)
        level = document.formats.levels[0]
        assert {len(one) for one in more} == {level.ciphertext_bytes}
        with pytest.raises(InvalidValue, match="level=0"):
            pool.seal(0, [])
    with pytest.raises(WorkersLost, match="closed"):
        pool.seal(1, plaintexts)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_a_batch_nothing(where: Where) -> None:
    document = served("ballots")
    with sealer_of(document, workers=1) as pool:
        assert isinstance(pool, SealerPool)
        with closing(open_for(where, document, dummies_for(document, pool))) as store:
            store.admit(arrivals(document, VALUES))
            first = freeze(store, FIRST)
            for worker in workers_of(pool):
                worker.kill()
                worker.join()
            assert [sum_of(document, one) for one in store.freeze_all(store.full())]
            assert freeze(store, FIRST) == first


def test_no_worker_is_started_for_a_plan_without_dummies() -> None:
    document = served("pairs")
    with sealer_of(document, workers=2) as sealer:
        assert sealer is document.sealer


def test_a_shuffling_service_has_workers_or_one_for_each_core(tmp_path: Path) -> None:
    endpoint = Endpoint("127.0.0.1", 0)
    files = tmp_path / "document", "store", "http://server", tmp_path / "token"
    for workers in (0, -1):
        with pytest.raises(InvalidValue, match=f"workers={workers}"):
            ShufflerSettings(*files, endpoint, workers=workers)
    assert ShufflerSettings(*files, endpoint).workers is None


def test_a_batch_whose_dummies_cannot_be_sealed_waits(where: Where) -> None:
    """It is not sent with fewer of them, and the next tick makes it whole."""
    document, server = served("ballots"), Taking()
    failures = iter([WorkersLost("all gone")])

    def added(batch: Batch) -> Added:
        for failure in failures:
            raise failure
        return dummies_for(document)(batch)

    with closing(open_for(where, document, added)) as store:
        store.admit(arrivals(document, VALUES[:3]))
        sender = Sender(store, document, server, ShufflerMetrics())
        with pytest.raises(WorkersLost):
            asyncio.run(sender.send_all())
        assert (server.taken, store.unfrozen()) == ([], [FIRST])
        asyncio.run(sender.send_all())
        assert [one.batch for one in server.taken] == [FIRST]


class Taking:
    """A server that takes everything."""

    def __init__(self) -> None:
        self.taken: list[Release] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self.taken.append(served("ballots").formats.unpack_release(body or b""))
        return Answer(200, b"{}")

    async def close(self) -> None:
        """Nothing is open."""


# --- pairs ----------------------------------------------------------------------------------------


def bodies_of(store: Store, batch: Batch) -> list[bytes]:
    """The pieces of a batch that is not frozen."""
    return store._read(lambda tables: [piece.body for piece in tables.pieces(batch)])


def test_noise_is_added_to_the_sum_when_a_batch_is_frozen_and_not_before(where: Where) -> None:
    """Also below 0, modulo 2^clear_bits: catches noise in pieces, and a sum that is not reduced."""
    document, asked = served("pairs"), list[Batch]()
    noise = {FIRST: -5, Batch(1, 1): 7, Batch(2, 0): -100}

    def added(batch: Batch) -> Added:
        asked.append(batch)
        bits = document.formats.level(batch.level).clear_bits
        return (), np.array([noise[batch] % 2**bits], np.uint64)

    sent = arrivals(document, VALUES)
    with closing(open_for(where, document, added)) as store:
        for one in sent:
            store.admit([one])
        for batch in store.full():
            level = document.formats.level(batch.level)
            parts = [one.parts[batch.level - 1] for one in sent]
            _, due = level.gather(parts[batch.number * level.size :][: level.size])
            assert level.gather(bodies_of(store, batch))[1].tolist() == due.tolist()
            for _ in range(2):
                (number,) = level.clear(freeze(store, batch).body).tolist()
                assert number == (int(due[0]) + noise[batch]) % 2**level.clear_bits
    assert sorted(asked) == sorted(noise), "once each"


def test_the_noise_of_pairs_is_the_mechanisms() -> None:
    """The sums of many releases of one batch differ: catches a service that adds zeros.

    The two likeliest draws have probability 3/4: 100 are no others with probability 6e-13.
    """
    document = served("pairs")
    level = document.formats.levels[0]
    came = Gathered.of(level, pieces([level], arrivals(document, VALUES[:3]), arrived=0))
    added, bound = dummies_for(document), document.mechanisms[0].honest_noise().tail_quantile(1e-12)
    sums = {sum_of(document, build_release(FIRST, level, came, added(FIRST))) for _ in range(100)}
    assert len(sums) > 2
    assert all(abs(total - 2) <= bound for total in sums)


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_a_batch_without_its_noise_is_never_released(tmp_path: Path, kind: str) -> None:
    document = served(kind)
    with pytest.raises(InvalidValue, match="added= is missing"):
        Store(tmp_path / "without.db", document.formats)

    def none(batch: Batch) -> Added:
        return (), np.empty(0, np.uint64)

    with closing(Store(tmp_path / "store.db", document.formats, added=none)) as store:
        store.admit(arrivals(document, VALUES))
        for batch in store.full():
            with pytest.raises(ProtocolViolation, match=f"0 messages and 0 numbers .* to {batch}"):
                freeze(store, batch)


# --- one noise for each batch ---------------------------------------------------------------------


def noted(document: Document, drawn: list[Batch]) -> Adding:
    """What is added, and for which batches."""

    def added(batch: Batch) -> Added:
        drawn.append(batch)
        return dummies_for(document)(batch)

    return added


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_who_was_overtaken_drops_its_noise(where: Where, kind: str) -> None:
    """Two processes freeze one batch: both send what the first has kept."""
    document, first, drawn = served(kind), list[Release](), list[Batch]()

    def overtaken(batch: Batch) -> Added:
        if not first:
            with closing(open_for(where, document, noted(document, drawn))) as faster:
                first.append(freeze(faster, batch))
        return noted(document, drawn)(batch)

    with closing(open_for(where, document, overtaken)) as store:
        store.admit(arrivals(document, VALUES[:3]))
        assert [freeze(store, FIRST), freeze(store, FIRST)] == first * 2
        assert drawn == [FIRST] * 2, "the second was dropped"


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_noise_of_a_release_that_was_not_kept_is_seen_by_nobody(
    where: Where, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    document, drawn = served(kind), list[Batch]()

    def away(work: object) -> Any:
        raise StoreUnavailable("away")

    with closing(open_for(where, document, noted(document, drawn))) as store:
        store.admit(arrivals(document, VALUES[:3]))
        with monkeypatch.context() as patch:
            patch.setattr(store._database, "write", away)
            with pytest.raises(StoreUnavailable):
                freeze(store, FIRST)
        assert store.unfrozen() == [FIRST]
        release = freeze(store, FIRST)
    assert drawn == [FIRST] * 2
    with closing(open_for(where, document, noted(document, drawn))) as store:
        assert freeze(store, FIRST) == release
    assert drawn == [FIRST] * 2


Copy = dict[str, list[tuple[Any, ...]]]
COLUMNS = {
    "progress": "plan, keys, arrived",
    "seen": "mark",
    "releases": "level, number, digest, own, repeats, state",
    "bodies": "level, number, body",
    "messages_1": "number, key, own, body",
    "messages_2": "number, key, own, body",
}


def copied(store: Store) -> Copy:
    """A backup of the whole database."""

    def read(reading: Transaction) -> Copy:
        return {name: reading.rows(f"SELECT {COLUMNS[name]} FROM {name}") for name in COLUMNS}

    return store._database.read(read)


def restore(store: Store, copy: Copy) -> None:
    def write(writing: Transaction) -> None:
        for name, rows in copy.items():
            writing.change(f"DELETE FROM {name}")
            marks = ", ".join("?" * len(COLUMNS[name].split(",")))
            writing.change_many(f"INSERT INTO {name} ({COLUMNS[name]}) VALUES ({marks})", rows)

    store._database.write(write)


def go_on(store: Store, coming: list[Arrival]) -> None:
    """As if nothing had been frozen."""
    store.admit(coming)
    freeze(store, FIRST)


@pytest.mark.parametrize("taken_after", [0, 1, 3], ids=["before it", "while open", "when full"])
@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_a_restored_copy_makes_no_second_release_of_a_batch(
    where: Where, kind: str, taken_after: int
) -> None:
    """With other noise it would strip the first: neither who runs nor who starts can make it."""
    document, drawn = served(kind), list[Batch]()
    sent = arrivals(document, VALUES)
    with closing(open_for(where, document, noted(document, drawn))) as store:
        store.admit(sent[:taken_after])
        copy = copied(store)
        store.admit(sent[taken_after:4])
        freeze(store, FIRST)
        assert drawn == [FIRST]
        restore(store, copy)
        assert store.arrived == taken_after
        with pytest.raises(ProtocolViolation):
            go_on(store, sent[taken_after:4])
        with pytest.raises(InvalidValue, match="older than its keys"):
            open_for(where, document)
        assert drawn == [FIRST]


def test_a_copy_from_after_a_batch_was_frozen_has_its_release(where: Where) -> None:
    """The other side of the last test: what was kept is sent again, byte for byte."""
    document, drawn = served("ballots"), list[Batch]()
    with closing(open_for(where, document, noted(document, drawn))) as store:
        store.admit(arrivals(document, VALUES[:3]))
        release, copy = freeze(store, FIRST), copied(store)
        store.acknowledge_all({FIRST: release.digest})
        store.scrub()
        restore(store, copy)
    with closing(open_for(where, document, noted(document, drawn))) as store:
        assert (store.full(), freeze(store, FIRST), drawn) == ([FIRST], release, [FIRST])


def test_what_is_sealed_is_for_the_level_of_its_batch() -> None:
    document = served("ballots")
    for level in document.formats.levels:
        more, _ = dummies_for(document)(Batch(level.level, 0))
        found = Opener(KEY, document.formats.digest).open(level.level, more)
        assert None not in found
        assert len(found) == level.added_messages


def test_a_level_that_is_filled_beside_one_that_is_not_is_refused(tmp_path: Path) -> None:
    formats = served("ballots").formats
    mixed = replace(formats, levels=(replace(formats.levels[0], is_filled=True), formats.levels[1]))
    with pytest.raises(InvalidValue, match="at all levels, or at none"):
        Store(tmp_path / "store.db", mixed, added=dummies_for(served("ballots")))
