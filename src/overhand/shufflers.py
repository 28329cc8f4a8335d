"""The shufflers of the concurrent shuffle model: Algorithm 1, under any server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.mechanisms import Mechanism
from overhand.model import Messages, Shuffled
from overhand.randomness import WORD_BITS, Random

__all__ = ["ConcurrentShufflers", "Server", "Shuffler", "shuffle", "with_added"]


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


class Shuffler:
    """Collects one batch and returns it in uniformly random order, once (Section 3).

    >>> from overhand.mechanisms import Coins, CoinSum
    >>> from overhand.randomness import HALF, seeded_random
    >>> random, shuffler = seeded_random(1), Shuffler()
    >>> mechanism = CoinSum(size=2, noise_part=Coins(2, HALF))
    >>> shuffler.activate(mechanism)
    >>> for user in (1, 2):
    ...     shuffler.send(user, mechanism.encode(1, random))
    >>> shuffler.is_full, shuffler.release(random).sealed.shape, shuffler.is_active
    (True, (1, 6), False)
    """

    def __init__(self) -> None:
        self._mechanism: Mechanism | None = None
        self._messages: list[Messages] = []
        self._users: set[int] = set()

    @property
    def is_active(self) -> bool:
        return self._mechanism is not None

    @property
    def is_full(self) -> bool:
        return self._mechanism is not None and len(self._users) == self._mechanism.size

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the open batch."""
        if self._mechanism is None:
            raise ProtocolViolation("an inactive shuffler has no mechanism")
        return self._mechanism

    def activate(self, mechanism: Mechanism) -> None:
        """Open a batch (Algorithm 1, step 1)."""
        if self._mechanism is not None:
            raise ProtocolViolation(
                f"the shuffler already holds {len(self._users)} of {self._mechanism.size} users"
            )
        self._mechanism = mechanism

    def send(self, user: int, messages: Messages) -> None:
        """Take one user's messages (step 2)."""
        self.send_many(range(user, user + 1), messages)

    def send_many(self, users: range, messages: Messages) -> None:
        """Take the messages of consecutive users: all of them or, on an error, none."""
        if self._mechanism is None:
            raise ProtocolViolation("messages sent to an inactive shuffler")
        size = self._mechanism.size
        if len(self._users) + len(users) > size:
            raise ProtocolViolation(
                f"{len(users)} users sent to a batch that holds {len(self._users)} of {size}"
            )
        sent = messages.sealed.shape, messages.clear.shape
        expected = (
            (len(users), self._mechanism.messages_per_user, *self._message_shape(messages)),
            (len(users), self._mechanism.clear_numbers),
        )
        if sent != expected:
            raise ProtocolViolation(
                f"messages of shape {sent[0]} and {sent[1]} in the clear sent, {expected[0]} and "
                f"{expected[1]} expected"
            )
        if not self._users.isdisjoint(users):
            twice = min(self._users.intersection(users))
            raise ProtocolViolation(f"user {twice} sent to the same batch twice")
        self._users.update(users)
        # A copy: changes by the sender do not reach it.
        self._messages.append(Messages(*(part.copy() for part in messages)))

    def _message_shape(self, messages: Messages) -> tuple[int, ...]:
        """The type of all messages of a batch: that of the first."""
        return (self._messages[0] if self._messages else messages).sealed.shape[2:]

    def release(self, random: Random) -> Shuffled:
        """The messages of the full batch in random order; the shuffler forgets them (step 3)."""
        if self._mechanism is None:
            raise ProtocolViolation("an inactive shuffler has nothing to release")
        if not self.is_full:
            raise ProtocolViolation(
                f"release at {len(self._users)} of {self._mechanism.size} users"
            )
        together = Messages.joined(self._messages).gathered(self._mechanism.size)
        # It does not look into messages: one that is too long is not truncated.
        shuffled = shuffle(with_added(together, self._mechanism, random), random)
        self._mechanism = None
        self._messages, self._users = [], set()
        return shuffled


