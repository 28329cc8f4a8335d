"""Small deployments whose noise the services make, by ballots and by pairs."""

from __future__ import annotations

from functools import lru_cache

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.shuffler.batching import Arrival
from overhand.mechanisms import MECHANISMS
from overhand.noise import IndependentNoise, Polya
from overhand.planning.blocks import blocks_tree
from overhand.randomness import secure_random
from support.small_document import KEY

SIZE = 3
NOISE = IndependentNoise(Polya(shape=1, users=1, ratio=0.25), cap=8)
DISTANCE = {"ballots": 1e-3, "pairs": 1e-15}
"""Few dummies, and a modulus that no noise goes round."""


@lru_cache
def served(kind: str) -> Document:
    """Blocks of 3 bits: the noise is little, and all else as in a large deployment."""
    blocks = MECHANISMS[kind].with_noise(SIZE, NOISE, honest=1, distance=DISTANCE[kind])
    plan = oh.Plan(blocks_tree(blocks), (blocks,), oh.Privacy(4.0, 1e-2), 1, horizon=24)
    return Document(plan, KEY.public_key)


def arrivals(document: Document, values: list[int]) -> list[Arrival]:
    """Reports of these bits."""
    rows = document.plan.values.rows(values)
    bodies = encode_reports(document, rows, secure_random())
    return [Arrival.of(document.formats, body) for body in bodies]
