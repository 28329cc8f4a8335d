"""The server: it learns what, never who."""

from overhand.service.pools import WorkersLost
from overhand.service.server.app import ServerApp
from overhand.service.server.book import Book, Settled
from overhand.service.server.opening import OpenerPool
from overhand.service.server.publishing import Publisher
from overhand.service.server.running import ServerSettings, run_server, settled_sum
from overhand.service.server.tables import BatchSum, Published

__all__ = [
    "BatchSum",
    "Book",
    "OpenerPool",
    "Published",
    "Publisher",
    "ServerApp",
    "ServerSettings",
    "Settled",
    "WorkersLost",
    "run_server",
    "settled_sum",
]
