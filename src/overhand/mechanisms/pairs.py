"""Sums by pairs: one share for each of two services that do not collude, one message per level."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.modular import MOST_MODULUS_BITS, ModularSum
from overhand.mechanisms.parts import NoisePart
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled, byte_width, to_numbers
from overhand.randomness import Random
from overhand.values import BITS, Values

SEED_BYTES = 16
_AT_ONCE = 1 << 20  # bytes of masks that are added up together, eight times as wide


@dataclass(frozen=True)
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

    >>> from overhand.mechanisms.parts import Polya
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shufflers import shuffle
    >>> mechanism = PairsSum.fitted(100, Polya(1, 100, 0.5), honest=100, distance=1e-9)
    >>> mechanism.messages_per_user, mechanism.modulus_bits, mechanism.variance
    (1, 8, 4.0)
    >>> messages = mechanism.encode_many([1] * 100, seeded_random(1))
    >>> messages.sealed.shape, messages.clear.shape  # seeds of 16 bytes, masked numbers
    ((100, 1, 16), (100, 1))
    >>> (total,) = mechanism.analyze(shuffle(messages.gathered(100), seeded_random(2)))
    >>> bool(abs(total - 100) < 20)
    True
    """

    kind: ClassVar[str] = "pairs"
    is_shuffle_model: ClassVar[bool] = False
    noise_makers: ClassVar[tuple[NoiseBy, ...]] = ("users", "services")
    message_bits: ClassVar[int] = 8 * SEED_BYTES
    messages_per_user: ClassVar[int] = 1

    size: int
    noise_part: NoisePart
    modulus_bits: int
    values: Values = BITS
    steps: int = 1
    context: bytes = b""

    def __post_init__(self) -> None:
        self._check()

    @classmethod
    def fitted(
        cls,
        size: int,
        noise_part: NoisePart,
        *,
        honest: int,
        distance: float,
        values: Values = BITS,
        steps: int = 1,
    ) -> PairsSum:
        """That of the fewest bits: its seeds hide as much for one honest user as for many."""
        draft = cls(size, noise_part, MOST_MODULUS_BITS, values, steps)
        bits = cls.fewest_bits(draft.largest_sum, noise_part, size, distance)
        return replace(draft, modulus_bits=bits)

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> PairsSum:
        return cls(saved["size"], noise, saved["modulus_bits"], values, saved["steps"])

    def columns(self) -> dict[str, float]:
        return {"seeds": 1, "masked numbers": self.clear_numbers, "bits each": self.clear_bits}

    def bound_to(self, context: bytes) -> Self:
        return replace(self, context=context)

    @property
    def clear_numbers(self) -> int:  # type: ignore[override]
        return self.values.dimension

    @property
    def clear_bits(self) -> int:  # type: ignore[override]
        return self.modulus_bits

    def leak(self, honest: int) -> float:
        """That a sum wraps around is post-processing: only how noise is drawn can tell more."""
        return self.sampling_distance

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        secrets = self._secrets(rows, random)
        seeds = random.words(SEED_BYTES * len(rows), np.uint8).reshape(len(rows), 1, SEED_BYTES)
        return Messages(seeds, (secrets - self._masks(seeds)) & self._mask)

    def added(self, random: Random, batches: int = 1) -> Messages:
        nothing = super().added(random, batches)
        if self.noise_by == "users":
            return nothing
        return nothing._replace(clear=self._drawn(random, batches).astype(np.uint64) & self._mask)

    def _masks(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The masks of every user, a row of them for each."""
        stretched = self._stretched(seeds.reshape(-1, SEED_BYTES))
        numbers = to_numbers(stretched.tobytes(), self._width)
        return numbers.reshape(-1, self.clear_numbers) & self._mask

    def _stretched(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """What seeds expand to, one per row: SHAKE128 of the context and the seed.

        Little-endian numbers of as many bytes as the modulus needs, for one coordinate after the
        other; higher bits than those of the modulus do not count.
        """
        length, start = self.clear_numbers * self._width, hashlib.shake_128(self.context)
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
        due = (self.messages_per_batch, SEED_BYTES), (self.clear_numbers,)
        if (seeds.shape[1:], clear.shape[1:]) != due:
            raise errors.InvalidValue(
                f"a batch has seeds of shape {seeds.shape[1:]} and {clear.shape[1:]} in the clear, "
                f"not {due[0]} and {due[1]}"
            )
        return self._lifted(clear + self._mask_sums(seeds), noise)

    def _mask_sums(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """The sums of the masks of batches, byte by byte: carries come at the end, modulo 2^64."""
        batches, users = seeds.shape[:2]
        rows, length = seeds.reshape(-1, SEED_BYTES), self.clear_numbers * self._width
        places = np.zeros((batches, length), np.uint64)
        at_once = max(1, _AT_ONCE // length)
        for start in range(0, len(rows), at_once):
            stretched = self._stretched(rows[start : start + at_once])
            first = start // users
            edges = np.arange(first * users, start + len(stretched), users) - start
            edges[0] = 0
            sums = np.add.reduceat(stretched, edges, axis=0, dtype=np.uint64)
            places[first : first + len(edges)] += sums
        shifts = 8 * np.arange(self._width, dtype=np.uint64)
        by_place = places.reshape(batches, self.clear_numbers, self._width) << shifts
        return np.asarray(by_place.sum(axis=2, dtype=np.uint64))
