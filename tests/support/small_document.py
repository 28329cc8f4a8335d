"""A key for tests, and the document of a small plan with it."""

from __future__ import annotations

from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import Any

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import WorkerPool
from support.small_plans import REGULAR, coin_plan

KEY = KeyPair.of_raw(bytes(range(32)))


@lru_cache
def coin_document() -> Document:
    return Document(coin_plan(REGULAR), KEY.public_key)


def workers_of(pool: WorkerPool[Any]) -> list[BaseProcess]:
    """Of this pool alone: a test that kills other children breaks what other tests share."""
    return [worker for worker in (pool._executor._processes or {}).values() if worker.is_alive()]
