"""The client: what a user's device runs."""

from overhand.service.client.client import AsyncClient, Client, NotCounted, Outdated

__all__ = ["AsyncClient", "Client", "NotCounted", "Outdated"]
