"""Stores of plans whose noise the services make, noise that a test chooses, and a server's side."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from overhand.deploy.databases.database import Transaction
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import Batch, MaskedSum, Offer, Release
from overhand.deploy.shuffler.batching import Added, Arrival, OwnNoise
from overhand.deploy.shuffler.store import Outgoing, Store
from overhand.deploy.transport import Answer, Unreachable
from support.small_document import KEY
from support.store_processes import Where


class NotedNoise(OwnNoise):
    """Notes every draw: before which state it was made, for how many blocks, and what came."""

    def __init__(self, document: Document) -> None:
        super().__init__(document)
        self.starts = 0
        self.draws: list[tuple[bytes, int]] = []

    def start(self) -> bytes:
        self.starts += 1
        return super().start()

    def draw(self, state: bytes, blocks: int) -> tuple[list[Added], bytes]:
        self.draws.append((state, blocks))
        return super().draw(state, blocks)

    @property
    def blocks(self) -> int:
        return sum(blocks for _, blocks in self.draws)


class CountedNoise(NotedNoise):
    """Of pairs of bits: the state counts blocks, and block i has the noise 1000 + i."""

    def start(self) -> bytes:
        self.starts += 1
        return bytes(8)

    def draw(self, state: bytes, blocks: int) -> tuple[list[Added], bytes]:
        self.draws.append((state, blocks))
        first = int.from_bytes(state, "little")
        mask = (1 << self._level.clear_bits) - 1
        added = [
            Added((), np.array([noise_of(first + i) & mask], np.uint64)) for i in range(blocks)
        ]
        return added, (first + blocks).to_bytes(8, "little")


def noise_of(block: int) -> int:
    return 1000 + block


def open_chain(where: Where, document: Document, noise: OwnNoise | None = None) -> Store:
    used = NotedNoise(document) if noise is None else noise
    return Store(where.place, document.formats, where.keys, used)


def answers_to(
    document: Document, offers: Iterable[Offer], refused: Sequence[int] = ()
) -> dict[Batch, bytes]:
    """The server says that these of every offer do not count."""
    formats = document.formats
    return {offer.batch: formats.pack_answer(formats.pack(offer), refused) for offer in offers}


def answer_full(store: Store, document: Document, refused: Sequence[int] = ()) -> list[Outgoing]:
    """Offer and freeze all that is full."""
    return store.answer_all(answers_to(document, store.offer_all(store.unfrozen()), refused))


def masked_of(document: Document, arrival: Arrival) -> int:
    """What a user of bits by pairs sent in the clear."""
    (number,) = document.formats.levels[0].clear(arrival.parts[0]).tolist()
    return int(number)


def number_of(document: Document, outgoing: Outgoing) -> int:
    """What the numbers of a block of bits by pairs came to, noise and all."""
    (number,) = document.formats.levels[0].clear(outgoing.body).tolist()
    return int(number)


def opened(document: Document, release: Release) -> Any:
    """What can be read of a release, all of it honest."""
    formats = document.formats
    shuffled, garbage = open_release(formats, release, Opener(KEY, formats.digest))
    assert garbage == 0
    return shuffled


class AnsweringServer:
    """Keeps what it is sent by the rules: other bytes, or a sum without its answer, are refused.

    `troubles` says what it does to requests for some batches instead: a status, or None to be away.
    """

    def __init__(self, document: Document, refused: Sequence[int] = ()) -> None:
        self._formats, self._refused = document.formats, refused
        self.troubles: dict[tuple[str, int], int | None] = {}
        self.is_away = False
        self.asked: list[tuple[str, int]] = []
        self.kept: dict[tuple[str, int], bytes] = {}

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        _, _, what, _, number = path.split("/")
        name = what, int(number)
        self.asked.append(name)
        trouble = self.troubles.get(name, 200)
        if self.is_away or trouble is None:
            raise Unreachable("away")
        if trouble != 200:
            return Answer(trouble, b"")
        return self._keep(name, body or b"")

    def _keep(self, name: tuple[str, int], body: bytes) -> Answer:
        what, number = name
        if self.kept.setdefault(name, body) != body:
            return Answer(409, b"")
        if what == "offers":
            return Answer(200, self.answer(number))
        if what == "sums":
            masked = self._formats.unpack(MaskedSum, body)
            assert masked.answer == hashlib.sha256(self.answer(number)).digest()
        else:
            assert ("sums", number) not in self.kept
            self._formats.unpack(Release, body)
        return Answer(200, b"{}")

    def answer(self, number: int) -> bytes:
        return self._formats.pack_answer(self.kept["offers", number], self._refused)

    def sums(self) -> dict[int, MaskedSum]:
        return {
            number: self._formats.unpack(MaskedSum, body)
            for (what, number), body in self.kept.items()
            if what == "sums"
        }

    def releases(self) -> dict[int, Release]:
        return {
            number: self._formats.unpack(Release, body)
            for (what, number), body in self.kept.items()
            if what == "releases"
        }

    async def close(self) -> None:
        """Nothing is open."""


# --- copies of whole databases --------------------------------------------------------------------

Copy = dict[str, list[tuple[Any, ...]]]
COLUMNS = {
    "progress": "plan, keys, arrived",
    "seen": "mark",
    "releases": "level, number, digest, own, repeats, state, answer",
    "bodies": "level, number, body",
    "noise": "level, number, body",
    "offers": "number, own, since, places, body",
    "messages_1": "number, key, own, body",
}


def copied(store: Store) -> Copy:
    """A backup of the whole database."""

    def read(reading: Transaction) -> Copy:
        return {name: reading.rows(f"SELECT {COLUMNS[name]} FROM {name}") for name in COLUMNS}

    return store._database.read(read)


def restore(store: Store, copy: Mapping[str, list[tuple[Any, ...]]]) -> None:
    def write(writing: Transaction) -> None:
        for name, rows in copy.items():
            writing.change(f"DELETE FROM {name}")
            marks = ", ".join("?" * len(COLUMNS[name].split(",")))
            writing.change_many(f"INSERT INTO {name} ({COLUMNS[name]}) VALUES ({marks})", rows)

    store._database.write(write)
