"""Step 3 of Algorithm 1, fast: `reference.shuffle` for many batches at once.

In the family of two services, a batch also gets what the shuffling service adds to it.
"""

from __future__ import annotations

import numpy as np

from overhand.mechanisms import Mechanism
from overhand.model import Counts, Messages, Shuffled
from overhand.randomness import WORD_BITS, Random

__all__ = ["shuffle", "with_added"]


def shuffle(batches: Messages, random: Random, *, message_bits: int = WORD_BITS) -> Shuffled:
    """Permute every batch (one per row) uniformly at random, each on its own (step 3).

    This is all that a shuffler does, in a simulation, an audit or a service, where the messages
    are ciphertexts. Short messages (`message_bits`) are permuted a little faster.

    >>> from overhand.randomness import seeded_random
    >>> batches = Messages.of(np.array([[1, 2, 3, 4], [5, 6, 7, 8]]))
    >>> np.sort(shuffle(batches, seeded_random(1)).sealed)
    array([[1, 2, 3, 4],
           [5, 6, 7, 8]])
    """
    return Shuffled(random.permute_rows(batches.sealed, message_bits), batches.clear)


def with_added(batches: Messages, mechanism: Mechanism, noise: Counts) -> Messages:
    """Blocks with what the shuffling service adds to each for its noise, a row of it for each.

    Numbers in the clear are added up modulo 2^clear_bits.

    >>> from overhand.mechanisms import BallotSum
    >>> from overhand.noise import CorrelatedNoise
    >>> votes = BallotSum(3, CorrelatedNoise.of(2.0, blocks=10), dummies=4, bound=2)
    >>> with_added(Messages.of(np.array([[0, 1, 1]])), votes, np.array([[-1]])).sealed
    array([[0, 1, 1, 0, 0, 0, 1]])
    """
    added, mask = mechanism.added(noise), np.uint64(2**mechanism.layout.clear_bits - 1)
    sealed = np.concatenate([batches.sealed, added.sealed], axis=1)
    # Modulo 2^clear_bits: how often the sum wrapped around must not be seen.
    return Messages(sealed, (batches.clear + added.clear) & mask)
