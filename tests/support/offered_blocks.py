"""Blocks of pairs as the shuffling service has them: offered, answered, added up."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch, LevelFormat, MaskedSum, Offer, Release
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.mechanisms import BallotSum, Mechanism, PairsSum
from overhand.noise import CorrelatedNoise
from overhand.planning.blocks import blocks_tree
from support.server_stores import KEY
from support.small_plans import PRIVACY

SIZE = 3
NOISE = CorrelatedNoise.of(deviation=3.0, blocks=4)


def correlated(kind: type[Mechanism], values: oh.Values) -> Document:
    """No guarantee, but noise with a state that is quickly drawn."""
    blocks = kind.with_noise(SIZE, NOISE, honest=1, distance=0.01, values=values)
    plan = oh.Plan(blocks_tree(blocks), (blocks,), PRIVACY, 1, horizon=4 * SIZE)
    return Document(plan, KEY.public_key)


PAIRS = correlated(PairsSum, oh.Bits())
BALLOTS = correlated(BallotSum, oh.Bits())


@dataclass(frozen=True)
class Block:
    """The sealed seeds of a block in their order, and masked numbers, a row for each."""

    batch: Batch
    own: int
    seeds: tuple[bytes, ...]
    numbers: NDArray[np.uint64]

    @property
    def level(self) -> LevelFormat:
        return PAIRS.formats.level(1)

    @property
    def offer(self) -> Offer:
        return Offer(self.batch, self.own, b"".join(self.seeds))

    def refused(self, answer: bytes) -> list[int]:
        formats = PAIRS.formats
        return list(formats.unpack_answer(formats.pack(self.offer), answer).tolist())

    def masked(self, answer: bytes, more: int = 0) -> MaskedSum:
        """The sum of all that count, without noise, or this `more`."""
        body = self._added(np.delete(self.numbers, self.refused(answer), axis=0), more)
        return MaskedSum(self.batch, self.own, hashlib.sha256(answer).digest(), body)

    def release(self) -> Release:
        """All of it in one step."""
        return Release(self.batch, self.own, b"".join(self.seeds) + self._added(self.numbers))

    def _added(self, rows: NDArray[np.uint64], more: int = 0) -> bytes:
        total = rows.sum(axis=0, dtype=np.uint64) + np.uint64(more)
        return self.level.pack(b"", total & np.uint64((1 << self.level.clear_bits) - 1))

    def with_seeds(self, others: dict[int, bytes]) -> Block:
        """The same with others in some places."""
        seeds = [others.get(place, seed) for place, seed in enumerate(self.seeds)]
        return replace(self, seeds=tuple(seeds))

    def junk(self) -> bytes:
        """What nobody can open."""
        return secrets.token_bytes(self.level.ciphertext_bytes)


def block_of(number: int, held: Sequence[Any]) -> Block:
    """Of users who hold this; other places are empty."""
    level, formats = PAIRS.formats.level(1), PAIRS.formats
    bodies = encode_reports(PAIRS, PAIRS.plan.values.rows(held), oh.secure_random())
    parts = [formats.unpack_report(body).parts[0] for body in bodies]
    numbers = np.array([level.clear(part) for part in parts], np.uint64)
    seeds = tuple(part[: level.ciphertext_bytes] for part in parts)
    own = level.size - len(held)
    return Block(Batch(1, number), own, seeds, numbers.reshape(-1, level.clear_numbers))


def publisher_of(
    database: ServerStore, document: Document = PAIRS, patience: float = 60.0
) -> Publisher:
    opener = Opener(KEY, document.formats.digest)
    return Publisher(document, database, opener, patience=patience)


def send(publisher: Publisher, *blocks: Block) -> None:
    """In two steps, each block after the other."""
    for block in blocks:
        publisher._store.receive(block.masked(publisher.answer(block.offer)))
