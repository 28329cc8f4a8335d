"""Books for tests: what waits in one, and alarms."""

from __future__ import annotations

from overhand.service.server.book import Book
from overhand.service.server.pages import Received


def waiting(book: Book) -> Received | None:
    """The release that has waited longest and that nobody has in hand."""
    with book.claimed() as received:
        return received


def raise_alarm(book: Book, words: str) -> None:
    book._write(lambda pages: pages.alarm(words))
