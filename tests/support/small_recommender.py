"""A small recommender with three arms, and a service that says what it is told to."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

import overhand as oh
from overhand.bandits import Policy, Practical, plan_for_regret
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, PolicyKey
from overhand.deploy.protocol.learning import Learning, SignedPolicy
from overhand.deploy.transport import Answer
from support.loopback_system import POLICY_KEY
from support.scripted_shuffler import COUNTED

CONSTANT = 0.6
ARMS = {"left": (0.6, 0.8, 0.0), "right": (0.6, -0.8, 0.0), "other": (0.6, 0.0, 0.8)}
CONTEXTS = np.array(list(ARMS.values()))
LEARNING = Learning(
    Practical(3, CONSTANT), POLICY_KEY.public_key, ("always", "side", "other"), ARMS
)
GOOD = [0.0, 1.0, 0.0]


@lru_cache
def plan(mechanism: str = "pairs") -> oh.Plan:
    return plan_for_regret(400, 2, oh.Privacy(15.0, 1e-4), dimension=3, mechanism=mechanism)


def policy_of(theta: list[float]) -> Policy:
    return Policy(10, np.array(theta), 0.1 * np.eye(len(theta)))


class Told:
    """A service that says what it is told to, and hears reports."""

    def __init__(self, document: Document, policy: bytes | None = None) -> None:
        self.document, self.policy = document, policy
        self.reports: list[bytes] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if path == "/v1/policy":
            return Answer(404, b"") if self.policy is None else Answer(200, self.policy)
        if body is None:
            return Answer(200, self.document.to_json().encode())
        self.reports.append(body)
        return COUNTED

    async def close(self) -> None: ...


@lru_cache
def document() -> Document:
    return Document(plan(), KeyPair.of_raw(bytes(range(32))).public_key, LEARNING)


def signed_of(
    theta: list[float], number: int = 1, key: PolicyKey = POLICY_KEY, digest: bytes | None = None
) -> bytes:
    digest = document().formats.digest if digest is None else digest
    return SignedPolicy.sign(key, digest, number, policy_of(theta)).to_json().encode()
