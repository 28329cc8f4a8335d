"""Sums by ballots: every user sends only its value, and the shuffling service adds dummies."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.mechanisms.mechanism import Mechanism, MessageLayout, NoiseChoice, Wanted
from overhand.model import Counts, Messages, NoiseBy, Rows, Shuffled
from overhand.noise import Clip
from overhand.randomness import Random
from overhand.values import Values


@dataclass(frozen=True)
class BallotSum(Mechanism):
    """A user sends the number of its bucket, from 1 on, or 0 for a blank; for a bit, the bit.

    The shuffling service adds `dummies` messages to every block before it permutes it. The number
    of those in bucket j is its noise plus `bound`, and the rest are blank. Noise below -bound is
    clipped, and so is that of the last buckets if there are too few dummies. So a block shows its
    counts with that noise, and nothing else: the number of blanks follows from the counts. The
    server adds noise of its own, clipped likewise, to every count.

    One client, whatever it sends, moves one count by one.

    >>> from overhand.noise import CorrelatedNoise
    >>> from overhand.randomness import seeded_random
    >>> from overhand.shuffle import shuffle, with_added
    >>> noise = CorrelatedNoise.of(deviation=5.0, blocks=100)
    >>> mechanism = BallotSum.with_noise(100, noise, honest=1, distance=1e-6)
    >>> mechanism.bound, mechanism.dummies, mechanism.layout.messages_per_batch(users=100)
    (27, 54, 154)
    >>> random = seeded_random(1)
    >>> batch = mechanism.encode_many([1] * 30 + [0] * 70, random).gather(100)
    >>> own, _ = mechanism.advance_noise(mechanism.start_noise(random), random)
    >>> (seen,) = mechanism.analyze(shuffle(with_added(batch, mechanism, own), random))
    >>> int(seen) == 30 + int(own[0, 0])
    True
    """

    kind: ClassVar[str] = "ballots"
    rounding_share: ClassVar[float] = 0.0  # nothing is rounded
    norm_share: ClassVar[float] = 0.0
    has_view_distance: ClassVar[bool] = True
    adds_messages: ClassVar[bool] = True
    noise_by: ClassVar[NoiseBy] = "services"
    parameters: ClassVar[tuple[str, ...]] = ("dummies", "bound")

    dummies: int = field(kw_only=True)
    bound: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.values.is_whole:
            raise errors.InvalidValue(f"ballots are for bits and histograms, not for {self.values}")
        errors.whole("bound", self.bound, least=1)
        least = self.values.dimension * self.bound
        errors.whole("dummies", self.dummies, least=least)

    @classmethod
    def noise_choices(cls, values: Values) -> list[NoiseChoice]:
        return [NoiseChoice(cls, laplace) for laplace in (None, 1)] if values.is_whole else []

    @classmethod
    def fit(cls, wanted: Wanted) -> dict[str, Any]:
        """The fewest dummies: noise, and the sum of all buckets', go beyond so rarely."""
        share, buckets = wanted.noise_share, wanted.quantizer.values.dimension
        bound = max(1, share.law(1).least_tail_quantile(2 * wanted.distance))  # one end of two
        together = share.law(buckets).least_tail_quantile(2 * buckets * wanted.distance)
        return {"bound": bound, "dummies": buckets * bound + together}

    def summary(self) -> dict[str, Any]:
        return super().summary() | {"dummies": self.dummies, "bound": self.bound}

    def columns(self) -> dict[str, float]:
        return {"messages": 1, "dummies per block": self.dummies}

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

    @property
    def _clip(self) -> Clip:
        return self._fit_dummies

    def _fit_dummies(self, noise: Counts) -> Counts:
        """Noise that there are dummies for, bucket by bucket: the first ones have theirs first."""
        by_block = noise.reshape(-1, self.values.dimension)  # a row may have several of them
        wanted = np.maximum(by_block, -self.bound) + self.bound
        before = np.cumsum(wanted, axis=1) - wanted
        fitted = np.minimum(wanted, np.maximum(0, self.dummies - before)) - self.bound
        return np.asarray(fitted.reshape(noise.shape))

    def added(self, noise: Counts) -> Messages:
        """Dummies of every bucket, as many as its noise says, and blanks for the rest."""
        drawn = noise + self.bound
        blanks = self.dummies - drawn.sum(axis=1, keepdims=True)
        counts = np.concatenate([blanks, drawn], axis=1)
        labels = np.tile(np.arange(1 + self.values.dimension, dtype=self._type), len(noise))
        return Messages.of(np.repeat(labels, counts.reshape(-1)).reshape(-1, self.dummies))

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
        return float(self.bound)

    def repair(self, shuffled: Shuffled, garbage: int) -> tuple[Shuffled, int]:
        """Blanks in the place of garbage: each may have been a ballot of any bucket."""
        self._check_number(shuffled, garbage)
        (messages,) = shuffled.sealed
        known = messages[messages <= self.values.dimension]
        missing = self.layout.messages_per_batch(self.size) - len(known)
        filled = np.concatenate([known, np.zeros(missing, known.dtype)])
        return Shuffled(filled[np.newaxis], shuffled.clear), missing

    @cached_property
    def clip_probability(self) -> float:
        """A bound on the probability that any of the noise of one block is clipped."""
        share, buckets = self.noise_share, self.values.dimension
        too_low = buckets * share.law(1).tail(self.bound)
        too_many = share.law(buckets).tail(self.dummies - buckets * self.bound)
        return (too_low + too_many) / 2  # at one end of two

    def view_distance(self, honest: int) -> float:
        """A block shows a clipped sum with the probability that it is clipped."""
        return self.clip_probability
