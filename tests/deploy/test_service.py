"""Reports over HTTP, in one process: what the shuffling service takes, counts and refuses."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.client import NotCounted
from overhand.deploy.protocol.keys import hash_token, new_token
from overhand.deploy.shuffler.app import Admission
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.store import Store
from overhand.errors import StoreUnavailable
from support.loopback_system import System, plan_for, run
from support.random_streams import keyed


@pytest.mark.parametrize(
    ("values", "some"),
    [
        (oh.Bits(), [1, 0, 1]),
        (oh.Reals(-1, 3), [3.0, -1.0, 3.0]),
        (oh.Vectors(2), [[1.0, 0.0], [0.0, -1.0], [1.0, 0.0]]),
        (oh.Histogram(3), [2, 0, 2]),
    ],
    ids=["bit", "real", "vector", "histogram"],
)
@pytest.mark.usefixtures("mean_noise")
def test_reports_become_estimates(tmp_path: Path, values: oh.Values, some: list[Any]) -> None:
    """Exactly: all noise is its mean, and values are whole steps."""
    plan = plan_for(values)

    async def test(system: System) -> None:
        users = plan.horizon - plan.horizon % plan.tree.lowest
        held = [some[user % len(some)] for user in range(users)]
        async with system.client(digest=system.document.digest, random=keyed(1)) as client:
            assert await client.report_many(held, at_once=8) == users
        await system.publish()
        estimate = system.publisher.estimate
        assert estimate is not None
        assert estimate["t"] == users
        truth = plan.values.total(plan.values.rows(held))
        assert estimate["value"] == pytest.approx(truth, abs=1e-6)
        assert estimate["std"] == pytest.approx(
            math.sqrt(plan.noise_variance(np.array([users])).item())
        )
        assert not estimate["fallback"]
        assert all(level["received"] == level["batches"] for level in system.publisher.levels())

    run(tmp_path, test, plan=plan)


def test_a_report_is_counted_once_however_often_it_comes(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        body = system.report()
        async with system.at_shuffler() as web:
            answers = await asyncio.gather(*(web.post("/v1/reports", content=body) for _ in "123"))
            again = await web.post("/v1/reports", content=body)
        assert {answer.status_code for answer in (*answers, again)} == {200}
        assert len({answer.content for answer in (*answers, again)}) == 1
        assert system.store.arrived == 1

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda body: b"", 400),
        (lambda body: body[:-1], 400),
        (lambda body: body + b"x", 413),
        (lambda body: b"OVH1" + body[4:], 400),
        (lambda body: body[:4] + bytes(32) + body[36:], 409),
        (lambda body: bytes(len(body)), 400),
    ],
    ids=["empty", "truncated", "too long", "magic", "other plan", "zeros"],
)
def test_a_malformed_report_is_refused_and_leaves_nothing(
    tmp_path: Path, change: Callable[[bytes], bytes], status: int
) -> None:
    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            answer = await web.post("/v1/reports", content=change(system.report()))
        assert answer.status_code == status
        assert answer.json()["error"]
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_both_services_tell_a_head_that_they_are_well(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_shuffler() as shuffler, system.at_server() as server:
            for web in (shuffler, server):
                assert (await web.head("/healthz")).status_code == 200
                assert (await web.post("/healthz")).headers["allow"] == "GET, HEAD"

    run(tmp_path, test)


def test_other_requests_are_refused(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_shuffler() as web:
            packed = {"content-encoding": "gzip"}
            answers = [
                await web.post("/v1/reports", content=system.report(), headers=packed),
                await web.get("/v1/reports"),
                await web.get("/v1/other"),
                await web.delete("/v1/document"),
            ]
            assert [answer.status_code for answer in answers] == [415, 405, 404, 405]
            assert [answer.headers.get("allow") for answer in answers] == [
                None,
                "POST",
                None,
                "GET, HEAD",
            ]
            assert all(answer.json()["error"] for answer in answers)
            assert (await web.get("/healthz")).status_code == 200
            assert (await web.get("/v1/document")).text == system.document.to_json()
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_tokens_admit_one_report_each(tmp_path: Path) -> None:
    tokens = [new_token(), new_token()]

    async def test(system: System) -> None:
        async with system.client(token=tokens[0]) as client:
            body = system.report()
            await client.send(body)
            await client.send(body)  # a retry is fine
            with pytest.raises(NotCounted, match="403"):
                await client.report(1)
        for wrong in (None, new_token(), hash_token(tokens[1]).hex()):
            async with system.client(token=wrong) as client:
                with pytest.raises(NotCounted, match="401"):
                    await client.report(1)
        assert system.store.arrived == 1

    run(tmp_path, test, tokens=frozenset(map(hash_token, tokens)))


@pytest.mark.parametrize("horizon", [20, 23])
def test_after_the_last_whole_batch_reports_are_not_counted(tmp_path: Path, horizon: int) -> None:
    plan = plan_for(horizon=horizon)
    taken = horizon - horizon % plan.tree.lowest
    assert (taken < horizon) == (horizon == 23)

    async def test(system: System) -> None:
        async with system.client() as client:
            await client.report_many([1] * taken)
            with pytest.raises(NotCounted, match="410"):
                await client.report(1)
        assert system.store.arrived == taken

    run(tmp_path, test, plan=plan)


def test_under_overload_clients_are_told_to_come_back(tmp_path: Path) -> None:
    async def main() -> None:
        system = System(tmp_path, most_waiting=2)  # nobody commits
        async with system.at_shuffler() as web:
            waiting = [
                asyncio.create_task(web.post("/v1/reports", content=system.report()))
                for _ in range(2)
            ]
            while system.admission.waiting < 2:
                await asyncio.sleep(0.01)
            answer = await web.post("/v1/reports", content=system.report())
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) > 0
            committing = asyncio.create_task(system.admission.run())
            assert [a.status_code for a in await asyncio.gather(*waiting)] == [200, 200]
            system.admission.close()
            await committing
        assert system.store.arrived == 2

    asyncio.run(main())


class Down:
    """A store whose database is away for a while."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.is_down = True

    def admit(self, arrivals: list[Arrival]) -> list[Outcome]:
        if self.is_down:
            raise StoreUnavailable("the database is away")
        return self._store.admit(arrivals)


def test_while_the_store_is_down_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        system = System(tmp_path)
        down = Down(system.store)
        system.shuffler.admission = admission = Admission(down)  # type: ignore[arg-type]
        committing = asyncio.create_task(admission.run())
        body = system.report()
        async with system.at_shuffler() as web:
            refused = await web.post("/v1/reports", content=body)
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert system.store.arrived == 0
            down.is_down = False
            assert (await web.post("/v1/reports", content=body)).status_code == 200
        assert system.store.arrived == 1
        admission.close()
        await committing

    asyncio.run(main())
