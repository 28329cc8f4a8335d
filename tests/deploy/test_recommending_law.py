"""The deployed recommender and the simulated one have one law: their regret is the same."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.learning import Learning, SignedPolicy
from overhand.deploy.protocol.sealing import Opened
from overhand.deploy.protocol.wire import Formats, MaskedSum
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.shuffler.batching import Arrival, OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.lab.audit.deployed import temporary_directory
from overhand.lab.regret import Diverse, Environment, Field, Rival, measure, rival
from overhand.model import Floats
from overhand.randomness import Random
from support.loopback_system import POLICY_KEY
from support.random_streams import keyed
from support.server_stores import new_database

HORIZON, RUNS, SEED = 10_000, 12, 7
ENVIRONMENT = Diverse(dimension=3, arms=4)
HEAD = 32  # random bytes, as many as a ciphertext begins with
Z = 3.3  # of a difference of means: all noise has fixed keys, so it fails always or never


class InTheClear:
    """Stands for sealing: a message behind random bytes, of a ciphertext's length."""

    def __init__(self, formats: Formats) -> None:
        self._rest = {
            level.level: level.ciphertext_bytes - level.plaintext_bytes - HEAD
            for level in formats.levels
        }

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> list[bytes]:
        rest = bytes(self._rest[level])
        return [secrets.token_bytes(HEAD) + rest + one for one in plaintexts]

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        return [one[HEAD + self._rest[level] :] for one in ciphertexts]


class ClearDocument(Document):
    """One whose messages anybody can read."""

    @cached_property
    def sealer(self) -> InTheClear:  # type: ignore[override]
        return InTheClear(self.formats)


@lru_cache
def simulated() -> Rival:
    field = Field(HORIZON, 3, oh.Privacy(4.0, 1e-6), ENVIRONMENT.dimension)
    return rival("services", field)


class Deployed:
    """Devices, store, database and publisher: everything but HTTP and sealing."""

    def __init__(self, home: Path, random: Random) -> None:
        self.random = random
        plan = simulated().plan
        assert plan is not None
        constants = simulated().learner.constants
        learning = Learning(constants, POLICY_KEY.public_key)  # type: ignore[arg-type]
        self.document = ClearDocument(plan, KeyPair.generate().public_key, learning)
        self.learner, self.lowest = learning.learner, plan.tree.lowest
        noise = OwnNoise(self.document, random=random)
        self.store = Store(home / "store.db", self.document.formats, noise=noise)
        self.database = new_database(self.document, home / "database.db")
        self.publisher = Publisher(
            self.document, self.database, InTheClear(self.document.formats), POLICY_KEY
        )
        assert self.database.protection is not None
        self.database.protection._random = random

    def learn(self, features: Floats, rewards: Floats) -> None:
        """A block of users reports, and it is offered, answered, added up and published."""
        rows = self.learner.rows(features, rewards)
        reports = encode_reports(self.document, rows, self.random)
        self.store.admit([Arrival.of(self.document.formats, report) for report in reports])
        offers = self.store.offer_all(self.store.full())
        answers = {offer.batch: self.publisher.answer(offer) for offer in offers}
        for masked in self.store.answer_all(answers):
            assert isinstance(masked, MaskedSum)
            self.database.receive(masked)
            self.store.acknowledge_all({masked.batch: masked.digest})
        self.store.scrub()
        while self.publisher.step():
            pass

    def policy(self) -> SignedPolicy | None:
        text = self.publisher.policy()
        return None if text is None else self.document.policy(text)


def regret_of(environment: Environment, run: int) -> float:
    """What the users of a run miss, served batch by batch by the deployed code."""
    random = np.random.default_rng([SEED, run])
    audience, chance = environment.audience(HORIZON, [random]), np.random.default_rng(run)
    with temporary_directory() as home:
        deployed = Deployed(Path(home), keyed(run))
        missed = 0.0
        with closing(deployed.store), closing(deployed.database):
            for start in range(0, HORIZON, deployed.lowest):
                users = min(deployed.lowest, HORIZON - start)
                offers = audience.offers(users)
                features, means = offers.features[0].astype(np.float64), offers.means[0]
                signed = deployed.policy()
                arms = (
                    chance.integers(0, environment.arms, users)
                    if signed is None
                    else signed.policy.choose(features)
                )
                chosen = means[np.arange(users), arms]
                missed += float((means.max(axis=1) - chosen).sum())
                rewards = (offers.uniforms[0] < chosen).astype(np.float64)
                if users == deployed.lowest:
                    deployed.learn(features[np.arange(users), arms], rewards)
    return missed


def is_same_law(ours: Floats, theirs: Floats) -> bool:
    """Whether two means differ by less than their noise allows."""
    error = math.sqrt(ours.var(ddof=1) / len(ours) + theirs.var(ddof=1) / len(theirs))
    return bool(abs(ours.mean() - theirs.mean()) < Z * error)


@pytest.mark.slow
def test_the_deployed_path_has_the_regret_of_the_simulation() -> None:
    """Unlike the simulation of another epsilon, which stands for noise of another size."""
    (expected,) = measure(ENVIRONMENT, HORIZON, [simulated()], runs=40, seed=SEED)
    found = np.array([regret_of(ENVIRONMENT, run) for run in range(RUNS)])
    assert is_same_law(found, expected.final), (found.mean(), expected.mean)
    field = Field(HORIZON, 3, oh.Privacy(1.0, 1e-6), ENVIRONMENT.dimension)
    other = replace(rival("services", field), name="noisier")
    (noisier,) = measure(ENVIRONMENT, HORIZON, [other], runs=40, seed=SEED)
    assert not is_same_law(found, noisier.final), (found.mean(), noisier.mean)
