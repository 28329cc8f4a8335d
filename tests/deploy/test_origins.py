"""Web pages of the origins that are named may report, and no others (CORS)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.http.application import check_origins
from overhand.deploy.http.listening import Endpoint, Site, server_of
from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.shuffler.app import Admission, ShufflerApp
from overhand.deploy.shuffler.store import Store
from overhand.errors import InvalidValue, StoreUnavailable
from support.cli_runner import overhand
from support.small_document import coin_document, encode_report

PAGE, OTHER = "https://poll.example", "https://other.example"
BINARY = "content-type: application/octet-stream"
TOKEN = "1" * 43
ASKED = "access-control-request-method: POST"

Ask = Callable[..., Awaitable[tuple[int, dict[str, str]]]]


@asynccontextmanager
async def serving(home: Path, **options: Any) -> AsyncIterator[tuple[Ask, ShufflerApp]]:
    store = Store(home / "store.db", coin_document().formats)
    admission = Admission(store)
    app = ShufflerApp(coin_document(), admission, **options)
    with Endpoint(port=0).bind() as at:
        server = server_of(Site(app, Endpoint()))
        tasks = [asyncio.create_task(server.serve([at])), asyncio.create_task(admission.run())]

        async def ask(head: str, *headers: str, body: bytes = b"") -> tuple[int, dict[str, str]]:
            return await _asked(at.getsockname()[1], head, headers, body)

        try:
            yield ask, app
        finally:
            server.should_exit = True
            await tasks[0]
            admission.close()
            await tasks[1]
            store.close()


async def _asked(
    port: int, head: str, headers: tuple[str, ...], body: bytes
) -> tuple[int, dict[str, str]]:
    """The status and the headers of an answer; `head` is the method and the path."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = [f"{head} HTTP/1.1", "host: x", f"content-length: {len(body)}", *headers, "", ""]
    writer.write("\r\n".join(lines).encode() + body)
    status, *said = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    writer.close()
    named = [line.split(": ", 1) for line in said if line]
    assert len({name for name, _ in named}) == len(named), "a header twice"
    return int(status.split()[1]), {name: value for name, value in named}


def report() -> bytes:
    return encode_report(coin_document(), 1, oh.secure_random())


