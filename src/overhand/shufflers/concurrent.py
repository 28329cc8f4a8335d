"""Algorithm 1: k shufflers that work at the same time, under any server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from overhand import errors
from overhand.errors import ProtocolViolation
from overhand.model import Shuffled, ShuffleMechanism
from overhand.randomness import Random
from overhand.shufflers.shuffler import Shuffler


class Server(Protocol):
    """What the server of Algorithm 1 decides: from shuffled batches alone, never from values.

    A server that lets the one shuffler there is collect four users at a time:

    >>> from overhand.mechanisms import CoinSum
    >>> from overhand.randomness import HALF, seeded_random
    >>> coins = CoinSum(size=4, noise_bits=2, noise_probability=HALF)
    >>> class FourByFour:
    ...     def activate(self, t, idle):
    ...         return {shuffler: coins for shuffler in idle}
    ...
    ...     def receive(self, t, shuffler, shuffled):
    ...         print(f"at {t}: {len(shuffled)} messages, about {coins.analyze(shuffled)} ones")
    >>> model = ConcurrentShufflers(1, FourByFour(), seeded_random(3))
    >>> for value in [1, 1, 0, 1, 0, 0, 1, 0]:
    ...     model.update(value)
    at 4: 12 messages, about 3.0 ones
    at 8: 12 messages, about 2.0 ones
    """

    def activate(self, t: int, idle: frozenset[int]) -> Mapping[int, ShuffleMechanism]:
        """Mechanisms for some of the idle shufflers, before user `t` arrives (step 1)."""

    def receive(self, t: int, shuffler: int, shuffled: Shuffled) -> None:
        """A batch that became full with user `t` (step 3)."""


class ConcurrentShufflers:
    """The concurrent shuffle model: users on one side, a server on the other.

    The server may choose every mechanism and size from what earlier batches showed it. At most
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
        # Encode for every batch before anything changes: a bad value leaves all as it was.
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
