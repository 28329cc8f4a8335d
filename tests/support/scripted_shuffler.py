"""A shuffling service in memory that answers a client as a test wants it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from overhand.deploy.protocol.document import Document
from overhand.deploy.transport import Answer

COUNTED = Answer(200, b'{"status": "counted"}')


class Service:
    """Answers reports by a rule: the number of the request so far, and its body.

    Without a document it has none to give.
    """

    def __init__(
        self,
        document: Document | None,
        answer: Callable[[int, bytes], Answer | Exception] = lambda *_: COUNTED,
    ) -> None:
        self.answer = answer
        self.document = document
        self.bodies: list[bytes] = []
        self.under_way = self.most_under_way = 0

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if path == "/v1/document":
            if self.document is None:
                return Answer(410, b"{}")
            return Answer(200, self.document.to_json().encode())
        assert (method, path) == ("POST", "/v1/reports")
        assert body is not None
        self.bodies.append(body)
        answer = self.answer(len(self.bodies), body)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None: ...
