"""Which reports of a commit group are admitted, which batches they join, in what order they leave.

No database here: a store asks these functions what to write, inside its transaction.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue, ProtocolViolation, whole
from overhand.randomness import Random, secure_random
from overhand.service.protocol import ID_BYTES
from overhand.service.shuffler.store.batch_keys import BatchKeys
from overhand.service.shuffler.store.store import Arrival, BatchName, Lane, Outcome, Release

_MOST_BYTES = 900_000_000  # of a release: both databases keep values of up to 1 GB
_LEAST_LENGTH = 16  # bytes of a message that random ones never meet by chance
_HEAD_BYTES = 8


class Piece(NamedTuple):
    """What one commit group adds to one batch: messages in random order, no report's borders."""

    name: BatchName
    own: int
    body: bytes


def described(lanes: Sequence[Lane], horizon: int, document: str) -> str:
    """Everything that a store is made for, checked, in one line."""
    whole("horizon", horizon, least=1)
    levels = [lane.level for lane in lanes]
    if not levels or levels != sorted(set(levels)):
        raise InvalidValue(f"levels {levels} must be distinct, at least one, and lowest first")
    for lane in lanes:
        _check_lane(lane)
    shape = {"horizon": horizon, "lanes": [asdict(lane) for lane in lanes]}
    return json.dumps({"document": document, **shape})


def difference(found: str, expected: str) -> str:
    """What the store was made for, and what not, in few words."""
    before, now = json.loads(found), json.loads(expected)
    if before["document"] != now["document"]:
        return f"the document {before['document'][:12]}, not {now['document'][:12]}"
    return (
        f"{before['horizon']} reports in {before['lanes']}, not {now['horizon']} in {now['lanes']}"
    )


def _check_lane(lane: Lane) -> None:
    whole("level", lane.level, least=1)
    whole("size", lane.size, least=1)
    whole("messages", lane.messages, least=1)
    whole("length", lane.length, least=_LEAST_LENGTH)
    total = lane.size * lane.report_bytes
    if total > _MOST_BYTES:
        raise InvalidValue(
            f"a batch of level {lane.level} has {total} bytes, a store takes up to {_MOST_BYTES}"
        )


def check_arrival(arrival: Arrival, lanes: Sequence[Lane]) -> None:
    """A report has the shape of the plan, or it never touches the database."""
    lengths = [len(part) for part in arrival.parts]
    expected = [lane.report_bytes for lane in lanes]
    if lengths != expected:
        raise InvalidValue(f"parts of {lengths} bytes, expected {expected}")
    if [len(name) for name in arrival.ids] != [ID_BYTES] * len(lanes):
        raise InvalidValue(f"a report has {len(lanes)} ids of {ID_BYTES} bytes each")


class Marks(NamedTuple):
    """What the store remembers of a report, apart from its messages."""

    ids: list[bytes]
    token: list[bytes]
    """One, if the report has a token."""

    @classmethod
    def of(cls, arrival: Arrival, keys: BatchKeys) -> Marks:
        tokens = [] if arrival.token is None else [arrival.token]
        return cls(
            [keys.mark(b"part", part_id) for part_id in arrival.ids],
            [keys.mark(b"token", token) for token in tokens],
        )


def judge(
    arrivals: Sequence[Arrival],
    marks: Sequence[Marks],
    unused: set[bytes],
    arrived: int,
    horizon: int,
    lowest: int,
) -> tuple[list[Outcome], set[bytes]]:
    """What becomes of each report of a group, and the marks that none of the admitted ones uses.

    `unused` are the group's marks that nobody used before; `lowest` is the size of the smallest
    batches. A known id is looked at first, so that the retry of a report with its own token is a
    repeat.
    """
    unused, outcomes = set(unused), []
    for arrival, (ids, token) in zip(arrivals, marks, strict=True):
        if not unused.issuperset(ids):
            outcomes.append(Outcome.REPEATED)
        elif not unused.issuperset(token):
            outcomes.append(Outcome.TOKEN_USED)
        elif arrived == horizon:
            outcomes.append(Outcome.CLOSED)
        elif arrival.is_own and not _is_late(arrival.fills, arrived, lowest):
            outcomes.append(Outcome.NOT_NEEDED)
        else:
            outcomes.append(Outcome.ADMITTED)
            unused.difference_update(ids, token)
            arrived += 1
    return outcomes, unused


def _is_late(fills: int | None, arrived: int, lowest: int) -> bool:
    """Whether this is the open batch, and somebody is in it."""
    number, taken = divmod(arrived, lowest)
    return fills == number and taken > 0


def pieces(lanes: Sequence[Lane], admitted: Sequence[Arrival], arrived: int) -> Iterator[Piece]:
    """What the reports after the first `arrived` add to batches: cut exactly where one ends."""
    random = secure_random()
    for place, lane in enumerate(lanes):
        start = 0
        while start < len(admitted):
            number, taken = divmod(arrived + start, lane.size)
            reports = admitted[start : start + lane.size - taken]
            messages = _split(b"".join(report.parts[place] for report in reports), lane)
            own = sum(report.is_own for report in reports)
            yield Piece(BatchName(lane.level, number), own, permuted(messages, random).tobytes())
            start += len(reports)


def released(name: BatchName, lane: Lane, found: Sequence[Piece]) -> Release:
    """The release of a full batch: all its messages, in an order drawn now."""
    messages = _split(b"".join(piece.body for piece in found), lane)
    if len(messages) != lane.size * lane.messages:
        raise ProtocolViolation(
            f"{name} holds {len(messages)} of {lane.size * lane.messages} messages"
        )
    distinct, repeats = without_repeats(messages)
    body = permuted(distinct, secure_random()).tobytes()
    own = sum(piece.own for piece in found)
    return Release(name, body, own, hashlib.sha256(body).digest(), repeats)


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


def _split(body: bytes, lane: Lane) -> NDArray[np.uint8]:
    return np.frombuffer(body, np.uint8).reshape(-1, lane.length)
