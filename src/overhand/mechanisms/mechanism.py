"""What all shuffle mechanisms share: values become steps, steps are summed, sums return.

A new mechanism is a file with a subclass, and a line in `overhand.mechanisms.MECHANISMS`: the
search, the calibration, files, both engines, the wire, the services and the audit ask it for
everything they need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from overhand import errors
from overhand.mechanisms.changes import FLOAT_MARGIN, change_of
from overhand.mechanisms.noise import Noise
from overhand.mechanisms.parts import NoisePart
from overhand.model import Change, Counts, Floats, Messages, NoiseBy, Rows, Shuffled
from overhand.randomness import Random
from overhand.values import Values

_COINS_A_DRAW = 256


@dataclass(frozen=True)
class Recipe:
    """A kind of mechanism and its noise, whose parameters calibration chooses.

    `laplace` is the shape of discrete Laplace noise, of which 1 is best for few levels and many
    are close to Gaussian noise; None stands for coins.

    >>> from overhand.mechanisms import MECHANISMS
    >>> from overhand.values import Bits, Vectors
    >>> for values in (Bits(), Vectors(3)):  # Laplace noise is not bounded in l2
    ...     print([recipe.laplace for recipe in MECHANISMS["shares"].recipes(values)])
    [None, 1]
    [None]
    """

    mechanism: type[Mechanism]
    laplace: int | None = None


class Mechanism(ABC):
    """A shuffle mechanism for sums: public parameters only, one run per batch of `size` users.

    Coordinate j of a value v becomes (v_j - low_j) / unit, rounded to a whole number of steps at
    random and without bias; the widest coordinate has `steps` of them. Every run rounds afresh.
    The batch shows the sum of its users' steps plus noise, coordinate by coordinate, and no more.

    A mechanism owns its messages: their layout, how the sum is read off them, and what garbage
    among them can do.

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shufflers import shuffle
    >>> from overhand.values import Reals
    >>> random, prices = seeded_random(1), Reals(0.0, 10.0)
    >>> mechanism = CoinSum.with_variance(size=100, variance=90.0, values=prices, steps=20)
    >>> messages = mechanism.encode_many(np.full(100, 2.5), random)
    >>> (total,) = mechanism.analyze(shuffle(messages.gathered(100), random))
    >>> bool((total - 250) ** 2 < 16 * mechanism.variance)
    True
    """

    kind: ClassVar[str]
    """Its name in plans and on the command line."""
    rounding_share: ClassVar[float]
    """How much rounding may add to the variance of the noise: less where steps cost nothing."""
    norm_share: ClassVar[float]
    """How much rounding may add to a change that is bounded in l2."""
    leaks: ClassVar[bool] = False
    """Whether a batch shows its sum only nearly alone, so that a part of delta is set aside."""
    is_shuffle_model: ClassVar[bool] = True
    """Whether its batches are safe only in random order, as those of the shuffle model are."""
    noise_makers: ClassVar[tuple[NoiseBy, ...]] = ("users",)
    """Who may make its noise."""

    size: int
    noise_part: NoisePart
    values: Values
    steps: int

    clear_numbers: int = 0
    """How many numbers a user sends in the clear: a shuffler only adds them up."""
    clear_bits: int = 0
    """They are added up modulo 2^clear_bits."""
    added_messages: int = 0
    """How many messages the shuffling service itself adds to a batch."""

    # What calibration asks of a kind of mechanism.

    @classmethod
    @abstractmethod
    def recipes(cls, values: Values) -> list[Recipe]:
        """With which noise these values can be sent and accounted for; none if they cannot."""

    @classmethod
    @abstractmethod
    def fitted(
        cls,
        size: int,
        noise_part: NoisePart,
        *,
        honest: int,
        distance: float,
        values: Values,
        steps: int,
    ) -> Self:
        """The one with the fewest messages, if this many users are honest.

        `distance` is what it may leak, if it does at all: see `leak`.
        """

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        """About how many messages `fitted` has, by sizes and variances in steps: one by default."""
        return np.ones(sizes.shape)

    # What a user sends, and what it means.

    @property
    @abstractmethod
    def messages_per_user(self) -> int:
        """The number of messages per user."""

    @property
    @abstractmethod
    def message_bits(self) -> int:
        """The number of bits per message."""

    @abstractmethod
    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """A row of messages per user, from checked values."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        """A row of messages for every user, with noise of its own."""
        return self.encode_rows(self.values.rows(values), random)

    def encode(self, value: Any, random: Random) -> Messages:
        """One user's messages, as one row."""
        return self.encode_many([value], random)

    def bound_to(self, context: bytes) -> Self:
        """The same for one level of one document, if what users send depends on it."""
        return self

    @abstractmethod
    def own_steps(self, messages: Messages) -> Counts:
        """What messages say if their sender is known, by user and coordinate: for attacks."""

    @property
    @abstractmethod
    def influence(self) -> float:
        """The most that one client, whatever it sends, can add to a coordinate of a sum."""

    # What the two services add of their own; nothing, where users make the noise.

    def added(self, random: Random, batches: int = 1) -> Messages:
        """What the shuffling service adds to batches before it permutes them, one row each."""
        return Messages.of(
            np.empty((batches, self.added_messages), np.uint64),
            np.zeros((batches, self.clear_numbers), np.uint64),
        )

    def server_noise(self, random: Random, batches: int) -> Counts | None:
        """What the server adds to the sums of this many batches, in steps, before anything else."""
        if self.noise_by == "users":
            return None
        return self._drawn(random, batches)

    def _drawn(self, random: Random, batches: int) -> Counts:
        """What one maker adds to the coordinates of this many batches, one row each."""
        drawn = self.noise_part.draw(random, batches * self.values.dimension)
        return drawn.reshape(batches, self.values.dimension)

    def with_users(self, users: int) -> Self:
        """The same for a batch of fewer users, whose noise does not come from them."""
        if users == self.size:
            return self
        errors.whole("users", users, least=1, most=self.size)
        if self.noise_by == "users":
            raise errors.InvalidValue(
                f"a batch of {users} users lacks the noise of {self.size} users"
            )
        return replace(self, size=users)  # type: ignore[type-var]

    # What the server reads off a batch.

    @abstractmethod
    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        """The noisy sums of steps of shuffled batches, by batch and coordinate.

        `noise` is the server's own.
        """

    @property
    def offset(self) -> float:
        """What the mean of the noise adds to `step_sums`."""
        return 0.0

    def analyze(self, shuffled: Shuffled, noise: Counts | None = None) -> Floats:
        """Unbiased sums of the values of shuffled batches, one per row."""
        sums = self.step_sums(shuffled, noise) - self.offset
        return np.asarray(self.value_of(sums.reshape(-1, *self.values.shape)), np.float64)

    def summed(self, shuffled: Shuffled, garbage: int, random: Random) -> tuple[Any, float]:
        """The sum of one batch with this much garbage, and how far it may be off because of it."""
        repaired, missing = self.repaired(shuffled, garbage)
        return self.sum_of(repaired, self.server_noise(random, 1)), missing * self.unit

    def sum_of(self, shuffled: Shuffled, noise: Counts | None = None) -> Any:
        """The sum of one batch: a number, or an array of its coordinates."""
        (total,) = self.analyze(shuffled, noise)
        return float(total) if self.values.is_scalar else total

    def repaired(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """One batch as `analyze` takes it, and by how many steps a coordinate may be wrong.

        Of its messages some were garbage and are missing: nobody but the server can tell, and it
        only when the batch is released, too late to ask again. If nothing can be made of the
        rest, it is a `LostBatch`.
        """
        self._check_number(shuffled, garbage)
        if garbage:
            raise errors.LostBatch(
                f"{garbage} messages of a batch are garbage: the rest mean nothing without them"
            )
        return shuffled, 0

    @property
    def messages_per_batch(self) -> int:
        return self.size * self.messages_per_user + self.added_messages

    def _check_number(self, shuffled: Shuffled, garbage: int = 0) -> None:
        """Refuse batches that do not have the messages of `size` users."""
        garbage, found = errors.whole("garbage", garbage, least=0), shuffled.sealed.shape[1]
        if found + garbage != self.messages_per_batch:
            lost = f" and {garbage} garbage" if garbage else ""
            raise errors.InvalidValue(
                f"{found} messages{lost} in a batch that has {self.messages_per_batch}"
            )

    # The law of a sum.

    @property
    def noise_by(self) -> NoiseBy:
        """Who makes the noise."""
        return self.noise_part.made_by

    def noise(self, makers: int | None = None) -> Noise:
        """The law of one coordinate's noise, in steps: of all who make it, or of this many."""
        return self._whole_noise if makers is None else self.noise_part.law(makers)

    @cached_property
    def _whole_noise(self) -> Noise:
        return self.noise_part.batch_law(self.size)

    def hiding_noise(self, honest: int | None = None) -> Noise:
        """What hides a user: the noise of this many honest users (or all), or of one service."""
        if honest is None and self.noise_by == "users":
            return self._whole_noise
        return self.noise(self.noise_part.hiders(self.size if honest is None else honest))

    def draw_noise(self, random: Random, batches: int) -> Floats:
        """The noise of the analyzed sums of this many batches, drawn without messages."""
        makers, count = self.noise_part.makers(self.size), batches * self.values.dimension
        return self.scaled(self.noise_part.draw_sums(random, makers, count, exact=False))

    @property
    def draw_cost(self) -> int:
        """What it takes to draw the noise of a batch, in coins: from a table, if not one by one."""
        return _COINS_A_DRAW * self.values.dimension

    def leak(self, honest: int) -> float:
        """How far a coordinate of a batch is, in total variation, from showing its sum alone.

        If this many of its users are honest.
        """
        return 0.0

    def reduced(self, part: float) -> Self:
        """The same with this part of its noise's variance: a planted fault, for an audit."""
        noise = self.noise_part.reduced(part, self.size)
        return replace(self, noise_part=noise)  # type: ignore[type-var]

    @cached_property
    def unit(self) -> float:
        """What one step is worth."""
        return 1.0 if self.values.is_whole else self.values.width / self.steps

    @cached_property
    def coordinate_steps(self) -> Counts:
        """How many steps each coordinate has."""
        if self.values.is_whole:
            return np.ones(self.values.dimension, np.int64)
        widths = self.values.highs - self.values.lows
        return np.ceil(widths / self.unit * (1 - FLOAT_MARGIN)).astype(np.int64)

    @cached_property
    def change(self) -> Change:
        """How far another value of one user can move the counts."""
        return change_of(self.values, self.steps)

    @cached_property
    def rounding_variance(self) -> float:
        """The most that rounding can add to the variance of a coordinate's sum."""
        return self.size * self.unit**2 * self.values.rounding

    @cached_property
    def noise_variance(self) -> float:
        """The variance of a coordinate's noise in an analyzed sum."""
        return self.noise().variance * self.unit**2

    @property
    def variance(self) -> float:
        """The variance of a coordinate of an analyzed sum, at most, whatever the values."""
        return self.noise_variance + self.rounding_variance

    @cached_property
    def fourth_cumulant(self) -> float:
        """The fourth cumulant of a coordinate's noise in an analyzed sum."""
        return self.noise().fourth_cumulant * self.unit**4

    def growth(self, s: float) -> float:
        """A bound on ln E exp(s x error) of a coordinate of an analyzed sum (Hoeffding's lemma)."""
        return self.noise().growth(s * self.unit) + s**2 * self.rounding_variance / 2

    def rounded(self, rows: Rows, random: Random) -> Rows:
        """Checked values in whole steps, as rows: rounded at random, afresh with every call."""
        return self.values.rounded(rows, self.unit, self.coordinate_steps, random)

    def steps_of(self, rows: Rows, random: Random) -> Rows:
        """The same by coordinate."""
        return self.values.coordinates(self.rounded(rows, random))

    def value_of(self, steps: Any) -> Any:
        """The sum of the values of a batch, from the sum of its steps."""
        if self.values.is_whole:
            return steps
        low = self.values.lows if self.values.shape else float(self.values.lows[0])
        return steps * self.unit + self.size * low

    def scaled(self, noise: Floats) -> Floats:
        """Noise in steps, as it stands in the analyzed sums of batches, one per row."""
        if self.unit != 1.0:
            noise *= self.unit
        return noise.reshape(-1, *self.values.shape)

    # How a plan's file and its readers see it.

    def entry(self) -> dict[str, Any]:
        """The parameters, ready for JSON and without a rounded number."""
        return {
            "mechanism": self.kind,
            "size": self.size,
            "noise": self.noise_part.entry(),
            "steps": self.steps,
        }

    @classmethod
    @abstractmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> Self:
        """The mechanism with these parameters."""

    def summary(self) -> dict[str, Any]:
        """What readers see."""
        return {
            "mechanism": self.kind,
            "batch_size": self.size,
            **self.noise_part.summary(self.size),
            "steps": self.steps,
            "unit": self.unit,
            "noise_variance": self.noise_variance,
            "rounding_variance": self.rounding_variance,
            "variance": self.variance,
            "messages": self.messages_per_user,
            "message_bits": self.message_bits,
            "influence": self.influence,
        }

    def columns(self) -> dict[str, float]:
        """What a table of levels shows of its messages, by heading."""
        return {"messages": self.messages_per_user, "bits": self.message_bits}

    def _check(self) -> None:
        errors.whole("size", self.size, least=1)
        errors.whole("steps", self.steps, least=1)
        if self.values.is_whole and self.steps != 1:
            raise errors.InvalidValue(f"steps={self.steps} must be 1 for {self.values}")
        if self.noise_by not in self.noise_makers:  # nobody would add it
            raise errors.InvalidValue(f"{self.kind} cannot have noise made by the {self.noise_by}")