def run(home: Path, test: Callable[[Ask, ShufflerApp], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with serving(home, **options) as (ask, app):
            await test(ask, app)

    asyncio.run(main())


def shared(headers: dict[str, str]) -> dict[str, str]:
    return {name: said for name, said in headers.items() if "access-control" in name}


READABLE = {
    "access-control-allow-origin": PAGE,
    "access-control-expose-headers": "retry-after",
}


async def everything(ask: Ask, origin: str) -> list[tuple[int, dict[str, str]]]:
    """The document, a report that is counted, and whatever is refused."""
    from_page = f"origin: {origin}"
    bearer = f"authorization: Bearer {TOKEN}"
    usual = (from_page, BINARY, bearer)
    return [
        await ask("GET /v1/document", from_page),
        await ask("POST /v1/reports", *usual, body=report()),
        await ask("POST /v1/reports", from_page, BINARY, body=report()),
        await ask("POST /v1/reports", *usual, "content-encoding: identity", body=report()),
        await ask("POST /v1/reports", *usual, body=report()[:-1]),
        await ask("POST /v1/reports", from_page, "content-type: text/plain", bearer, body=b"1"),
        await ask("GET /nowhere", from_page),
        await ask("GET /v1/reports", from_page),
    ]


STATUSES = [200, 200, 401, 403, 400, 415, 404, 405]


def test_a_named_page_can_read_every_answer(tmp_path: Path) -> None:
    async def test(ask: Ask, app: ShufflerApp) -> None:
        answers = await everything(ask, PAGE)
        assert [status for status, _ in answers] == STATUSES
        for _, headers in answers:
            assert shared(headers) == READABLE
            assert headers["vary"] == "Origin"

    run(tmp_path, test, origins=[PAGE, "http://localhost:8080"], tokens={hash_token(TOKEN)})


@pytest.mark.parametrize("origins", [[], [OTHER]], ids=["nobody", "another"])
def test_a_page_that_is_not_named_can_read_nothing(tmp_path: Path, origins: list[str]) -> None:
    async def test(ask: Ask, app: ShufflerApp) -> None:
        answers = await everything(ask, PAGE)
        assert [status for status, _ in answers] == STATUSES
        for _, headers in answers:
            assert "access-control-allow-origin" not in headers
        status, headers = await ask("OPTIONS /v1/reports", f"origin: {PAGE}", ASKED)
        assert status == (400 if origins else 405)
        assert "access-control-allow-origin" not in headers

    run(tmp_path, test, origins=origins, tokens={hash_token(TOKEN)})


def test_a_browser_that_asks_for_a_named_page_is_told_what_it_may(tmp_path: Path) -> None:
    async def test(ask: Ask, app: ShufflerApp) -> None:
        wanted = "access-control-request-headers: authorization,content-type"
        status, headers = await ask("OPTIONS /v1/reports", f"origin: {PAGE}", ASKED, wanted)
        assert status == 200
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-methods"] == "GET, POST"
        allowed = headers["access-control-allow-headers"].lower().split(", ")
        assert {"authorization", "content-type"} <= set(allowed)
        assert headers["access-control-max-age"] == "3600"
        assert headers["vary"].startswith("Origin")
        status, headers = await ask("OPTIONS /v1/reports", f"origin: {PAGE}")
        assert (status, headers["allow"]) == (405, "POST")  # nobody asks on a page's behalf

    run(tmp_path, test, origins=[PAGE])


def test_every_page_may_report_if_that_is_said(tmp_path: Path) -> None:
    async def test(ask: Ask, app: ShufflerApp) -> None:
        for origin in (PAGE, "null"):
            for _, headers in await everything(ask, origin):
                assert headers["access-control-allow-origin"] == "*"
                assert "access-control-allow-credentials" not in headers

    run(tmp_path, test, origins=["*"], tokens={hash_token(TOKEN)})


def test_a_page_can_read_that_it_is_to_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(ask: Ask, app: ShufflerApp) -> None:
        def away(*_: Any) -> None:
            raise StoreUnavailable("away")

        monkeypatch.setattr(Store, "admit", away)
        status, headers = await ask("POST /v1/reports", f"origin: {PAGE}", BINARY, body=report())
        assert (status, headers["retry-after"]) == (503, "5")
        assert shared(headers) == READABLE

    run(tmp_path, test, origins=[PAGE])


def test_who_reports_too_often_can_read_it(tmp_path: Path) -> None:
    """An address of this machine is not limited: so one token is."""

    async def test(ask: Ask, app: ShufflerApp) -> None:
        usual = (f"origin: {PAGE}", BINARY, f"authorization: Bearer {TOKEN}")
        answers = [await ask("POST /v1/reports", *usual, body=report()) for _ in range(20)]
        status, headers = answers[-1]
        assert (status, headers["retry-after"]) == (429, "5")
        assert shared(headers) == READABLE

    run(tmp_path, test, origins=[PAGE], tokens={hash_token(TOKEN)}, per_token=0.001)


GOOD = [
    "https://poll.example",
    "http://localhost:8080",
    "http://127.0.0.1:1",
    "http://[::1]:8080",
    "capacitor://localhost",
    "https://xn--bcher-kva.example",
    "http://poll.example:443",
]


@pytest.mark.parametrize("origin", GOOD)
def test_an_origin_is_as_browsers_write_it(origin: str) -> None:
    assert check_origins([origin]) == [origin]


BAD: list[Any] = [
    "poll.example",
    "https://poll.example/",
    "https://poll.example/page",
    "https://Poll.example",
    "https://me:secret@poll.example",
    "https://poll.example:443",
    "http://poll.example:80",
    "http://poll.example:65536",
    "https://*.poll.example",
    "https://poll.example\r\nx: y",
    "https://poll.example\n",
    "https://bücher.example",
    "https://a https://b",
    "https://",
    "null",
    "",
    None,
    17,
]


@pytest.mark.parametrize("origin", BAD, ids=repr)
def test_an_origin_that_no_browser_writes_is_refused(origin: Any) -> None:
    with pytest.raises(InvalidValue, match="must be as browsers write it"):
        check_origins([PAGE, origin])


def test_every_origin_is_named_alone() -> None:
    with pytest.raises(InvalidValue, match="give it alone"):
        check_origins([PAGE, "*"])


def test_a_service_does_not_start_with_an_origin_that_is_none(tmp_path: Path) -> None:
    needed = ("shuffler", "--server", "https://sums.example")
    result = overhand(*needed, "--origin", PAGE, "--origin", "poll.example/")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "error: origin 'poll.example/' must be as browsers write it" in result.stderr


def test_origins_come_from_the_command_line_the_environment_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def shown(*more: str) -> str:
        needed = ("shuffler", "--server", "https://sums.example", "--show-settings")
        lines = overhand(*needed, *more).stdout.splitlines()
        (line,) = (line for line in lines if "origin" in line)
        return line

    assert shown() == "# origin is not set"
    both = f'origin = ["{PAGE}", "{OTHER}"]'
    assert shown("--origin", PAGE, "--origin", OTHER) == f"{both}  # command line"
    file = tmp_path / "config.toml"
    file.write_text(f"[shuffler]\n{both}\n")
    assert shown("--config", str(file)) == f"{both}  # file: {file}"
    monkeypatch.setenv("OVERHAND_SHUFFLER_ORIGIN", f"{PAGE} {OTHER}")
    assert shown() == f"{both}  # environment: OVERHAND_SHUFFLER_ORIGIN"
