"""Databases for tests: releases that need no keys, what a database must say of them, and alarms."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opened
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.publishing import Publisher, Total, _to_published
from overhand.deploy.server.store import Published, ServerStore
from overhand.sums import SumServer
from support.small_plans import coin_plan

KEY = KeyPair.of_raw(bytes(range(32)))
DOCUMENT = Document(coin_plan(oh.RegularTree(26, (2, 2, 3)), combine=True), KEY.public_key)
Name = tuple[int, int]
OWN = 1
GARBAGE = 255


def new_database(document: Document, path: Path) -> ServerStore:
    """The first and only one of this document."""
    ServerStore.make_keys(document, Path(f"{path}.keys"))
    return ServerStore.of(document, path)


class ReadsThem:
    """Opens what is not sealed: the plaintext begins a ciphertext; some cannot be opened."""

    def __init__(self, document: Document = DOCUMENT) -> None:
        self.lengths = {level.level: level.plaintext_bytes for level in document.formats.levels}
        self.opened: list[int] = []

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        self.opened.append(level)
        length = self.lengths[level]
        return [None if one[-1] == GARBAGE else one[:length] for one in ciphertexts]


def body_of(name: Name, document: Document = DOCUMENT, *, garbage: int = 0) -> bytes:
    """A release: messages drawn for this batch, each with bytes that make it the only one."""
    level = document.formats.level(name[0])
    count = level.size * level.messages
    random = np.random.default_rng([*name])
    dimension = document.plan.values.dimension
    plaintexts = level.messages_to_bytes(random.integers(0, 2 * dimension, count))
    padding = [hashlib.sha512(repr((name, i)).encode()).digest() for i in range(count)]
    length = level.ciphertext_bytes - level.plaintext_bytes - 1
    ends = [bytes([GARBAGE if place < garbage else 0]) for place in range(count)]
    return b"".join(
        plaintext + some[:length] + end
        for plaintext, some, end in zip(plaintexts, padding, ends, strict=True)
    )


def release_of(name: Name, document: Document = DOCUMENT) -> Release:
    return Release(Batch(*name), OWN, body_of(name, document))


def names_of(document: Document = DOCUMENT) -> list[Name]:
    """All batches, in the order in which they become full."""
    levels = document.formats.levels
    names = [(level.level, number) for level in levels for number in range(level.batches)]
    sizes = {level.level: level.size for level in levels}
    return sorted(names, key=lambda name: ((name[1] + 1) * sizes[name[0]], name))


NAMES = names_of()


def receive(database: ServerStore, names: Iterable[Name], document: Document = DOCUMENT) -> None:
    for name in names:
        database.receive(release_of(name, document))


def drain(publisher: Publisher) -> None:
    while publisher.step():
        pass


def replayed(database: ServerStore, document: Document = DOCUMENT) -> list[Published]:
    """What the sums of a database say should have been published."""
    taken, history = Total(SumServer(document.plan, checks=True), None), list[Published]()
    for summed in database.sums(0, 10**6):
        taken = taken.with_sums([summed])
        latest = _to_published(taken)
        if latest is not None and [latest] != history[-1:]:
            history.append(latest)
    return history


def estimates_of(database: ServerStore) -> list[Published]:
    """All that was ever published, in that order."""
    numbers = range(1, database.status().length.estimates + 1)
    found = database.read(lambda tables: [tables.estimate(number) for number in numbers])
    return [one for one in found if one is not None]


def history_of(publisher: Publisher) -> list[dict[str, Any]]:
    """The same, as it is told."""
    return [publisher._to_entry(one) for one in estimates_of(publisher._store)]


def check(database: ServerStore, names: Sequence[Name] = NAMES) -> None:
    """Every batch has one sum, the history follows from them, nothing waits."""
    sums = database.sums(0, 10**6)
    assert sorted(one.batch for one in sums) == sorted(names)
    assert estimates_of(database) == replayed(database)
    assert waiting(database) is None
    assert database.status().length.sums == database.status().length.told == len(names)


def waiting(database: ServerStore) -> Release | None:
    """The release that has waited longest and that nobody has in hand."""
    with database.claim_releases() as received:
        found = received[0] if received else None
        assert found is None or isinstance(found, Release)
        return found


def raise_alarm(database: ServerStore, words: str) -> None:
    database._write(lambda pages: pages.alarm(words))
