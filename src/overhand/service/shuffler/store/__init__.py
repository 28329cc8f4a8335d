"""Where the shuffling service keeps reports until their batch is acknowledged."""

from overhand.service.shuffler.store.batching import (
    Added,
    Adding,
    Arrival,
    Gathered,
    Outcome,
    Piece,
    pieces,
    released,
)
from overhand.service.shuffler.store.store import Scrubbed, Store

__all__ = [
    "Added",
    "Adding",
    "Arrival",
    "Gathered",
    "Outcome",
    "Piece",
    "Scrubbed",
    "Store",
    "pieces",
    "released",
]
