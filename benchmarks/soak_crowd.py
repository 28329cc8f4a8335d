"""The crowd of a soak: clients that send the same bytes until they are counted, and know them."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.service.client import AsyncClient, NotCounted
from overhand.service.protocol import ID_BYTES, Document, LevelFormat, Report

Heads = NDArray[np.void]
"""The beginnings of ciphertexts, which are keys that were drawn at random: no two are equal."""
_AT_ONCE, _CHUNK, _HEAD = 48, 64, 16


@dataclass
class Known:
    """The ciphertexts of the reports of one level, and the messages in them."""

    heads: Heads
    messages: NDArray[np.uint8]


def report_all(url: str, folder: str, name: int, values: NDArray[Any], pipe: Connection) -> None:
    """A process of clients; what they know of their messages goes to a file."""
    asyncio.run(_report_all(url, Path(folder) / f"known{name}.npz", values, pipe))


async def _report_all(url: str, file: Path, values: NDArray[Any], pipe: Connection) -> None:
    known: dict[str, list[NDArray[Any]]] = {}
    room, tasks = asyncio.Semaphore(_AT_ONCE), set[asyncio.Task[None]]()
    async with AsyncClient(url) as client:
        document = await client.document()
        for start in range(0, len(values), _CHUNK):
            for body in _encoded(document, values[start : start + _CHUNK], known):
                await room.acquire()
                task = asyncio.create_task(_send(client, body, pipe))
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                task.add_done_callback(lambda _: room.release())
        await asyncio.gather(*tasks)
    np.savez(file, **{key: np.concatenate(found) for key, found in known.items()})  # type: ignore[arg-type]
    pipe.send(0)


def _encoded(
    document: Document, rows: NDArray[Any], known: dict[str, list[NDArray[Any]]]
) -> list[bytes]:
    """As `encode_reports` does, but the messages are kept."""
    parts = []
    for level, mechanism in zip(document.formats.levels, document.plan.mechanisms, strict=True):
        messages = mechanism.encode_rows(rows, oh.secure_random()).sealed.reshape(-1)
        sealed = document.sealer.seal(level.level, level.messages_to_bytes(messages))
        known.setdefault(f"heads{level.level}", []).append(heads_of(b"".join(sealed), level))
        known.setdefault(f"messages{level.level}", []).append(messages.astype(np.uint8))
        starts = range(0, len(sealed), level.messages)
        parts.append([b"".join(sealed[start : start + level.messages]) for start in starts])
    return [
        document.formats.pack_report(Report(os.urandom(ID_BYTES), report))
        for report in zip(*parts, strict=True)
    ]


async def _send(client: AsyncClient, body: bytes, pipe: Connection) -> None:
    """The same bytes, until they are counted."""
    while True:
        with suppress(NotCounted):
            await client.send(body)
            pipe.send(1)
            return


def heads_of(body: bytes, level: LevelFormat) -> Heads:
    rows = np.frombuffer(body, np.uint8).reshape(-1, level.ciphertext_bytes)
    return np.ascontiguousarray(rows[:, :_HEAD]).view(f"V{_HEAD}").reshape(-1)


@contextmanager
def crowd(url: str, folder: Path, values: NDArray[Any]) -> Iterator[list[Connection]]:
    """Clients in as many processes as there are cores; each says 1 for a report, and 0 at last."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for name, part in enumerate(np.array_split(values, os.cpu_count() or 1)):
        ours, theirs = context.Pipe()
        process = context.Process(
            target=report_all, args=(url, str(folder), name, part, theirs), daemon=True
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


def known_of(folder: Path, level: int) -> Known:
    files = [np.load(path) for path in sorted(folder.glob("known*.npz"))]
    heads = np.concatenate([file[f"heads{level}"] for file in files])
    return Known(heads, np.concatenate([file[f"messages{level}"] for file in files]))
