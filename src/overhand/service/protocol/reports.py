"""From a value to a report, and from a release back to messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.model import Messages, Shuffled
from overhand.randomness import Random
from overhand.service.protocol.document import Document
from overhand.service.protocol.sealing import Opened, Opens
from overhand.service.protocol.wire import Formats, LevelFormat, Release

_AT_ONCE = 1 << 14


def encode_report(document: Document, value: Any, random: Random) -> bytes:
    """The report of a value: encoded afresh for every level, every message sealed on its own.

    Made once and sent until it is acknowledged: another report of the same value has other noise,
    counts again, and costs privacy again.
    """
    (report,) = encode_reports(document, document.plan.values.rows([value]), random)
    return report


def encode_reports(document: Document, rows: NDArray[Any], random: Random) -> list[bytes]:
    """The reports of many users, from values that were checked."""
    formats = document.formats
    levels = zip(formats.levels, document.plan.mechanisms, strict=True)
    parts = [
        _parts(document, level, mechanism.encode_rows(rows, random)) for level, mechanism in levels
    ]
    return [formats.pack_report(report) for report in zip(*parts, strict=True)]


def _parts(document: Document, level: LevelFormat, messages: Messages) -> list[bytes]:
    """The part of every user for this level."""
    ciphertexts = document.sealer.seal(level.level, level.messages_to_bytes(messages.sealed))
    starts = range(0, len(ciphertexts), level.messages)
    rows = [b"".join(ciphertexts[start : start + level.messages]) for start in starts]
    return [level.pack(row, numbers) for row, numbers in zip(rows, messages.clear, strict=True)]


def open_release(formats: Formats, release: Release, opener: Opens) -> tuple[Shuffled, int]:
    """The messages of a release that can be read, and how many cannot.

    A ciphertext that repeats another is garbage.
    """
    level = formats.level(release.batch.level)
    distinct = level.distinct(release.body)
    messages = readable(opener.open(level.level, _one_by_one(distinct)), level)
    shuffled = Shuffled(messages[np.newaxis], level.clear(release.body)[np.newaxis])
    return shuffled, level.batch_messages - len(messages)


def _one_by_one(ciphertexts: NDArray[np.void]) -> Iterator[bytes]:
    for start in range(0, len(ciphertexts), _AT_ONCE):
        yield from ciphertexts[start : start + _AT_ONCE].tolist()


def readable(opened: Iterable[Opened], level: LevelFormat) -> NDArray[np.uint64]:
    """The numbers among what was opened.

    Garbage is what did not open, has the wrong length, or is not below 2^message_bits.
    """
    plaintexts, found = iter(opened), [np.empty(0, np.uint64)]
    most = np.uint64((1 << level.message_bits) - 1)
    while some := list(islice(plaintexts, _AT_ONCE)):
        whole = [p for p in some if p is not None and len(p) == level.plaintext_bytes]
        numbers = level.bytes_to_messages(whole)
        found.append(numbers[numbers <= most])
    return np.concatenate(found)
