"""The reports of all users of a plan, sent as clients do, and what became of each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import httpx

from overhand.deploy.protocol.document import Document
from support.killed_processes import SECONDS, until

FORWARDED, CLIENT = "203.0.113.7", "127.0.0.2"
# An idle connection is given up before a service closes it, which it does after 5 seconds.
_LIMITS = httpx.Limits(max_connections=64, keepalive_expiry=1.0)


@dataclass
class Reports:
    """One report for every user of the plan, and what became of each."""

    document: Document
    bodies: list[bytes]
    counted: set[int] = field(default_factory=set)
    answers: Counter[int | None] = field(default_factory=Counter)

    @cached_property
    def parts(self) -> list[tuple[bytes, ...]]:
        return [self.document.formats.unpack_report(body).parts for body in self.bodies]

    def ciphertexts(self, user: int, level: int) -> list[bytes]:
        shape = self.document.formats.level(level)
        part, length = self.parts[user][level - 1], shape.ciphertext_bytes
        return [part[start : start + length] for start in range(0, len(part), length)]

    @property
    def rest(self) -> list[int]:
        return [user for user in range(len(self.bodies)) if user not in self.counted]

    def send(self, url: str, users: Sequence[int] | None = None, **options: Any) -> None:
        """Send the reports of these users, or of all that were not counted, once each."""
        asyncio.run(self.sending(url, self.rest if users is None else users, **options))

    def send_until_counted(self, url: str, seconds: float = SECONDS) -> None:
        """As clients do: again and again, the same bytes."""

        def all_counted() -> bool:
            self.send(url)
            return not self.rest

        until("all reports are counted", all_counted, seconds)

    async def sending(
        self, url: str, users: Sequence[int], at_once: int = 6, copies: Sequence[str] = ()
    ) -> None:
        """`copies` are other addresses to which every report goes at the same time."""
        limit = asyncio.Semaphore(at_once)
        headers = {"x-forwarded-for": FORWARDED, "content-type": "application/octet-stream"}
        way = httpx.AsyncHTTPTransport(verify=False, local_address=CLIENT, limits=_LIMITS)
        async with httpx.AsyncClient(timeout=SECONDS, headers=headers, transport=way) as web:

            async def one(user: int, to: str) -> None:
                async with limit:
                    try:
                        answer = await web.post(f"{to}/v1/reports", content=self.bodies[user])
                    except httpx.TransportError:
                        self.answers[None] += 1
                        return
                self.answers[answer.status_code] += 1
                if answer.status_code == 200:
                    self.counted.add(user)
                if answer.status_code in (429, 503):
                    assert int(answer.headers["retry-after"]) > 0

            await asyncio.gather(*(one(user, to) for user in users for to in (url, *copies)))
