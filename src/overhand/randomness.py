"""Randomness: an AES-256-CTR stream for deployment, a seeded one for simulation.

Both give out integers only. A coin of probability p is a comparison of a random word with a
binary fraction, so its law is exact; no floating-point noise exists anywhere in the package.
(Values are rounded with uniform floats: the guarantee does not depend on rounding.)
"""

from __future__ import annotations

import math
import os
import secrets
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Counts, Floats

T = TypeVar("T")

WORD_BITS = 64
_WORDS = ((16, np.uint16), (32, np.uint32), (64, np.uint64))
_SIGNIFICANT_BITS = 32
_COARSE_NUMERATOR = 4000
_MANY_TRIALS = 1 << 14  # from here on counting bit by bit is cheaper than coin by coin
_SHORT_ROW = 4096  # up to here two of the 31-bit keys of a row rarely tie
_MOST_RIDING_BITS = 24  # leaves keys of 40 bits: rows of a million messages are rarely redrawn
_BLOCK_BYTES = 1 << 18  # bytes drawn from the stream at once: fits the second-level cache

_ZEROS = memoryview(bytes(_BLOCK_BYTES))


@dataclass(frozen=True)
class BinaryFraction:
    """A probability numerator / 2^bits, sampled exactly from `bits` random bits.

    >>> float(BinaryFraction(1, 1)), BinaryFraction.near(0.3)
    (0.5, BinaryFraction(numerator=1288490189, bits=32))
    """

    numerator: int
    bits: int

    def __post_init__(self) -> None:
        errors.whole("bits", self.bits, least=1, most=WORD_BITS)
        errors.whole("numerator", self.numerator, least=1, most=(1 << self.bits) - 1)

    @classmethod
    def near(cls, probability: float) -> BinaryFraction:
        """The nearest fraction with about 32 significant bits: exact as a float, too."""
        probability = errors.finite_number("probability", probability, above=0, below=1)
        _, exponent = np.frexp(probability)
        bits = min(WORD_BITS, _SIGNIFICANT_BITS - min(0, int(exponent)))
        numerator = round(probability * 2**bits)
        if not 0 < numerator < 1 << bits:
            raise errors.Infeasible(f"{probability=:g} is a certainty with {bits} bits")
        return cls(numerator, bits).reduce()

    @classmethod
    def at_least(cls, probability: float) -> BinaryFraction:
        """A fraction of at most 1/2 that is larger by at most 1 part in 4,000, and quick to sample.

        A coin costs as many random bits as the shortest machine word that its fraction fits in.

        >>> BinaryFraction.at_least(0.3), float(BinaryFraction.at_least(0.5))
        (BinaryFraction(numerator=19661, bits=16), 0.5)
        """
        probability = errors.finite_number("probability", probability, above=0, below=0.5 + 2**-30)
        for bits in (16, 32, WORD_BITS):
            numerator = math.ceil(probability * 2**bits)
            if numerator >= _COARSE_NUMERATOR:
                return cls(min(numerator, 1 << (bits - 1)), bits).reduce()
        raise errors.Infeasible(f"{probability=:g} is too small for words of {WORD_BITS} bits")

    def reduce(self) -> BinaryFraction:
        """The same number with the fewest bits."""
        numerator, bits = self.numerator, self.bits
        while bits > 1 and numerator % 2 == 0:
            numerator, bits = numerator // 2, bits - 1
        return BinaryFraction(numerator, bits)

    @property
    def complement(self) -> BinaryFraction:
        """One minus the fraction, exactly."""
        return BinaryFraction((1 << self.bits) - self.numerator, self.bits)

    @property
    def is_half(self) -> bool:
        return 2 * self.numerator == 1 << self.bits

    def __float__(self) -> float:
        return self.numerator / (1 << self.bits)


HALF = BinaryFraction(1, 1)


