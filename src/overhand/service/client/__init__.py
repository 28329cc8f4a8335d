"""The client: what a user's device runs."""

from overhand.service.client.client import AsyncClient, Client
from overhand.service.client.failures import AlreadyReported, NotCounted, Outdated
from overhand.service.client.keeping import KeptReports

__all__ = [
    "AlreadyReported",
    "AsyncClient",
    "Client",
    "KeptReports",
    "NotCounted",
    "Outdated",
]
