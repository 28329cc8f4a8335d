"""A device that takes recommendations: contexts, choice and reward stay here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any, Unpack

import numpy as np
from numpy.typing import ArrayLike

from overhand.bandits import LinUCB, check_contexts, choose_arms
from overhand.deploy.client.client import AsyncClient, Client, ClientOptions
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.learning import SignedPolicy
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue, ProtocolViolation, finite_number
from overhand.model import Counts, Floats

MAX_AGE = 60.0
"""Seconds for which a policy is used before a newer one is asked for."""


class AsyncRecommenderClient(AsyncClient):
    """Chooses among arms by the newest policy, and reports what came of it.

    The policy comes from the shuffling service, and counts only if the server signed it for this
    document, and if it is no older than the last that was seen: since this program began, or ever
    if reports are `kept`. Give the document's `digest`, or that service could hand out a document
    that names a key of its own. The policy is asked for again when it is older than `max_age`
    seconds; before the first any arm is as good. One choice is reported at most once: `report`
    makes of the features of the arm that was chosen last, and of its reward, what the plan adds up,
    and forgets them.

    The arm that a person takes may be seen by others, and is not protected: only contexts and
    rewards are. Other arguments are those of `AsyncClient`.

    >>> from overhand.bandits import Practical, plan_for_regret
    >>> from overhand.model import Privacy
    >>> from overhand.deploy.protocol.keys import KeyPair, PolicyKey
    >>> from overhand.deploy.protocol.learning import Learning
    >>> from overhand.deploy.transport import Answer
    >>> plan = plan_for_regret(1000, 2, Privacy(4.0, 1e-6), dimension=2, mechanism="pairs")
    >>> learning = Learning(Practical(2, constant=0.6), PolicyKey.generate().public_key)
    >>> public = Document(plan, KeyPair.generate().public_key, learning)
    >>> class Service:  # which has no policy yet: any arm will do
    ...     reports = []
    ...
    ...     async def request(self, method, path, body=None):
    ...         if method == "GET":
    ...             return Answer(404 if path == "/v1/policy" else 200, public.to_json().encode())
    ...         self.reports.append(body)
    ...         return Answer(200, b'{"status": "counted"}')
    >>> async def visit(client):
    ...     arm = await client.choose([[0.6, 0.8], [0.6, -0.8]])
    ...     await client.report(1.0 if arm == 0 else 0.0)
    >>> url, digest = "https://shuffle.example", public.digest
    >>> asyncio.run(visit(AsyncRecommenderClient(url, digest=digest, transport=Service())))
    >>> len(Service.reports)
    1
    """

    _recommends = True

    def __init__(
        self,
        url: str,
        *,
        max_age: float = MAX_AGE,
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(url, **options)
        self._max_age = finite_number("max_age", max_age, above=0)
        self._clock = clock
        self._policy: SignedPolicy | None = None
        self._asked_at: float | None = None
        self._asking = asyncio.Lock()
        self._chosen: Floats | None = None

    async def document(self) -> Document:
        """The public document, fetched and checked once."""
        document = await super().document()
        if document.learning is None:
            raise InvalidValue(
                f"the document is of no recommender: it adds up {document.plan.values}"
            )
        return document

    async def policy(self) -> SignedPolicy | None:
        """The newest policy, asked for if the last is too old; None if there is none yet."""
        async with self._asking:  # one at a time: an answer that is overtaken would be older
            now, document = self._clock(), await self.document()
            if self._policy is not None and self._policy.digest != document.formats.digest:
                self._policy = self._asked_at = None  # that of a document which is no longer served
            if self._asked_at is None or now - self._asked_at >= self._max_age:
                answer = await self._request("GET", "/v1/policy", missing=True)
                self._policy = self._newest(document, answer)
                self._asked_at = now
            return self._policy

    def _newest(self, document: Document, answer: Answer) -> SignedPolicy | None:
        """The policy of an answer, or the last if it has none: never an older one."""
        last = self._policy
        if self._kept is not None and (seen := self._kept.policy(document)) is not None:
            last = document.policy(seen)
        if answer.status == HTTPStatus.NOT_FOUND:
            return last
        signed = document.policy(answer.body)
        if last is not None and (signed.number, signed.policy.t) < (last.number, last.policy.t):
            raise ProtocolViolation(
                f"policy {signed.number} is older than policy {last.number}, which this device has "
                "seen"
            )
        if self._kept is not None and signed != last:
            self._kept.keep_policy(document, answer.body)
        return signed

    async def choose(self, contexts: ArrayLike) -> int:
        """The arm for a person with these contexts (arms, features): which row of them to take."""
        (arm,) = await self._choose(contexts, 2, "one person's")
        return int(arm)

    async def choose_many(self, contexts: ArrayLike) -> Counts:
        """The same for many people (people, arms, features), all by one policy: for a program that
        serves them, and reports of them with `report_many`.
        """
        return await self._choose(contexts, 3, "those of many people")

    async def _choose(self, contexts: ArrayLike, axes: int, whose: str) -> Counts:
        learner = await self._learner()
        features = check_contexts(contexts, learner.dimension).astype(np.float64)
        every = features.reshape(-1, learner.dimension)
        learner.check_constant(every[:, 0], lambda arm: f"arm {arm}")  # as `choose` counts them
        learner.rows(every, np.zeros(len(every)))  # as a report of any of them will be checked
        if features.ndim != axes:
            raise InvalidValue(f"contexts of shape {features.shape} are not {whose}")
        people, signed = features.reshape(-1, *features.shape[-2:]), await self.policy()
        arms = choose_arms(None if signed is None else signed.policy, people, self._random)
        self._chosen = people[np.arange(len(people)), arms]
        return np.asarray(arms)

    async def _learner(self) -> LinUCB:
        learning = (await self.document()).learning
        assert learning is not None
        return learning.learner

    async def report(self, reward: float) -> None:
        """What came of the last choice, a number from 0 to 1; returns when it is counted."""
        await self.report_many([reward])

    async def report_many(
        self,
        rewards: Iterable[Any],
        *,
        at_once: int = 16,
        advance: Callable[[int], object] | None = None,
    ) -> int:
        """What came of the last choices, in their order; returns how many were counted."""
        learner = await self._learner()
        if self._chosen is None:
            raise ProtocolViolation("nothing was chosen that is not reported: choose first")
        rows = learner.rows(self._chosen, list(rewards))
        self._chosen = None  # from here on they count, or NotCounted has their bytes
        return await self.report_rows(rows, at_once=at_once, advance=advance)


class RecommenderClient(Client):
    """The same for programs that are not asynchronous.

    It takes the arguments of `AsyncRecommenderClient`.

    >>> client = RecommenderClient("https://shuffle.example", max_age=10.0)
    >>> client.close()
    >>> RecommenderClient("shuffle.example")
    Traceback (most recent call last):
    overhand.errors.InvalidValue: 'shuffle.example' is not an address: it starts with http:// or ...
    """

    _client: AsyncRecommenderClient

    def __init__(
        self, url: str, *, max_age: float = MAX_AGE, **options: Unpack[ClientOptions]
    ) -> None:
        self._runner = asyncio.Runner()
        self._client = AsyncRecommenderClient(url, max_age=max_age, **options)

    def policy(self) -> SignedPolicy | None:
        """The newest policy; None if there is none yet."""
        return self._run(self._client.policy())

    def choose(self, contexts: ArrayLike) -> int:
        """The arm for a person with these contexts (arms, features): which row of them to take."""
        return self._run(self._client.choose(contexts))

    def choose_many(self, contexts: ArrayLike) -> Counts:
        """The same for many people (people, arms, features), all by one policy."""
        return self._run(self._client.choose_many(contexts))
