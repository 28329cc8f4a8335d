"""A key for tests, and the document of a small plan with it."""

from __future__ import annotations

from functools import lru_cache

from overhand.service.protocol import Document, KeyPair
from support.plans import REGULAR, coin_plan

KEY = KeyPair.of_raw(bytes(range(32)))


@lru_cache
def coin_document() -> Document:
    return Document(coin_plan(REGULAR), KEY.public_key)
