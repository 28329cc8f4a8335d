"""Structured logs without address, id or time: a log collector adds its own times."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

_LOGGER = logging.getLogger("overhand.service")


def start_logging(role: str) -> None:
    """One JSON object per line on standard error; libraries' own logs only if they are errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines(role))
    logging.basicConfig(level=logging.ERROR, handlers=[handler], force=True)
    _LOGGER.setLevel(logging.INFO)


def log(event: str, *, level: int = logging.INFO, **numbers: Any) -> None:
    """Something that happened, and numbers that belong to no single user."""
    _LOGGER.log(level, event, extra={"numbers": numbers})


class Trouble:
    """Something that fails again and again: said when it begins or changes, and when it ends."""

    def __init__(self, began: str, ended: str) -> None:
        self._began, self._ended = began, ended
        self.reason: str | None = None

    def begin(self, reason: str, **numbers: Any) -> None:
        """It failed, for this reason."""
        if reason != self.reason:
            self.reason = reason
            log(self._began, level=logging.WARNING, error=reason, **numbers)

    def end(self) -> None:
        """It did not fail."""
        if self.reason is not None:
            self.reason = None
            log(self._ended, level=logging.WARNING)


class _Lines(logging.Formatter):
    def __init__(self, role: str) -> None:
        super().__init__()
        self._role = role

    def format(self, record: logging.LogRecord) -> str:
        entry = {"role": self._role, "level": record.levelname.lower(), "event": _event(record)}
        return json.dumps(entry | getattr(record, "numbers", {}))


def _event(record: logging.LogRecord) -> str:
    """Our own events as they are; only the kind of others' errors, because they may quote data."""
    if record.name == _LOGGER.name:
        return record.getMessage()
    kind = record.exc_info[0] if record.exc_info else None
    return f"{record.name}: {kind.__name__ if kind else 'error'}"
