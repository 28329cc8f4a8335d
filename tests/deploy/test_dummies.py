"""Ballots: what the shuffling service adds to blocks, in their order, drawn once."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from overhand.deploy.http.listening import Endpoint
from overhand.deploy.protocol import sealing
from overhand.deploy.protocol.sealing import Opener, SealerPool, WorkersLost
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.batching import (
    NOTHING,
    Added,
    Gathered,
    OwnNoise,
    build_release,
    pieces,
)
from overhand.deploy.shuffler.running import ShufflerSettings, sealer_of
from overhand.deploy.shuffler.sending import Sender
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from support.noise_chains import (
    AnsweringServer,
    NotedNoise,
    copied,
    open_chain,
    opened,
    restore,
)
from support.services_noise_plans import arrivals, served
from support.small_document import KEY, workers_of
from support.store_processes import Where, freeze

VALUES = [1, 0, 1, 1, 1, 0]
FIRST = Batch(1, 0)


BALLOTS = served("ballots")
LEVEL = BALLOTS.formats.levels[0]


def sum_of(release: Release) -> int:
    """What a release comes to, the shuffling service's noise included and the server's not."""
    return round(float(BALLOTS.mechanisms[0].sum_of(opened(BALLOTS, release))))


def added_once() -> Added:
    noise = OwnNoise(BALLOTS)
    ((sealed, clear),), _ = noise.draw(noise.start(), 1)
    return Added(list(sealed), clear)


def test_a_release_has_the_users_and_the_dummies_in_messages_of_one_length(where: Where) -> None:
    sent = arrivals(BALLOTS, VALUES)
    with closing(open_chain(where, BALLOTS)) as store:
        store.admit(sent)
        for batch in store.full():
            release = freeze(store, batch)
            start = release.batch.number * LEVEL.size
            assert len(release.body) == LEVEL.batch_bytes(), "so no message has another length"
            found = {row.tobytes() for row in LEVEL.ciphertexts(release.body)}
            assert {one.parts[0] for one in sent[start:][: LEVEL.size]} < found
            assert len(found) == LEVEL.size + LEVEL.added_messages
            messages = opened(BALLOTS, release).sealed[0]
            noise = int(messages.sum()) - sum(VALUES[start:][: LEVEL.size])
            assert 0 <= noise <= LEVEL.added_messages, "dummies are ballots, some of them ones"


def test_users_may_be_anywhere_among_dummies() -> None:
    """Catches a permutation of the users alone, or none.

    Of n places, 30 n releases miss one with probability n (1 - 1/n)^(30 n) < n e^-30.
    """
    sent = arrivals(BALLOTS, VALUES[:3])
    came = Gathered.of(FIRST, LEVEL, pieces([LEVEL], sent, arrived=0))
    added, places = added_once(), set[int]()
    for _ in range(30 * LEVEL.batch_messages()):
        rows = LEVEL.ciphertexts(build_release(LEVEL, came, added).body)
        places.add([row.tobytes() for row in rows].index(sent[0].parts[0]))
    assert places == set(range(LEVEL.batch_messages()))


def test_dummies_are_those_of_the_mechanisms_noise() -> None:
    """Their number of ones differs: catches a service that adds blanks.

    The two likeliest draws have probability below 7/8: 200 are no others with probability 3e-12.
    """
    noise = OwnNoise(BALLOTS)
    added, _ = noise.draw(noise.start(), 200)
    found = {opened_ones(list(one.sealed)) for one in added}
    assert len(found) > 2


def opened_ones(ciphertexts: list[bytes]) -> int:
    plaintexts = Opener(KEY, BALLOTS.formats.digest).open(1, ciphertexts)
    assert None not in plaintexts
    assert len(plaintexts) == LEVEL.added_messages
    return plaintexts.count(b"\x01")


def test_workers_seal_what_the_parent_draws() -> None:
    """One pool: that workers are replaced and end is seen to in `test_sealing`."""
    digest = BALLOTS.formats.digest
    with SealerPool(BALLOTS.public_key, digest, workers=1) as pool:
        assert (pool._key, pool._digest) == (BALLOTS.public_key, digest), (
            "nothing else goes to a worker"
        )
        plaintexts = [number.to_bytes(2, "little") for number in range(2 * sealing.CHUNK + 3)]
        sealed = list(pool.seal(2, plaintexts))
        assert Opener(KEY, digest).open(2, sealed) == plaintexts
        assert Opener(KEY, digest).open(1, sealed[:1]) == [None]
        noise = OwnNoise(BALLOTS, pool)
        added, _ = noise.draw(noise.start(), 2)
        for one in added:
            assert {len(each) for each in one.sealed} == {LEVEL.ciphertext_bytes}
        with pytest.raises(InvalidValue, match="level=0"):
            pool.seal(0, [])
    with pytest.raises(WorkersLost, match="closed"):
        pool.seal(1, plaintexts)


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_a_batch_nothing(where: Where) -> None:
    with sealer_of(BALLOTS, workers=1) as pool:
        assert isinstance(pool, SealerPool)
        with closing(open_chain(where, BALLOTS, OwnNoise(BALLOTS, pool))) as store:
            store.admit(arrivals(BALLOTS, VALUES))
            first = freeze(store, FIRST)
            for worker in workers_of(pool):
                worker.kill()
                worker.join()
            assert [sum_of(freeze(store, batch)) for batch in store.full()]
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


def test_a_shuffling_service_waits_for_an_answer_and_holds_no_endless_backlog(
    tmp_path: Path,
) -> None:
    endpoint = Endpoint("127.0.0.1", 0)
    files = tmp_path / "document", "store", "http://server", tmp_path / "token"
    for wrong in ({"answer_within": 0}, {"answer_within": -1}, {"most_waiting": 0}):
        with pytest.raises(InvalidValue, match=next(iter(wrong))):
            ShufflerSettings(*files, endpoint, **wrong)  # type: ignore[arg-type]
    settings = ShufflerSettings(*files, endpoint)
    assert (settings.answer_within, settings.most_waiting) == (3600, 1 << 30)


def test_a_batch_whose_dummies_cannot_be_sealed_waits(where: Where) -> None:
    """It is not sent with fewer of them, and the next tick makes it whole."""
    server, noise = AnsweringServer(BALLOTS), NotedNoise(BALLOTS)
    draw, failures = noise.draw, iter([WorkersLost("all gone")])

    def failing(state: bytes, blocks: int) -> Any:
        for failure in failures:
            raise failure
        return draw(state, blocks)

    noise.draw = failing  # type: ignore[method-assign]
    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(arrivals(BALLOTS, VALUES[:3]))
        sender = Sender(store, BALLOTS, server, ShufflerMetrics())
        with pytest.raises(WorkersLost):
            asyncio.run(sender.send_all())
        assert (server.asked, store.unfrozen()) == ([], [FIRST])
        asyncio.run(sender.send_all())
        assert list(server.releases()) == [0]


def test_fewer_dummies_than_there_must_be_are_never_released(where: Where) -> None:
    noise = NotedNoise(BALLOTS)
    noise.draw = lambda state, blocks: ([NOTHING] * blocks, state)  # type: ignore[method-assign]
    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(arrivals(BALLOTS, VALUES))
        with pytest.raises(ProtocolViolation, match=f"0 messages were added to {FIRST}"):
            store.freeze_all(store.full())
        assert store.frozen() == []


# --- one noise for each batch ---------------------------------------------------------------------


def test_many_blocks_are_frozen_with_one_draw_and_in_their_order(where: Where) -> None:
    noise = NotedNoise(BALLOTS)
    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(arrivals(BALLOTS, VALUES * 2))
        with pytest.raises(ProtocolViolation, match="before those before it"):
            store.freeze_all([Batch(1, 2)])
        found = store.freeze_all(store.unfrozen())
        assert [one.batch.number for one in found] == [0, 1, 2, 3]
        assert [blocks for _, blocks in noise.draws] == [4]


def test_who_was_overtaken_drops_its_noise(where: Where) -> None:
    """Two processes freeze one batch: both send what the first has kept."""
    first, slow, fast = list[Any](), NotedNoise(BALLOTS), NotedNoise(BALLOTS)
    draw = slow.draw

    def overtaken(state: bytes, blocks: int) -> Any:
        if not first:
            with closing(open_chain(where, BALLOTS, fast)) as faster:
                first.append(freeze(faster, FIRST))
        return draw(state, blocks)

    slow.draw = overtaken  # type: ignore[method-assign]
    with closing(open_chain(where, BALLOTS, slow)) as store:
        store.admit(arrivals(BALLOTS, VALUES[:3]))
        assert [freeze(store, FIRST), freeze(store, FIRST)] == first * 2
    assert (slow.blocks, fast.blocks) == (1, 1), "the slow one's was dropped"


def test_noise_of_a_release_that_was_not_kept_is_seen_by_nobody(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(work: object) -> Any:
        raise StoreUnavailable("away")

    noise = NotedNoise(BALLOTS)
    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(arrivals(BALLOTS, VALUES[:3]))
        with monkeypatch.context() as patch:
            patch.setattr(store._database, "write", away)
            with pytest.raises(StoreUnavailable):
                freeze(store, FIRST)
        assert store.unfrozen() == [FIRST]
        release = freeze(store, FIRST)
    assert noise.blocks == 2
    with closing(open_chain(where, BALLOTS, noise)) as store:
        assert freeze(store, FIRST) == release
    assert noise.blocks == 2


@pytest.mark.parametrize("taken_after", [0, 1, 3], ids=["before it", "while open", "when full"])
def test_a_restored_copy_makes_no_second_release_of_a_batch(where: Where, taken_after: int) -> None:
    """With other noise it would strip the first: neither who runs nor who starts can make it."""
    noise, sent = NotedNoise(BALLOTS), arrivals(BALLOTS, VALUES)

    def go_on() -> None:
        store.admit(sent[taken_after:4])
        freeze(store, FIRST)

    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(sent[:taken_after])
        copy = copied(store)
        store.admit(sent[taken_after:4])
        freeze(store, FIRST)
        restore(store, copy)
        assert store.arrived == taken_after
        with pytest.raises(ProtocolViolation):
            go_on()
        with pytest.raises(InvalidValue, match="older than its keys"):
            open_chain(where, BALLOTS)
        assert noise.blocks == 1


def test_a_copy_from_after_a_batch_was_frozen_has_its_release(where: Where) -> None:
    """The other side of the last test: what was kept is sent again, byte for byte."""
    noise = NotedNoise(BALLOTS)
    with closing(open_chain(where, BALLOTS, noise)) as store:
        store.admit(arrivals(BALLOTS, VALUES[:3]))
        release, copy = freeze(store, FIRST), copied(store)
        store.acknowledge_all({FIRST: release.digest})
        store.scrub()
        restore(store, copy)
    with closing(open_chain(where, BALLOTS, noise)) as store:
        assert (store.full(), freeze(store, FIRST), noise.blocks) == ([FIRST], release, 1)
