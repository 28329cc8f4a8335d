"""The client: what it sends, how often, and what it says when it did not get through."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from functools import cache
from http import HTTPStatus
from pathlib import Path

import numpy as np
import pytest

import overhand as oh
from overhand.cli.client import _report
from overhand.deploy.client import AsyncClient, Client, NotCounted, Outdated, client
from overhand.deploy.protocol.document import DamagedDocument, Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.transport import Answer, HttpTransport, Unreachable
from overhand.errors import InvalidValue
from overhand.planning import Plan
from overhand.randomness import seeded_random
from support.random_streams import UNSAFE
from support.scripted_shuffler import COUNTED, Service

KEYS = [KeyPair.of_raw(bytes([number]) * 32) for number in (1, 2)]


@cache
def document(key: int = 0) -> Document:
    plan = Plan.best(60, 2, oh.Privacy(4.0, 1e-4), tree="regular")
    return Document(plan, KEYS[key].public_key)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_FIRST_WAIT", 0.0)
    monkeypatch.setattr(client, "_LONGEST_WAIT", 0.0)


def answering(answer: Callable[[int, bytes], Answer | Exception]) -> Service:
    return Service(document(), answer)


def reporter(service: Service, digest: str | None = None) -> AsyncClient:
    return AsyncClient("http://unused", transport=service, digest=digest)


@pytest.mark.parametrize(
    "failure", [Unreachable("gone"), *(Answer(status, b"") for status in (408, 429, 500, 503))]
)
def test_a_report_is_sent_again_byte_for_byte(failure: Answer | Exception) -> None:
    service = answering(lambda count, _: failure if count < 4 else COUNTED)
    asyncio.run(reporter(service).report(1))
    assert len(service.bodies) == 4
    assert len(set(service.bodies)) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 410, 413])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    words = json.dumps({"error": "because"}).encode()
    service = answering(lambda *_: Answer(status, words))
    with pytest.raises(NotCounted, match=f"{status}: because") as caught:
        asyncio.run(reporter(service).report(1))
    assert caught.value.reports == tuple(service.bodies)
    assert len(service.bodies) == 1


def test_what_was_not_counted_can_be_sent_later() -> None:
    service = answering(lambda *_: Unreachable("gone"))

    async def main() -> None:
        one = reporter(service)
        with pytest.raises(NotCounted) as caught:
            await one.report(1)
        (body,) = caught.value.reports
        assert set(service.bodies) == {body}
        service.answer = lambda *_: COUNTED
        await one.send(body)
        assert set(service.bodies) == {body}

    asyncio.run(main())


@pytest.mark.parametrize(
    ("status", "body"), [(299, b"[]"), (999, b"{}"), (302, b"\xff"), (404, b'{"error"')]
)
def test_an_odd_answer_is_a_failure_with_words(status: int, body: bytes) -> None:
    service = answering(lambda *_: Answer(status, body))
    with pytest.raises(NotCounted, match=str(status)):
        asyncio.run(reporter(service).report(1))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[" * 200_000, "Bad Request"),
        (b'{"error": ' + b"[" * 200_000, "Bad Request"),
        (b'{"error": ' + b"9" * 5000 + b"}", "Bad Request"),
        (json.dumps({"error": "\n\x1b\u202e"}).encode(), "Bad Request"),
        (json.dumps({"error": "\x1b[2Jno\u202e w\u00e4y\r\n\x00"}).encode(), "[2Jno w\u00e4y"),
        (json.dumps({"error": "\n" * 300 + "so" * 500_000}).encode(), "so" * 100),
    ],
    ids=["nested", "nested error", "number", "unprintable", "partly printable", "long"],
)
def test_only_what_is_fit_to_be_shown_is_told(body: bytes, words: str) -> None:
    service = answering(lambda *_: Answer(400, body))
    with pytest.raises(NotCounted) as caught:
        asyncio.run(reporter(service).report(1))
    assert str(caught.value) == f"POST /v1/reports failed: 400: {words}"


def test_after_a_new_key_a_report_is_made_anew() -> None:
    service = answering(lambda *_: COUNTED)

    async def main() -> None:
        one = reporter(service)
        await one.report(1)
        service.document = renewed = document(key=1)
        service.answer = lambda _, body: (
            COUNTED if body[4:36].hex() == renewed.digest else Answer(HTTPStatus.CONFLICT, b"{}")
        )
        await one.report(1)
        assert [body[4:36].hex() for body in service.bodies] == [
            document().digest,
            document().digest,
            document(key=1).digest,
        ]

    asyncio.run(main())


def test_a_report_that_is_refused_under_the_same_document_is_not_made_anew() -> None:
    conflict = Answer(HTTPStatus.CONFLICT, b'{"error": "another plan"}')
    service = answering(lambda count, _: conflict if count == 1 else COUNTED)

    async def main() -> None:
        one = reporter(service)
        with pytest.raises(NotCounted, match="409: another plan, but its document is") as caught:
            await one.report(1)
        assert not isinstance(caught.value, Outdated)
        assert caught.value.reports == tuple(service.bodies)
        assert len(service.bodies) == 1
        await one.send(*caught.value.reports)
        assert len(set(service.bodies)) == 1

    asyncio.run(main())


def test_a_refused_report_is_handed_back_if_there_is_no_other_document() -> None:
    service = answering(lambda *_: Answer(HTTPStatus.CONFLICT, b"{}"))

    async def main() -> None:
        one = reporter(service)
        await one.document()
        service.document = None
        with pytest.raises(NotCounted, match="GET /v1/document failed: 410") as caught:
            await one.report(1)
        assert caught.value.reports == tuple(service.bodies)
        assert len(service.bodies) == 1

    asyncio.run(main())


def test_reports_among_many_are_never_made_anew() -> None:
    service = answering(lambda *_: Answer(HTTPStatus.CONFLICT, b"{}"))
    with pytest.raises(NotCounted, match="0 reports were counted, 3 were not") as caught:
        asyncio.run(reporter(service).report_many([1, 0, 1]))
    assert sorted(caught.value.reports) == sorted(service.bodies)
    assert len(service.bodies) == 3


def test_a_pinned_client_does_not_follow_to_a_new_key() -> None:
    service = answering(lambda *_: Answer(HTTPStatus.CONFLICT, b"{}"))

    async def main() -> None:
        one = reporter(service, document().digest)
        await one.document()
        service.document = document(key=1)
        with pytest.raises(InvalidValue, match=document(key=1).digest[:12]):
            await one.report(1)
        assert len(service.bodies) == 1

    asyncio.run(main())


def test_a_pinned_client_reads_nothing_but_what_was_agreed_upon() -> None:
    class Hostile:
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            return Answer(200, b"[" * 200_000 + b"\xff")

        async def close(self) -> None: ...

    one = AsyncClient("http://unused", transport=Hostile(), digest=document().digest)
    with pytest.raises(InvalidValue, match=f"not {document().digest[:12]}"):
        asyncio.run(one.document())
    with pytest.raises(DamagedDocument, match="not text"):
        asyncio.run(AsyncClient("http://unused", transport=Hostile()).document())


@pytest.mark.parametrize("before", [Unreachable("gone"), Answer(500, b""), Answer(503, b"")])
def test_a_report_that_may_have_been_counted_is_never_made_anew(
    before: Answer | Exception,
) -> None:
    conflict = Answer(HTTPStatus.CONFLICT, b"{}")
    service = answering(lambda count, _: before if count == 1 else conflict)
    with pytest.raises(NotCounted) as caught:
        asyncio.run(reporter(service).report(1))
    assert not isinstance(caught.value, Outdated)
    assert len(set(service.bodies)) == 1


def test_many_reports_are_under_way_but_not_too_many() -> None:
    service, told = answering(lambda *_: COUNTED), list[int]()
    values = np.arange(50) % 2

    async def main() -> int:
        return await reporter(service).report_many(values, at_once=7, advance=told.append)

    assert asyncio.run(main()) == len(set(service.bodies)) == sum(told) == 50
    assert service.most_under_way == 7


def test_all_values_are_looked_at_before_one_is_sent() -> None:
    service = answering(lambda *_: COUNTED)
    with pytest.raises(InvalidValue, match="2"):
        asyncio.run(reporter(service).report_many([0, 1] * 40 + [2]))
    with pytest.raises(InvalidValue, match="at_once"):
        asyncio.run(reporter(service).report_many([1], at_once=0))
    assert service.bodies == []


def test_a_failure_among_many_tells_what_became_of_all() -> None:
    service = answering(lambda count, _: Answer(410, b"{}") if count > 20 else COUNTED)
    with pytest.raises(NotCounted, match="20 reports were counted") as caught:
        asyncio.run(reporter(service).report_many([1] * 500, at_once=4))
    assert caught.value.counted == 20
    assert caught.value.reports == tuple(service.bodies[20:])
    assert len(service.bodies) < 60, "nothing is begun after a failure"


def test_an_address_and_its_certificates_are_checked_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="ftp://x"):
        HttpTransport("ftp://x")
    for nowhere in ("", "[", ":80", "x:99999", "x:0", "x y", "x\n", "x?a=b", "x/#top", "me:word@x"):
        with pytest.raises(InvalidValue, match="is not an address: it has a host") as refused:
            HttpTransport(f"https://{nowhere}")
        assert "word" not in str(refused.value)
    for somewhere in ("x", "x:1/", "127.0.0.1:8000/path/", "[::1]:80", "ä.example"):
        HttpTransport(f"https://{somewhere}")
    with pytest.raises(InvalidValue, match="no certificates"):
        HttpTransport("https://x", authorities=tmp_path / "missing.pem")


@pytest.mark.parametrize("made", [AsyncClient, Client])
def test_noise_that_somebody_may_know_is_refused(made: Callable[..., object]) -> None:
    for kind, random in {**UNSAFE, "SeededRandom": seeded_random(1)}.items():
        with pytest.raises(InvalidValue, match=f"random is of type {kind}: deployed noise"):
            made("https://here", random=random)
    made("https://here", random=oh.secure_random())


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        (oh.Histogram(3), ["2", "0"]),
        (oh.Vectors(2), ["0.6,0.8", "0,0"]),
        (oh.RegressionStatistics(2), ["0.6,0.8,1", "0,0.5,-1"]),
        (oh.SymmetricMatrices(2), ["0.5,0.1,0.1,0.5", "0,0,0,0"]),
    ],
    ids=str,
)
def test_a_file_of_values_of_any_kind_is_reported(
    values: oh.Values, lines: list[str], tmp_path: Path
) -> None:
    """RegressionStatistics and matrices are not given as they are added up: they are checked once.

    And so is a value that is typed, number by number.
    """
    plan = Plan.best(60, 2, oh.Privacy(4.0, 1e-4), values=values, mechanism="shares")
    service = answering(lambda *_: COUNTED)
    service.document = Document(plan, KEYS[0].public_key)
    path = tmp_path / "values.csv"
    path.write_text("\n".join(lines) + "\n")
    counted = asyncio.run(_report(reporter(service), [], path, 4, one=False))
    assert (counted, len(service.bodies)) == (2, 2)
    words = lines[0].split(",")
    assert asyncio.run(_report(reporter(service), words, None, 4, one=True)) == 1
