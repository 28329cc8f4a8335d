"""The server: it learns what, never who."""

from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book
from overhand.service.server.pages import Published, Received, Summed
from overhand.service.server.publisher import Publisher
from overhand.service.server.run import ServerSettings, run_server, settled_sum
from overhand.service.server.settled import Settled

__all__ = [
    "Book",
    "Published",
    "Publisher",
    "Received",
    "ServerApp",
    "ServerSettings",
    "Settled",
    "Summed",
    "run_server",
    "settled_sum",
]
