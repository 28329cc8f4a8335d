"""A deployment whose services make the noise, under faults, and what must be true in the end.

Neither service's noise is drawn here: so a sum tells to the last bit who is in it. User i has the
value 2^i by pairs; by ballots a bit.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import overhand as oh
from overhand.deploy.client import AsyncClient, NotCounted
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import ID_BYTES, Batch, Offer, Report
from overhand.deploy.shuffler.batching import Arrival
from overhand.deploy.shuffler.store import Store
from overhand.mechanisms import BallotSum, PairsSum
from overhand.noise import IndependentNoise, Polya
from overhand.planning.blocks import blocks_tree
from support.faulty_services import Deployment, Handled, RememberingOpener
from support.soak import Step

SIZE, BLOCKS, USERS = 3, 10, 40
NOISE = IndependentNoise(Polya(1, 1, 0.5), cap=BLOCKS)
REALS = oh.Reals(0.0, 2.0**USERS)


class Crowd:
    """Everything that is sent, made once."""

    def __init__(self, kind: str) -> None:
        blocks: Any = BallotSum(SIZE, NOISE, dummies=4, bound=2)
        values: list[Any] = [user % 3 % 2 for user in range(USERS)]
        if kind == "pairs":
            blocks = PairsSum(SIZE, NOISE, REALS, 2**USERS, modulus_bits=48)
            values = [2.0**user for user in range(USERS)]
        plan = oh.Plan(blocks_tree(blocks), (blocks,), oh.Privacy(4.0, 1e-4), 1)
        key = KeyPair.of_raw(bytes(range(32)))
        self.document = Document(plan, key.public_key)
        self.opener = RememberingOpener(key, self.document.formats.digest)
        rows = plan.values.rows(values)
        self.bodies = encode_reports(self.document, rows, oh.seeded_random(20231))
        parts = [self.document.formats.unpack_report(body).parts[0] for body in self.bodies]
        width = self.document.formats.levels[0].ciphertext_bytes
        self.values = {part[:width]: value for part, value in zip(parts, values, strict=True)}
        self.parts = parts


@lru_cache
def crowd(kind: str) -> Crowd:
    with mock.patch("overhand.deploy.protocol.document._MOST_STEPS", 1 << USERS):
        return Crowd(kind)


class ChainSoak:
    """A deployment, what happens to it, and what must be true in the end."""

    def __init__(self, kind: str, home: Path, open_store: Callable[[], Store]) -> None:
        self.crowd = crowd(kind)
        self.formats = self.crowd.document.formats
        self.level = self.formats.levels[0]
        self.system = Deployment(home, self.crowd.document, self.crowd.opener, open_store)
        self.client = AsyncClient(
            "http://shuffler",
            transport=self.system.to_shuffler,
            digest=self.crowd.document.digest,
        )
        self.fresh = iter(self.crowd.bodies)
        self.sent: list[bytes] = []
        self.acknowledged: set[bytes] = set()
        self.garbage = set[bytes]()

    async def run(self, steps: Sequence[Step]) -> None:
        self.system.start()
        try:
            for step in steps:
                await getattr(self, step.name)(step)
                self.check_sent()
            await self.drain()
        finally:
            await self.system.stop()

    async def drain(self) -> None:
        """No more faults: what was counted is published."""
        self.system.no_faults()
        await self.system.to_shuffler.deliver_late()
        await self.system.to_server.deliver_late()
        await self.send([body for body in self.sent if body not in self.acknowledged])
        await self.system.kill_shuffler()
        self.system.start_shuffler()
        await self.system.send_all()
        await self.system.publish_all()
        self.system.start_server()
        await self.system.publish_all()
        self.check_sent()
        self.check_sums()

    # --- what happens -----------------------------------------------------------------------------

    async def send(self, bodies: Sequence[bytes]) -> None:
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
        old = [self.sent[(step.which + i) % len(self.sent)] for i in range(step.count) if self.sent]
        self.system.to_shuffler.script = deque(step.faults)
        await self.send(old * 2)

    async def copy(self, step: Step) -> None:
        """Somebody's message in a report of one's own, with other numbers beside it."""
        width = self.level.ciphertext_bytes
        one, other = self.crowd.parts[step.which % USERS], self.crowd.parts[step.count % USERS]
        await self.send([self.packed(one[:width] + other[width:])])

    async def junk(self, step: Step) -> None:
        width = self.level.ciphertext_bytes
        part = secrets.token_bytes(width) + self.crowd.parts[step.which % USERS][width:]
        self.garbage.add(part[:width])
        await self.send([self.packed(part)])

    def packed(self, part: bytes) -> bytes:
        return self.formats.pack_report(Report(secrets.token_bytes(ID_BYTES), (part,)))

    async def close(self, step: Step) -> None:
        """The deadline of the open block passed."""
        store = self.system.store
        number = store.arrived // SIZE
        empty = store.leave_empty(number)
        # The notes of who was admitted have a place for everybody, also for nobody.
        self.system.admitted += [Arrival(bytes(ID_BYTES), (b"",))] * empty

    async def release(self, step: Step) -> None:
        self.system.to_server.script = deque(step.faults)
        await self.system.send_all()

    async def force(self, step: Step) -> None:
        """The stated time has passed for what is offered."""
        self.system.sender._answer_within = 1e-9
        await self.release(step)
        self.system.sender._answer_within = 3600.0

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

    # --- what must be true ------------------------------------------------------------------------

    def taken(self, what: str) -> dict[int, tuple[bytes, bytes]]:
        """What the server took of this kind, and its answers: all copies alike, byte for byte."""
        found: dict[int, tuple[bytes, bytes]] = {}
        for one in self.system.to_server.handled:
            _, _, kind, _, number = one.path.split("/")
            if (one.status, kind) == (409, "offers"):  # it came after its block's release
                assert int(number) in self.released
                continue
            assert one.status in (200, 503), (one.path, one.status)
            if one.status == 200 and kind == what:
                kept = found.setdefault(int(number), (one.body, one.answer))
                assert kept == (one.body, one.answer) or what == "releases"
                assert kept[0] == one.body
        return found

    @property
    def released(self) -> set[int]:
        """Blocks that were frozen in one step."""
        paths = [one.path.split("/") for one in self.system.to_server.handled]
        return {int(number) for _, _, kind, _, number in paths if kind == "releases"}

    def check_sent(self) -> None:
        """A block has one order, one answer, and one sum or release: with one noise."""
        offers, sums, releases = map(self.taken, ("offers", "sums", "releases"))
        assert sums.keys() <= offers.keys()
        assert not sums.keys() & releases.keys()
        assert self.system.store.alarms == {}
        counted = Counter(arrival.id for arrival in self.system.admitted)
        counted.pop(bytes(ID_BYTES), None)
        assert not counted or max(counted.values()) == 1
        for body in self.acknowledged:
            assert self.formats.unpack_report(body).id in counted

    def parts(self, block: int) -> list[bytes]:
        """What came of all who are in a block."""
        places = self.system.admitted[block * SIZE :][:SIZE]
        return [one.parts[0] for one in places if one.parts[0]]

    def users(self, block: int) -> list[bytes]:
        """Their ciphertexts."""
        return [part[: self.level.ciphertext_bytes] for part in self.parts(block)]

    def check_sums(self) -> None:
        """Every whole block is published, with the values of those who are in it and count."""
        blocks = self.system.store.arrived // SIZE
        assert self.system.store.full() == []
        sums = {one.batch.number: one for one in self.system.database.sums(0, 10**6)}
        assert sorted(sums) == list(range(blocks))
        assert set(self.system.database.alarms()) <= {
            words for block in range(blocks) for words in self.alarms(block)
        }
        total, counted = 0.0, Counter[bytes]()
        for block, one in sums.items():
            if one.value is None:
                assert self.may_be_lost(block)
            else:
                counted.update(self.kept(block))
                assert self.due(block) in (None, float(one.value[0]))
                total += float(one.value[0])
        assert not self.garbage.intersection(counted)
        assert max(counted.values(), default=1) == 1
        last = self.system.publisher.estimate
        assert (last is None) == (not sums)
        if last is not None and not last["lost_users"]:
            assert last["value"] == total

    def alarms(self, block: int) -> Iterator[str]:
        """What the server may say of a block."""
        batch = Batch(1, block)
        if any(one.status == 409 and one.path.endswith(f"/{block}") for one in self.offers):
            yield f"another offer of {batch}"
        if copies := self.copies.intersection(self.users(block)):
            for count in range(1, 1 + sum(one in copies for one in self.users(block))):
                yield f"{count} messages of {batch} came before and do not count"
        if self.has_wrong_numbers(block):
            yield f"{batch} has a sum that honest users cannot have: it is lost"

    @property
    def offers(self) -> list[Handled]:
        return [one for one in self.system.to_server.handled if "/offers/" in one.path]

    @property
    def copies(self) -> set[bytes]:
        """Ciphertexts that came more than once."""
        width = self.level.ciphertext_bytes
        found = Counter(one.parts[0][:width] for one in self.system.admitted if one.parts[0])
        return {one for one, number in found.items() if number > 1}

    def has_wrong_numbers(self, block: int) -> bool:
        """Whether somebody sent numbers that another's seed masks, and is not refused."""
        parts = set(self.parts(block)).difference(self.crowd.parts)
        return any(one[: self.level.ciphertext_bytes] not in self.garbage for one in parts)

    def may_be_lost(self, block: int) -> bool:
        """Whether a message that does not count is in a sum that was made without an answer."""
        is_in_one_step = self.level.is_offered and block in self.taken("releases")
        return is_in_one_step and not (self.garbage | self.copies).isdisjoint(self.users(block))

    def kept(self, block: int) -> list[bytes]:
        """The ciphertexts of a block that count, by the answer if there is one."""
        users = self.users(block)
        if not self.level.is_offered or block not in self.taken("sums"):
            return users
        offer, answer = self.taken("offers")[block]
        width, body = self.level.ciphertext_bytes, self.formats.unpack(Offer, offer).body
        order = [body[at : at + width] for at in range(0, len(body), width)]
        assert Counter(order) == Counter(users)
        refused = set(self.formats.unpack_answer(offer, answer).tolist())
        assert all(order[place] in self.garbage | self.copies for place in refused)
        return [one for place, one in enumerate(order) if place not in refused]

    def due(self, block: int) -> float | None:
        """The sum of those who count in a block; None if it cannot be told.

        It cannot if two have one seed in the same block: only the service knows whose numbers.
        """
        users = self.users(block)
        if not self.level.is_offered:
            return float(sum(self.crowd.values[one] for one in users))
        return self.sum_of_rows(block, self.kept(block)) if len(set(users)) == len(users) else None

    def sum_of_rows(self, block: int, kept: Sequence[bytes]) -> float:
        """By the numbers that came beside each seed, which need not be its user's."""
        level, mechanism = self.level, self.crowd.document.mechanisms[0]
        assert isinstance(mechanism, PairsSum)
        parts = [part for part in self.parts(block) if part[: level.ciphertext_bytes] in kept]
        opened = self.crowd.opener.open(1, [part[: level.ciphertext_bytes] for part in parts])
        seeds = level.bytes_to_messages([one or b"" for one in opened])[np.newaxis]
        clear = np.zeros(level.clear_numbers, np.uint64)
        masks = clear
        if parts:
            clear = level.add_up(np.array([level.clear(part) for part in parts], np.uint64))
            masks = mechanism.mask_sums(seeds)[0]
        total = mechanism.with_users(len(parts)).unmask(clear, masks, np.zeros((1, 1), np.int64))
        return float(total)
