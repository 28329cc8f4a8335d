"""A recommender over HTTP, in one process: signed policies, devices that choose and report."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import Theory
from overhand.deploy.protocol.document import DamagedDocument, Document
from overhand.deploy.protocol.keys import KeyPair, PolicyKey
from overhand.deploy.protocol.learning import Learning
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore, Settled
from overhand.deploy.transport import Answer, Unreachable
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.noise import CorrelatedNoise
from overhand.randomness import Random
from support.asgi import AsgiTransport
from support.loopback_system import POLICY_KEY, System, run
from support.random_streams import keyed
from support.server_stores import ReadsThem
from support.small_recommender import CONTEXTS, GOOD, LEARNING, Told, document, plan, signed_of

ROUNDS = 12


async def visit(system: System, users: int, chance: Iterator[Random]) -> list[int]:
    """This many people, each with a device of its own, who like the left."""
    arms = []
    for _ in range(users):
        async with system.device(random=next(chance)) as device:
            arm = await device.choose(CONTEXTS)
            await device.report(float(arm == 0))
        arms.append(arm)
    return arms


@pytest.mark.parametrize("mechanism", [pytest.param("shares", marks=pytest.mark.slow), "pairs"])
def test_devices_learn_from_each_other(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same noise every time: another may hide from so few people what is best."""
    lowest, chance = plan(mechanism).tree.lowest, map(keyed, itertools.count())
    advance, of_services = CorrelatedNoise.advance, next(chance)
    monkeypatch.setattr(
        CorrelatedNoise,
        "advance",
        lambda noise, state, _, *rest: advance(noise, state, of_services, *rest),
    )

    async def test(system: System) -> None:
        assert system.relay is not None
        async with system.device(random=next(chance)) as crowd:
            arms = await crowd.choose_many(np.repeat(CONTEXTS[np.newaxis], 300, axis=0))
        assert set(arms.tolist()) == {0, 1, 2}, "without a policy, any arm"
        for _ in range(ROUNDS):
            await visit(system, lowest, chance)
            await system.publish()
            await system.relay.look()
        assert (await visit(system, lowest, chance)).count(0) == lowest
        async with system.at_server() as web:
            newest = (await web.get("/v1/policy")).text
            history = [(await web.get(f"/v1/policy?number={n}")).json() for n in (1, 2, 3)]
            learnt = (await web.get("/v1/policy/summary")).json()
        assert [one["number"] for one in history] == [1, 2, 3]
        assert history[0]["users"] == lowest
        latest = json.loads(newest)
        assert latest["users"] == ROUNDS * lowest
        again = system.new_publisher()
        assert (again.policy(), again.policy(1)) == (newest, system.publisher.policy(1))
        assert next(arm["arm"] for arm in learnt["arms"]) == "left"
        assert [one["feature"] for one in learnt["coefficients"]] == ["always", "side", "other"]
        assert learnt["policy"] == {"number": latest["number"], "users": ROUNDS * lowest}
        reward = learnt["reward"]
        assert reward["t"][-1] == ROUNDS * lowest
        assert all(low < value < high for _, value, low, high in zip(*reward.values(), strict=True))

    run(tmp_path, test, plan=plan(mechanism), learning=LEARNING)


# --- the relay ------------------------------------------------------------------------------------


def test_the_relay_keeps_what_the_server_signed_last() -> None:
    from overhand.deploy.shuffler.app import Relay

    service = Told(document())
    relay = Relay(document(), service, tick=1.0)

    async def main() -> None:
        await relay.look()
        assert relay.newest is None
        service.policy = second = signed_of(GOOD, number=2)
        await relay.look()
        for bad in (signed_of(GOOD, number=1), signed_of(GOOD, number=3, key=PolicyKey.generate())):
            service.policy = bad
            with pytest.raises(ProtocolViolation):
                await relay.look()
        service.policy = None
        await relay.look()
        assert relay.newest == second

    asyncio.run(main())


