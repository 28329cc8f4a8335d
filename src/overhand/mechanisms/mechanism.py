"""What all shuffle mechanisms share: values become steps, steps are summed, sums return.

A new mechanism is a file with a subclass, and a line in `overhand.mechanisms.MECHANISMS`: the
search, the calibration, files, both engines, the wire, the services and the audit ask it for
everything they need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from overhand import errors
from overhand.model import Counts, Floats, Messages, NoiseBy, Rows, Shuffled
from overhand.noise import SERVICES, Clip, Noise, NoiseShare, ServiceNoise
from overhand.randomness import Random
from overhand.values import BITS, Quantizer, Values

_COINS_A_DRAW = 256


class MessageLayout(NamedTuple):
    """What every user sends to one level, and what the shuffling service adds to a batch.

    >>> MessageLayout(messages_per_user=3, message_bits=1).messages_per_batch(users=100)
    300
    """

    messages_per_user: int
    message_bits: int
    clear_numbers: int = 0
    """How many numbers a user sends in the clear: a shuffler only adds them up."""
    clear_bits: int = 0
    """They are added up modulo 2^clear_bits."""
    added_messages: int = 0
    """How many messages the shuffling service itself adds to a batch."""

    def messages_per_batch(self, users: int) -> int:
        return users * self.messages_per_user + self.added_messages


@dataclass(frozen=True)
class NoiseChoice:
    """A kind of mechanism and its noise, whose parameters calibration chooses.

    `laplace` is the shape of discrete Laplace noise, of which 1 is best for few levels and many
    are close to Gaussian noise; None stands for coins, or the services' correlated noise.

    >>> from overhand.mechanisms import MECHANISMS
    >>> from overhand.values import Bits, Vectors
    >>> for values in (Bits(), Vectors(3)):  # Laplace noise is not bounded in l2
    ...     print([choice.laplace for choice in MECHANISMS["shares"].noise_choices(values)])
    [None, 1]
    [None]
    """

    mechanism: type[Mechanism]
    laplace: int | None = None


class Wanted(NamedTuple):
    """What a mechanism is fitted to: see `Mechanism.with_noise`."""

    size: int
    noise_share: NoiseShare
    quantizer: Quantizer
    honest: int
    distance: float


@dataclass(frozen=True)
class Mechanism(ABC):
    """A shuffle mechanism for sums: public parameters only, one run per batch of `size` users.

    It is made of three parts. The `quantizer` rounds values to whole steps, afresh in every run.
    The `noise_share` is what each contributor adds. The `layout` is what their messages look like.
    A batch shows the sum of its users' steps plus noise, coordinate by coordinate, and no more.

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shuffle import shuffle
    >>> from overhand.values import Reals
    >>> random, prices = seeded_random(1), Reals(0.0, 10.0)
    >>> mechanism = CoinSum.with_variance(size=100, variance=90.0, values=prices, steps=20)
    >>> messages = mechanism.encode_many(np.full(100, 2.5), random)
    >>> (total,) = mechanism.analyze(shuffle(messages.gather(100), random))
    >>> bool((total - 250) ** 2 < 16 * mechanism.variance)
    True
    """

    kind: ClassVar[str]
    """Its name in plans and on the command line."""
    parameters: ClassVar[tuple[str, ...]] = ()
    """Those of its layout, as a plan's file names them."""
    rounding_share: ClassVar[float]
    """How much rounding may add to the variance of the noise: less where steps cost nothing."""
    norm_share: ClassVar[float]
    """How much rounding may add to a change that is bounded in l2."""
    has_view_distance: ClassVar[bool] = False
    """Whether a batch shows its sum only nearly alone, so that a part of delta is set aside."""
    is_shuffle_model: ClassVar[bool] = True
    """Whether its batches are safe only in random order, as those of the shuffle model are."""
    adds_messages: ClassVar[bool] = False
    """Whether the shuffling service adds messages to every block: few large ones are cheaper."""
    noise_by: ClassVar[NoiseBy] = "users"
    """Who makes its noise: every user a part, or each of the two services, on one level."""
    noise_type: ClassVar[type] = NoiseShare
    """What a share of its noise must be."""

    size: int
    noise_share: NoiseShare
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        # A block of the services may be empty: they make its noise.
        errors.whole("size", self.size, least=int(self.noise_by == "users"))
        _ = self.quantizer  # which checks the steps
        self._check_noise(self.noise_share)

    # What calibration asks of a kind of mechanism.

    @classmethod
    @abstractmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        """With which noise these values can be sent and accounted for; none if they cannot."""

    @classmethod
    def with_noise(
        cls, size: int, noise_share: NoiseShare, *, honest: int, distance: float,
        values: Values = BITS, steps: int = 1,
    ) -> Self:  # fmt: skip
        """The one with the fewest messages, if this many users are honest.

        `distance` is what it may show beyond the sum, if it does at all: see `view_distance`.
        """
        cls._check_noise(noise_share)
        quantizer = Quantizer(values, steps)
        fitted = cls.fit(Wanted(size, noise_share, quantizer, honest, distance))
        return cls(size, noise_share, values, steps, **fitted)

    @classmethod
    def fit(cls, wanted: Wanted) -> dict[str, Any]:
        """The parameters of its layout with the fewest messages."""
        return {}

    @classmethod
    def fewest_messages(
        cls, values: Values, steps: Counts, sizes: Floats, variances: Floats, *, honest: float,
        distance: float,
    ) -> Floats:  # fmt: skip
        """About how many messages `with_noise` has, by sizes and variances in steps."""
        return np.ones(sizes.shape)

    @classmethod
    def _check_noise(cls, noise_share: NoiseShare) -> None:
        made_by = "services" if isinstance(noise_share, ServiceNoise) else "users"
        if made_by != cls.noise_by:  # nobody would add it
            raise errors.InvalidValue(f"{cls.kind} cannot have noise made by the {made_by}")
        if not isinstance(noise_share, cls.noise_type):
            raise errors.InvalidValue(f"the noise of {cls.kind} must be {cls.noise_type.__name__}")

    # What users send, and what the two services add of their own.

    @cached_property
    def quantizer(self) -> Quantizer:
        """What turns values into whole steps, and sums of steps into sums of values."""
        return Quantizer(self.values, self.steps)

    @property
    @abstractmethod
    def layout(self) -> MessageLayout:
        """How many messages there are, and how long they are."""

    @abstractmethod
    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        """A row of messages per user, from checked values."""

    def encode_many(self, values: ArrayLike, random: Random) -> Messages:
        """A row of messages for every user, with noise of its own."""
        return self.encode_rows(self.values.rows(values), random)

    def encode(self, value: Any, random: Random) -> Messages:
        """One user's messages, as one row."""
        return self.encode_many([value], random)

    def bind_to(self, context: bytes) -> Self:
        """The same for one level of one document, if what users send depends on it."""
        return self

    @abstractmethod
    def own_steps(self, messages: Messages) -> Counts:
        """What messages say if their sender is known, by user and coordinate: for attacks."""

    @property
    @abstractmethod
    def influence(self) -> float:
        """The most that one client, whatever it sends, can add to a coordinate of a sum."""

    def start_noise(self, random: Random) -> Counts:
        """The state of one service's noise before its first block: secret, like those after it."""
        return self.service_noise.start(random, self.values.dimension)

    def advance_noise(
        self, state: Counts, random: Random, blocks: int = 1
    ) -> tuple[Counts, Counts]:
        """One service's noise of the next blocks, in steps and a row each, and the state then.

        A block's noise is drawn once, and its state replaces the one before in the same step.
        """
        return self.service_noise.advance(state, random, blocks, self._clip)

    @property
    def service_noise(self) -> ServiceNoise:
        """The noise of each of the two services."""
        if not isinstance(self.noise_share, ServiceNoise):
            raise errors.InvalidValue(f"users make the noise of {self.kind}: services have none")
        return self.noise_share

    @property
    def _clip(self) -> Clip | None:
        """What is made of a block's noise before it is used, if not everything can be sent."""
        return None

    def added(self, noise: Counts) -> Messages:
        """What the shuffling service adds to blocks for its own noise of them, a row each."""
        raise errors.InvalidValue(f"the shuffling service adds nothing to batches of {self.kind}")

    def with_users(self, users: int) -> Self:
        """The same for a batch of fewer users, whose noise does not come from them."""
        if users == self.size:
            return self
        errors.whole("users", users, least=0, most=self.size)
        if self.noise_by == "users":
            raise errors.InvalidValue(
                f"a batch of {users} users lacks the noise of {self.size} users"
            )
        return replace(self, size=users)

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
        sums = (self.step_sums(shuffled, noise) - self.offset).reshape(-1, *self.values.shape)
        return np.asarray(self.quantizer.to_values(sums, self.size), np.float64)

    def sum_of(self, shuffled: Shuffled, noise: Counts | None = None) -> Any:
        """The sum of one batch: a number, or an array of its coordinates."""
        (total,) = self.analyze(shuffled, noise)
        return float(total) if self.values.is_scalar else total

    def repair(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
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

    def _check_number(self, shuffled: Shuffled, garbage: int = 0) -> None:
        """Refuse batches that do not have the messages of `size` users."""
        garbage, found = errors.whole("garbage", garbage, least=0), shuffled.sealed.shape[1]
        if found + garbage != (due := self.layout.messages_per_batch(self.size)):
            lost = f" and {garbage} garbage" if garbage else ""
            raise errors.InvalidValue(f"{found} messages{lost} in a batch that has {due}")

    # What two services read off a block whose messages are in two parts, one for each of them.

    def mask_sums(self, seeds: NDArray[np.uint8]) -> NDArray[np.uint64]:
        """What the server knows of blocks: the sums of the masks that their sealed seeds expand to.

        A row of coordinates for every block.
        """
        raise errors.InvalidValue(f"messages of {self.kind} have no masks")

    def unmask(self, clear: NDArray[np.uint64], masks: NDArray[np.uint64], noise: Counts) -> Any:
        """The sum of one block: of what its users sent in the clear, of their masks, and noise."""
        raise errors.InvalidValue(f"messages of {self.kind} have no masks")

    # The law of a sum, and what its guarantee depends on.

    def noise(self, contributors: int | None = None) -> Noise:
        """The law of one coordinate's noise, in steps: of all who add to it, or of this many."""
        return self._whole_noise if contributors is None else self.noise_share.law(contributors)

    @cached_property
    def _whole_noise(self) -> Noise:
        return self.noise_share.batch_law(self.size)

    def honest_noise(self) -> Noise:
        """What hides a user if others are honest: the noise of all users, or of one service."""
        return self.noise(1 if self.noise_by == "services" else None)

    def view_distance(self, honest: int) -> float:
        """How far a coordinate of a batch is, in total variation, from showing its sum alone.

        If this many of its users are honest.
        """
        return 0.0

    def draw_noise(self, random: Random, batches: int) -> Floats:
        """The noise of users in the analyzed sums of this many batches, without messages."""
        count = batches * self.values.dimension
        return self.quantizer.scale(
            self.noise_share.draw_sums(random, self.size, count, exact=False)
        )

    def draw_services_noise(
        self, random: Random, blocks: int, states: Sequence[Counts] = ()
    ) -> tuple[Floats, list[Counts]]:
        """The noise of both services in the analyzed sums of the next blocks, without messages.

        `states` are theirs after the blocks before, none before the first; returns the next ones.
        """
        states = states or [self.start_noise(random) for _ in range(SERVICES)]
        both = [self.advance_noise(state, random, blocks) for state in states]
        total = np.sum([noise for noise, _ in both], axis=0, dtype=np.float64).reshape(-1)
        return self.quantizer.scale(total), [state for _, state in both]

    @property
    def draw_cost(self) -> int:
        """What it takes to draw the noise of a batch, in coins: from a table, if not one by one."""
        return _COINS_A_DRAW * self.values.dimension

    def reduce(self, part: float) -> Self:
        """The same with this part of its noise's variance: a planted fault, for an audit."""
        return replace(self, noise_share=self.noise_share.reduce(part, self.size))

    @cached_property
    def rounding_variance(self) -> float:
        """The most that rounding can add to the variance of a coordinate's sum."""
        return self.size * self.quantizer.rounding_variance

    @cached_property
    def noise_variance(self) -> float:
        """The variance of a coordinate's noise in an analyzed sum."""
        return self.noise().variance * self.quantizer.unit**2

    @property
    def variance(self) -> float:
        """The variance of a coordinate of an analyzed sum, at most, whatever the values."""
        return self.noise_variance + self.rounding_variance

    @cached_property
    def fourth_cumulant(self) -> float:
        """The fourth cumulant of a coordinate's noise in an analyzed sum."""
        return self.noise().fourth_cumulant * self.quantizer.unit**4

    def log_mgf_bound(self, s: float) -> float:
        """A bound on ln E exp(s x error) of a coordinate of an analyzed sum (Hoeffding's lemma)."""
        noise = self.noise().log_mgf_bound(s * self.quantizer.unit)
        return noise + s**2 * self.rounding_variance / 2

    # How a plan's file and its readers see it.

    def entry(self) -> dict[str, Any]:
        """The parameters, ready for JSON and without a rounded number."""
        return {
            "mechanism": self.kind,
            "size": self.size,
            "noise": self.noise_share.entry(),
            "steps": self.steps,
        } | {name: getattr(self, name) for name in self.parameters}

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoiseShare, values: Values) -> Self:
        cls._check_noise(noise)
        own = {name: saved[name] for name in cls.parameters}
        return cls(saved["size"], noise, values, saved["steps"], **own)

    def summary(self) -> dict[str, Any]:
        return {
            "mechanism": self.kind,
            "batch_size": self.size,
            **self.noise_share.summary(self.size),
            "steps": self.steps,
            "unit": self.quantizer.unit,
            "noise_variance": self.noise_variance,
            "rounding_variance": self.rounding_variance,
            "variance": self.variance,
            "messages": self.layout.messages_per_user,
            "message_bits": self.layout.message_bits,
            "influence": self.influence,
        }

    def columns(self) -> dict[str, float]:
        """What a table of levels shows of its messages, by heading."""
        return {"messages": self.layout.messages_per_user, "bits": self.layout.message_bits}


def byte_width(bits: int) -> int:
    """How many bytes a number of `bits` bits takes.

    >>> byte_width(17)
    3
    """
    return -(-bits // 8)


def to_bytes(numbers: NDArray[Any], width: int) -> bytes:
    """Little-endian numbers of `width` bytes each, one after the other.

    >>> to_bytes(np.array([1, 258]), width=2)
    b'\\x01\\x00\\x02\\x01'
    """
    words = numbers.astype("<u8").view(np.uint8).reshape(-1, 8)
    return words[:, :width].tobytes()


def to_numbers(content: bytes, width: int) -> NDArray[np.uint64]:
    """What `to_bytes` wrote.

    >>> to_numbers(b"\\x01\\x00\\x02\\x01", width=2)
    array([  1, 258], dtype=uint64)
    """
    rows = np.frombuffer(content, np.uint8).reshape(-1, width)
    words = np.zeros((len(rows), 8), np.uint8)
    words[:, :width] = rows
    return words.view("<u8").reshape(-1).astype(np.uint64)
