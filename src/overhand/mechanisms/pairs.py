"""Sums by pairs: one share for each of two services that do not collude, in one message."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import MessageLayout, byte_width, to_numbers
from overhand.mechanisms.shares import ModularSum
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled
from overhand.randomness import Random

SEED_BYTES = 16
_START = modes.CTR(bytes(16))
_AT_ONCE = 1 << 20  # bytes of masks that are added up together, eight times as wide


@dataclass(frozen=True, kw_only=True)
class PairsSum(ModularSum):
    """A user seals a seed for the server, and sends its steps, masked, in the clear.

    The mask is what the seed expands to, a number modulo 2^modulus_bits for every coordinate. The
    shuffling service adds up what is masked, and its noise; the server adds up the masks, and its
    own noise. Both together have the sum with both noises and nothing else: a seed alone and a
    masked number alone are uniform. This is secure aggregation, not the shuffle model: the order of
    the seeds does not matter, but the two services must not share what they have.

    `context` is what masks are made for: a seed has others under another document.

    >>> from overhand.noise import CorrelatedNoise
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shuffle import shuffle, with_added
    >>> noise = CorrelatedNoise.of(deviation=5.0, blocks=100)
    >>> mechanism = PairsSum.with_noise(100, noise, honest=100, distance=1e-9)
    >>> mechanism.layout.messages_per_user, mechanism.modulus_bits
    (1, 8)
    >>> random = seeded_random(1)
    >>> messages = mechanism.encode_many([1] * 100, random)
    >>> messages.sealed.shape, messages.clear.shape  # seeds of 16 bytes, masked numbers
    ((100, 1, 16), (100, 1))
    >>> own, _ = mechanism.advance_noise(mechanism.start_noise(random), random)
    >>> (total,) = mechanism.analyze(
    ...     shuffle(with_added(messages.gather(100), mechanism, own), random)
    ... )
    >>> int(total) == 100 + int(own[0, 0])
    True
    """

    kind: ClassVar[str] = "pairs"
    rounding_share: ClassVar[float] = 0.001
    norm_share: ClassVar[float] = 0.001
    # A sum that wraps around is post-processing: blocks have no view distance.
    is_shuffle_model: ClassVar[bool] = False
    noise_by: ClassVar[NoiseBy] = "services"

    context: bytes = b""

    def columns(self) -> dict[str, float]:
        return {"seeds": 1, "masked numbers": self.values.dimension, "bits each": self.modulus_bits}

    def bind_to(self, context: bytes) -> Self:
        return replace(self, context=context)

    @cached_property
    def layout(self) -> MessageLayout:
        return MessageLayout(1, 8 * SEED_BYTES, self.values.dimension, self.modulus_bits)

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        steps = self._steps(rows, random)
        seeds = random.words(SEED_BYTES * len(rows), np.uint8).reshape(len(rows), 1, SEED_BYTES)
        return Messages(seeds, (steps - self._masks(seeds)) & self._mask)

    def added(self, noise: Counts) -> Messages:
        """The noise, to be added to the sums of what is masked."""
        nothing = np.empty((len(noise), 0, SEED_BYTES), np.uint8)
        return Messages(nothing, noise.astype(np.uint64) & self._mask)

    def _masks(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The masks of every user, a row of them for each."""
        stretched = self._stretch(seeds.reshape(-1, SEED_BYTES))
        numbers = to_numbers(stretched.tobytes(), self._width)
        return numbers.reshape(-1, self.values.dimension) & self._mask

    def _stretch(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What seeds expand to, one per row: AES-128-CTR under a key made of context and seed.

        The key is the first half of the SHA-256 of the context and the seed, the first counter is
        0. Little-endian numbers of as many bytes as the modulus needs, for one coordinate after the
        other; higher bits than those of the modulus do not count.
        """
        length, start = self.values.dimension * self._width, hashlib.sha256(self.context)
        zeros, stretched = bytes(length), []
        for seed in seeds.view(f"V{SEED_BYTES}").reshape(-1).tolist():
            key = start.copy()
            key.update(seed)
            cipher = Cipher(algorithms.AES128(key.digest()[:SEED_BYTES]), _START)
            stretched.append(cipher.encryptor().update(zeros))
        return np.frombuffer(b"".join(stretched), np.uint8).reshape(-1, length)

    @property
    def _width(self) -> int:
        return byte_width(self.modulus_bits)

    def own_steps(self, messages: Messages) -> Counts:
        """A user's steps: what both services know of it together."""
        return self._about_zero(messages.clear + self._masks(messages.sealed))

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        """What was added up in the clear, and the masks of all seeds."""
        self._check_number(shuffled)
        seeds, clear = shuffled
        due = (self.size, SEED_BYTES), (self.values.dimension,)
        if (seeds.shape[1:], clear.shape[1:]) != due:
            raise errors.InvalidValue(
                f"a batch has seeds of shape {seeds.shape[1:]} and {clear.shape[1:]} in the clear, "
                f"not {due[0]} and {due[1]}"
            )
        return self._lift(clear + self.mask_sums(seeds), noise)

    def unmask(self, clear: NDArray[np.uint64], masks: NDArray[np.uint64], noise: Counts) -> Any:
        steps = self._lift((clear + masks)[np.newaxis], noise) - self.offset
        total = self.quantizer.to_values(steps.reshape(-1, *self.values.shape), self.size)[0]
        return float(total) if self.values.is_scalar else np.asarray(total, np.float64)

    def mask_sums(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The sums of the masks of blocks, byte by byte: carries come at the end, modulo 2^64."""
        batches, users = seeds.shape[:2]
        rows, length = seeds.reshape(-1, SEED_BYTES), self.values.dimension * self._width
        places = np.zeros((batches, length), np.uint64)
        at_once = max(1, _AT_ONCE // length)
        for start in range(0, len(rows), at_once):
            stretched = self._stretch(rows[start : start + at_once])
            first = start // users
            edges = np.arange(first * users, start + len(stretched), users) - start
            edges[0] = 0
            sums = np.add.reduceat(stretched, edges, axis=0, dtype=np.uint64)
            places[first : first + len(edges)] += sums
        shifts = 8 * np.arange(self._width, dtype=np.uint64)
        by_place = places.reshape(batches, self.values.dimension, self._width) << shifts
        return np.asarray(by_place.sum(axis=2, dtype=np.uint64))
