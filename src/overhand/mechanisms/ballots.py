"""Sums by ballots: every user sends only its value, and the shuffling service adds dummies."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, Recipe
from overhand.mechanisms.noise import LaplaceNoise
from overhand.mechanisms.parts import NoisePart, Polya, ServiceNoise
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled
from overhand.randomness import Random
from overhand.values import BITS, Values


@dataclass(frozen=True)
class BallotSum(Mechanism):
    """A user sends the number of its bucket, from 1 on, or 0 for a blank; for a bit, the bit.

    The shuffling service adds `dummies` messages to every batch before it permutes it. The number
    of those in bucket j is its noise, shifted so that it is never negative, and the rest are blank.
    So a batch shows its counts with that noise, and nothing else: the number of blanks follows from
    the counts. The server adds noise of its own to every count.

    One client, whatever it sends, moves one count by one.

    >>> from overhand.randomness import seeded_random
    >>> from overhand.shufflers import shuffle, with_added
    >>> noise = ServiceNoise(Polya(shape=1, users=1, ratio=0.5))
    >>> mechanism = BallotSum.fitted(100, noise, honest=1, distance=1e-6, values=BITS, steps=1)
    >>> mechanism.messages_per_user, mechanism.dummies, mechanism.messages_per_batch
    (1, 40, 140)
    >>> random = seeded_random(1)
    >>> batch = mechanism.encode_many([1] * 30 + [0] * 70, random).gathered(100)
    >>> (seen,) = mechanism.analyze(shuffle(with_added(batch, mechanism, random), random))
    >>> bool(abs(seen - 30) < 20)
    True
    """

    kind: ClassVar[str] = "ballots"
    rounding_share: ClassVar[float] = 0.0  # nothing is rounded
    norm_share: ClassVar[float] = 0.0
    leaks: ClassVar[bool] = True
    noise_makers: ClassVar[tuple[NoiseBy, ...]] = ("services",)
    messages_per_user: ClassVar[int] = 1

    size: int
    noise_part: ServiceNoise
    dummies: int
    values: Values = BITS
    steps: int = 1

    def __post_init__(self) -> None:
        self._check()
        if not self.values.is_whole:
            raise errors.InvalidValue(f"ballots are for bits and histograms, not for {self.values}")
        if self.noise_part.made_by != "services" or self.noise_part.bound is None:
            raise errors.InvalidValue("ballots need bounded noise, made by the services")
        least = self.values.dimension * self.noise_part.bound
        errors.whole("dummies", self.dummies, least=least, most=2 * least)

    @classmethod
    def recipes(cls, values: Values) -> list[Recipe]:
        return [Recipe(cls, laplace=1)] if values.is_whole else []

    @classmethod
    def fitted(
        cls,
        size: int,
        noise_part: NoisePart,
        *,
        honest: int,
        distance: float,
        values: Values,
        steps: int,
    ) -> BallotSum:
        """With the fewest dummies: noise, and the sum of all buckets', go beyond so rarely."""
        if not isinstance(noise_part, ServiceNoise) or not isinstance(noise_part.part, Polya):
            raise errors.InvalidValue("ballots need Laplace noise, made by the services")
        law = noise_part.part.law(1)
        bound = max(1, int(law.exact_reach(distance)))
        together = _of_all_buckets(law, values.dimension).reach(distance)
        most = values.dimension * bound
        bounded = ServiceNoise(noise_part.part, bound)
        return cls(size, bounded, most + min(most, together), values, steps)

    @classmethod
    def of_entry(cls, saved: dict[str, Any], noise: NoisePart, values: Values) -> BallotSum:
        if not isinstance(noise, ServiceNoise):
            raise errors.InvalidValue("ballots need noise made by the services")
        return cls(saved["size"], noise, saved["dummies"], values, saved["steps"])

    def entry(self) -> dict[str, Any]:
        return super().entry() | {"dummies": self.dummies}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"dummies": self.dummies}

    def columns(self) -> dict[str, float]:
        return {"messages": 1, "dummies per batch": self.dummies}

    @property
    def message_bits(self) -> int:
        return self.values.dimension.bit_length()

    @property
    def added_messages(self) -> int:  # type: ignore[override]
        return self.dummies

    @property
    def influence(self) -> float:
        """One message is one count of one bucket."""
        return 1.0

    def encode_rows(self, rows: Rows, random: Random) -> Messages:
        return Messages.of(self.values.cells(rows).astype(self._type).reshape(-1, 1))

    @property
    def _type(self) -> np.dtype[Any]:
        return np.min_scalar_type(self.values.dimension)

    def own_steps(self, messages: Messages) -> Counts:
        return self._counts(messages.sealed)

    def added(self, random: Random, batches: int = 1) -> Messages:
        """Dummies of every bucket, as many as its noise says, and blanks for the rest."""
        bound = self.noise_part.bound
        assert bound is not None
        drawn = self._drawn(random, batches) + bound
        while len(over := np.flatnonzero(drawn.sum(axis=1) > self.dummies)):
            drawn[over] = self._drawn(random, len(over)) + bound
        blanks = self.dummies - drawn.sum(axis=1, keepdims=True)
        counts = np.concatenate([blanks, drawn], axis=1)
        labels = np.tile(np.arange(1 + self.values.dimension, dtype=self._type), batches)
        return Messages.of(np.repeat(labels, counts.reshape(-1)).reshape(batches, self.dummies))

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        counts = self._counts(shuffled.sealed)
        return counts if noise is None else counts + noise

    def _counts(self, batches: NDArray[Any]) -> Counts:
        """By row and bucket."""
        kinds, rows = 1 + self.values.dimension, len(batches)
        if batches.size and int(batches.max()) >= kinds:
            raise errors.InvalidValue(f"a message is not below {kinds}")
        places = batches.astype(np.int64) + kinds * np.arange(rows)[:, np.newaxis]
        counts = np.bincount(places.reshape(-1), minlength=rows * kinds)
        return counts.reshape(rows, kinds)[:, 1:]

    @property
    def offset(self) -> float:
        """That of the dummies: the server's noise is not moved."""
        return float(self.noise_part.bound or 0)

    def repaired(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """Blanks in the place of garbage: each may have been a ballot of any bucket."""
        self._check_number(shuffled, garbage)
        (messages,) = shuffled.sealed
        known = messages[messages <= self.values.dimension]
        missing = self.messages_per_batch - len(known)
        filled = np.concatenate([known, np.zeros(missing, known.dtype)])
        return Shuffled(filled[np.newaxis], shuffled.clear), missing

    @cached_property
    def overflow_probability(self) -> float:
        """The probability that all buckets have too many dummies together, and are drawn again."""
        bound, buckets = self.noise_part.bound or 0, self.values.dimension
        if self.dummies >= 2 * buckets * bound:
            return 0.0
        law = _of_all_buckets(self.noise_part.part.law(1), buckets)
        return law.tail(self.dummies - buckets * bound)

    def leak(self, honest: int) -> float:
        """That noise is bounded is in its law; that it is drawn again, and how, is not."""
        return self.noise_part.sampling_distance + self.overflow_probability


def _of_all_buckets(law: Any, buckets: int) -> LaplaceNoise:
    """The law of the noise of all buckets together, were it not bounded."""
    return LaplaceNoise(Fraction(buckets) * law.shape, law.ratio)
