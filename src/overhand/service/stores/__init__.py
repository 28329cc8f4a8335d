"""Where the shuffling service keeps reports until their batch is acknowledged.

`PostgresStore` needs the extra `postgres`, so it is imported from its own module.
"""

from overhand.service.stores.sqlite import SqliteStore
from overhand.service.stores.store import Arrival, BatchName, Lane, Outcome, Release, Store

__all__ = ["Arrival", "BatchName", "Lane", "Outcome", "Release", "SqliteStore", "Store"]