def test_a_server_that_is_away_leaves_the_last_policy_in_force() -> None:
    from overhand.deploy.shuffler.app import Relay

    class Away(Told):
        async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
            answer = await super().request(method, path, body)
            self.policy = None
            stopping.set()
            if answer.status == 404:
                raise Unreachable("away")
            return answer

    stopping = asyncio.Event()
    relay = Relay(document(), Away(document(), signed_of(GOOD)), tick=0.001)

    async def main() -> None:
        for _ in range(2):
            stopping.clear()
            await relay.run(stopping)

    asyncio.run(main())
    assert relay.newest == signed_of(GOOD)


# --- documents and keys ---------------------------------------------------------------------------

THEORY = Theory(dimension=3, horizon=400, entry_error=20.0)
BAD_LEARNING: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"policy_key": bytes(31)}, "31 bytes"),
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


@pytest.mark.parametrize("learning", [LEARNING, Learning(THEORY, POLICY_KEY.public_key)])
def test_a_document_says_how_it_learns(learning: Learning) -> None:
    public = replace(document(), learning=learning)
    assert Document.from_json(public.to_json()) == public
    assert public.digest != replace(document(), learning=None).digest
    changed = public.to_json().replace(f'"dimension": {3}', '"dimension": 4')
    with pytest.raises(DamagedDocument):
        Document.from_json(changed)


def test_policies_are_signed_by_the_key_that_the_document_names(tmp_path: Path) -> None:
    database = ServerStore(tmp_path / "database.db", document().digest)
    reads = ReadsThem(document())
    with pytest.raises(InvalidValue, match="--policy-key"):
        Publisher(document(), database, reads)
    with pytest.raises(InvalidValue, match="not the one that the document names"):
        Publisher(document(), database, reads, PolicyKey.generate())
    with pytest.raises(InvalidValue, match="not a recommender"):
        Publisher(replace(document(), learning=None), database, reads, POLICY_KEY)
    database.close()


def test_a_sum_continues_only_with_the_constant_it_was_made_with(tmp_path: Path) -> None:
    """Features are scaled by it: the sums of both would be those of nobody."""
    ended = Settled.of(document(), oh.Estimate(9, np.arange(9.0), 1.0))
    (path := tmp_path / "settled.json").write_text(ended.to_json())
    assert Settled.load(path) == ended
    ServerStore.make_keys(document(), tmp_path / "same.db.keys")
    ServerStore.of(document(), tmp_path / "same.db", ended).close()
    without = replace(document(), learning=None)
    with pytest.raises(InvalidValue, match=r"constant=0\.6 cannot continue .* constant=None"):
        ServerStore.of(without, tmp_path / "database.db", ended)
    assert not (tmp_path / "database.db").exists()


def test_the_key_of_policies_is_a_secret_file(tmp_path: Path) -> None:
    POLICY_KEY.save(tmp_path / "policy.key")
    assert PolicyKey.load(tmp_path / "policy.key").public_key == POLICY_KEY.public_key
    KeyPair.generate().save(tmp_path / "server.key")
    with pytest.raises(oh.OverhandError, match="not an Ed25519 key"):
        PolicyKey.load(tmp_path / "server.key")
    with pytest.raises(oh.OverhandError, match="not an X25519 key"):
        KeyPair.load(tmp_path / "policy.key")
    assert str(POLICY_KEY.public_key) not in repr(POLICY_KEY)


def test_a_service_asks_nothing_of_a_number_that_is_none(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_server() as web:
            assert (await web.get("/v1/policy")).status_code == 404
            for number in ("0", "-1", "x", "9" * 30):
                assert (await web.get(f"/v1/policy?number={number}")).status_code == 400
        async with system.at_shuffler() as web:
            assert (await web.get("/v1/policy")).status_code == 404
        answer = await AsgiTransport(system.server).request("GET", "/v1/policy/summary")
        assert json.loads(answer.body)["policy"] is None

    run(tmp_path, test, plan=plan(), learning=LEARNING)
