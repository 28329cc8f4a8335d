"""Sums modulo a power of two, and by shares: parts of a noisy value that mean nothing alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, MessageLayout, NoiseChoice, Wanted
from overhand.mechanisms.splitting import (
    LEAST_SHARES,
    LEAST_USERS,
    about_shares,
    fewest_shares,
    view_distance,
)
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.noise import Coins
from overhand.randomness import Random
from overhand.values import Values

MOST_MODULUS_BITS = 48
_HALF_WORD = 24
_LIKELY = 6.0  # standard deviations of noise on either side: the modulus has room for more


@dataclass(frozen=True, kw_only=True)
class ModularSum(Mechanism):
    """A user hides its steps modulo 2^modulus_bits, coordinate by coordinate.

    A batch shows their sum, and the server brings it back to the range that sums and noise have.

    >>> from overhand.mechanisms import MECHANISMS
    >>> [kind for kind, mechanism in MECHANISMS.items() if issubclass(mechanism, ModularSum)]
    ['shares', 'pairs']
    """

    parameters: ClassVar[tuple[str, ...]] = ("modulus_bits",)

    modulus_bits: int

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.whole("modulus_bits", self.modulus_bits, least=1, most=MOST_MODULUS_BITS)

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        """Laplace noise does not hide changes that are bounded in l2 alone."""
        shapes = (None, 1) if values.sensitivity.l2 is None else (None,)
        return [NoiseChoice(cls, laplace=shape) for shape in shapes]

    @classmethod
    def fit(cls, wanted: Wanted) -> dict[str, Any]:
        """The bits into which the sum and its noise fit, except with this probability."""
        largest_sum = wanted.size * int(wanted.quantizer.coordinate_steps.max())
        room = wanted.noise_share.batch_law(wanted.size).tail_quantile(wanted.distance)
        bits = (largest_sum + 2 * room).bit_length()
        if bits > MOST_MODULUS_BITS:
            raise errors.Infeasible(
                f"sums of {wanted.size} users need {bits} bits, more than {MOST_MODULUS_BITS}"
            )
        return {"modulus_bits": bits}

    @property
    def influence(self) -> float:
        """One number, chosen at will, moves the sum to wherever its sender wants."""
        return self.modulus * self.quantizer.unit

    @property
    def largest_sum(self) -> int:
        """The largest sum of steps that a coordinate can have."""
        return self.size * int(self.quantizer.coordinate_steps.max())

    @property
    def modulus(self) -> int:
        return 1 << self.modulus_bits

    @property
    def _mask(self) -> np.uint64:
        return np.uint64(self.modulus - 1)

    @cached_property
    def wrap_probability(self) -> float:
        """A bound on the probability that a coordinate's sum does not fit into the modulus."""
        return self.noise().tail(self._room) if self._room >= 0 else 1.0

    @property
    def _room(self) -> int:
        """How far noise may go on either side of the sums without leaving the modulus."""
        return (self.modulus - 1 - self.largest_sum) // 2

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "modulus_bits": self.modulus_bits,
            "wrap_probability": self.wrap_probability,
        }

    def _steps(self, rows: Rows, random: Random) -> NDArray[np.uint64]:
        """The steps of every user, a row each."""
        steps = self.quantizer.to_steps(rows, random)
        whole = steps.reshape(len(rows), self.values.dimension).astype(np.int64)
        return whole.astype(np.uint64)

    def _about_zero(self, residues: NDArray[np.uint64]) -> Counts:
        """What one user hides: its noise may be on either side of 0."""
        return self._up_to(self.modulus // 2, residues)

    def _lift(self, sums: NDArray[np.uint64], noise: Counts | None) -> Counts:
        """Residues as the whole numbers of the range, the room for noise on both sides of it."""
        if noise is not None:  # before lifting: a residue hides where it came from
            sums = sums + noise.astype(np.uint64)
        return self._up_to(self.largest_sum + self._room, sums)

    def _up_to(self, largest: int, residues: NDArray[np.uint64]) -> Counts:
        whole = (residues & self._mask).astype(np.int64)
        return np.asarray(np.where(whole > largest, whole - self.modulus, whole))


@dataclass(frozen=True, kw_only=True)
class SharesSum(ModularSum):
    """For every coordinate, a user sends `shares` numbers modulo 2^modulus_bits.

    All but one are uniform; the last makes their sum the user's steps plus its noise. The
    shuffled batch shows the sum of all, and of the rest no more than `splitting.view_distance`.
    A message of coordinate j is j 2^modulus_bits + its share.

    `honest` is how many users' shares may be counted on to hide a value.

    >>> from overhand.noise import Polya
    >>> mechanism = SharesSum.with_noise(100, Polya(1, 100, 0.5), honest=100, distance=1e-9)
    >>> mechanism.layout.messages_per_user, mechanism.modulus_bits, mechanism.variance
    (11, 8, 4.0)
    """

    kind: ClassVar[str] = "shares"
    rounding_share: ClassVar[float] = 0.01
    norm_share: ClassVar[float] = 0.003
    has_view_distance: ClassVar[bool] = True
    parameters: ClassVar[tuple[str, ...]] = ("modulus_bits", "shares", "honest")

    shares: int
    honest: int

    def __post_init__(self) -> None:
        super().__post_init__()
        errors.whole("shares", self.shares, least=2)
        errors.whole("honest", self.honest, least=1, most=self.size)
        if isinstance(self.noise_share, Coins) and not self.noise_share.opposed:
            raise errors.InvalidValue(f"the coins of {self.kind} must be opposed")

    @classmethod
    def fit(cls, wanted: Wanted) -> dict[str, Any]:
        """The fewest shares of the fewest bits for this distance."""
        fitted = super().fit(wanted)
        shares = fewest_shares(wanted.honest, fitted["modulus_bits"], wanted.distance)
        return fitted | {"shares": shares, "honest": wanted.honest}

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        users = np.maximum(LEAST_USERS, np.floor(sizes * honest)).astype(np.int64)
        sums = sizes * steps + 2 * _LIKELY * np.sqrt(variances)
        bits = np.minimum(MOST_MODULUS_BITS, np.frexp(sums)[1])
        return values.dimension * about_shares(users, bits, distance)

    def summary(self) -> dict[str, Any]:
        return super().summary() | {
            "sampling_distance": self.sampling_distance,
            "shares": self.shares,
            "view_distance": self.split_distance,
        }

    def columns(self) -> dict[str, float]:
        return {"shares per user": self.layout.messages_per_user, "bits": self.layout.message_bits}

    @cached_property
    def layout(self) -> MessageLayout:
        dimension = self.values.dimension
        bits = self.modulus_bits + (dimension - 1).bit_length()
        return MessageLayout(dimension * self.shares, bits)

    @cached_property
    def sampling_distance(self) -> float:
        """How far the noise that hides a user may be from its law, as each draws its own."""
        return self.size * self.noise_share.sampling_distance

    @cached_property
    def split_distance(self) -> float:
        """How far one coordinate of a batch is from showing its sum alone."""
        return self._split_distance(self.honest)

    def _split_distance(self, honest: int) -> float:
        if honest < LEAST_USERS or self.shares < LEAST_SHARES:
            return 1.0  # nothing is known
        return min(1.0, view_distance(honest, self.shares, self.modulus_bits))

    def view_distance(self, honest: int) -> float:
        view = self._split_distance(min(honest, self.honest))
        return view + self.sampling_distance + self.wrap_probability

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """The shares of every coordinate, side by side."""
        secrets = self._steps(rows, random)
        noise = self.noise_share.draw(random, secrets.size).reshape(secrets.shape)
        secrets += noise.astype(np.uint64)
        messages = np.empty((*secrets.shape, self.shares), np.uint64)
        free = random.words(secrets.size * (self.shares - 1), np.uint64)
        messages[..., 1:] = free.reshape(*secrets.shape, self.shares - 1)
        messages[..., 0] = secrets - messages[..., 1:].sum(axis=2, dtype=np.uint64)
        messages &= self._mask
        labels = np.arange(self.values.dimension, dtype=np.uint64) << np.uint64(self.modulus_bits)
        messages |= labels[:, np.newaxis]
        return Messages.of(messages.reshape(len(rows), self.layout.messages_per_user))

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
        return self._lift(sums, noise)

    def repair(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """Without one share the others mean nothing, nor do shares of the wrong coordinates.

        (One client that lies within the format moves a sum to wherever it wants: nothing here can
        see that.)
        """
        super().repair(shuffled, garbage)
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
