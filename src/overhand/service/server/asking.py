"""What the public asks of the book: however many ask, nobody else waits for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import TypeVar

from overhand.service.web import Refused

T = TypeVar("T")


class Questions:
    """Answers questions in a few `threads` of its own; `most` of them may wait, or be answered.

    Releases and publishing have others: strangers would fill those. A question is answered even if
    who asked has left, so connections do not limit how many there are.
    """

    def __init__(self, threads: int, most: int) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="asking")
        self._most, self._asked = most, 0

    async def answer(self, question: Callable[[], T]) -> T:
        """What the question comes to, or `Refused`."""
        if self._asked >= self._most:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions", retry=True)
        self._asked += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question)
        finally:
            self._asked -= 1
