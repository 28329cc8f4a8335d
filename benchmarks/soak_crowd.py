"""The crowd of a soak: clients that send the same bytes until they are counted, and know them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.deploy.client import AsyncClient, NotCounted
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import ID_BYTES, LevelFormat, Report
from overhand.model import Rows

Heads = NDArray[np.void]
"""The beginnings of ciphertexts, which are keys that were drawn at random: no two are equal."""
_AT_ONCE, _CHUNK, _HEAD = 48, 64, 16
_TWICE = 8  # of so many reports one is sent twice at the same time


@dataclass
class Known:
    """The reports of one level: ciphertexts, the messages in them, what was clear, the values.

    One to a row: the ciphertexts and messages of a user stand side by side.
    """

    heads: Heads
    messages: NDArray[np.uint8]
    clear: NDArray[np.uint64]
    rows: Rows


def report_all(
    urls: Sequence[str], digest: str, folder: str, name: int, rows: NDArray[Any], pipe: Connection
) -> None:
    """A process of clients; what they know of their messages goes to a file."""
    asyncio.run(_report_all(urls, digest, Path(folder) / f"known{name}.npz", rows, pipe))


async def _report_all(
    urls: Sequence[str], digest: str, file: Path, rows: NDArray[Any], pipe: Connection
) -> None:
    known: dict[str, list[NDArray[Any]]] = {"rows": [rows]}
    room, tasks, numbers = asyncio.Semaphore(_AT_ONCE), set[asyncio.Task[None]](), count()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(url, digest=digest)) for url in urls]
        document = await _fetched(clients[0])
        for start in range(0, len(rows), _CHUNK):
            for body in _encoded(document, rows[start : start + _CHUNK], known):
                await room.acquire()
                task = asyncio.create_task(_send(clients, next(numbers), body, pipe))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: room.release())
        await asyncio.gather(*tasks)
    np.savez(file, **{key: np.concatenate(found) for key, found in known.items()})  # type: ignore[arg-type]
    pipe.send(0)


async def _fetched(client: AsyncClient) -> Document:
    while True:
        with suppress(NotCounted):
            return await client.document()


def _encoded(
    document: Document, rows: NDArray[Any], known: dict[str, list[NDArray[Any]]]
) -> list[bytes]:
    """As `encode_reports` does, but the messages are kept."""
    parts = []
    for level, mechanism in zip(document.formats.levels, document.mechanisms, strict=True):
        messages = mechanism.encode_rows(rows, oh.secure_random())
        sealed = document.sealer.seal(level.level, level.messages_to_bytes(messages.sealed))
        starts = range(0, len(sealed), level.messages)
        bodies = [b"".join(sealed[start : start + level.messages]) for start in starts]
        packed = map(level.pack, bodies, messages.clear)
        parts.append(list(packed))
        for name, found in (
            ("heads", heads_of(b"".join(sealed), level)),
            ("messages", messages.sealed.astype(np.uint8)),
            ("clear", messages.clear),
        ):
            known.setdefault(f"{name}{level.level}", []).append(found)
    reports = [Report(os.urandom(ID_BYTES), report) for report in zip(*parts, strict=True)]
    return [document.formats.pack_report(report) for report in reports]


async def _send(clients: Sequence[AsyncClient], number: int, body: bytes, pipe: Connection) -> None:
    """The same bytes to one service after the other until they are counted, some of them twice."""
    copies = 2 if number % _TWICE == 0 else 1
    await asyncio.gather(*(_until_counted(clients, number + i, body) for i in range(copies)))
    pipe.send(1)


async def _until_counted(clients: Sequence[AsyncClient], first: int, body: bytes) -> None:
    for number in count(first):
        with suppress(NotCounted):
            await clients[number % len(clients)].send(body)
            return


def heads_of(sealed: bytes, level: LevelFormat) -> Heads:
    """Of ciphertexts, one after the other."""
    rows = np.frombuffer(sealed, np.uint8).reshape(-1, level.ciphertext_bytes)
    return np.ascontiguousarray(rows[:, :_HEAD]).view(f"V{_HEAD}").reshape(-1)


@contextmanager
def crowd(
    urls: Sequence[str], digest: str, folder: Path, rows: NDArray[Any]
) -> Iterator[list[Connection]]:
    """Clients in as many processes as there are cores; each says 1 for a report, and 0 at last."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name, part in enumerate(np.array_split(rows, os.cpu_count() or 1)):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=report_all, args=(urls, digest, str(folder), name, part, theirs), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield pipes
    finally:
        for process in processes:
            process.terminate()
            process.join()


def known_of(folder: Path, level: LevelFormat) -> Known:
    """What all clients know of a level."""
    files = [np.load(path) for path in sorted(folder.glob("known*.npz"))]

    def all_of(name: str) -> NDArray[Any]:
        return np.concatenate([file[name] for file in files])

    heads, messages, clear = (
        all_of(f"{name}{level.level}") for name in ("heads", "messages", "clear")
    )
    return Known(heads.reshape(-1, level.messages), messages, clear, all_of("rows"))
