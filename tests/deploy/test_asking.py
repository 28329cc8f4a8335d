"""Whoever asks the server much, or does not listen to the answer, keeps nobody else waiting."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response
from starlette.routing import Route

from overhand.deploy.protocol.wire import Batch
from support.loopback_system import System, run
from support.store_processes import freeze


async def filled(system: System) -> None:
    async with system.client() as client:
        await client.report_many([1] * system.plan.tree.lowest)


def test_strangers_who_ask_much_keep_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if they hang up: what they asked stays. Before, all threads were theirs."""
    let_go = threading.Event()

    async def test(system: System) -> None:
        await filled(system)
        body = system.document.formats.pack(freeze(system.store, Batch(1, 0)))
        monkeypatch.setattr(system.publisher, "hindsight", lambda coordinate: let_go.wait(60))
        async with system.at_server() as web:
            asked = [asyncio.create_task(web.get("/v1/hindsight")) for _ in range(40)]
            try:
                async with asyncio.timeout(30):
                    kept = await web.put("/v1/releases/1/0", content=body)
                    status, more = [await web.get(f"/v1/{one}") for one in ("status", "hindsight")]
                    assert await asyncio.to_thread(system.publisher.step)
            finally:
                let_go.set()
            answers = [answer.status_code for answer in await asyncio.gather(*asked)]
        assert (kept.status_code, status.status_code, more.status_code) == (200, 200, 503)
        assert more.headers["retry-after"]
        assert Counter(answers) == {200: 32, 503: 8}

    run(tmp_path, test)


def test_a_status_is_written_once_until_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With many coordinates it takes tens of milliseconds: a thousand who ask held up everybody."""

    async def test(system: System) -> None:
        await filled(system)
        written, status = 0, system.server.status

        def counted() -> dict[str, Any]:
            nonlocal written
            written += 1
            return status()

        monkeypatch.setattr(system.server, "status", counted)
        async with system.at_server() as web:
            for change in (
                lambda: None,
                system.publish,
                lambda: system.database.alarm("a lie"),
                lambda: system.server.show_late([Batch(1, 7)]),
            ):
                before = written
                if (changing := change()) is not None:
                    await changing
                for _ in range(3):
                    assert (await web.get("/v1/status")).json() == status()
                assert written == before + 1

    run(tmp_path, test)


def test_a_long_answer_is_sent_piece_by_piece(tmp_path: Path) -> None:
    """Whole, each reader that never takes it would keep a copy in memory under TLS."""

    async def test(system: System) -> None:
        for length in (0, 1, 1 << 14, (1 << 14) + 1, 100_000):
            content, sent = secrets.token_bytes(length), list[Any]()

            async def send(message: Any, sent: list[Any] = sent) -> None:
                sent.append(message)

            scope = {"type": "http", "method": "GET", "path": "/x", "headers": []}
            system.server.router.routes.insert(0, Route("/x", lambda _, c=content: Response(c)))
            await system.server(scope, asyncio.Event().wait, send)  # type: ignore[arg-type]
            start, *bodies = sent
            assert dict(start["headers"])[b"content-length"] == str(length).encode()
            assert b"".join(one["body"] for one in bodies) == content
            assert all(len(one["body"]) <= 1 << 14 for one in bodies)
            more = [one.get("more_body", False) for one in bodies]
            assert more == [True] * (len(bodies) - 1) + [False]

    run(tmp_path, test)
