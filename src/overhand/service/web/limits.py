"""What a connection may cost: a protocol that lets nobody keep one for nothing."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from overhand.service.web import bodies
from overhand.service.web.application import Application, Refused, Reply
from overhand.service.web.bodies import too_slow

_MOST_CONNECTIONS = 4096
_MOST_SAID = 1 << 16


class _Tunnel(Exception):
    """A CONNECT: we are nobody's proxy."""


class Impatient(HttpToolsProtocol):
    """Reads requests, and lets nobody keep a connection for nothing.

    From its first byte, or the connection's beginning, a message has `bodies.PATIENCE` seconds to
    be whole, whether or not it was answered meanwhile, and few bytes besides its body; so long may
    what we write wait to be taken. An answer may go on for as long as it is read. Who offers to
    upgrade to another protocol is answered as if it had not.
    """

    _watch: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_in_body = False
    _said = 0  # bytes of the message that are not of its body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(1, 0)  # all that waits is watched; TLS stops at high=0
        self._start_watch()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._watch)
        _cancel(self._stall)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._said += len(data)
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(Refused(HTTPStatus.BAD_REQUEST, "this is no HTTP request"))
        if self._said > _MOST_SAID:
            words = f"a request has at most {_MOST_SAID} bytes besides its body"
            self._refuse(Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words))

    def _parse(self, data: memoryview) -> None:
        while True:
            try:
                return self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:  # with where the head ends
                data = data[upgrade.args[0] :]
                self._hear_again()

    def _hear_again(self) -> None:
        """Hear a head once more, without the offer that kept the parser from reading its body."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % pair for pair in self.headers if pair[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        with suppress(AttributeError):  # as the one before: httptools before 0.6.3 is so anyway
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self.parser.feed_data(b"\r\n".join([*lines, b"", b""]))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._unset_keepalive_if_required()
        self._start_watch()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Tunnel
            return
        self._unset_keepalive_if_required()  # set since, if the one before was just answered
        self._begin()
        self._is_in_body = True

    def _begin(self) -> None:
        """Have the request answered, of which there may be more to come."""
        self.app = self._busy() if self._is_full() else self.config.loaded_app
        super().on_headers_complete()

    def _busy(self) -> Reply:
        """What a request is told that came over one connection too many."""
        words = "too many connections"
        return self._reply(Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True))

    def _is_full(self) -> bool:
        return max(len(self.connections), len(self.tasks)) >= _MOST_CONNECTIONS

    def on_body(self, body: bytes) -> None:
        self._said -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        _cancel(self._watch)
        self._is_in_body = False
        self._said = 0
        self._end()

    def _end(self) -> None:
        """There is no more of the request."""
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall = self.loop.call_later(bodies.PATIENCE, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        _cancel(self._stall)

    def _start_watch(self) -> None:
        _cancel(self._watch)
        self._watch = self.loop.call_later(bodies.PATIENCE, self._give_up)

    def _give_up(self) -> None:
        if self._is_in_body and not self.transport.is_closing():
            self._refuse(too_slow())
        else:
            self.transport.abort()

    def _refuse(self, refusal: Refused) -> None:
        """Hang up on a message that is not whole, and say why if it is its turn to be answered."""
        if self.transport.is_closing():
            return
        if not self._is_next():
            self.transport.abort()
            return
        if self._is_in_body and self.cycle is not None:  # the application need not wait for more
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.transport.write(self._reply(refusal).raw)
        self.transport.close()

    def _reply(self, refusal: Refused) -> Reply:
        """What is said before hanging up, also counted by the application."""
        app = self.config.app
        if isinstance(app, Application):
            app.note(refusal)
        return Reply.to(refusal, closing=True)

    def _is_next(self) -> bool:
        """Whether all before the message was answered, and of its own answer nothing is said."""
        if self._is_in_body:
            return not self.pipeline and not self.cycle.response_started
        return self.cycle is None or self.cycle.response_complete


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
