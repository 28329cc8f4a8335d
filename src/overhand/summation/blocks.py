"""Sums of consecutive blocks of bits, without a pass over single users."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WORD = 64
_PACKING_PAYS = 1 << 14


def prefix_sums(bits: NDArray[np.uint8], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many of the bits before each place are set.

    Bits are packed into words, words are counted, and only the words' counts are summed up: a
    sixty-fourth of the work of a running sum over users.
    """
    packed = np.packbits(bits, bitorder="little")
    words = np.zeros(len(bits) // _WORD + 1, np.uint64)
    words.view(np.uint8)[: len(packed)] = packed
    before = np.zeros(len(words), np.int64)
    np.cumsum(np.bitwise_count(words[:-1]), dtype=np.int64, out=before[1:])
    word, bit = places // _WORD, (places % _WORD).astype(np.uint64)
    inside = words[word] & ((np.uint64(1) << bit) - np.uint64(1))
    return before[word] + np.bitwise_count(inside)


def sums_after_blocks(bits: NDArray[np.uint8], size: int) -> NDArray[np.int64]:
    """How many bits are set up to the end of each block; the bits must be whole blocks."""
    if len(bits) < _PACKING_PAYS:
        return np.cumsum(bits, dtype=np.int64)[size - 1 :: size]
    return prefix_sums(bits, np.arange(size, len(bits) + 1, size))
