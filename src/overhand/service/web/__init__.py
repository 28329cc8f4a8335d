"""HTTP as both services speak it: how they listen, answer, count, log, and ask each other."""

from overhand.service.web.http import (
    Gone,
    Receive,
    Refused,
    Reply,
    Scope,
    Send,
    bearer,
    body_of,
    header,
)
from overhand.service.web.listening import (
    CannotListen,
    Impatient,
    Listener,
    Site,
    loopback,
    run,
    serve,
)
from overhand.service.web.logs import log, start_logging
from overhand.service.web.metrics import Metrics, metrics_app
from overhand.service.web.openapi import server_description, shuffler_description
from overhand.service.web.transport import (
    Answer,
    HttpTransport,
    Transport,
    Unreachable,
    Untrusted,
)

__all__ = [
    "Answer",
    "CannotListen",
    "Gone",
    "HttpTransport",
    "Impatient",
    "Listener",
    "Metrics",
    "Receive",
    "Refused",
    "Reply",
    "Scope",
    "Send",
    "Site",
    "Transport",
    "Unreachable",
    "Untrusted",
    "bearer",
    "body_of",
    "header",
    "log",
    "loopback",
    "metrics_app",
    "run",
    "serve",
    "server_description",
    "shuffler_description",
    "start_logging",
]
