"""What services log, and the names they look up, for tests that count it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import NoReturn

import pytest


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """What the services logged so far, event by event."""
    caplog.set_level(logging.INFO, "overhand.deploy")
    return lambda: [
        record.getMessage() for record in caplog.records if record.name == "overhand.deploy"
    ]


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that somebody asks the network for, which has none of them."""
    names = list[str]()

    def ask(host: str, *_: object, **__: object) -> NoReturn:
        names.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "there is none")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    return names
