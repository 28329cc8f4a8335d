"""Batches on their way to a server that refuses some, and late batches that are filled up."""

from __future__ import annotations

import asyncio
import logging
import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import overhand as oh
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.shuffler import running, sending
from overhand.deploy.shuffler.app import Admission, ShufflerMetrics
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.running import BatchPadder
from overhand.deploy.shuffler.sending import NotTaken, Sender
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer, Unreachable
from overhand.errors import StoreUnavailable
from support.small_plans import coin_plan
from support.store_processes import freeze

USERS = 24
DOCUMENT = Document(coin_plan(oh.RegularTree(USERS, (4, 3))), KeyPair.generate().public_key)
ALL = {*(Batch(1, number) for number in range(6)), Batch(2, 0), Batch(2, 1)}


class Refusing:
    """A server that takes all batches but these."""

    def __init__(self, refused: set[Batch], status: int = 413) -> None:
        self.refused, self.status = refused, status
        self.taken: list[Batch] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        level, number = map(int, path.split("/")[-2:])
        if (name := Batch(level, number)) in self.refused:
            return Answer(self.status, b"{}")
        self.taken.append(name)
        return Answer(200, b"{}")

    async def close(self) -> None:
        pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store.db", DOCUMENT.formats)


def arrivals(users: int) -> list[Arrival]:
    formats, values = DOCUMENT.formats, DOCUMENT.plan.values
    bodies = encode_reports(DOCUMENT, values.rows([1] * users), oh.secure_random())
    return [Arrival.of(formats, body) for body in bodies]


def sender(store: Store, server: Refusing, tick: float = 0.01) -> Sender:
    return Sender(store, DOCUMENT, server, ShufflerMetrics(), tick=tick)


def test_a_batch_that_is_refused_holds_up_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_MOST_BYTES_AT_ONCE", 1)  # each in a group of its own
    store.admit(arrivals(USERS))
    server = Refusing({Batch(1, 0)})
    with pytest.raises(NotTaken, match="413"):
        asyncio.run(sender(store, server).send_all())
    assert set(server.taken) == ALL - server.refused
    assert store.full() == [Batch(1, 0)]
    server.refused = set()
    asyncio.run(sender(store, server).send_all())
    assert (store.full(), len(server.taken)) == ([], len(ALL))


class Looking(Refusing):
    """A server that sees which keys the service has when a batch comes."""

    def __init__(self, keys: Path, *, is_away: bool = False) -> None:
        super().__init__(set())
        self._keys, self._is_away = keys, is_away
        self.had: list[bool] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        level, number = map(int, path.split("/")[-2:])
        self.had.append(BatchKeys(self._keys).has(Batch(level, number)))
        if self._is_away:
            raise Unreachable("away")
        return await super().request(method, path, body)


def test_nothing_is_sent_before_its_key_is_destroyed(store: Store, tmp_path: Path) -> None:
    store.admit(arrivals(USERS))
    server = Looking(tmp_path / "store.db.keys")
    asyncio.run(sender(store, server).send_all())
    assert server.had == [False] * len(ALL)


