"""Sums by ballots: every user sends only its value, and the shuffling service adds dummies."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, MessageLayout, NoiseChoice, Wanted
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled
from overhand.noise import LaplaceNoise, Polya, ServiceNoise
from overhand.randomness import Random
from overhand.values import Values


@dataclass(frozen=True)
class BallotSum(Mechanism):
    """A user sends the number of its bucket, from 1 on, or 0 for a blank; for a bit, the bit.

    The shuffling service adds `dummies` messages to every batch before it permutes it. The number
    of those in bucket j is its noise, shifted so that it is never negative, and the rest are blank.
    So a batch shows its counts with that noise, and nothing else: the number of blanks follows from
    the counts. The server adds noise of its own to every count.

    One client, whatever it sends, moves one count by one.

    >>> from overhand.randomness import seeded_random
    >>> from overhand.shuffle import shuffle, with_added
    >>> noise = ServiceNoise(Polya(shape=1, users=1, ratio=0.5))
    >>> mechanism = BallotSum.with_noise(100, noise, honest=1, distance=1e-6)
    >>> mechanism.dummies, mechanism.layout.messages_per_batch(users=100)
    (40, 140)
    >>> random = seeded_random(1)
    >>> batch = mechanism.encode_many([1] * 30 + [0] * 70, random).gather(100)
    >>> (seen,) = mechanism.analyze(shuffle(with_added(batch, mechanism, random), random))
    >>> bool(abs(seen - 30) < 20)
    True
    """

    kind: ClassVar[str] = "ballots"
    rounding_share: ClassVar[float] = 0.0  # nothing is rounded
    norm_share: ClassVar[float] = 0.0
    has_view_distance: ClassVar[bool] = True
    noise_contributors: ClassVar[tuple[NoiseBy, ...]] = ("services",)
    noise_type: ClassVar[type] = ServiceNoise
    parameters: ClassVar[tuple[str, ...]] = ("dummies",)

    noise_share: ServiceNoise
    dummies: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values.is_whole:
            raise errors.InvalidValue(f"ballots are for bits and histograms, not for {self.values}")
        if self.noise_share.made_by != "services" or self.noise_share.bound is None:
            raise errors.InvalidValue("ballots need bounded noise, made by the services")
        least = self.values.dimension * self.noise_share.bound
        errors.whole("dummies", self.dummies, least=least, most=2 * least)

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        return [NoiseChoice(cls, laplace=1)] if values.is_whole else []

    @classmethod
    def fit(cls, wanted: Wanted) -> dict[str, Any]:
        """The fewest dummies: noise, and the sum of all buckets', go beyond so rarely."""
        share = wanted.noise_share
        if not isinstance(share, ServiceNoise) or not isinstance(share.part, Polya):
            raise errors.InvalidValue("ballots need Laplace noise, made by the services")
        law, buckets = share.part.law(1), wanted.quantizer.values.dimension
        bound = max(1, int(law.exact_tail_quantile(wanted.distance)))
        together = _of_all_buckets(law, buckets).tail_quantile(wanted.distance)
        dummies = buckets * bound + min(buckets * bound, together)
        return {"noise_share": ServiceNoise(share.part, bound), "dummies": dummies}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"dummies": self.dummies}

    def columns(self) -> dict[str, float]:
        return {"messages": 1, "dummies per batch": self.dummies}

    @cached_property
    def layout(self) -> MessageLayout:
        bits = self.values.dimension.bit_length()
        return MessageLayout(1, bits, added_messages=self.dummies)

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

    def draw_added(self, random: Random, batches: int = 1) -> Messages:
        """Dummies of every bucket, as many as its noise says, and blanks for the rest."""
        bound = self.noise_share.bound
        assert bound is not None
        drawn = self._draw(random, batches) + bound
        while len(over := np.flatnonzero(drawn.sum(axis=1) > self.dummies)):
            drawn[over] = self._draw(random, len(over)) + bound
        blanks = self.dummies - drawn.sum(axis=1, keepdims=True)
        counts = np.concatenate([blanks, drawn], axis=1)
        labels = np.tile(np.arange(1 + self.values.dimension, dtype=self._type), batches)
        return Messages.of(np.repeat(labels, counts.reshape(-1)).reshape(batches, self.dummies))

    def step_sums(self, shuffled: Shuffled, noise: Counts | None = None) -> Counts:
        self._check_number(shuffled)
        counts = self._counts(shuffled.sealed)
        return counts if noise is None else counts + noise

    def _counts(self, batches: NDArray[Any]) -> Counts:
        kinds, rows = 1 + self.values.dimension, len(batches)
        if batches.size and int(batches.max()) >= kinds:
            raise errors.InvalidValue(f"a message is not below {kinds}")
        places = batches.astype(np.int64) + kinds * np.arange(rows)[:, np.newaxis]
        counts = np.bincount(places.reshape(-1), minlength=rows * kinds)
        return counts.reshape(rows, kinds)[:, 1:]

    @property
    def offset(self) -> float:
        """That of the dummies: the server's noise is not moved."""
        return float(self.noise_share.bound or 0)

    def repair(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """Blanks in the place of garbage: each may have been a ballot of any bucket."""
        self._check_number(shuffled, garbage)
        (messages,) = shuffled.sealed
        known = messages[messages <= self.values.dimension]
        missing = self.layout.messages_per_batch(self.size) - len(known)
        filled = np.concatenate([known, np.zeros(missing, known.dtype)])
        return Shuffled(filled[np.newaxis], shuffled.clear), missing

    @cached_property
    def overflow_probability(self) -> float:
        """The probability that all buckets have too many dummies together, and are drawn again."""
        bound, buckets = self.noise_share.bound or 0, self.values.dimension
        if self.dummies >= 2 * buckets * bound:
            return 0.0
        law = _of_all_buckets(self.noise_share.part.law(1), buckets)
        return law.tail(self.dummies - buckets * bound)

    def view_distance(self, honest: int) -> float:
        """That noise is bounded is in its law; that it is drawn again, and how, is not."""
        return self.noise_share.sampling_distance + self.overflow_probability


def _of_all_buckets(law: Any, buckets: int) -> LaplaceNoise:
    """The law of the noise of all buckets together, were it not bounded."""
    return LaplaceNoise(Fraction(buckets) * law.shape, law.ratio)
