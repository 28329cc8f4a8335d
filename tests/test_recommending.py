"""A recommender over HTTP, in one process: signed rules, devices that choose and report."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import LinUCB, Policy, Practical, Theory, plan_for_regret
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import NoiseBy
from overhand.service.protocol import DamagedDocument, Document, KeyPair, Learning, Rule, RuleKey
from overhand.service.server import Book, Publisher, Settled
from overhand.service.server.learnt import arms_of, coefficients_of, reward_of
from overhand.service.server.tables import Coordinate
from overhand.service.shuffler import Filler
from overhand.service.web import Answer, Unreachable
from support.asgi import AsgiTransport
from support.books import ReadsThem
from support.system import RULE_KEY, System, run

CONSTANT = 0.6
ARMS = {"left": (0.6, 0.8, 0.0), "right": (0.6, -0.8, 0.0), "other": (0.6, 0.0, 0.8)}
CONTEXTS = np.array(list(ARMS.values()))
ROUNDS = 12
LEARNING = Learning(Practical(3, CONSTANT), RULE_KEY.public_key, ("always", "side", "other"), ARMS)


@lru_cache
def plan(noise: NoiseBy = "users") -> oh.Plan:
    return plan_for_regret(
        400, 2, oh.Privacy(30.0, 1e-4), dimension=3, mechanism="pairs", noise=noise
    )


def policy_of(theta: list[float]) -> Policy:
    return Policy(10, np.array(theta), 0.1 * np.eye(len(theta)))


async def visit(system: System, users: int) -> list[int]:
    """This many people, each with a device of its own, who like the left."""
    arms = []
    for _ in range(users):
        async with system.device() as device:
            arm = await device.choose(CONTEXTS)
            await device.report(float(arm == 0))
        arms.append(arm)
    return arms


@pytest.mark.parametrize("noise", ["users", "services"])
def test_devices_learn_from_each_other(tmp_path: Path, noise: NoiseBy) -> None:
    lowest = plan(noise).tree.lowest

    async def test(system: System) -> None:
        assert system.relay is not None
        async with system.device() as crowd:
            arms = await crowd.choose_many(np.repeat(CONTEXTS[np.newaxis], 300, axis=0))
        assert set(arms.tolist()) == {0, 1, 2}, "without a rule, any arm"
        for _ in range(ROUNDS):
            await visit(system, lowest)
            await system.publish()
            await system.relay.look()
        assert (await visit(system, lowest)).count(0) == lowest
        async with system.at_server() as web:
            newest = (await web.get("/v1/policy")).text
            history = [(await web.get(f"/v1/policy?number={n}")).json() for n in (1, 2, 3)]
            learnt = (await web.get("/v1/learnt")).json()
        assert [one["number"] for one in history] == [1, 2, 3]
        assert history[0]["users"] == lowest
        latest = json.loads(newest)
        assert latest["users"] == ROUNDS * lowest
        again = system.new_publisher()
        assert (again.rule(), again.rule(1)) == (newest, system.publisher.rule(1))
        assert next(arm["arm"] for arm in learnt["arms"]) == "left"
        assert [one["feature"] for one in learnt["coefficients"]] == ["always", "side", "other"]
        assert learnt["rule"] == {"number": latest["number"], "users": ROUNDS * lowest}
        reward = learnt["reward"]
        assert reward["t"][-1] == ROUNDS * lowest
        assert all(low < value < high for _, value, low, high in zip(*reward.values(), strict=True))

    run(tmp_path, test, plan=plan(noise), learning=LEARNING)


# --- what a device believes -----------------------------------------------------------------------


class Told:
    """A service that says what it is told to, and hears reports."""

    def __init__(self, document: Document, rule: bytes | None = None) -> None:
        self.document, self.rule = document, rule
        self.reports: list[bytes] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if path == "/v1/policy":
            return Answer(404, b"") if self.rule is None else Answer(200, self.rule)
        if body is not None:
            self.reports.append(body)
        return Answer(200, self.document.to_json().encode())

    async def close(self) -> None: ...


@lru_cache
def document() -> Document:
    return Document(plan(), KeyPair.of_raw(bytes(range(32))).public_key, LEARNING)


def rule_of(
    theta: list[float], number: int = 1, key: RuleKey = RULE_KEY, digest: bytes | None = None
) -> bytes:
    digest = document().formats.digest if digest is None else digest
    return Rule.signed(key, digest, number, policy_of(theta)).to_json().encode()


def device(service: Told, **options: Any) -> Any:
    from overhand.service.client import AsyncRecommenderClient

    return AsyncRecommenderClient("http://a.example", transport=service, **options)


def without_signature(rule: bytes) -> bytes:
    saved = json.loads(rule)
    return json.dumps({**saved, "theta": [-x for x in saved["theta"]]}).encode()


GOOD = [0.0, 1.0, 0.0]
FORGED: dict[str, tuple[Callable[..., bytes], dict[str, Any], str]] = {
    "another key": (rule_of, {"key": RuleKey.of_raw(bytes(32))}, "not signed by the server"),
    "another document": (rule_of, {"digest": bytes(32)}, "a rule of the document 000000000000"),
    "changed": (lambda theta: without_signature(rule_of(theta)), {}, "not signed by the server"),
    "no rule": (lambda theta: b"{}", {}, "not a rule"),
    "not text": (lambda theta: b"\xff\xfe", {}, "not a rule"),
    "too long": (lambda theta: b"[" * (1 << 21), {}, "not a rule"),
    "nested": (lambda theta: b"[" * (1 << 19), {}, "not a rule"),
    "NaN": (lambda theta: rule_of([float("nan"), 0.0, 0.0]), {}, "not a rule"),
    "another dimension": (lambda theta: rule_of([1.0, 0.0]), {}, "not a rule"),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_rule_that_the_server_did_not_sign_chooses_nothing(case: str) -> None:
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


def test_rules_are_asked_for_when_they_are_old_and_never_go_back() -> None:
    service, now = Told(document()), [0.0]

    async def main() -> None:
        async with device(service, max_age=10.0, clock=lambda: now[0]) as client:
            assert await client.rule() is None
            service.rule = rule_of(GOOD, number=2)
            assert await client.rule() is None, "not asked again so soon"
            now[0] = 10.0
            assert [await client.choose(CONTEXTS) for _ in range(20)] == [0] * 20
            service.rule = rule_of([0.0, -1.0, 0.0], number=1)
            assert await client.choose(CONTEXTS) == 0
            now[0] = 20.0
            with pytest.raises(ProtocolViolation, match="rule 1 is older than rule 2"):
                await client.choose(CONTEXTS)

    asyncio.run(main())


def test_a_device_that_starts_again_takes_no_older_rule(tmp_path: Path) -> None:
    """Who could show it rules of long ago could choose the question that its arm answers."""
    kept = tmp_path / "reports"

    async def chosen(rule: bytes | None) -> int:
        async with device(Told(document(), rule), kept=kept) as client:
            return int(await client.choose(CONTEXTS))

    left, right = rule_of(GOOD, number=2), rule_of([0.0, -1.0, 0.0], number=3)
    assert asyncio.run(chosen(left)) == 0
    assert {asyncio.run(chosen(None)) for _ in range(8)} == {0}, "a rule that is known stays known"
    assert asyncio.run(chosen(right)) == 1
    with pytest.raises(ProtocolViolation, match="rule 2 is older than rule 3"):
        asyncio.run(chosen(left))
    assert len(kept.read_bytes()) < 2 * len(right), "one rule is kept"


def test_rules_that_overtake_each_other_are_not_older() -> None:
    """Two that are asked for at a time, and the first answer comes last."""
    answers = iter([(0.02, rule_of(GOOD, number=1)), (0.0, rule_of(GOOD, number=2))])

    class Slow(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            if path == "/v1/policy":
                wait, self.rule = next(answers)
                answer = await super().request(method, path)
                await asyncio.sleep(wait)
                return answer
            return await super().request(method, path, body)

    async def main() -> list[int]:
        async with device(Slow(document()), max_age=1e-9) as client:
            return [*await asyncio.gather(*(client.choose(CONTEXTS) for _ in range(2)))]

    assert asyncio.run(main()) == [0, 0]


def test_a_report_that_was_not_delivered_is_sent_again(tmp_path: Path) -> None:
    from overhand.service.client import AlreadyReported, NotCounted, RecommenderClient

    class Closed(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            answer = await super().request(method, path, body)
            return answer if body is None else Answer(410, b"")

    def client(service: Told) -> RecommenderClient:
        return RecommenderClient("http://a.example", transport=service, kept=tmp_path / "reports")

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
    service = Told(document(), rule_of(GOOD))

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
    from overhand.service.client import Client

    service = Told(document())
    with Client("http://a.example", transport=service, kept=str(tmp_path / "reports")) as client:
        for report in (client.report, lambda value: client.report_many([value])):
            with pytest.raises(InvalidValue, match="of a recommender: RecommenderClient reports"):
                report([0.6, 0.8, 0.0, 1.0])
        assert client.resend() == 0, "which is of bytes that were made before"
    assert service.reports == []


def test_a_new_document_has_rules_of_its_own() -> None:
    """The first of them is no older than the last of another."""
    other = replace(document(), public_key=KeyPair.generate().public_key)
    service = Told(document(), rule_of(GOOD, number=7))

    async def main() -> None:
        async with device(service) as client:
            assert await client.choose(CONTEXTS) == 0
            service.document = other
            service.rule = rule_of([0.0, -1.0, 0.0], number=1, digest=other.formats.digest)
            client._document = None  # as after a refusal
            assert await client.choose(CONTEXTS) == 1

    asyncio.run(main())


# --- the relay ------------------------------------------------------------------------------------


def test_the_relay_keeps_what_the_server_signed_last() -> None:
    from overhand.service.shuffler import Relay

    service = Told(document())
    relay = Relay(document(), service, tick=1.0)

    async def main() -> None:
        await relay.look()
        assert relay.newest is None
        service.rule = second = rule_of(GOOD, number=2)
        await relay.look()
        for bad in (rule_of(GOOD, number=1), rule_of(GOOD, number=3, key=RuleKey.generate())):
            service.rule = bad
            with pytest.raises(ProtocolViolation):
                await relay.look()
        service.rule = None
        await relay.look()
        assert relay.newest == second

    asyncio.run(main())


def test_a_server_that_is_away_leaves_the_last_rule_in_force() -> None:
    from overhand.service.shuffler import Relay

    class Away(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            answer = await super().request(method, path, body)
            self.rule = None
            stopping.set()
            if answer.status == 404:
                raise Unreachable("away")
            return answer

    stopping = asyncio.Event()
    relay = Relay(document(), Away(document(), rule_of(GOOD)), tick=0.001)

    async def main() -> None:
        for _ in range(2):
            stopping.clear()
            await relay.run(stopping)

    asyncio.run(main())
    assert relay.newest == rule_of(GOOD)


# --- what is read off the moments -----------------------------------------------------------------


def sums_of(users: int, liking: float, seed: int) -> tuple[float, Any]:
    """The mean reward of people who take any arm, and the sum of their moments."""
    rng = np.random.default_rng(seed)
    arms = rng.integers(0, 3, users)
    rewards = (rng.random(users) < np.where(arms == 0, liking, 0.2)).astype(float)
    rows = LinUCB(LEARNING.constants).rows(CONTEXTS[arms], rewards)
    return float(rewards.mean()), rows.sum(axis=0)


def test_the_mean_reward_is_what_the_moments_say() -> None:
    mean, total = sums_of(500, 0.9, seed=1)
    point = Coordinate(500, float(total[0]), float(total[0]), float(total[0]))
    shown = reward_of(LEARNING, point, 500)
    assert shown is not None
    assert shown.value == pytest.approx(mean)
    assert reward_of(replace(LEARNING, constants=Practical(3), arms={}), point, 500) is None


def test_nothing_is_learnt_of_a_sum_whose_key_is_still_there(tmp_path: Path) -> None:
    """Sum, key and news change together: what is read in between would be ahead of the key."""

    async def test(system: System) -> None:
        with ThreadPoolExecutor(1) as threads:
            with system.publisher._lock:
                learnt = threads.submit(system.publisher.learnt)
                with pytest.raises(TimeoutError):
                    learnt.result(timeout=0.1)
            assert learnt.result(timeout=10.0)["rule"] is None

    run(tmp_path, test, plan=plan("services"), learning=LEARNING)


@pytest.mark.parametrize("noise", ["users", "services"])
def test_places_that_nobody_took_have_no_reward(tmp_path: Path, noise: NoiseBy) -> None:
    """Counted as users, they would draw the mean towards 1/2."""
    lowest = plan(noise).tree.lowest

    async def test(system: System) -> None:
        filler = Filler(system.store, system.admission, system.document, deadline=1e-9)
        for people in (2, lowest, 1):
            async with system.device() as crowd:
                await crowd.choose_many(np.repeat(CONTEXTS[:1, np.newaxis], people, axis=0))
                await crowd.report_many([1.0] * people)
            for _ in range(2):
                missing = filler._missing(system.store.arrived)
            if missing:
                await filler.fill(missing)
            await system.publish()
        reward, sums = system.publisher.learnt()["reward"], system.publisher.history
        assert reward["t"] == [one["t"] for one in sums]
        for users, place in ((2, 0), (lowest + 3, -1)):  # the constant is made 1/2
            expected = 0.5 + sums[place]["value"][0] / users
            assert reward["value"][place] == pytest.approx(expected)

    run(tmp_path, test, plan=plan(noise), learning=LEARNING)


@pytest.mark.parametrize(("users", "std", "widest"), [(3000, 1.0, 0.3), (300, 40.0, 3.0)])
def test_what_was_learnt_is_within_its_interval(users: int, std: float, widest: float) -> None:
    """Also while noise prevails, and the shift pulls theta to nearly nothing."""
    inside = 0
    truth = np.linalg.lstsq(CONTEXTS, np.array([0.9, 0.2, 0.2]) - 0.5, rcond=None)[0]
    for seed in range(60):
        _, total = sums_of(users, 0.9, seed)
        total += np.random.default_rng([seed, 1]).normal(0.0, std, len(total))
        estimate = oh.Estimate(users, total, std=std)
        policy = LEARNING.learner.policy(users, total, std)
        rule = Rule.signed(RULE_KEY, bytes(32), 1, policy)
        learnt = coefficients_of(LEARNING, rule, estimate)
        inside += sum(
            one["low"] <= real <= one["high"] for one, real in zip(learnt, truth, strict=True)
        )
    assert inside >= 0.95 * 180
    assert max(one["high"] - one["low"] for one in learnt) < widest, "and tells something"
    assert sorted(arm["arm"] for arm in arms_of(LEARNING, rule)) == sorted(ARMS)
    if std == 1.0:
        assert arms_of(LEARNING, rule)[0]["arm"] == "left"


# --- documents and keys ---------------------------------------------------------------------------

THEORY = Theory(dimension=3, horizon=400, entry_error=20.0)
BAD_LEARNING: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"rule_key": bytes(31)}, "31 bytes"),
    "names": ({"features": ("a", "b")}, "2 names for 3"),
    "same names": ({"features": ("a", "b", "a")}, "must differ"),
    "no name": ({"features": ("a", "", "c")}, "is not a name"),
    "unprintable": ({"features": ("a", "b\n", "c")}, "is not a name"),
    "arm": ({"arms": {"a": (0.6, 0.1)}}, "shape"),
    "long arm": ({"arms": {"a": (0.6, 0.9, 0.9)}}, "norm"),
    "arm without the constant": ({"arms": {"a": (0.1, 0.1, 0.0)}}, "of the arm a is 0.1, not"),
}


@pytest.mark.parametrize("case", BAD_LEARNING)
def test_what_cannot_be_learnt_is_no_learning(case: str) -> None:
    changes, words = BAD_LEARNING[case]
    with pytest.raises(InvalidValue, match=words):
        replace(LEARNING, **changes)


@pytest.mark.parametrize("learning", [LEARNING, Learning(THEORY, RULE_KEY.public_key)])
def test_a_document_says_how_it_learns(learning: Learning) -> None:
    public = replace(document(), learning=learning)
    assert Document.from_json(public.to_json()) == public
    assert public.digest != replace(document(), learning=None).digest
    changed = public.to_json().replace(f'"dimension": {3}', '"dimension": 4')
    with pytest.raises(DamagedDocument):
        Document.from_json(changed)


def test_rules_are_signed_by_the_key_that_the_document_names(tmp_path: Path) -> None:
    book = Book(tmp_path / "book.db", document().digest)
    reads = ReadsThem(document())
    with pytest.raises(InvalidValue, match="--rule-key"):
        Publisher(document(), book, reads)
    with pytest.raises(InvalidValue, match="not the one that the document names"):
        Publisher(document(), book, reads, RuleKey.generate())
    with pytest.raises(InvalidValue, match="not a recommender"):
        Publisher(replace(document(), learning=None), book, reads, RULE_KEY)
    book.close()


def test_a_sum_continues_only_with_the_constant_it_was_made_with(tmp_path: Path) -> None:
    """Features are scaled by it: the sums of both would be those of nobody."""
    ended = Settled.of(document(), oh.Estimate(9, np.arange(9.0), 1.0))
    (path := tmp_path / "settled.json").write_text(ended.to_json())
    assert Settled.load(path) == ended
    Book.of(document(), tmp_path / "same.db", ended).close()
    without = replace(document(), learning=None)
    with pytest.raises(InvalidValue, match=r"constant=0\.6 cannot continue .* constant=None"):
        Book.of(without, tmp_path / "book.db", ended)
    assert not (tmp_path / "book.db").exists()


def test_the_key_of_rules_is_a_secret_file(tmp_path: Path) -> None:
    RULE_KEY.save(tmp_path / "rule.key")
    assert RuleKey.load(tmp_path / "rule.key").public_key == RULE_KEY.public_key
    KeyPair.generate().save(tmp_path / "server.key")
    with pytest.raises(oh.OverhandError, match="not an Ed25519 key"):
        RuleKey.load(tmp_path / "server.key")
    with pytest.raises(oh.OverhandError, match="not an X25519 key"):
        KeyPair.load(tmp_path / "rule.key")
    assert str(RULE_KEY.public_key) not in repr(RULE_KEY)


def test_a_service_asks_nothing_of_a_number_that_is_none(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_server() as web:
            assert (await web.get("/v1/policy")).status_code == 404
            for number in ("0", "-1", "x", "9" * 30):
                assert (await web.get(f"/v1/policy?number={number}")).status_code == 400
        async with system.at_shuffler() as web:
            assert (await web.get("/v1/policy")).status_code == 404
        answer = await AsgiTransport(system.server).request("GET", "/v1/learnt")
        assert json.loads(answer.body)["rule"] is None

    run(tmp_path, test, plan=plan(), learning=LEARNING)
