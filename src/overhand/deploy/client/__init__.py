"""The client: what a user's device runs."""

from overhand.deploy.client.client import AsyncClient, Client
from overhand.deploy.client.journal import AlreadyReported, NotCounted, Outdated, ReportJournal
from overhand.deploy.client.recommending import AsyncRecommenderClient, RecommenderClient

__all__ = [
    "AlreadyReported",
    "AsyncClient",
    "AsyncRecommenderClient",
    "Client",
    "NotCounted",
    "Outdated",
    "RecommenderClient",
    "ReportJournal",
]
