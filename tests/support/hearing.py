"""What services log, for tests that count it."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the services logged so far, event by event."""
    caplog.set_level(logging.INFO, "overhand.service")
    return lambda: [
        record.getMessage() for record in caplog.records if record.name == "overhand.service"
    ]
