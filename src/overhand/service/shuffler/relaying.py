"""The rules of a recommender on their way from the server to clients.

A client talks to the shuffling service alone, so the service fetches the newest rule and hands the
same bytes to everybody. It checks them first: a client would refuse what is not signed, and would
not know whom to blame.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

from overhand.errors import ProtocolViolation
from overhand.service.protocol import Document
from overhand.service.web import Transport, Trouble, Unreachable


class Relay:
    """Has the newest rule of a document's server, as soon as somebody asks `run` to look for it."""

    def __init__(self, document: Document, server: Transport, *, tick: float) -> None:
        self._document = document
        self._server = server
        self._tick = tick
        self._number = 0
        self.newest: bytes | None = None
        """As the server signed it; None before the first."""
        self._trouble = Trouble("the server's rule cannot be fetched", "rules come again")

    async def run(self, stopping: asyncio.Event) -> None:
        """Look for a newer rule at every tick; one that cannot be had leaves the last in force."""
        while not stopping.is_set():
            try:
                await self.look()
                self._trouble.end()
            except (Unreachable, ProtocolViolation) as error:
                self._trouble.begin(str(error))
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._tick)

    async def look(self) -> None:
        """Take in the newest rule, if there is one."""
        answer = await self._server.request("GET", "/v1/policy")
        if answer.status == HTTPStatus.NOT_FOUND:  # before the first
            return
        if answer.status != HTTPStatus.OK:
            raise Unreachable(f"the server answers {answer.status}")
        if answer.body == self.newest:
            return
        rule = self._document.rule(answer.body)
        if rule.number < self._number:
            raise ProtocolViolation(f"rule {rule.number} is older than rule {self._number}")
        self._number, self.newest = rule.number, answer.body
