"""A server that tells the dashboard what a test tells it to."""

from __future__ import annotations

import json
import math
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from overhand.deploy.server import dashboard

Json = dict[str, Any]


def levels(published: int = 16, **extra: int) -> list[Json]:
    quiet = {"lost": 0, "own": 0, "garbage": 0}
    lowest = {"level": 1, "size": 43, "batches": 23255, "received": published + 1}
    above = {"level": 2, "size": 1849, "batches": 540, "received": 0, "published": 0}
    return [{**lowest, "published": published, **quiet, **extra}, {**above, **quiet}]


def estimate(t: int = 688, value: Any = 343.2, width: float = 23.1, **extra: Any) -> Json:
    def moved(by: float) -> Any:
        return [each + by for each in value] if isinstance(value, list) else value + by

    band = {"low": moved(-width), "high": moved(width), "std": width / 1.96}
    return {"t": t, "value": value, **band, "fallback": False, "lost_users": 0, **extra}


def status(values: str = "bit", dimension: int = 1, **changed: Any) -> Json:
    plan = {"digest": "5e" * 32, "horizon": 1_000_000, "values": values, "dimension": dimension}
    return {
        "version": "0.1.0",
        "plan": {**plan, "messages_per_user": 12},
        "guarantee": {
            "epsilon": 1.0,
            "delta": 1e-6,
            "delta_spent": 9.71e-7,
            "honest": 1.0,
            "reports": 1,
        },
        "levels": levels(),
        "estimate": estimate(),
        "alarms": [],
        "healthy": True,
        "trust": "The shuffling service alone learns who, never what. The server alone learns what,"
        " never who. Together they learn everything.",
        **changed,
    }


def history(points: int = 16, last: int = 688, slope: float = 0.5, width: float = 23.1) -> Json:
    t = [round(last * (i + 1) / points) for i in range(points)]
    value = [slope * at + width * math.sin(at / last * 20) / 2 for at in t]
    half = [width * (0.4 + 0.6 * at / last) for at in t]
    return {
        "t": t,
        "value": value,
        "low": [each - w for each, w in zip(value, half, strict=True)],
        "high": [each + w for each, w in zip(value, half, strict=True)],
    }


@dataclass
class FakeServer:
    """Serves the package's files, and the JSON and events that the test puts here."""

    status: Json = field(default_factory=status)
    history: Callable[[int], Json] = field(default=lambda coordinate: history())
    hindsight: Callable[[int], Json] = field(default=lambda coordinate: history())
    learnt: Json = field(default_factory=dict)
    groups: Json = field(default_factory=dict)
    mode: str = "up"
    listeners: list[queue.Queue[bytes | None]] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def send(self, event: str, data: Any) -> None:
        for listener in self.listeners:
            listener.put(f"event: {event}\ndata: {json.dumps(data)}\n\n".encode())

    def turn(self, mode: str) -> None:
        """`up`; `gone`: hangs up on everyone; `failing`: 503; `mute`: as gone, but streams stay."""
        self.mode = mode
        if mode in ("gone", "failing"):
            for listener in self.listeners:
                listener.put(None)
            self.listeners.clear()

    def close(self) -> None:
        self.turn("gone")
        self.http.shutdown()
        self.http.server_close()

    def reply(self, path: str, query: dict[str, list[str]]) -> tuple[bytes, str]:
        self.asked.append(path)
        if path == "/v1/status":
            return json.dumps(self.status).encode(), "application/json"
        if path in ("/v1/policy/summary", "/v1/groups"):
            told = self.learnt if path == "/v1/policy/summary" else self.groups
            return json.dumps(told).encode(), "application/json"
        if path in ("/v1/history", "/v1/hindsight"):
            coordinate = int(query.get("coordinate", ["0"])[0])
            series = self.history if path == "/v1/history" else self.hindsight
            return json.dumps(series(coordinate)).encode(), "application/json"
        name = dashboard.PAGE if path == "/" else path.removeprefix("/static/")
        return dashboard.content(name), dashboard.FILES[name]


def handler_of(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if server.mode in ("gone", "mute"):
                self.close_connection = True
            elif server.mode == "failing":
                self.answer(503, b"", "text/plain")
            elif parts.path == "/v1/events":
                self.stream()
            else:
                try:
                    self.answer(200, *server.reply(parts.path, parse_qs(parts.query)))
                except KeyError:
                    self.answer(404, b"", "text/plain")

        def answer(self, code: int, body: bytes, media_type: str) -> None:
            self.send_response(code)
            for name, value in dashboard.HEADERS.items():
                self.send_header(name, value)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def stream(self) -> None:
            listener: queue.Queue[bytes | None] = queue.Queue()
            server.listeners.append(listener)  # before the page can say that it is live
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": hello\n\n")
            try:
                while (news := listener.get()) is not None:
                    self.wfile.write(news)
            except OSError:
                server.listeners.remove(listener)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


def histogram(buckets: int) -> tuple[Json, Callable[[int], Json]]:
    value = [1000.0 * (1 + math.sin(i)) - 40 for i in range(buckets)]
    return (
        status(f"histogram:{buckets}", buckets, estimate=estimate(t=4000, value=value, width=90.0)),
        lambda i: history(20, last=4000, slope=value[i] / 4000, width=90.0),
    )
