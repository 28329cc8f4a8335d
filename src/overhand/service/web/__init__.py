"""HTTP for both services: how they listen, answer, count, log, and call each other."""

from overhand.service.web.application import Application, Gone, Refused, Reply
from overhand.service.web.bodies import BINARY, Receive, Scope, Send, bearer, body_of, header
from overhand.service.web.limits import Impatient
from overhand.service.web.listening import Listener, Site, loopback, pause, run, serve
from overhand.service.web.load import CannotListen, Load
from overhand.service.web.logs import Trouble, log, start_logging
from overhand.service.web.metrics import SLOW, Metrics, metrics_app
from overhand.service.web.openapi import (
    COUNT,
    TEXT,
    Description,
    Entry,
    Operation,
    binary_content,
    json_content,
    record,
)
from overhand.service.web.origins import Origins
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
    "COUNT",
    "SLOW",
    "TEXT",
    "Answer",
    "Application",
    "CannotListen",
    "Description",
    "Entry",
    "Gone",
    "HttpTransport",
    "Impatient",
    "Listener",
    "Load",
    "Metrics",
    "Operation",
    "Origins",
    "Rate",
    "Readiness",
    "Receive",
    "Refused",
    "Reply",
    "Scope",
    "Send",
    "Site",
    "TokenFile",
    "Transport",
    "Trouble",
    "Unreachable",
    "Untrusted",
    "address_key",
    "bearer",
    "binary_content",
    "body_of",
    "header",
    "json_content",
    "log",
    "loopback",
    "metrics_app",
    "pause",
    "record",
    "run",
    "serve",
    "start_logging",
]
