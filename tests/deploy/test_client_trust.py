"""Where the services make the noise: the key is not the service's to give, nor a second seal."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.client import AsyncClient, Client, NotCounted, Outdated, client
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue
from support.scripted_shuffler import COUNTED, Service

OUTDATED = Answer(409, b'{"error": "another plan"}')
SERVER, LIAR = (KeyPair.of_raw(bytes([number]) * 32) for number in (1, 2))


@cache
def document(key: KeyPair = SERVER, mechanism: str = "ballots") -> Document:
    plan = oh.Plan.best(60, 2, oh.Privacy(4.0, 1e-4), mechanism=mechanism)
    return Document(plan, key.public_key)


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    """The documents that reports were made for, one by one."""
    made: list[Document] = []

    def counting(document: Document, *arguments: Any) -> list[bytes]:
        made.append(document)
        return encode(document, *arguments)

    encode = encode_reports
    monkeypatch.setattr(client, "encode_reports", counting)
    return made


def opened(key: KeyPair, report: bytes) -> list[bytes | None]:
    """What a report says at its lowest level to who has this key."""
    formats = document(key).formats
    part = formats.unpack_report(report).parts[0]
    return list(Opener(key, formats.digest).open(1, [part]))


@pytest.mark.parametrize("pinned", [True, False])
def test_a_key_of_the_services_own_is_refused(pinned: bool, encodings: list[Document]) -> None:
    """Pinned or not: a lying service learns nothing, for nothing is made for its key."""
    service = Service(document(LIAR))
    digest = document().digest if pinned else None
    words = f"not {digest}" if pinned else r"digest= \(--digest\) is missing.*overhand prepare"
    one = AsyncClient("http://unused", transport=service, digest=digest)
    with pytest.raises(InvalidValue, match=words):
        asyncio.run(one.report(1))
    with pytest.raises(InvalidValue, match=words):
        asyncio.run(one.report_many([1, 0]))
    assert (encodings, service.bodies) == ([], [])


def test_an_honest_document_is_refused_too_if_nobody_vouches_for_it() -> None:
    with pytest.raises(InvalidValue, match="sha256sum document.json"):
        asyncio.run(AsyncClient("http://unused", transport=Service(document())).document())
    pinned = AsyncClient("http://unused", transport=Service(document()), digest=document().digest)
    assert asyncio.run(pinned.document()) == document()


def test_who_trusts_the_service_takes_its_key() -> None:
    """And shows why one should not: the service reads the value."""
    service = Service(document(LIAR))
    with Client("http://unused", transport=service, trust_service=True) as one:
        one.report(1)
    assert opened(LIAR, *service.bodies) == [b"\x01"]


def test_trust_does_not_undo_a_digest() -> None:
    service, digest = Service(document(LIAR)), document().digest
    one = AsyncClient("http://unused", transport=service, digest=digest, trust_service=True)
    with pytest.raises(InvalidValue, match=f"not {digest}"):
        asyncio.run(one.report(1))


def test_with_users_noise_a_digest_is_as_good_as_none() -> None:
    service = Service(document(mechanism="coins"))
    asyncio.run(AsyncClient("http://unused", transport=service).report(1))
    assert len(service.bodies) == 1


@pytest.mark.parametrize("pinned", [True, False])
def test_nothing_is_sealed_again_because_a_service_asks(
    pinned: bool, encodings: list[Document]
) -> None:
    """Even if another document is there, and even if the service would take reports for it."""
    service = Service(document(), lambda count, _: OUTDATED if count == 1 else COUNTED)

    async def main() -> None:
        digest = document().digest if pinned else None
        one = AsyncClient("http://unused", transport=service, digest=digest, trust_service=True)
        await one.document()
        service.document = document(LIAR)
        with pytest.raises(NotCounted, match="409: another plan; .*not sealed again") as caught:
            await one.report(1)
        assert not isinstance(caught.value, Outdated)
        assert caught.value.reports == tuple(service.bodies)
        await one.send(*caught.value.reports)

    asyncio.run(main())
    assert encodings == [document()]
    assert len(service.bodies) == 2
    assert len(set(service.bodies)) == 1


def test_with_users_noise_it_is_made_anew_once(encodings: list[Document]) -> None:
    """What the test above would see of a client that makes reports anew."""
    first, second = document(mechanism="coins"), document(LIAR, "coins")
    service = Service(first, lambda count, _: OUTDATED if count == 1 else COUNTED)

    async def main() -> None:
        one = AsyncClient("http://unused", transport=service)
        await one.document()
        service.document = second
        await one.report(1)

    asyncio.run(main())
    assert encodings == [first, second]
