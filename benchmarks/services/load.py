"""Many reports over few connections, so cheaply that the service has the processor to itself.

A shuffling service cannot tell a sealed message from random bytes, so a report is its header and
random bytes, all of it prepared before the clock starts.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Sequence
from itertools import cycle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import Failed
from overhand.deploy.protocol.wire import REPORT_MAGIC, Formats
from overhand.mechanisms import byte_width

_PATIENCE = 120.0
_AT_MOST = 1 << 16
_OK = b"HTTP/1.1 200 "


class Sent(NamedTuple):
    """What a load did: only answers 200 count."""

    counted: int
    seconds: float
    processor: float
    """Seconds that it cost to make the load."""
    slowest: float
    """The longest that an answer took."""


def random_reports(formats: Formats, count: int) -> list[bytes]:
    """Reports of the right shape, every byte of every message random."""
    header = np.frombuffer(REPORT_MAGIC + formats.digest, np.uint8)
    random = np.frombuffer(os.urandom(count * formats.report_length), np.uint8)
    rows = random.reshape(count, -1).copy()
    rows[:, : len(header)] = header
    stop = formats.report_length
    for level in reversed(formats.levels):
        _trim(rows[:, stop - level.clear_bytes : stop], level.clear_bits)
        stop -= level.part_bytes
    return [row.tobytes() for row in rows]


def _trim(clear: NDArray[np.uint8], bits: int) -> None:
    """Numbers in the clear, one after the other, of no more bits than they may have."""
    if bits % 8:
        width = byte_width(bits)
        clear[:, width - 1 :: width] &= np.uint8((1 << bits % 8) - 1)


class Load:
    """Connections that stay open, with one request in flight on each."""

    def __init__(self, ports: Sequence[int], connections: int, formats: Formats) -> None:
        self._formats = formats
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        for _, port in zip(range(connections), cycle(ports), strict=False):
            connection = socket.create_connection(("127.0.0.1", port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._sockets[connection.fileno()] = connection
            self._poll.register(connection.fileno(), select.EPOLLIN)
        self._usual = b""

    def send(self, reports: int) -> Sent:
        """Send so many reports, all of them different."""
        head = (
            "POST /v1/reports HTTP/1.1\r\nHost: shuffler\r\nContent-Type: application/octet-stream"
            f"\r\nContent-Length: {self._formats.report_length}\r\n\r\n"
        ).encode()
        requests = iter([head + body for body in random_reports(self._formats, reports)])
        started, processor, counted = time.perf_counter(), time.process_time(), 0
        since: dict[socket.socket, float] = {}
        slowest = 0.0
        for connection, request in zip(self._sockets.values(), requests, strict=False):
            connection.sendall(request)
            since[connection] = started
        while since:
            for connection in self._ready():
                counted += self._is_counted(connection)
                now = time.perf_counter()
                slowest = max(slowest, now - since.pop(connection))
                if following := next(requests, None):
                    connection.sendall(following)
                    since[connection] = now
        used = time.process_time() - processor
        return Sent(counted, time.perf_counter() - started, used, slowest)

    def _ready(self) -> list[socket.socket]:
        events = self._poll.poll(_PATIENCE)
        if not events:
            raise Failed(f"the shuffling service did not answer for {_PATIENCE:g} s")
        return [self._sockets[descriptor] for descriptor, _ in events]

    def _is_counted(self, connection: socket.socket) -> bool:
        """Whether the answer is yes. All such answers are the same, so that one is remembered."""
        answer = connection.recv(_AT_MOST)
        if answer == self._usual:
            return True
        while not _is_whole(answer):
            more = connection.recv(_AT_MOST)
            if not more:
                raise Failed("the shuffling service closed a connection")
            answer += more
        if answer.startswith(_OK):
            self._usual = answer
            return True
        return False

    def close(self) -> None:
        for connection in self._sockets.values():
            connection.close()
        self._poll.close()


def _is_whole(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    if not found:
        return False
    lines = head.lower().split(b"\r\n")
    lengths = [int(line[15:]) for line in lines if line.startswith(b"content-length:")]
    return len(body) >= sum(lengths)
