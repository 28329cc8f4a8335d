"""Sums by shares: every user splits its noisy value into parts that mean nothing alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.modular import MOST_MODULUS_BITS, ModularSum
from overhand.mechanisms.parts import NoisePart
from overhand.mechanisms.splitting import (
    LEAST_SHARES,
    LEAST_USERS,
    about_shares,
    fewest_shares,
    view_distance,
)
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.randomness import Random
from overhand.values import BITS, Values

_HALF_WORD = 24
_TYPICAL_BITS = 24


@dataclass(frozen=True)
class SharesSum(ModularSum):
    """For every coordinate, a user sends `shares` numbers modulo 2^modulus_bits.

    All but one are uniform; the last makes their sum the user's steps plus its noise. The
    shuffled batch shows the sum of all, and of the rest no more than `splitting.view_distance`.
    A message of coordinate j is j 2^modulus_bits + its share.

    `honest` is how many users' shares may be counted on to hide a value.

    >>> from overhand.mechanisms.parts import Polya
    >>> mechanism = SharesSum.fitted(100, Polya(1, 100, 0.5), honest=100, distance=1e-9)
    >>> mechanism.messages_per_user, mechanism.modulus_bits, mechanism.variance
    (11, 8, 4.0)
    """

    kind: ClassVar[str] = "shares"

    size: int
    noise_part: NoisePart
    shares: int
    modulus_bits: int
    honest: int
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        self._check()
        errors.whole("shares", self.shares, least=2)
        errors.whole("honest", self.honest, least=1, most=self.size)

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
    ) -> SharesSum:
        """The fewest shares of the fewest bits for this distance."""
        draft = cls(size, noise_part, 2, MOST_MODULUS_BITS, honest, values, steps)
        bits = cls.fewest_bits(draft.largest_sum, noise_part, size, distance)
        shares = fewest_shares(honest, bits, distance)
        return cls(size, noise_part, shares, bits, honest, values, steps)

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        users = np.maximum(LEAST_USERS, np.floor(sizes * honest)).astype(np.int64)
        return values.dimension * about_shares(users, _TYPICAL_BITS, distance)

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> SharesSum:
        size, shares, bits = saved["size"], saved["shares"], saved["modulus_bits"]
        return cls(size, noise, shares, bits, saved["honest"], values, saved["steps"])

    def entry(self) -> dict[str, Any]:
        return super().entry() | {"shares": self.shares, "honest": self.honest}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"shares": self.shares, "view_distance": self.view_distance}

    def columns(self) -> dict[str, float]:
        return {"shares per user": self.messages_per_user, "bits": self.message_bits}

    @property
    def messages_per_user(self) -> int:
        return self.values.dimension * self.shares

    @property
    def message_bits(self) -> int:
        return self.modulus_bits + (self.values.dimension - 1).bit_length()

    @cached_property
    def view_distance(self) -> float:
        """How far one coordinate of a batch is from showing its sum alone."""
        return self._view_distance(self.honest)

    def _view_distance(self, honest: int) -> float:
        if honest < LEAST_USERS or self.shares < LEAST_SHARES:
            return 1.0  # nothing is known
        return min(1.0, view_distance(honest, self.shares, self.modulus_bits))

    def leak(self, honest: int) -> float:
        view = self._view_distance(min(honest, self.honest))
        return view + self.sampling_distance + self.wrap_probability

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """The shares of every coordinate, side by side."""
        secrets = self._secrets(rows, random)
        messages = np.empty((*secrets.shape, self.shares), np.uint64)
        free = random.words(secrets.size * (self.shares - 1), np.uint64)
        messages[..., 1:] = free.reshape(*secrets.shape, self.shares - 1)
        messages[..., 0] = secrets - messages[..., 1:].sum(axis=2, dtype=np.uint64)
        messages &= self._mask
        labels = np.arange(self.values.dimension, dtype=np.uint64) << np.uint64(self.modulus_bits)
        messages |= labels[:, np.newaxis]
        return Messages.of(messages.reshape(len(rows), self.messages_per_user))

    def own_steps(self, messages: Messages) -> Counts:
        """A user's steps and noise, about 0: what its shares add up to."""
        shares = messages.sealed.reshape(len(messages.sealed), self.values.dimension, self.shares)
        return self._about_zero((shares & self._mask).sum(axis=2, dtype=np.uint64))

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        """The sums of the shares, brought back to the range that sums and noise have."""
        self._check_number(shuffled)
        batches = shuffled.sealed
        if self.values.dimension == 1:
            if batches.size and int(batches.max()) >= self.modulus:
                raise errors.InvalidValue(f"a share is not below {self.modulus}")
            sums = batches.sum(axis=1, dtype=np.uint64).reshape(-1, 1)
        else:
            sums = np.stack([self._sums_by_coordinate(batch) for batch in batches])
        return self._lifted(sums, noise)

    def repaired(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """Without one share the others mean nothing, nor do shares of the wrong coordinates.

        (One client that lies within the format moves a sum to wherever it wants: nothing here can
        see that.)
        """
        super().repaired(shuffled, garbage)
        try:
            self.step_sums(shuffled)
        except errors.InvalidValue as error:
            raise errors.LostBatch(f"the shares of a batch do not fit together: {error}") from error
        return shuffled, 0

    def _sums_by_coordinate(self, batch: NDArray[Any]) -> NDArray[np.uint64]:
        """A batch without the right number of shares of each coordinate was tampered with."""
        dimension, bits = self.values.dimension, np.uint64(self.modulus_bits)
        labels = (batch >> bits).astype(np.int64)
        if not np.array_equal(
            np.bincount(labels, minlength=dimension), np.full(dimension, self.size * self.shares)
        ):
            raise errors.InvalidValue("the batch has shares of the wrong coordinates")
        share = batch & self._mask
        # Halves of 24 bits: their sums are exact as floats.
        low, high = share & np.uint64((1 << _HALF_WORD) - 1), share >> np.uint64(_HALF_WORD)
        sums = [np.bincount(labels, weights=half).astype(np.uint64) for half in (low, high)]
        return sums[0] + (sums[1] << np.uint64(_HALF_WORD))
