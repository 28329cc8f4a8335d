"""Reports that are not known to be counted."""

from __future__ import annotations

from collections.abc import Collection

from overhand.errors import ServiceError


class NotCounted(ServiceError):
    """Reports that were not counted, or may not have been.

    `reports` are their bytes: to try again, `send` those, as often as you like. Reporting the
    value again instead would cost privacy again, and might count twice. `counted` others were
    counted, and nothing that came after was encoded.

    >>> import asyncio
    >>> from overhand.service.client import AsyncClient
    >>> from overhand.service.web import Answer
    >>> class Closed:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(410, b'{"error": "all places are taken"}')
    >>> client = AsyncClient("https://shuffle.example", transport=Closed())
    >>> try:
    ...     asyncio.run(client.send(b"an encoded report"))
    ... except NotCounted as error:
    ...     print(error, error.reports)
    POST /v1/reports failed: 410: all places are taken (b'an encoded report',)
    """

    def __init__(self, words: str, reports: Collection[bytes] = (), counted: int = 0) -> None:
        super().__init__(words)
        self.reports = tuple(reports)
        self.counted = counted


class Outdated(NotCounted):
    """The service runs another plan or key now, and certainly did not count this report.

    >>> import asyncio
    >>> from overhand.service.client import AsyncClient
    >>> from overhand.service.web import Answer
    >>> class Renewed:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(409, b'{"error": "the document is another"}')
    >>> client = AsyncClient("https://shuffle.example", transport=Renewed())
    >>> asyncio.run(client.send(b"a report for the old key"))
    Traceback (most recent call last):
    overhand.service.client.failures.Outdated: POST /v1/reports failed: 409: the document is another
    """


class AlreadyReported(NotCounted):
    """A device has made all the reports that the plan allows per person, and makes no more.

    `reports` are those that are not known to be delivered: `resend` sends them. `counted` others
    were delivered.

    >>> raise AlreadyReported("1 of 1 reports is made", [b"a report that was not delivered"])
    Traceback (most recent call last):
    overhand.service.client.failures.AlreadyReported: 1 of 1 reports is made
    """
