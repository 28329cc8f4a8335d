"""What the shuffling service answers a report, case by case."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httpx

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import hash_token
from overhand.deploy.shuffler.app import Admission, Overloaded, ShufflerApp
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.errors import StoreUnavailable
from overhand.randomness import secure_random
from support.small_document import encode_report
from support.vector_documents import documents

_TOKEN = "A" * 43
_HEADERS = {"content-type": "application/octet-stream", "authorization": f"Bearer {_TOKEN}"}
_AGAIN = {408, 429, 500, 502, 503, 504}


class _Settled:
    """An admission that has its answer ready."""

    def __init__(self, result: Outcome | Exception) -> None:
        self._result = result

    async def admit(self, arrival: Arrival) -> Outcome:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result


def answers() -> list[dict[str, Any]]:
    """Every answer to a report: the status, what is said, and whether to send the same again."""
    document = documents()["ballots-bit"][1]
    report = encode_report(document, 1, secure_random())
    other = encode_report(documents()["ballots-histogram"][1], 1, secure_random())
    return asyncio.run(_asked(document, report, other))


async def _asked(document: Document, report: bytes, other: bytes) -> list[dict[str, Any]]:
    counted, used = Outcome.ADMITTED, Outcome.TOKEN_USED
    unknown = {**_HEADERS, "authorization": "Bearer " + "B" * 43}
    cases: list[tuple[str, Outcome | Exception, bytes, dict[str, str]]] = [
        ("counted", counted, report, _HEADERS),
        ("counted before: the same id", Outcome.REPEATED, report, _HEADERS),
        ("no token, or one that is not known", counted, report, unknown),
        ("the token has reported already, under another id", used, report, _HEADERS),
        ("a report for another document", counted, other, _HEADERS),
        ("the plan is complete", Outcome.CLOSED, report, _HEADERS),
        ("a byte too few", counted, report[:-1], _HEADERS),
        ("a byte too many", counted, report + b"\0", _HEADERS),
        ("another version of the protocol", counted, b"OVH1" + report[4:], _HEADERS),
        ("another content type", counted, report, {**_HEADERS, "content-type": "text/plain"}),
        ("too many reports wait", Overloaded("too many reports wait"), report, _HEADERS),
        ("the store is away", StoreUnavailable("away"), report, _HEADERS),
        ("a fault of the service", ValueError("a fault"), report, _HEADERS),
    ]
    return [await _answer(document, *case) for case in cases]


async def _answer(
    document: Document, case: str, result: Outcome | Exception, body: bytes, headers: dict[str, str]
) -> dict[str, Any]:
    admission = cast(Admission, _Settled(result))
    app = ShufflerApp(document, admission, tokens={hash_token(_TOKEN)})
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
        answer = await http.post("/v1/reports", content=body, headers=headers)
    return {
        "case": case,
        "status": answer.status_code,
        "retry_after": answer.headers.get("retry-after"),
        "body": answer.text,
        "send_again": answer.status_code in _AGAIN,
    }