def with_added(batches: Messages, mechanism: Mechanism, random: Random) -> Messages:
    """Batches with what the shuffling service adds to each: nothing, if users make the noise.

    Numbers in the clear are added up modulo 2^clear_bits.

    >>> from overhand.mechanisms import Coins, CoinSum
    >>> from overhand.randomness import HALF, seeded_random
    >>> batch = Messages.of(np.array([[0, 1, 1]]))
    >>> with_added(batch, CoinSum(1, Coins(2, HALF)), seeded_random(1)).sealed
    array([[0, 1, 1]])
    """
    if not (mechanism.added_messages or mechanism.clear_numbers):
        return batches
    added, sealed = mechanism.added(random, len(batches.sealed)), batches.sealed
    if mechanism.added_messages:
        sealed = np.concatenate([sealed, added.sealed], axis=1)
    # Modulo 2^clear_bits: how often the sum wrapped around must not be seen.
    return Messages(sealed, (batches.clear + added.clear) & np.uint64(2**mechanism.clear_bits - 1))


class Server(Protocol):
    """What the server of Algorithm 1 decides: from shuffled batches alone, never from values.

    A server that lets the only shuffler collect four users at a time:

    >>> from overhand.mechanisms import Coins, CoinSum
    >>> from overhand.randomness import HALF, seeded_random
    >>> coins = CoinSum(size=4, noise_part=Coins(2, HALF))
    >>> class FourByFour:
    ...     def activate(self, t, idle):
    ...         return {shuffler: coins for shuffler in idle}
    ...
    ...     def receive(self, t, shuffler, shuffled):
    ...         (ones,) = coins.analyze(shuffled)
    ...         print(f"at {t}: {shuffled.sealed.size} messages, about {ones} ones")
    >>> model = ConcurrentShufflers(1, FourByFour(), seeded_random(3))
    >>> for value in [1, 1, 0, 1, 0, 0, 1, 0]:
    ...     model.update(value)
    at 4: 12 messages, about 3.0 ones
    at 8: 12 messages, about 2.0 ones
    """

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, Mechanism]:
        """Mechanisms for some of the idle shufflers, before user `t` arrives (step 1)."""

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        """A batch that became full with user `t` (step 3)."""


class ConcurrentShufflers:
    """The concurrent shuffle model: users on one side, a server on the other.

    The server may choose every mechanism and size by what earlier batches showed. At most
    `shufflers` batches hold any one user, whatever the server chooses.

    >>> import overhand as oh
    >>> plan = oh.Plan.best(300, shufflers=2, privacy=oh.Privacy(1.0, 1e-6), tree="paper")
    >>> server = oh.TreeServer(plan)
    >>> model = ConcurrentShufflers(2, server, oh.seeded_random(1))
    >>> for _ in range(300):
    ...     model.update(1)
    >>> estimate = server.estimate(300)
    >>> abs(estimate.value - 300) < 4 * estimate.rms
    True
    """

    def __init__(self, shufflers: int, server: Server, random: Random) -> None:
        count = errors.whole("shufflers", shufflers, least=1)
        self._shufflers = tuple(Shuffler() for _ in range(count))
        self._server = server
        self._random = random
        self.t = 0

    @property
    def idle(self) -> frozenset[int]:
        """The shufflers that hold no batch, counted from 0."""
        return frozenset(i for i, s in enumerate(self._shufflers) if not s.is_active)

    def update(self, value: Any) -> None:
        """One user arrives: steps 1 to 3. The server's estimate is step 4."""
        idle = self.idle
        starting = dict(self._server.activate(self.t + 1, idle))
        if not idle.issuperset(starting):
            busy = min(set(starting) - idle)
            raise ProtocolViolation(f"shuffler {busy} is not one of the idle {sorted(idle)}")
        running = {i: s.mechanism for i, s in enumerate(self._shufflers) if s.is_active}
        # Encode for every batch before anything changes: a bad value changes nothing.
        encodings = {
            index: mechanism.encode_many([value], self._random)
            for index, mechanism in (running | starting).items()
        }
        for index, mechanism in starting.items():
            self._shufflers[index].activate(mechanism)
        self.t += 1
        for index, messages in encodings.items():
            self._shufflers[index].send(self.t, messages)
        for index, shuffler in enumerate(self._shufflers):
            if shuffler.is_full:
                self._server.receive(self.t, index, shuffler.release(self._random))
