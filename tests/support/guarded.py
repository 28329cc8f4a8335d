"""Books of plans whose noise the services make: releases that are really sealed, and old copies."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import overhand as oh
from overhand.mechanisms import BallotSum, Mechanism, PairsSum
from overhand.mechanisms.parts import Polya, ServiceNoise
from overhand.service.protocol import Batch, Document, Opener, Release
from overhand.service.server import Book, Publisher
from support.books import KEY, Name
from support.plans import PRIVACY
from support.stores import Where

TREE = oh.RegularTree(26, (2, 2, 3))
NOISE = ServiceNoise(Polya(shape=1, users=1, ratio=0.5))
TABLES = ("book", "releases", "stored", "unopened", "sums", "published", "levels", "alarms")


def services_plan(kind: type[Mechanism], values: oh.Values, steps: int = 1) -> oh.Plan:
    """No guarantee, but noise that is quickly drawn."""
    mechanisms = tuple(
        kind.fitted(size, NOISE, honest=1, distance=0.01, values=values, steps=steps)
        for size in TREE.sizes
    )
    return oh.Plan(TREE, mechanisms, PRIVACY, TREE.levels, combine=True)


BALLOTS = Document(services_plan(BallotSum, oh.Bits()), KEY.public_key)
PAIRS = Document(services_plan(PairsSum, oh.Reals(5.0, 9.0), steps=4), KEY.public_key)


def open_book(where: Where, document: Document = BALLOTS) -> Book:
    """The book at this place, with keys that are made when it is opened for the first time."""
    if not where.keys.exists():
        Book.make_keys(document, where.keys)
    return Book.of(document, where.place, keys=where.keys)


def publisher_of(book: Book, document: Document = BALLOTS) -> Publisher:
    return Publisher(document, book, Opener(KEY, document.formats.digest))


def sealed(name: Name, held: Iterable[Any], document: Document = BALLOTS) -> Release:
    """A release of users who hold this, and of the service's noise; other places are empty."""
    level, mechanism = document.formats.level(name[0]), document.mechanisms[name[0] - 1]
    held, random = list(held), oh.secure_random()
    users, added = mechanism.encode_many(held, random), mechanism.added(random)
    rows = [level.messages_to_bytes(one.sealed) for one in (users, added)]
    ciphertexts = document.sealer.seal(level.level, [*rows[0], *rows[1]])
    clear = level.added_up(np.concatenate([users.clear, added.clear]))
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


def values_of(book: Book) -> dict[Batch, float]:
    return {one.batch: one.value[0] for one in book.sums(0, 100) if one.value is not None}


def take_copy(book: Book) -> None:
    """All tables as they are now, under other names: as in a backup."""
    _run(book, [f"CREATE TABLE old_{table} AS SELECT * FROM {table}" for table in TABLES])


def restore_copy(book: Book) -> None:
    for table in TABLES:
        _run(book, [f"DELETE FROM {table}", f"INSERT INTO {table} SELECT * FROM old_{table}"])


def _run(book: Book, statements: list[str]) -> None:
    book._database.write(lambda writing: [writing.change(one) for one in statements])