def test_all_keys_are_destroyed_while_the_server_is_away(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_MOST_BYTES_AT_ONCE", 1)  # each in a group of its own
    store.admit(arrivals(USERS))
    server = Looking(path := tmp_path / "store.db.keys", is_away=True)
    with pytest.raises(Unreachable):
        asyncio.run(sender(store, server).send_all())
    assert (len(server.had), store.unfrozen()) == (1, [])
    assert not any(map(BatchKeys(path).has, ALL))
    assert set(store.full()) == ALL


def test_a_process_that_waits_its_turn_destroys_its_keys_meanwhile(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(tmp_path / "store.db.keys", elsewhere := tmp_path / "elsewhere.keys")
    with closing(Store(tmp_path / "store.db", DOCUMENT.formats, elsewhere)) as other:
        monkeypatch.setattr(other, "claim_sending", lambda: False)
        waiting = sender(other, Refusing(set()))
        asyncio.run(waiting.send_all())  # which scrubs, and not again so soon
        store.admit(arrivals(USERS))
        store.freeze_all(store.full())
        assert all(map(BatchKeys(elsewhere).has, ALL))
        asyncio.run(waiting.send_all())
        assert not any(map(BatchKeys(elsewhere).has, ALL))


def test_a_token_that_the_server_does_not_know_is_said_to_be_one(store: Store) -> None:
    store.admit(arrivals(4))
    with pytest.raises(NotTaken, match="not from the same `overhand prepare`"):
        asyncio.run(sender(store, Refusing(ALL, 401)).send_all())


def test_what_the_server_has_is_forgotten_before_the_service_stops(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.admit(arrivals(USERS))
    server, scrubbed = Refusing(set()), list[int]()
    scrub = store.scrub
    monkeypatch.setattr(store, "scrub", lambda: scrubbed.append(scrub()))

    async def main() -> None:
        stopping = asyncio.Event()
        running = asyncio.create_task(sender(store, server, tick=600.0).run(stopping))
        while len(server.taken) < len(ALL):
            await asyncio.sleep(0.01)
        stopping.set()
        await running

    asyncio.run(main())
    assert sum(scrubbed) == len(ALL)


def test_a_large_batch_is_filled_a_few_reports_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than may wait at once; one comes from a user meanwhile, and one fewer is needed."""
    monkeypatch.setattr(running, "_AT_ONCE", 2)
    store.admit(arrivals(1))
    made = list[int]()
    encoded = BatchPadder._encode

    def counted(filler: BatchPadder, reports: int) -> list[bytes]:
        made.append(reports)
        if len(made) == 2:
            store.admit(arrivals(1))
        return encoded(filler, reports)

    monkeypatch.setattr(BatchPadder, "_encode", counted)

    async def main() -> None:
        admission = Admission(store, most_waiting=2)
        running = asyncio.create_task(admission.run())
        filler = BatchPadder(store, admission, DOCUMENT, deadline=1e-9)
        filler._missing(store.arrived)
        missing = filler._missing(store.arrived)
        assert missing == 3
        await filler.fill(missing)
        admission.close()
        await running

    asyncio.run(main())
    assert (made, store.arrived) == ([2, 1], 4)
    assert freeze(store, Batch(1, 0)).own == 2


def test_an_own_report_never_joins_a_batch_that_is_not_late(store: Store) -> None:
    (own, late) = arrivals(2)
    store.admit(arrivals(5))
    fills = [replace(one, fills=number) for one, number in ((own, 0), (late, 1))]
    assert store.admit(fills) == [Outcome.NOT_NEEDED, Outcome.ADMITTED]


def test_a_sweep_that_has_to_wait_is_no_failure_to_send(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A backup holds locks for long: all is sent meanwhile, and swept when it is over."""
    caplog.set_level(logging.INFO)
    scrub, tries = store.scrub, list[int]()

    def locked() -> int:
        tries.append(one._ticks)
        raise StoreUnavailable("canceling statement due to lock timeout")

    monkeypatch.setattr(store, "scrub", locked)
    store.admit(arrivals(USERS))
    server = Refusing(set())
    one = sender(store, server)

    async def ticks(count: int) -> None:
        for _ in range(count):
            await one.send_all()

    asyncio.run(ticks(25))
    assert (set(server.taken), store.full()) == (ALL, [])
    assert tries == [2, 10, 20], "not at every tick: reports queue up behind it"
    said = [record.getMessage() for record in caplog.records]
    assert said.count("what was sent cannot be overwritten yet") == 1
    assert one._failures == 0
    monkeypatch.setattr(store, "scrub", scrub)
    asyncio.run(ticks(5))
    assert not one._unscrubbed
    assert store.scrub() == 0
