"""Databases of plans whose noise the services make: releases really sealed, and old copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.mechanisms import BallotSum, Mechanism, PairsSum
from overhand.noise import IndependentNoise, Polya
from overhand.planning.blocks import blocks_tree
from support.server_stores import KEY, Name
from support.small_plans import PRIVACY
from support.store_processes import Where

SIZE = 2
NOISE = IndependentNoise(Polya(shape=1, users=1, ratio=0.5), cap=26)
TABLES = (
    "server_store", "offers", "releases", "stored", "masks", "unopened", "noise", "sums",
    "published", "levels", "alarms",
)  # fmt: skip


def services_plan(kind: type[Mechanism], values: oh.Values, steps: int = 1) -> oh.Plan:
    """No guarantee, but noise that is quickly drawn."""
    blocks = kind.with_noise(SIZE, NOISE, honest=1, distance=0.01, values=values, steps=steps)
    return oh.Plan(blocks_tree(blocks), (blocks,), PRIVACY, 1, horizon=26)


BALLOTS = Document(services_plan(BallotSum, oh.Bits()), KEY.public_key)
PAIRS = Document(services_plan(PairsSum, oh.Reals(5.0, 9.0), steps=4), KEY.public_key)


def open_database(where: Where, document: Document = BALLOTS) -> ServerStore:
    """The database at this place, with keys that are made when it is opened for the first time."""
    if not where.keys.exists():
        ServerStore.make_keys(document, where.keys)
    return ServerStore.of(document, where.place, keys=where.keys)


def publisher_of(database: ServerStore, document: Document = BALLOTS) -> Publisher:
    return Publisher(document, database, Opener(KEY, document.formats.digest))


def sealed(name: Name, held: Iterable[Any], document: Document = BALLOTS) -> Release:
    """A release of users who hold this, and of the service's noise; other places are empty."""
    level, mechanism = document.formats.level(name[0]), document.mechanisms[name[0] - 1]
    held, random = list(held), oh.secure_random()
    users = mechanism.encode_many(held, random)
    noise, _ = mechanism.advance_noise(mechanism.start_noise(random), random)
    added = mechanism.added(noise)
    rows = [level.messages_to_bytes(one.sealed) for one in (users, added)]
    ciphertexts = document.sealer.seal(level.level, [*rows[0], *rows[1]])
    clear = np.concatenate([users.clear, added.clear]).sum(axis=0, dtype=np.uint64)
    clear &= np.uint64((1 << level.clear_bits) - 1)
    body = level.pack(b"".join(ciphertexts), clear)
    return Release(Batch(*name), level.size - len(held), body)


def full(name: Name, document: Document = BALLOTS) -> Release:
    """All of its users hold the least."""
    size = document.formats.level(name[0]).size
    return sealed(name, [document.plan.values.neutral] * size, document)


def with_ciphertexts(release: Release, others: dict[int, bytes]) -> Release:
    """The same with others in some places."""
    rows = BALLOTS.formats.level(release.batch.level).ciphertexts(release.body).copy()
    for place, ciphertext in others.items():
        rows[place] = np.frombuffer(ciphertext, np.uint8)
    return Release(release.batch, release.own, rows.tobytes())


def ciphertext(release: Release, place: int) -> bytes:
    row: bytes = (
        BALLOTS.formats.level(release.batch.level).ciphertexts(release.body)[place].tobytes()
    )
    return row


def values_of(database: ServerStore) -> dict[Batch, float]:
    return {one.batch: one.value[0] for one in database.sums(0, 100) if one.value is not None}


def take_copy(database: ServerStore) -> None:
    """All tables as they are now, under other names: as in a backup."""
    _run(database, [f"CREATE TABLE old_{table} AS SELECT * FROM {table}" for table in TABLES])


def restore_copy(database: ServerStore) -> None:
    for table in TABLES:
        _run(database, [f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM old_{table}"])


def _run(database: ServerStore, statements: list[str]) -> None:
    database._database.write(lambda writing: [writing.change(one) for one in statements])
