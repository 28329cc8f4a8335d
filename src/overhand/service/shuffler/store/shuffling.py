"""Which batches reports join, and in what order their messages leave.

No database here: a store asks these functions what to write, inside its transaction.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.errors import ProtocolViolation
from overhand.randomness import Random, secure_random
from overhand.service.protocol import Batch, LevelFormat, Release
from overhand.service.shuffler.store.arrivals import Arrival

_HEAD_BYTES = 8


class Piece(NamedTuple):
    """What one commit group adds to one batch: messages in random order, no report's borders."""

    batch: Batch
    own: int
    body: bytes


def pieces(
    levels: Sequence[LevelFormat], admitted: Sequence[Arrival], arrived: int
) -> Iterator[Piece]:
    """What the reports after the first `arrived` add to batches: cut exactly where one ends."""
    random = secure_random()
    for place, level in enumerate(levels):
        start = 0
        while start < len(admitted):
            number, taken = divmod(arrived + start, level.size)
            reports = admitted[start : start + level.size - taken]
            messages = _split(b"".join(report.parts[place] for report in reports), level)
            own = sum(report.is_own for report in reports)
            yield Piece(Batch(level.level, number), own, permuted(messages, random).tobytes())
            start += len(reports)


def released(batch: Batch, level: LevelFormat, found: Sequence[Piece]) -> Release:
    """The release of a full batch: all its messages, in an order drawn now."""
    messages = _split(b"".join(piece.body for piece in found), level)
    if len(messages) != level.size * level.messages:
        raise ProtocolViolation(
            f"{batch} holds {len(messages)} of {level.size * level.messages} messages"
        )
    distinct, repeats = without_repeats(messages)
    body = permuted(distinct, secure_random()).tobytes()
    return Release(batch, sum(piece.own for piece in found), body, repeats)


def permuted(messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
    """The same messages in uniformly random order."""
    return messages.take(random.permute(np.arange(len(messages))), axis=0)


def without_repeats(messages: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
    """One copy of equal messages stays, random bytes replace the others; and how many they are.

    Honest messages never meet: each is sealed under a fresh key. A report put together from
    messages of others must neither count them twice nor void the batch, so a copy becomes what any
    client may send anyhow: a message that nobody can open, which the server counts as such.
    """
    heads = np.ascontiguousarray(messages[:, :_HEAD_BYTES]).view(np.uint64).reshape(-1)
    values, counts = np.unique(heads, return_counts=True)
    suspects = np.flatnonzero(np.isin(heads, values[counts > 1]))
    result, seen, repeats = messages.copy(), set[bytes](), 0
    for suspect in suspects:
        message = messages[suspect].tobytes()
        if message in seen:
            result[suspect] = np.frombuffer(secrets.token_bytes(len(message)), np.uint8)
            repeats += 1
        seen.add(message)
    return result, repeats


def _split(body: bytes, level: LevelFormat) -> NDArray[np.uint8]:
    return np.frombuffer(body, np.uint8).reshape(-1, level.ciphertext_bytes)
