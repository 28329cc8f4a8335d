"""Numbers about the server, for its operator."""

from __future__ import annotations

from overhand.errors import StoreUnavailable
from overhand.service.server.app import ServerApp
from overhand.service.web import Metrics

_PER_LEVEL = {
    "received": "Batches that came",
    "published": "Batches that were opened and added up",
    "lost": "Batches whose sum cannot be told",
    "late": "Batches that should be here",
    "own": "Reports of the shuffling service itself",
    "garbage": "Messages that could not be opened",
}


class ServerMetrics(Metrics):
    """What came of batches, by level, and how far the published sum reaches."""

    def __init__(self, app: ServerApp) -> None:
        super().__init__()
        self._app = app
        self._levels = {name: self.gauge(name, help, "level") for name, help in _PER_LEVEL.items()}
        self._users = self.gauge("users_published", "Reports in the published sum, own ones too")
        self._alarms = self.gauge("alarms", "Alarms since the plan began")
        self._book_is_up = self.gauge("book_is_up", "Whether the book answers")
        self.failures = self.counter("publishing_failures", "Attempts to publish that failed")

    def current(self) -> bytes:
        """All of them, as the book has them now, or had them when it last answered."""
        try:
            self._ask()
            self._book_is_up.set(1)
        except StoreUnavailable:
            self._book_is_up.set(0)
        return self.text()

    def _ask(self) -> None:
        status = self._app.status()
        for level in status["levels"]:
            for name, gauge in self._levels.items():
                gauge.labels(level["level"]).set(level[name])
        self._users.set(status["estimate"]["t"] if status["estimate"] else 0)
        self._alarms.set(len(status["alarms"]))
