"""Sums by pairs: one share for each of two services that do not collude, one message per level."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import MessageLayout, byte_width, to_numbers
from overhand.mechanisms.shares import ModularSum
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled
from overhand.randomness import Random

SEED_BYTES = 16
_AT_ONCE = 1 << 20  # bytes of masks that are added up together, eight times as wide


@dataclass(frozen=True, kw_only=True)
class PairsSum(ModularSum):
    """A user seals a seed for the server, and sends its steps and noise, masked, in the clear.

    If the services make the noise, a user sends only its steps; the shuffling service adds noise to
    the sum of the masked numbers, and the server to the sum of both.

    The mask is what the seed expands to, a number modulo 2^modulus_bits for every coordinate. The
    shuffling service adds up what is masked, the server the masks, and both together have the sum
    and nothing else: a seed alone and a masked number alone are uniform. This is secure
    aggregation in the paper's tree, not the shuffle model: the order of the seeds does not matter,
    but the two services must not share what they have.

    `context` is what masks are made for: a seed has others under another document or level.

    >>> from overhand.noise import Polya
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shuffle import shuffle
    >>> mechanism = PairsSum.with_noise(100, Polya(1, 100, 0.5), honest=100, distance=1e-9)
    >>> mechanism.layout.messages_per_user, mechanism.modulus_bits, mechanism.variance
    (1, 8, 4.0)
    >>> messages = mechanism.encode_many([1] * 100, seeded_random(1))
    >>> messages.sealed.shape, messages.clear.shape  # seeds of 16 bytes, masked numbers
    ((100, 1, 16), (100, 1))
    >>> (total,) = mechanism.analyze(shuffle(messages.gather(100), seeded_random(2)))
    >>> bool(abs(total - 100) < 20)
    True
    """

    kind: ClassVar[str] = "pairs"
    is_shuffle_model: ClassVar[bool] = False
    noise_contributors: ClassVar[tuple[NoiseBy, ...]] = ("users", "services")

    context: bytes = b""

    def columns(self) -> dict[str, float]:
        return {"seeds": 1, "masked numbers": self.values.dimension, "bits each": self.modulus_bits}

    def bind_to(self, context: bytes) -> Self:
        return replace(self, context=context)

    @cached_property
    def layout(self) -> MessageLayout:
        return MessageLayout(1, 8 * SEED_BYTES, self.values.dimension, self.modulus_bits)

    def view_distance(self, honest: int) -> float:
        """That a sum wraps around is post-processing: only how noise is drawn can tell more."""
        return self.sampling_distance

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        secrets = self._secrets(rows, random)
        seeds = random.words(SEED_BYTES * len(rows), np.uint8).reshape(len(rows), 1, SEED_BYTES)
        return Messages(seeds, (secrets - self._masks(seeds)) & self._mask)

    def draw_added(self, random: Random, batches: int = 1) -> Messages:
        nothing = super().draw_added(random, batches)
        if self.noise_by == "users":
            return nothing
        return nothing._replace(clear=self._draw(random, batches).astype(np.uint64) & self._mask)

    def _masks(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The masks of every user, a row of them for each."""
        stretched = self._stretch(seeds.reshape(-1, SEED_BYTES))
        numbers = to_numbers(stretched.tobytes(), self._width)
        return numbers.reshape(-1, self.values.dimension) & self._mask

    def _stretch(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What seeds expand to, one per row: SHAKE128 of the context and the seed.

        Little-endian numbers of as many bytes as the modulus needs, for one coordinate after the
        other; higher bits than those of the modulus do not count.
        """
        length, start = self.values.dimension * self._width, hashlib.shake_128(self.context)
        stretched = []
        for seed in seeds.view(f"V{SEED_BYTES}").reshape(-1).tolist():
            generator = start.copy()
            generator.update(seed)
            stretched.append(generator.digest(length))
        return np.frombuffer(b"".join(stretched), np.uint8).reshape(-1, length)

    @property
    def _width(self) -> int:
        return byte_width(self.modulus_bits)

    def own_steps(self, messages: Messages) -> Counts:
        """A user's steps and noise, about 0: what both services know of it together."""
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
        return self._lift(clear + self._mask_sums(seeds), noise)

    def _mask_sums(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The sums of the masks of batches, byte by byte: carries come at the end, modulo 2^64."""
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
