"""The client: what a user's device runs."""

from overhand.service.client.client import AsyncClient, Client
from overhand.service.client.failures import AlreadyReported, NotCounted, Outdated
from overhand.service.client.keeping import KeptReports
from overhand.service.client.recommending import AsyncRecommenderClient, RecommenderClient

__all__ = [
    "AlreadyReported",
    "AsyncClient",
    "AsyncRecommenderClient",
    "Client",
    "KeptReports",
    "NotCounted",
    "Outdated",
    "RecommenderClient",
]
