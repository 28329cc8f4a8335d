"""A recommender whose services are killed while it learns: nothing is lost, nothing revised."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import overhand as oh
from overhand.bandits import plan_for_regret
from overhand.deploy.client import AsyncRecommenderClient
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.learning import SignedPolicy
from support.killed_processes import SECONDS, Service, fork, free_port, until

CONSTANT = 0.6
CONTEXTS = np.array([[0.6, 0.8, 0.0], [0.6, -0.8, 0.0], [0.6, 0.0, 0.8]])
GROUP = 9
PAUSE = 0.06
POLICIES = 4  # that are waited for between two kills


class Recommender:
    """Both services in a folder, as processes."""

    def __init__(self, home: Path) -> None:
        self.home = home
        privacy = oh.Privacy(30.0, 1e-4)
        self.plan = plan_for_regret(1500, 2, privacy, dimension=3, mechanism="pairs")
        self.plan.save(home / "plan.json")
        learning = ["--recommender", "--constant", str(CONSTANT)]
        prepared = self.started("prepare", ["--plan", "plan.json", *learning])
        assert prepared.ended() == 0, prepared.said()
        self.document = Document.load(home / "document.json")
        ports = {"server": free_port(), "shuffler": free_port()}
        self.urls = {role: f"http://127.0.0.1:{port}" for role, port in ports.items()}
        self.options = {
            "server": ["--port", str(ports["server"]), "--workers", "1"],
            "shuffler": ["--port", str(ports["shuffler"]), "--server", self.urls["server"]],
        }
        self.options["shuffler"] += ["--tick", "0.05"]
        self.services: dict[str, Service] = {}

    def started(self, role: str, options: list[str], url: str = "") -> Service:
        log = self.home / f"{role}.log"
        return Service(fork([role, *options], self.home, log, []), log, url)

    def start(self, role: str) -> None:
        self.services[role] = self.started(role, self.options[role], self.urls[role])
        until(f"the {role} is up", self.services[role].is_up)

    def kill(self, role: str) -> None:
        self.services[role].tell(signal.SIGKILL)
        assert self.services[role].was_killed()

    def newest(self) -> int:
        answer = self.services["server"].get("/v1/policy")
        return int(answer.json()["number"]) if answer.status_code == 200 else 0

    def policies(self) -> dict[int, bytes]:
        """All that were published, byte by byte."""
        server = self.services["server"]
        numbers = range(1, self.newest() + 1)
        return {number: server.get(f"/v1/policy?number={number}").content for number in numbers}

    @property
    def users(self) -> int:
        """As many as fill whole blocks."""
        return self.plan.horizon - self.plan.horizon % self.plan.tree.sizes[-1]


@contextmanager
def recommender(home: Path) -> Iterator[Recommender]:
    made = Recommender(home)
    try:
        made.start("server")
        made.start("shuffler")
        yield made
    finally:
        for service in made.services.values():
            if service.process.is_alive():
                service.tell(signal.SIGKILL)
            service.process.join(SECONDS)


class People:
    """They come a few at a time, and no more of them than are let in."""

    def __init__(self) -> None:
        self.let_in = 0

    async def visit(self, url: str, digest: str, users: int) -> int:
        """A service that is away is asked again by their devices."""
        counted = 0
        async with AsyncRecommenderClient(url, digest=digest, max_age=PAUSE) as device:
            while counted < users:
                group = min(GROUP, min(users, self.let_in) - counted)
                if group > 0:
                    arms = await device.choose_many(np.tile(CONTEXTS, (group, 1, 1)))
                    counted += await device.report_many(arms == 0)
                await asyncio.sleep(PAUSE)
        return counted


def killed_and_started_again(system: Recommender, role: str, people: People) -> None:
    """While people come; what was published before is what is published after."""
    since = system.newest()
    people.let_in += system.users // 5
    until("it learns", lambda: system.newest() >= since + POLICIES)
    before = system.policies()
    people.let_in += system.users // 5  # who take seconds: so some come when it is away
    system.kill(role)
    system.start(role)
    after = system.policies()
    assert after.items() >= before.items()


@pytest.mark.slow
def test_killed_services_lose_nothing_and_revise_no_policy(tmp_path: Path) -> None:
    """A policy made again after a crash would have other noise in it, or another signature."""
    with recommender(tmp_path) as system, ThreadPoolExecutor(1) as threads:
        people = People()
        url, digest = system.urls["shuffler"], system.document.formats.digest.hex()
        counted = threads.submit(asyncio.run, people.visit(url, digest, system.users))
        try:
            for role in ("server", "shuffler"):
                killed_and_started_again(system, role, people)
        finally:
            people.let_in = system.users
        assert counted.result(timeout=5 * SECONDS) == system.users
        server = system.services["server"]

        def is_complete() -> bool:
            levels = server.get("/v1/status").json()["levels"]
            full = [system.users // size for size in system.plan.tree.sizes]
            return [level["published"] for level in levels] == full

        until("all batches are published", is_complete)
        check_policies(system)


def check_policies(system: Recommender) -> None:
    """Every number has its own policy, signed, and made of no fewer users than the last."""
    learning, digest = system.document.learning, system.document.formats.digest
    assert learning is not None
    texts = system.policies()
    key = learning.policy_key
    policies = [SignedPolicy.from_json(text, key, digest, 3) for text in texts.values()]
    assert [signed.number for signed in policies] == list(texts)
    users = [signed.policy.t for signed in policies]
    assert users == sorted(users)
    assert users[-1] == system.users
