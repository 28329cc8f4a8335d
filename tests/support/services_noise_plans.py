"""Small deployments whose noise the services make, by ballots and by pairs."""

from __future__ import annotations

from functools import lru_cache

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.shuffler.batching import Arrival
from overhand.mechanisms import MECHANISMS, Mechanism
from overhand.noise.shares import Polya, ServiceNoise
from overhand.randomness import secure_random
from support.small_document import KEY

TREE = oh.RegularTree(24, (3, 2))
NOISE = ServiceNoise(Polya(shape=1, users=1, ratio=0.25))


DISTANCE = {"ballots": 1e-3, "pairs": 1e-15}
"""Few dummies, and a modulus that no noise goes round."""


def _fitted(kind: str, size: int) -> Mechanism:
    return MECHANISMS[kind].with_noise(
        size, NOISE, honest=1, distance=DISTANCE[kind], values=oh.Bits(), steps=1
    )


@lru_cache
def served(kind: str) -> Document:
    """Batches of 3 and of 6 bits: the noise is little, and all else as in a large deployment."""
    mechanisms = tuple(_fitted(kind, size) for size in TREE.sizes)
    return Document(oh.Plan(TREE, mechanisms, oh.Privacy(4.0, 1e-2), 2), KEY.public_key)


def arrivals(document: Document, values: list[int]) -> list[Arrival]:
    """Reports of these bits."""
    rows = document.plan.values.rows(values)
    bodies = encode_reports(document, rows, secure_random())
    return [Arrival.of(document.formats, body) for body in bodies]
