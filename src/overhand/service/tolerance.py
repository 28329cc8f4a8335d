"""Sums of batches in which some messages are garbage.

Nobody but the server can tell garbage, and it only when the batch is released: too late to ask
again. So a sum by coins is taken anyway, and what garbage can do to it is bounded; a sum by shares
cannot be, and its batch is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms import CoinSum, SharesSum
from overhand.model import Shuffled


class LostBatch(errors.OverhandError):
    """A batch whose sum cannot be told: its node is left out of every estimate."""


class TolerantSum(NamedTuple):
    """A batch sum, and how many messages were missing from it and counted as zeros."""

    total: Any
    missing: int


def tolerant_sum(
    mechanism: CoinSum | SharesSum, messages: NDArray[np.uint64], garbage: int
) -> TolerantSum:
    """The sum of a batch of which so many messages are garbage.

    Coins: a coordinate with too few messages is filled with zeros; of one with too many, zeros
    are dropped first and then ones. So if anyone changes any b messages of a batch at will, the
    steps of each coordinate move by at most b, those of all coordinates together by at most 2 b,
    and no garbage takes away a one of another user. A client has `messages_per_user` messages.

    Shares: without one share the others mean nothing, so `LostBatch`. (And one client that lies
    within the format moves a sum of shares to wherever it wants: nothing here can see that.)
    """
    garbage = errors.whole("garbage", garbage, least=0)
    expected = mechanism.size * mechanism.messages_per_user
    if len(messages) + garbage != expected:
        raise errors.InvalidValue(
            f"{len(messages)} messages and {garbage} garbage in a batch that has {expected}"
        )
    if isinstance(mechanism, CoinSum):
        return _coin_sum(mechanism, messages)
    return _shares_sum(mechanism, messages, garbage)


def _coin_sum(mechanism: CoinSum, messages: NDArray[np.uint64]) -> TolerantSum:
    kinds = 2 * mechanism.values.dimension
    labelled = messages[messages < kinds].astype(np.int64)
    zeros, ones = np.bincount(labelled, minlength=kinds).reshape(-1, 2).T
    places = mechanism.size * (mechanism.coordinate_steps + mechanism.noise_bits)
    missing = int(np.maximum(places - zeros - ones, 0).sum())
    ones = np.minimum(ones, places)
    counts = np.stack([places - ones, ones], axis=1).reshape(-1)
    repaired = np.repeat(np.arange(kinds, dtype=np.min_scalar_type(kinds - 1)), counts)
    return TolerantSum(mechanism.analyze(Shuffled(repaired)), missing)


def _shares_sum(mechanism: SharesSum, messages: NDArray[np.uint64], garbage: int) -> TolerantSum:
    if garbage:
        raise LostBatch(f"{garbage} shares of a batch are garbage: the rest mean nothing")
    try:
        return TolerantSum(mechanism.analyze(Shuffled(messages)), 0)
    except errors.InvalidValue as error:
        raise LostBatch(f"the shares of a batch do not fit together: {error}") from error
