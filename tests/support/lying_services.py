"""Further lies of a shuffling service, about which batches there are and who is in them."""

from __future__ import annotations

from collections.abc import Iterator

from overhand.deploy.protocol.wire import Release
from overhand.lab.audit.lying import LyingService
from overhand.randomness import Random


class LowestOnly(LyingService):
    """All batches but the lowest are dropped."""

    def _releases(self, victim: int, runs: int, random: Random) -> Iterator[Release]:
        return (one for one in super()._releases(victim, runs, random) if one.batch.level == 1)


class Alone(LyingService):
    """The victim is said to be the only one in its batch: all other places are empty."""

    is_alone = True


class Replayed(LyingService):
    """The victim's ciphertexts go into many batches, each with a noise of its own.

    The claim holds only if the server counts a message once in a plan's life.
    """

    copies = 4
