"""What a connection may cost: a protocol that lets no client keep an idle one."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from overhand.service.web import bodies
from overhand.service.web.application import Application, Refused, Reply
from overhand.service.web.bodies import announced, too_slow
from overhand.service.web.load import Load
from overhand.service.web.origins import NOBODY, Origins

_MOST_SAID = 1 << 16
_MOST_HEADERS = 100
"""Each costs far more memory than bytes."""
_TELLING = 2.0
"""Seconds that one connection too many has to send a request before it is told to try again later;
and seconds that a refused client has left to read the answer."""


class _Tunnel(Exception):
    """A CONNECT: we are nobody's proxy."""


class _Endless(Exception):
    """A head that is too long, and was told so."""


class Impatient(HttpToolsProtocol):
    """Reads requests, and lets no client keep an idle connection.

    From its first byte, or the connection's beginning, a message has `bodies.PATIENCE` seconds to
    be whole, and those that its body may take by the length that it says; whether or not it was
    answered meanwhile, and with few bytes besides its body. So long may what we write wait to be
    taken. An answer may go on for as long as it is read. What was read and not answered counts in
    the `load`. A client that offers to upgrade to another protocol is answered as if it had not.
    """

    _watch: asyncio.TimerHandle | None = None
    _stall: asyncio.TimerHandle | None = None
    _is_counted = False
    _is_coming = False  # a message has begun, and is not whole
    _is_in_body = False
    _is_given_longer = False
    _is_over = False  # what still comes is not heard
    _has_place = True  # or it is one connection too many, and told so
    _said = 0  # bytes of the message that are not of its body
    _held = 0  # bytes since all was answered that had come

    def __init__(self, *args: Any, load: Load, **options: Any) -> None:
        super().__init__(*args, **options)
        self._load = load

    def enter(self) -> bool:
        """Count the connection, secured or not; whether there is room to say anything to it."""
        has_room = self._load.enter()
        self._has_place = self._load.connections <= self._load.most_connections
        self._is_counted = True
        return has_room

    def leave(self) -> None:
        """Forget a connection that was counted, and never made."""
        self._load.leave()
        self.parser = None  # type: ignore[assignment]  # it knows us, and nobody would part the two

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(1, 0)  # all that waits is watched; TLS stops at high=0
        if self._is_counted or self.enter():
            self._start_watch()
        else:
            self._refuse(_busy())

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._watch)
        _cancel(self._stall)
        self._load.leave()
        self._let_go()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_over or not self._has_held(len(data)):
            return
        try:
            self._parse(memoryview(data))
        except httptools.HttpParserError:
            self._refuse(Refused(HTTPStatus.BAD_REQUEST, "this is not an HTTP request"))
        if self._said > _MOST_SAID or len(self.headers or ()) > _MOST_HEADERS:
            self._refuse(_endless_head())
        if self._is_coming:
            self._load.coming.setdefault(self)
        else:
            self._let_go_if_quiet()

    def _has_held(self, count: int) -> bool:
        """Count what came; whether it may be kept, or the connection was dropped."""
        load = self._load
        self._said += count
        self._held += count
        load.bytes += count
        if self._held <= load.most_held and load.bytes <= load.most_bytes:
            return True
        if self._held > load.most_held:
            words = f"more than {load.most_held} bytes without a pause for their answer"
            self._refuse(Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, words))
        load.make_room()
        return not (self._is_over or self.transport.is_closing())

    def _let_go_if_quiet(self) -> None:
        """If all that came was answered, or is in the hands of the application."""
        is_idle = self.cycle is None or self.cycle.response_complete
        if self._held and is_idle and not self._is_coming:
            self._let_go()

    def _let_go(self) -> None:
        self._load.bytes -= self._held
        self._held = 0
        if self._is_coming:
            self._load.coming.pop(self, None)

    def drop(self) -> None:
        """Others need the room: let go of a message that is not whole."""
        self._refuse(_busy("too much is under way"))

    def on_response_complete(self) -> None:
        if not self._is_over:
            super().on_response_complete()
            self._let_go_if_quiet()

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
        self._is_coming = True
        self._start_watch()

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            if self.parser.get_method() == b"CONNECT":
                raise _Tunnel
            return
        self._check_head()
        self._unset_keepalive_if_required()  # set since, if the one before was just answered
        self._begin()
        self._is_in_body = True

    def _check_head(self) -> None:
        """What was said may be of other messages too, that came in the same packet."""
        if self._said <= _MOST_SAID and len(self.headers) <= _MOST_HEADERS:
            return
        said = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if said > _MOST_SAID or len(self.headers) > _MOST_HEADERS:
            self._refuse(_endless_head())
            raise _Endless

    def _begin(self) -> None:
        """Have the request answered, of which there may be more to come."""
        if self._has_room():
            self._begin_with(self.config.loaded_app)
        else:
            words = "too much is under way" if self._has_place else "too many connections"
            self._begin_with(self._origins.around(self._reply(_busy(words))))

    @property
    def _origins(self) -> Origins:
        app = self.config.app
        return app.origins if isinstance(app, Application) else NOBODY

    def _begin_with(self, app: Any) -> None:
        self.app = app
        super().on_headers_complete()
        end: Any = _End(self)
        self.cycle.transport = end

    def _has_room(self) -> bool:
        load = self._load
        return (
            self._has_place
            and len(self.tasks) <= load.most_connections
            and load.bytes <= load.most_bytes
        )

    def on_body(self, body: bytes) -> None:
        self._said -= len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._check_head()
        _cancel(self._watch)
        self._is_coming = self._is_in_body = False
        self._said = 0
        self._load.coming.pop(self, None)
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
        self._is_given_longer = False
        seconds = bodies.PATIENCE if self._has_place else _TELLING
        self._watch = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        if self.transport.is_closing() or self._is_over:
            self.transport.abort()
        elif not self._is_in_body:
            self._refuse_silence()
        elif (length := self._announced()) and not self._is_given_longer:
            self._is_given_longer = True
            self._watch = self.loop.call_later(length / bodies.SLOWEST_LINE, self._give_up)
        else:
            self._refuse(too_slow(length))

    def _refuse_silence(self) -> None:
        if self._has_place:
            self.transport.abort()
        else:
            self._refuse(_busy())

    def _announced(self) -> int:
        """Bytes of the body, if it is waited for."""
        return announced(self.headers, self._load.most_body) if self._is_next() else 0

    def _refuse(self, refusal: Refused) -> None:
        """Hang up on a message that is not whole, and say why if it is its turn to be answered."""
        self._let_go()
        if self.transport.is_closing() or self._is_over:
            return
        if not self._is_next():
            self.transport.abort()
            return
        self._forget()
        origin = dict(self.headers or ()).get(b"origin")
        self.transport.write(self._reply(refusal).raw_with(self._origins.headers(origin)))
        self.hang_up()

    def hang_up(self) -> None:
        """Close the connection when the other side has heard what was said to it.

        If there is more to come it is not heard, but let come for a moment: a system that closes a
        connection with bytes unread takes back what it has not heard yet.
        """
        if self._is_coming and self.transport.can_write_eof():  # TLS takes leave by itself
            self._is_over = True
            self._let_go()
            _cancel(self._watch)
            self._watch = self.loop.call_later(_TELLING, self.transport.abort)
            self.flow.resume_reading()
            self.transport.write_eof()
        else:
            self.transport.close()

    def _forget(self) -> None:
        """What came of a message is needed by nobody: its sender may take long to hear so."""
        if self._is_in_body and self.cycle is not None:
            self.cycle.body = bytearray()
            self.cycle.disconnected = True
            self.cycle.message_event.set()

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


class _End:
    """The connection as the framework sees it, which only speaks, and closes it."""

    def __init__(self, protocol: Impatient) -> None:
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing
        self.close = protocol.hang_up


def _busy(words: str = "too many connections") -> Refused:
    return Refused(HTTPStatus.SERVICE_UNAVAILABLE, words, retry=True)


def _endless_head() -> Refused:
    words = f"a request has at most {_MOST_SAID} bytes besides its body, in {_MOST_HEADERS} headers"
    return Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, words)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
