"""What a recommender's device believes and refuses, and when it sends a report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.deploy.protocol.keys import KeyPair, PolicyKey
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue, ProtocolViolation
from support.small_recommender import CONTEXTS, GOOD, Told, document, signed_of


def device(service: Told, **options: Any) -> Any:
    from overhand.deploy.client import AsyncRecommenderClient

    if "trust_service" not in options:
        options["digest"] = service.document.digest
    return AsyncRecommenderClient("http://a.example", transport=service, **options)


def without_signature(policy: bytes) -> bytes:
    saved = json.loads(policy)
    return json.dumps({**saved, "theta": [-x for x in saved["theta"]]}).encode()


FORGED: dict[str, tuple[Callable[..., bytes], dict[str, Any], str]] = {
    "another key": (signed_of, {"key": PolicyKey.of_raw(bytes(32))}, "not signed by the server"),
    "another document": (signed_of, {"digest": bytes(32)}, "a policy of the document 000000000000"),
    "changed": (lambda theta: without_signature(signed_of(theta)), {}, "not signed by the server"),
    "no policy": (lambda theta: b"{}", {}, "not a policy"),
    "not text": (lambda theta: b"\xff\xfe", {}, "not a policy"),
    "too long": (lambda theta: b"[" * (1 << 21), {}, "not a policy"),
    "nested": (lambda theta: b"[" * (1 << 19), {}, "not a policy"),
    "NaN": (lambda theta: signed_of([float("nan"), 0.0, 0.0]), {}, "not a policy"),
    "another dimension": (lambda theta: signed_of([1.0, 0.0]), {}, "not a policy"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_policy_that_the_server_did_not_sign_chooses_nothing(case: str) -> None:
    """Who could forge one would read a person's context from the arm that it takes."""
    make, options, words = FORGED[case]
    service = Told(document(), make(GOOD, **options))

    async def main() -> None:
        async with device(service) as client:
            with pytest.raises(ProtocolViolation, match=words):
                await client.choose(CONTEXTS)
            with pytest.raises(ProtocolViolation, match="choose first"):
                await client.report(1.0)

    asyncio.run(main())
    assert service.reports == []


def test_policies_are_asked_for_when_they_are_old_and_never_go_back() -> None:
    service, now = Told(document()), [0.0]

    async def main() -> None:
        async with device(service, max_age=10.0, clock=lambda: now[0]) as client:
            assert await client.policy() is None
            service.policy = signed_of(GOOD, number=2)
            assert await client.policy() is None, "not asked again so soon"
            now[0] = 10.0
            assert [await client.choose(CONTEXTS) for _ in range(20)] == [0] * 20
            service.policy = signed_of([0.0, -1.0, 0.0], number=1)
            assert await client.choose(CONTEXTS) == 0
            now[0] = 20.0
            with pytest.raises(ProtocolViolation, match="policy 1 is older than policy 2"):
                await client.choose(CONTEXTS)

    asyncio.run(main())


def test_a_device_that_starts_again_takes_no_older_policy(tmp_path: Path) -> None:
    """Who could show it policies of long ago could choose the question that its arm answers."""
    kept = tmp_path / "reports"

    async def chosen(policy: bytes | None) -> int:
        async with device(Told(document(), policy), kept=kept) as client:
            return int(await client.choose(CONTEXTS))

    left, right = signed_of(GOOD, number=2), signed_of([0.0, -1.0, 0.0], number=3)
    assert asyncio.run(chosen(left)) == 0
    assert {asyncio.run(chosen(None)) for _ in range(8)} == {0}, (
        "a policy that is known stays known"
    )
    assert asyncio.run(chosen(right)) == 1
    with pytest.raises(ProtocolViolation, match="policy 2 is older than policy 3"):
        asyncio.run(chosen(left))
    assert len(kept.read_bytes()) < 2 * len(right), "one policy is kept"


