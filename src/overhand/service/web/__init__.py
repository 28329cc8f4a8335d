"""HTTP for both services: how they listen, answer, count, log, and call each other."""

from overhand.service.web.application import Application, Reply, fault, no_such_page, wrong_method
from overhand.service.web.bodies import BINARY, Gone, Refused, bearer, body_of, header
from overhand.service.web.listening import Listener, Site, pause, run, serve, server_of
from overhand.service.web.logs import Trouble, log, start_logging
from overhand.service.web.metrics import SLOW, Metrics, metrics_app
from overhand.service.web.origins import check_origins
from overhand.service.web.rates import BURST, Rate, address_key
from overhand.service.web.readiness import Readiness
from overhand.service.web.tokens import TokenFile
from overhand.service.web.transport import (
    Answer,
    HttpTransport,
    Transport,
    Unreachable,
    Untrusted,
)

__all__ = [
    "BINARY",
    "BURST",
    "SLOW",
    "Answer",
    "Application",
    "Gone",
    "HttpTransport",
    "Listener",
    "Metrics",
    "Rate",
    "Readiness",
    "Refused",
    "Reply",
    "Site",
    "TokenFile",
    "Transport",
    "Trouble",
    "Unreachable",
    "Untrusted",
    "address_key",
    "bearer",
    "body_of",
    "check_origins",
    "fault",
    "header",
    "log",
    "metrics_app",
    "no_such_page",
    "pause",
    "run",
    "serve",
    "server_of",
    "start_logging",
    "wrong_method",
]
