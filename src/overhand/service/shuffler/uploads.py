"""Reports from the wire to the admission, past the framework.

It saves a third of the shuffling service's processor time: 105 instead of 156 microseconds per
report of five levels into SQLite (`python -m benchmarks.services.admission uploads 8000 5`).
"""

from __future__ import annotations

import asyncio
from typing import Any

from overhand.service.shuffler.app import ShufflerApp
from overhand.service.web import BINARY, Impatient, Refused, Reply

_PATH = b"/v1/reports"


class _Unanswered:
    """A report that waits for its answer, as the framework sees it."""

    response_complete = response_started = disconnected = False

    def __init__(self) -> None:
        self.body = bytearray()
        self.message_event = asyncio.Event()


class Uploads(Impatient):
    """Reads requests; a report that is as it should be goes straight to the application.

    That is: its length and type are a report's, it comes as it is, nothing is expected of us first,
    and no other request of the connection is under way. Whether its sender may report is asked
    before its body is kept. Everything else goes the ordinary way, and is told what is wrong; what
    comes before a report was answered is answered after it.
    """

    _body: bytes | bytearray | None = None
    _authorization: bytes | None = None
    _origin: bytes | None = None
    _token: bytes | None = None
    _is_waiting = False
    _is_last = False

    def _begin(self) -> None:
        if self._is_waiting and (self.cycle is None or self.cycle.response_complete):
            waiting: Any = _Unanswered()
            self.cycle = waiting  # whatever comes now waits its turn
        if not self._is_usual_report():
            super()._begin()
            return
        try:
            address = None if self.client is None else self.client[0]
            self._token = self._app.admitted(address, self._authorization)
            self._body = b""
        except Refused as refusal:
            self._begin_with(self._origins.around(self._app.refusal(refusal)))

    def _is_usual_report(self) -> bool:
        if self.url != _PATH or self.parser.get_method() != b"POST":
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        if self.expect_100_continue or not self._has_room():
            return False
        headers = dict(self.headers)
        self._authorization = headers.get(b"authorization")
        self._origin = headers.get(b"origin")
        return (
            headers.get(b"content-length") == self._app.report_length
            and headers.get(b"content-type") == BINARY
            and b"content-encoding" not in headers
            and b"transfer-encoding" not in headers
        )

    @property
    def _app(self) -> ShufflerApp:
        app = self.config.app
        assert isinstance(app, ShufflerApp)
        return app

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            super().on_body(body)
            return
        self._said -= len(body)
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytes):
            self._body = bytearray(self._body + body)  # not a list of pieces: they may be small
        else:
            self._body += body

    def _end(self) -> None:
        if self._body is None:
            super()._end()
            return
        body, self._body = bytes(self._body), None
        self._is_waiting = True
        self._is_last = self._is_last or not self.parser.should_keep_alive()
        self._app.take(body, self._token, self._answer)

    def _answer(self, reply: Reply) -> None:
        self._is_waiting = False
        if self.transport.is_closing() or self._is_over:
            return
        self.transport.write(reply.raw_with(self._origins.headers(self._origin)))
        if self._is_last or reply.is_last:
            self.hang_up()
        elif self.pipeline:
            self.on_response_complete()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _forget(self) -> None:
        self._body = None
        super()._forget()

    def _is_next(self) -> bool:
        return self._body is not None or (not self._is_waiting and super()._is_next())

    def shutdown(self) -> None:
        """A report that is under way is answered first."""
        if self._is_waiting or self._body is not None:
            self._is_last = True
        else:
            super().shutdown()
