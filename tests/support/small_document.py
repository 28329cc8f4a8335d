"""A key for tests, and the document of a small plan with it."""

from __future__ import annotations

from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import Any

from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import WorkerPool
from overhand.randomness import Random
from support.small_plans import REGULAR, coin_plan

KEY = KeyPair.of_raw(bytes(range(32)))


@lru_cache
def coin_document() -> Document:
    return Document(coin_plan(REGULAR), KEY.public_key)


def encode_report(document: Document, value: Any, random: Random) -> bytes:
    """The report of one value."""
    (report,) = encode_reports(document, document.plan.values.rows([value]), random)
    return report


def workers_of(pool: WorkerPool[Any]) -> list[BaseProcess]:
    """Of this pool alone: a test that kills other children breaks what other tests share."""
    return [worker for worker in (pool._executor._processes or {}).values() if worker.is_alive()]
