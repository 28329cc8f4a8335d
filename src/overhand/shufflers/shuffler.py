"""One shuffler: inactive, active with a mechanism, full, released once, inactive again."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from overhand.errors import ProtocolViolation
from overhand.model import Messages, Shuffled, ShuffleMechanism
from overhand.randomness import Random


class Shuffler:
    """Collects one batch and returns it in uniformly random order, once (Section 3).

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.randomness import HALF, seeded_random
    >>> random, shuffler = seeded_random(1), Shuffler()
    >>> mechanism = CoinSum(size=2, noise_bits=2, noise_probability=HALF)
    >>> shuffler.activate(mechanism)
    >>> for user in (1, 2):
    ...     shuffler.send(user, mechanism.encode(1, random))
    >>> shuffler.is_full, len(shuffler.release(random)), shuffler.is_active
    (True, 6, False)
    """

    def __init__(self) -> None:
        self._mechanism: ShuffleMechanism | None = None
        self._messages: list[NDArray[np.generic]] = []
        self._users: set[int] = set()

    @property
    def is_active(self) -> bool:
        return self._mechanism is not None

    @property
    def is_full(self) -> bool:
        return self._mechanism is not None and len(self._users) == self._mechanism.size

    @property
    def mechanism(self) -> ShuffleMechanism:
        """The mechanism of the open batch."""
        if self._mechanism is None:
            raise ProtocolViolation("an inactive shuffler has no mechanism")
        return self._mechanism

    def activate(self, mechanism: ShuffleMechanism) -> None:
        """Open a batch (Algorithm 1, step 1)."""
        if self._mechanism is not None:
            raise ProtocolViolation(
                f"the shuffler holds {len(self._users)} of {self._mechanism.size} users already"
            )
        self._mechanism = mechanism

    def send(self, user: int, messages: Messages) -> None:
        """Take one user's messages (step 2)."""
        self.send_many(range(user, user + 1), messages)

    def send_many(self, users: range, messages: Messages) -> None:
        """Take the messages of consecutive users: all of them or, on an error, none."""
        if self._mechanism is None:
            raise ProtocolViolation("messages sent to an inactive shuffler")
        size, expected = self._mechanism.size, self._mechanism.messages_per_user
        if len(self._users) + len(users) > size:
            raise ProtocolViolation(
                f"{len(users)} users sent to a batch that holds {len(self._users)} of {size}"
            )
        if messages.shape[:2] != (len(users), expected):
            raise ProtocolViolation(
                f"{messages.shape[:2]} users and messages sent, {(len(users), expected)} expected"
            )
        if self._messages and messages.shape[2:] != self._messages[0].shape[1:]:
            raise ProtocolViolation(
                f"messages of shape {messages.shape[2:]} sent to a batch of messages of shape "
                f"{self._messages[0].shape[1:]}"
            )
        if not self._users.isdisjoint(users):
            twice = min(self._users.intersection(users))
            raise ProtocolViolation(f"user {twice} sent to the same batch twice")
        self._users.update(users)
        # A copy: what was sent stays as it was sent.
        self._messages.append(np.array(messages).reshape(-1, *messages.shape[2:]))

    def release(self, random: Random) -> Shuffled:
        """The messages of the full batch in random order; the shuffler forgets them (step 3)."""
        if self._mechanism is None:
            raise ProtocolViolation("an inactive shuffler has nothing to release")
        if not self.is_full:
            raise ProtocolViolation(
                f"release at {len(self._users)} of {self._mechanism.size} users"
            )
        shuffled = random.permute(np.concatenate(self._messages))
        self._mechanism = None
        self._messages, self._users = [], set()
        return Shuffled(shuffled)
