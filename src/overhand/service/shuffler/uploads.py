"""Reports from the wire to the admission, past the framework.

It saves a third of the shuffling service's processor time: 105 instead of 156 microseconds per
report of five levels into SQLite (`python -m benchmarks.services.admission uploads 8000 5`).
"""

from __future__ import annotations

from overhand.service.shuffler.app import ShufflerApp
from overhand.service.web import BINARY, Impatient, Reply

_PATH = b"/v1/reports"


class _Pipelined(Exception):
    """A request before the last one was answered: we never ask for that, nor do clients do it."""


class Uploads(Impatient):
    """Reads requests; a report that is as it should be goes straight to the application.

    That is: its length and type are a report's, it comes as it is, nothing is expected of us first,
    and no other request of the connection is under way. Everything else goes the ordinary way, and
    is told what is wrong.
    """

    _body: list[bytes] | None = None
    _authorization: bytes | None = None
    _is_waiting = False
    _is_last = False

    def on_message_begin(self) -> None:
        if self._is_waiting:
            self.transport.abort()
            raise _Pipelined
        super().on_message_begin()

    def _begin(self) -> None:
        if self._is_usual_report():
            self._body = []
        else:
            super()._begin()

    def _is_usual_report(self) -> bool:
        if self.url != _PATH or self.parser.get_method() != b"POST":
            return False
        if self.cycle is not None and not self.cycle.response_complete:
            return False
        if self.expect_100_continue or self._is_full():
            return False
        headers = dict(self.headers)
        self._authorization = headers.get(b"authorization")
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
        else:
            self._said -= len(body)
            self._body.append(body)

    def _end(self) -> None:
        if self._body is None:
            super()._end()
            return
        body, self._body = b"".join(self._body), None
        self._is_waiting = True
        self._is_last = self._is_last or not self.parser.should_keep_alive()
        self._app.take(body, self._authorization, self._answer)

    def _answer(self, reply: Reply) -> None:
        self._is_waiting = False
        if self.transport.is_closing():
            return
        self.transport.write(reply.raw)
        if self._is_last or reply.is_last:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _is_next(self) -> bool:
        return self._body is not None or (not self._is_waiting and super()._is_next())

    def shutdown(self) -> None:
        """A report that is under way is answered first."""
        if self._is_waiting or self._body is not None:
            self._is_last = True
        else:
            super().shutdown()
