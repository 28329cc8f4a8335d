"""A deployment under faults, step by step, and what must be true of it after every step.

The test notes whom the store admitted, in their order, which no store may tell. From that all else
follows: what every batch holds, and, since the test may open messages, every sum to the last bit.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.client import AsyncClient, NotCounted
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import ID_BYTES, Batch, Release, Report
from overhand.deploy.shuffler.app import Overloaded
from overhand.deploy.shuffler.batching import Arrival, Piece
from overhand.deploy.shuffler.store import Store
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from overhand.mechanisms import Mechanism, SharesSum
from overhand.model import Node, Shuffled
from overhand.noise import Polya
from overhand.sums import SumServer
from support.faulty_services import Deployment, Fault, RememberingOpener
from support.server_stores import estimates_of
from support.store_processes import freeze

HORIZON, USERS = 26, 40
LEAST = 5.0
"""The least value of a share: that of own reports, so that they must be taken out."""
REALS = oh.Reals(LEAST, LEAST + 2.0**USERS)
"""The value of user i is 2^i more than LEAST: a sum tells whose values are in it.

That takes finer steps than can be deployed, in plans that hide nothing.
"""


def coins_plan() -> oh.Plan:
    """Two levels, which a plan of so few users would not have by itself."""
    tree = oh.RegularTree(HORIZON, (4, 2))
    mechanisms = tuple(oh.CoinSum.with_variance(size, 2.0) for size in tree.sizes)
    return oh.Plan(tree, mechanisms, oh.Privacy(4.0, 1e-4), 2)


def shares_plan() -> oh.Plan:
    """Three shares a level hide little, but add up."""
    return _reals_plan(
        SharesSum(
            size,
            Polya(1, size, 0.5),
            REALS,
            2**USERS,
            shares=3,
            modulus_bits=USERS + 8,
            honest=size,
        )
        for size in (3, 6)
    )


def _reals_plan(mechanisms: Iterable[Mechanism]) -> oh.Plan:
    tree = oh.RegularTree(HORIZON, (3, 2))
    return oh.Plan(tree, tuple(mechanisms), oh.Privacy(4.0, 1e-4), 2)


PLANS = {"coins": coins_plan, "shares": shares_plan}


class Crowd:
    """Everything that is sent in a soak, made once: every example sends the same bytes."""

    def __init__(self, plan: oh.Plan) -> None:
        key = KeyPair.of_raw(bytes(range(32)))
        self.document = Document(plan, key.public_key)
        self.formats = self.document.formats
        self.opener = RememberingOpener(key, self.formats.digest)
        rows = plan.values.rows(self._values(plan))
        self.bodies = encode_reports(self.document, rows, oh.seeded_random(20230))
        elsewhere = Document(plan, KeyPair.of_raw(bytes(range(1, 33))).public_key)
        self.foreign = encode_reports(elsewhere, rows[:8], oh.seeded_random(20231))

    @staticmethod
    def _values(plan: oh.Plan) -> list[Any]:
        if isinstance(plan.values, oh.Bits):
            return [user % 3 % 2 for user in range(USERS)]
        return [LEAST + 2.0**user for user in range(USERS)]

    def ciphertexts(self, level: int, part: bytes) -> list[bytes]:
        """Those of a part or a batch."""
        return [row.tobytes() for row in self.formats.level(level).ciphertexts(part)]


@lru_cache
def crowd(kind: str) -> Crowd:
    with mock.patch("overhand.deploy.protocol.document._MOST_STEPS", 1 << USERS):
        return Crowd(PLANS[kind]())


@dataclass(frozen=True)
class Step:
    """Something that happens; what the numbers mean depends on what it is."""

    name: str
    count: int = 1
    which: int = 0
    faults: tuple[Fault, ...] = ()


class Soak:
    """A deployment, and all that must be true of it after every step."""

    def __init__(self, kind: str, home: Path, open_store: Callable[[], Store]) -> None:
        self.crowd = crowd(kind)
        self.formats, self.plan = self.crowd.formats, self.crowd.document.plan
        self.open_store = open_store
        self.system = Deployment(home, self.crowd.document, self.crowd.opener, open_store)
        self.client = AsyncClient("http://shuffler", transport=self.system.to_shuffler)
        self.fresh = iter(self.crowd.bodies)
        self.sent: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.published: list[Any] = []
        self.checked = 0

    async def run(self, steps: Sequence[Step]) -> None:
        self.system.start()
        try:
            for step in steps:
                await getattr(self, step.name)(step)
                self.check()
            await self.drain()
        finally:
            await self.system.stop()

    async def drain(self) -> None:
        """No more faults: what was sent is counted, and what was counted is published."""
        self.system.no_faults()
        await self.system.to_shuffler.deliver_late()
        await self.system.to_server.deliver_late()
        await self.send([body for body in self.sent if body not in self.acknowledged])
        await self.system.kill_shuffler()
        self.system.start_shuffler()
        await self.system.send_all()
        await self.system.publish_all()
        self.check()
        self.check_estimate()
        before = self.system.publisher.estimate
        self.system.start_server()
        assert self.system.publisher.estimate == before
        self.check()

    # --- what happens -----------------------------------------------------------------------------

    async def send(self, bodies: Sequence[bytes]) -> None:
        """As a client does, the same bytes until it is told that they were counted."""

        async def one(body: bytes) -> None:
            try:
                await self.client.send(body)
                self.acknowledged.add(body)
            except NotCounted:
                pass

        self.sent += [body for body in bodies if body not in self.sent]
        await asyncio.gather(*map(one, bodies))

    async def report(self, step: Step) -> None:
        self.system.to_shuffler.script = deque(step.faults)
        await self.send(list(itertools.islice(self.fresh, step.count)))

    async def resend(self, step: Step) -> None:
        """Old reports, in copies that race."""
        old = [self.sent[(step.which + i) % len(self.sent)] for i in range(step.count) if self.sent]
        self.system.to_shuffler.script = deque(step.faults)
        await self.send(old * 2)

    async def mix(self, step: Step) -> None:
        """A report of two users' parts, one of which may never have come."""
        one, other = self.two(step)
        await self.send([self.packed([one[0], other[1]])])

    async def copy(self, step: Step) -> None:
        """Somebody's messages, all but the first of each level, under a message of its own."""
        one, other = self.two(step)
        parts = [
            other[level][: shape.ciphertext_bytes] + one[level][shape.ciphertext_bytes :]
            for level, shape in enumerate(self.formats.levels)
        ]
        await self.send([self.packed(parts)])

    def packed(self, parts: Sequence[bytes]) -> bytes:
        """A new report of these parts."""
        return self.formats.pack_report(Report(secrets.token_bytes(ID_BYTES), tuple(parts)))

    def two(self, step: Step) -> list[tuple[bytes, ...]]:
        places = step.which % USERS, (step.which + step.count) % USERS
        return [self.formats.unpack_report(self.crowd.bodies[place]).parts for place in places]

    async def foreign(self, step: Step) -> None:
        """A report for another document is refused; under our header, nobody can open it."""
        body = self.crowd.foreign[step.which % 8]
        with pytest.raises(NotCounted, match="409"):
            await self.client.send(body)
        await self.send([body[:4] + self.formats.digest + body[36:]])

    async def malformed(self, step: Step) -> None:
        body = self.crowd.bodies[step.which % USERS]
        for wrong in (b"", body[: -step.count], body + b"x", b"OVH1" + body[4:], b"x" * 10**6):
            with pytest.raises(NotCounted, match="400|413"):
                await self.client.send(wrong)

    async def garbage(self, step: Step) -> None:
        parts = [secrets.token_bytes(level.part_bytes) for level in self.formats.levels]
        await self.send([self.packed(parts)])

    async def fill(self, step: Step) -> None:
        """The deadline of the open batch passed, and a report or two come all the same."""
        self.system.store_script.extend(step.faults)
        filler, arrived = self.system.filler, len(self.system.admitted)
        filler._missing(arrived)
        late = self.send(list(itertools.islice(self.fresh, step.which % 3)))
        filling = filler.fill(filler._missing(arrived))
        for result in await asyncio.gather(filling, late, return_exceptions=True):
            assert result is None or isinstance(result, StoreUnavailable | Overloaded)
        await self.system.settle()

    async def release(self, step: Step) -> None:
        self.system.to_server.script = deque(step.faults)
        await self.system.send_all()

    async def publish(self, step: Step) -> None:
        self.system.server_script.extend(step.faults)
        await self.system.publish_all()

    async def deliver_late(self, step: Step) -> None:
        await self.system.to_shuffler.deliver_late()
        await self.system.to_server.deliver_late()

    async def lose_store(self, step: Step) -> None:
        self.system.store_script.extend(step.faults)

    async def lose_database(self, step: Step) -> None:
        self.system.server_script.extend(step.faults)

    async def crash_shuffler(self, step: Step) -> None:
        """In the middle of some reports, whose clients learn nothing."""
        bodies = list(itertools.islice(self.fresh, step.count))
        tasks = [asyncio.create_task(self.send([body])) for body in bodies]
        for _ in range(step.which):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.system.kill_shuffler()
        self.system.start_shuffler()

    async def crash_server(self, step: Step) -> None:
        self.system.start_server()

    async def release_early(self, step: Step) -> None:
        """Nobody gets a batch that is not full: not from the store, and not into the database."""
        for level in self.formats.levels:
            name = Batch(level.level, len(self.system.admitted) // level.size)
            with pytest.raises(ProtocolViolation, match="cannot be frozen"):
                freeze(self.system.store, name)
            with pytest.raises(ProtocolViolation, match="before it was frozen"):
                self.system.store.acknowledge_all({name: bytes(32)})

    async def release_other(self, step: Step) -> None:
        """Other bytes, or another number of own reports, for a batch that the server has."""
        kept = self.kept()
        self.system.server_script.clear()
        for name in list(kept)[step.which % 5 :: 5]:
            shape, (own, body) = self.formats.level(name.level), kept[name]
            changed = bytes([body[0] ^ step.count]) + body[1:]
            others = ((own, changed), ((own + 1) % (shape.size + 1), body))
            for other in others:
                assert await self.put(name, *other) == 409
            assert await self.put(name, own, body) == 200
            assert f"batch {name.number} of level {name.level}" in str(
                self.system.database.alarms()
            )

    async def put(self, name: Batch, own: int, body: bytes) -> int:
        release = self.formats.pack(Release(name, own, body))
        path = f"/v1/releases/{name.level}/{name.number}"
        return (await self.system.to_server.inner.request("PUT", path, release)).status

    # --- what must be true ------------------------------------------------------------------------

    def check(self) -> None:
        self.check_acknowledged()
        for level in self.formats.levels:
            self.check_store(level.level)
        for name, (own, body) in self.kept().items():
            assert len(body) == self.formats.level(name.level).batch_bytes()
            assert max(Counter(self.crowd.ciphertexts(name.level, body)).values()) == 1
            self.check_batch(name, own, [body], is_release=True)
        self.check_database()

    def check_acknowledged(self) -> None:
        """Whoever was told yes is counted, once."""
        counted = Counter(arrival.id for arrival in self.system.admitted)
        assert not counted or max(counted.values()) == 1
        assert len(self.system.admitted) <= HORIZON
        lowest = self.system.admitted[:: self.formats.levels[0].size]
        assert not any(arrival.is_own for arrival in lowest)  # a batch is for somebody
        for body in self.acknowledged:
            assert self.formats.unpack_report(body).id in counted

    def check_store(self, level: int) -> None:
        """The tables hold exactly those who were admitted, but for batches that the server has."""
        store, size = self.system.store, self.formats.level(level).size
        numbers = store._read(lambda tables: tables.numbers(level))
        found = {number: self.pieces(Batch(level, number)) for number in numbers}
        assert store.arrived == len(self.system.admitted)
        for number in range(-(-store.arrived // size)):
            name = Batch(level, number)
            release = self.release_of(name)
            if number in found:
                assert release is None
                _, owns, bodies = zip(*found.pop(number), strict=True)
                self.check_batch(name, sum(owns), bodies, is_release=False)
            elif release is not None:
                own, body = release
                self.check_batch(name, own, [body], is_release=True)
            elif store.arrived < HORIZON or (number + 1) * size <= HORIZON:
                assert name in self.kept()
        assert not found

    def pieces(self, name: Batch) -> list[Piece]:
        return self.system.store._read(lambda tables: list(tables.pieces(name)))

    def release_of(self, name: Batch) -> tuple[int, bytes] | None:
        """What is kept to be sent, and how many reports of it are the service's."""
        store = self.system.store
        record, body = store._read(lambda tables: (tables.record(name), tables.body(name)))
        return None if record is None or body is None else (record.own, body)

    def check_batch(
        self, name: Batch, own: int, bodies: Sequence[bytes], *, is_release: bool
    ) -> None:
        """All messages of its reports and no others; in a release, bytes instead of copies."""
        expected = Counter(self.messages(name))
        found = Counter(one for body in bodies for one in self.crowd.ciphertexts(name.level, body))
        missing, strange = expected - found, found - expected
        assert own == self.own(name)
        assert missing.total() == strange.total()
        assert set(missing) <= set(found)
        assert is_release or not missing

    def full(self) -> list[Batch]:
        return self.system.store.full()

    def batch(self, name: Batch) -> list[Arrival]:
        size = self.formats.level(name.level).size
        return self.system.admitted[name.number * size : (name.number + 1) * size]

    def own(self, name: Batch) -> int:
        return sum(arrival.is_own for arrival in self.batch(name))

    def messages(self, name: Batch) -> list[bytes]:
        parts = (arrival.parts[name.level - 1] for arrival in self.batch(name))
        return [one for part in parts for one in self.crowd.ciphertexts(name.level, part)]

    def kept(self) -> dict[Batch, tuple[int, bytes]]:
        """The releases that the server took: all copies of one are the same, byte for byte."""
        result: dict[Batch, tuple[int, bytes]] = {}
        for handled in self.system.to_server.handled:
            release = self.formats.unpack(Release, handled.body)
            own, body = release.own, release.body
            assert handled.status in (200, 503)
            if handled.status == 200:
                assert result.setdefault(release.batch, (own, body)) == (own, body)
        return result

    def check_database(self) -> None:
        """What was published stays, here and in the database; every sum is the reference's."""
        database = self.system.database
        published = estimates_of(database)
        assert published[: len(self.published)] == self.published
        self.published = published
        for summed in database.sums(self.checked, HORIZON):
            name = summed.batch
            value, garbage = self.reference(name)
            assert summed.value == (None if value is None else (value,))
            assert summed.garbage == garbage
            assert summed.own == self.own(name)
            self.checked += 1

    def reference(self, name: Batch) -> tuple[float | None, int]:
        """The sum of a batch from the messages of those who are in it, and how many are garbage."""
        mechanism = self.crowd.document.mechanisms[name.level - 1]
        messages = self.messages(name)
        opened = self.crowd.opener.open(name.level, sorted(set(messages)))
        readable = [one for one in opened if one is not None]
        garbage = len(messages) - len(readable)
        if isinstance(mechanism, SharesSum) and garbage:
            return None, garbage
        whole = self.formats.level(name.level).bytes_to_messages(readable)
        whole = np.concatenate([whole, np.zeros((garbage, *whole.shape[1:]), whole.dtype)])
        try:
            total = mechanism.sum_of(Shuffled(whole[np.newaxis], np.empty((1, 0), np.uint64)))
        except InvalidValue:
            return None, garbage
        least = LEAST if self.plan.values == REALS else 0.0
        total -= least * self.own(name)
        return total, garbage

    def check_estimate(self) -> None:
        """All batches that are full are published, and add up to what one server would say."""
        assert self.full() == []
        arrived, levels = len(self.system.admitted), self.formats.levels
        names = [Batch(one.level, i) for one in levels for i in range(arrived // one.size)]
        assert self.checked == len(names) == len(self.kept())
        if not names:
            return
        reference = SumServer(self.plan, checks=True)
        for name in sorted(names, key=lambda name: (self.node(name).stop, name.level)):
            value, _ = self.reference(name)
            if value is None:
                reference.lose(self.node(name), self.own(name))
            else:
                reference.receive_sum(self.node(name), value, own=self.own(name))
        lowest, last = levels[0].size, self.published[-1]
        estimate, rest = reference.estimate(), (reference.is_fallback, reference.lost_users)
        assert last.t == estimate.t == arrived // lowest * lowest
        assert (last.is_fallback, last.lost_users) == rest
        assert last.value == pytest.approx((estimate.value,), rel=1e-12)

    def node(self, name: Batch) -> Node:
        size = self.formats.level(name.level).size
        return Node(name.level, name.number * size, (name.number + 1) * size)