def test_policies_that_overtake_each_other_are_not_older() -> None:
    """Two that are asked for at a time, and the first answer comes last."""
    answers = iter([(0.02, signed_of(GOOD, number=1)), (0.0, signed_of(GOOD, number=2))])

    class Slow(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            if path == "/v1/policy":
                wait, self.policy = next(answers)
                answer = await super().request(method, path)
                await asyncio.sleep(wait)
                return answer
            return await super().request(method, path, body)

    async def main() -> list[int]:
        async with device(Slow(document()), max_age=1e-9) as client:
            return [*await asyncio.gather(*(client.choose(CONTEXTS) for _ in range(2)))]

    assert asyncio.run(main()) == [0, 0]


def test_a_report_that_was_not_delivered_is_sent_again(tmp_path: Path) -> None:
    from overhand.deploy.client import AlreadyReported, NotCounted, RecommenderClient

    class Closed(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            answer = await super().request(method, path, body)
            return answer if body is None else Answer(410, b"")

    def client(service: Told) -> RecommenderClient:
        kept, digest = tmp_path / "reports", service.document.digest
        return RecommenderClient("http://a.example", digest=digest, transport=service, kept=kept)

    closed, service = Closed(document()), Told(document())
    with client(closed) as person:
        person.choose(CONTEXTS)
        with pytest.raises(NotCounted):
            person.report(1.0)
    with client(service) as person:
        person.choose(CONTEXTS)
        with pytest.raises(AlreadyReported, match="resend"):
            person.report(0.0)
        assert service.reports == []
        assert person.resend() == 1
        assert person.resend() == 0
    assert service.reports == closed.reports


BAD_CONTEXTS = {
    "another dimension": ([[0.6, 0.8]], r"shape \(1, 2\)"),
    "two people": (CONTEXTS[np.newaxis], "not one person's"),
    "too long": ([[0.6, 0.9, 0.0]], "norm"),
    "no constant": ([[0.6, 0.1, 0.0], [0.5, 0.1, 0.0]], "of arm 1 is 0.5, not the constant 0.6"),
    "NaN": ([[0.6, np.nan, 0.0]], "finite"),
    "words": ([["a", "b", "c"]], "numbers"),
    "none": (np.empty((0, 3)), "shape"),
}


def test_bad_contexts_and_rewards_are_refused_and_nothing_is_sent() -> None:
    service = Told(document(), signed_of(GOOD))

    async def main() -> None:
        async with device(service) as client:
            for contexts, words in BAD_CONTEXTS.values():
                with pytest.raises(InvalidValue, match=words):
                    await client.choose(contexts)
            with pytest.raises(ProtocolViolation, match="choose first"):
                await client.report(1.0)
            await client.choose(CONTEXTS)
            for reward in (-0.1, 1.000000000001, np.nan):
                with pytest.raises(InvalidValue, match=str(reward)):
                    await client.report(reward)
            assert service.reports == []
            await client.report(1.0)
            with pytest.raises(ProtocolViolation, match="choose first"):
                await client.report(1.0)

    asyncio.run(main())
    assert len(service.reports) == 1


def test_a_document_of_sums_is_no_recommender() -> None:
    service = Told(replace(document(), learning=None))

    async def main() -> None:
        async with device(service) as client:
            with pytest.raises(InvalidValue, match="of no recommender"):
                await client.choose(CONTEXTS)

    asyncio.run(main())


def test_a_client_of_sums_reports_nothing_to_a_recommender(tmp_path: Path) -> None:
    """Its features would not be scaled, nor its rewards centred: the sums would be of two kinds."""
    from overhand.deploy.client import Client

    service, kept = Told(document()), str(tmp_path / "reports")
    options: Any = {"digest": document().digest, "transport": service, "kept": kept}
    with Client("http://a.example", **options) as client:
        for report in (client.report, lambda value: client.report_many([value])):
            with pytest.raises(InvalidValue, match="of a recommender: RecommenderClient reports"):
                report([0.6, 0.8, 0.0, 1.0])
        assert client.resend() == 0, "which is of bytes that were made before"
    assert service.reports == []


def test_a_new_document_has_policies_of_its_own() -> None:
    """The first of them is no older than the last of another."""
    other = replace(document(), public_key=KeyPair.generate().public_key)
    service = Told(document(), signed_of(GOOD, number=7))

    async def main() -> None:
        async with device(service, trust_service=True) as client:
            assert await client.choose(CONTEXTS) == 0
            service.document = other
            service.policy = signed_of([0.0, -1.0, 0.0], number=1, digest=other.formats.digest)
            client._document = None  # as after a refusal
            assert await client.choose(CONTEXTS) == 1

    asyncio.run(main())