class Random(ABC):
    """A source of random words and what is made of them."""

    @abstractmethod
    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        """`count` uniform words of the given unsigned type."""

    @property
    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Everything needed to continue the same stream; secret if the stream is."""

    @abstractmethod
    def spawn(self, count: int) -> list[Random]:
        """`count` new streams, independent of this one and of each other."""

    def coins(self, count: int, probability: BinaryFraction) -> NDArray[np.uint8]:
        """`count` independent coins that show 1 with exactly this probability."""
        if probability.is_half:
            packed = self.words(-(-count // 8), np.uint8)
            return np.unpackbits(packed, count=count)
        width = next(word for bits, word in _WORDS if probability.bits <= bits)
        threshold = probability.numerator << (8 * np.dtype(width).itemsize - probability.bits)
        below: NDArray[np.bool_] = self.words(count, width) < width(threshold)
        return below.view(np.uint8)

    def sample(self, exact: Callable[[], T], simulated: Callable[[np.random.Generator], T]) -> T:
        """What `exact` draws from this stream; a seeded one takes NumPy's quick sampler instead."""
        return exact()

    def uniforms(self, count: int) -> Floats:
        """`count` uniform multiples of 2^-53 below 1: for rounding, never for noise."""
        return np.asarray((self.words(count, np.uint64) >> np.uint64(11)) * 2.0**-53, np.float64)

    def binomial(self, trials: int, probability: BinaryFraction, count: int) -> Counts:
        """`count` exact sums of `trials` coins."""
        if trials == 0 or count == 0:
            return np.zeros(count, np.int64)
        if probability.is_half:
            return self._fair_binomial(trials, count)
        if trials > _MANY_TRIALS:
            return np.array([self._halved_binomial(trials, probability) for _ in range(count)])
        result = np.empty(count, np.int64)
        rows = max(1, _BLOCK_BYTES // trials)
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            coins = self.coins(trials * (stop - start), probability).reshape(-1, trials)
            result[start:stop] = ones_in_rows(coins)
        return result

    def _halved_binomial(self, trials: int, probability: BinaryFraction) -> int:
        """Compare all words with the fraction at once, from the highest bit down.

        A word is below the fraction if at the first bit in which they differ it has the 0. Each
        bit settles half of the words that are still equal, so two fair bits per coin are enough.
        """
        total, equal = 0, trials
        for place in range(probability.bits - 1, -1, -1):
            if equal == 0:
                break
            ones = self._fair_count(equal)
            if probability.numerator >> place & 1:
                total, equal = total + equal - ones, ones
            else:
                equal -= ones
        return total

    def _fair_count(self, trials: int) -> int:
        packed = self.words(-(-trials // 8), np.uint8)
        return (int.from_bytes(packed.tobytes(), "little") >> (-trials % 8)).bit_count()

    def _fair_binomial(self, trials: int, count: int) -> Counts:
        """A batch of fair coins is a popcount."""
        columns = -(-trials // WORD_BITS)
        spare = np.uint64(columns * WORD_BITS - trials)
        rows = max(1, _BLOCK_BYTES // (8 * columns))
        result = np.empty(count, np.int64)
        for start in range(0, count, rows):
            stop = min(start + rows, count)
            words = self.words((stop - start) * columns, np.uint64).reshape(-1, columns)
            words[:, -1] >>= spare
            result[start:stop] = np.bitwise_count(words).sum(axis=1, dtype=np.int64)
        return result

    def permute(self, array: NDArray[Any]) -> NDArray[Any]:
        """A copy of `array` in uniformly random order along its first axis."""
        is_bits = array.ndim == 1 and array.dtype == np.uint8 and array.max(initial=0) < 2
        (permuted,) = self.permute_rows(array[np.newaxis], 1 if is_bits else WORD_BITS)
        return np.asarray(permuted)

    def permute_rows(self, rows: NDArray[Any], message_bits: int = 1) -> NDArray[Any]:
        """Permute every row of messages of this many bits uniformly at random, each on its own.

        Sorting distinct random keys is a uniform permutation. Short messages ride in the lowest
        bits of their keys, so that a plain sort does it; for long ones the keys' order is taken.
        A tie between two keys would order them by their messages: such rows are drawn again.
        """
        errors.whole("message_bits", message_bits, least=1)
        rides = message_bits <= _MOST_RIDING_BITS
        arrange = self._riding if rides else self._by_order
        result, tied = arrange(rows, message_bits)
        while tied.any():
            result[tied], still = arrange(rows[tied], message_bits)
            tied[np.flatnonzero(tied)] = still
        return result.astype(rows.dtype, copy=False)

    def _riding(self, rows: NDArray[Any], message_bits: int) -> tuple[NDArray[Any], Any]:
        """Sort keys with messages in their lowest bits; and which rows had ties."""
        narrow = message_bits == 1 and rows.shape[1] <= _SHORT_ROW
        width = np.uint32 if narrow else np.uint64
        shift, mask = width(message_bits), width((1 << message_bits) - 1)
        keys = self.words(rows.size, width).reshape(rows.shape)
        keys = np.sort((keys << shift) | rows, axis=1)
        return keys & mask, _find_ties(keys >> shift)

    def _by_order(self, rows: NDArray[Any], message_bits: int) -> tuple[NDArray[Any], Any]:
        """Take messages in the order of keys of 64 bits; and which rows had ties."""
        count, width = rows.shape[:2]
        keys = self.words(count * width, np.uint64).reshape(count, width)
        order = np.argsort(keys, axis=1)
        order += width * np.arange(count)[:, np.newaxis]
        messages = rows.reshape(count * width, *rows.shape[2:])
        return messages.take(order, axis=0), _find_ties(keys.take(order))


def ones_in_rows(bits: NDArray[np.uint8]) -> Counts:
    """How many bits of each row are set: packed and counted, several times a plain sum's speed."""
    packed = np.packbits(bits, axis=1)
    return np.asarray(np.bitwise_count(packed).sum(axis=1, dtype=np.int64))


def _find_ties(ordered: NDArray[Any]) -> NDArray[np.bool_]:
    return np.asarray((ordered[:, 1:] == ordered[:, :-1]).any(axis=1))


_live_streams: weakref.WeakSet[SecureRandom] = weakref.WeakSet()


class SecureRandom(Random):
    """An AES-256-CTR stream keyed by the operating system.

    A forked child draws a new key: two processes never share a stream.

    >>> SecureRandom().coins(3, HALF).shape
    (3,)
    """

    def __init__(self) -> None:
        self._start(secrets.token_bytes(32), 0)
        _live_streams.add(self)

    def _start(self, key: bytes, used: int) -> None:
        self._key = key
        self._used = used
        counter = (used // 16).to_bytes(16, "big")
        cipher = Cipher(algorithms.AES256(key), modes.CTR(counter))
        self._stream: CipherContext = cipher.encryptor()
        self._stream.update(bytes(used % 16))

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        length = count * np.dtype(dtype).itemsize
        self._used += length
        buffer = bytearray(length + 15)
        plain = _ZEROS[:length] if length <= _BLOCK_BYTES else bytes(length)
        self._stream.update_into(plain, buffer)
        return np.frombuffer(buffer, dtype, count)

    def spawn(self, count: int) -> list[Random]:
        return [SecureRandom() for _ in range(count)]

    @property
    def state(self) -> dict[str, Any]:
        return {"kind": "secure", "key": self._key.hex(), "used": self._used}


def _rekey_after_fork() -> None:
    for stream in list(_live_streams):
        stream._start(secrets.token_bytes(32), 0)


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_rekey_after_fork)


class SeededRandom(Random):
    """A reproducible stream, only for simulation: anyone who knows the seed sees the values."""

    def __init__(self, seed: int | np.random.Generator) -> None:
        if not isinstance(seed, np.random.Generator):
            seed = np.random.default_rng(errors.whole("seed", seed, least=0))
        if not isinstance(seed.bit_generator, np.random.PCG64):
            raise errors.InvalidValue(f"{type(seed.bit_generator).__name__} is not PCG64")
        self.generator = seed

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize
        words: NDArray[np.uint64] = np.asarray(
            self.generator.bit_generator.random_raw(-(-count * size // 8)), np.uint64
        )
        return words.view(dtype)[:count]

    def sample(self, exact: Callable[[], T], simulated: Callable[[np.random.Generator], T]) -> T:
        return simulated(self.generator)

    def uniforms(self, count: int) -> Floats:
        return self.generator.random(count)

    def binomial(self, trials: int, probability: BinaryFraction, count: int) -> Counts:
        """NumPy's sampler: quick, and as exact as its floating-point numbers."""
        return self.generator.binomial(trials, float(probability), count).astype(np.int64)

    def spawn(self, count: int) -> list[Random]:
        return [SeededRandom(generator) for generator in self.generator.spawn(count)]

    @property
    def state(self) -> dict[str, Any]:
        seeds = self.generator.bit_generator.seed_seq
        assert isinstance(seeds, np.random.SeedSequence)
        return {
            "kind": "seeded",
            "generator": self.generator.bit_generator.state,
            "entropy": seeds.entropy,
            "spawn_key": list(seeds.spawn_key),
            "children": seeds.n_children_spawned,
        }


def secure_random() -> SecureRandom:
    """Randomness for real values: never seeded, never repeated.

    >>> one, other = secure_random(), secure_random()
    >>> bool((one.words(8, np.uint64) == other.words(8, np.uint64)).any())
    False
    """
    return SecureRandom()


def seeded_random(seed: int) -> SeededRandom:
    """Randomness for simulations: the same seed gives the same run.

    >>> seeded_random(7).coins(8, HALF).tolist() == seeded_random(7).coins(8, HALF).tolist()
    True
    """
    return SeededRandom(seed)


def source_of(random: Random | None) -> Random:
    """Where noise comes from: OS randomness, unless a simulation gives a seed.

    >>> type(source_of(None)).__name__, type(source_of(seeded_random(1))).__name__
    ('SecureRandom', 'SeededRandom')
    >>> source_of(np.random.default_rng(1))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: random is of type Generator: deployed noise comes from ...
    """
    if random is None or isinstance(random, Random):
        return random or SecureRandom()
    raise errors.InvalidValue(
        f"random is of type {type(random).__name__}: deployed noise comes from OS randomness, "
        "which is the default; a simulation passes oh.seeded_random(seed)"
    )


def secure_source(random: Random | None) -> Random:
    """The same for code that is only ever deployed: a seeded stream is refused as well.

    >>> secure_source(seeded_random(1))
    Traceback (most recent call last):
    overhand.errors.InvalidValue: random is of type SeededRandom: deployed noise comes ...
    """
    if random is None or isinstance(random, SecureRandom):
        return random or SecureRandom()
    raise errors.InvalidValue(
        f"random is of type {type(random).__name__}: deployed noise comes from OS randomness, "
        "which is the default"
    )


def generator_of(random: Random) -> np.random.Generator:
    """The generator of continuous noise: only simulations have one."""
    if not isinstance(random, SeededRandom):
        raise errors.InvalidValue("continuous noise is only simulated, never deployed")
    return random.generator


def restore_random(state: dict[str, Any]) -> Random:
    """The stream that `state` was taken from, at the same position."""
    if state["kind"] == "secure":
        secure = SecureRandom()
        secure._start(bytes.fromhex(state["key"]), state["used"])
        return secure
    seeds = np.random.SeedSequence(
        state["entropy"],
        spawn_key=tuple(state["spawn_key"]),
        n_children_spawned=state["children"],
    )
    generator = np.random.Generator(np.random.PCG64(seeds))
    generator.bit_generator.state = state["generator"]
    return SeededRandom(generator)
