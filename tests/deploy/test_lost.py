"""Lost batches in the services: garbage costs the batches that hold it, and stops nothing."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_reports
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch, Release, Report
from overhand.deploy.server.app import ServerMetrics
from overhand.deploy.server.publishing import Publisher, Total
from overhand.deploy.server.running import settled_sum
from overhand.deploy.server.store import BatchSum, ServerStore, Settled
from overhand.deploy.shuffler import sending
from overhand.mechanisms import SharesSum
from overhand.noise import Coins
from overhand.randomness import HALF
from overhand.values import Values
from support.loopback_system import System, run
from support.server_stores import (
    GARBAGE,
    KEY,
    Name,
    ReadsThem,
    drain,
    estimates_of,
    history_of,
    names_of,
    receive,
    replayed,
)

SIZES = (5, 125)
HORIZON = 375


def shares_plan(values: Values, steps: int = 1) -> oh.Plan:
    """Batches of 5 and of 125 users, a few shares of each value."""
    tree = oh.RegularTree(HORIZON, (5, 25))
    mechanisms = tuple(
        SharesSum(size, Coins(4, HALF), values, steps, shares=3, modulus_bits=20, honest=size)
        for size in tree.sizes
    )
    return oh.Plan(tree, mechanisms, oh.Privacy(4.0, 1e-4), 2)


def junk(document: Document) -> bytes:
    """A report of the right length, of which no message opens."""
    parts = [secrets.token_bytes(level.part_bytes) for level in document.formats.levels]
    return document.formats.pack_report(Report(secrets.token_bytes(16), tuple(parts)))


async def send(system: System, bodies: Iterable[bytes]) -> None:
    """All of them at once."""
    async with system.client() as client:
        await asyncio.gather(*map(client.send, bodies))


def total_of(plan: oh.Plan, values: Any) -> Any:
    return plan.values.total(plan.values.rows(values))


@pytest.mark.parametrize(
    ("plan", "value"),
    [
        (shares_plan(oh.Bits()), 1),
        (shares_plan(oh.Reals(10, 50), 4), 40.0),
        (shares_plan(oh.Vectors(2), 4), [0.5, -0.5]),
    ],
    ids=["bit", "real", "vector"],
)
@pytest.mark.usefixtures("mean_noise")
def test_the_sum_goes_on_to_the_end_after_a_garbage_report(
    tmp_path: Path, plan: oh.Plan, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is in the second batch of 125: of its 25 batches of 5, the others stand in for it.

    Exactly: all noise is its mean, and values are whole steps. Batches are sent one by one, so that
    they come in their order however busy the machine is.
    """
    held = [value] * HORIZON
    monkeypatch.setattr(sending, "_PUTS_AT_ONCE", 1)

    async def test(system: System) -> None:
        rows = plan.values.rows(held)
        bodies = encode_reports(system.document, rows, oh.seeded_random(7))
        for some in (bodies[:131], [junk(system.document)], bodies[132:]):
            await send(system, some)
        await system.publish()
        history = history_of(system.publisher)
        assert len([estimate for estimate in history if 135 < estimate["t"] < HORIZON]) > 1
        for estimate in history:
            lost = estimate["lost_users"]
            found = total_of(plan, held[: estimate["t"] - lost])
            assert estimate["value"] == pytest.approx(found + lost * plan.imputed, abs=1e-6)
        last, truth = system.publisher.estimate, total_of(plan, held)
        assert last is not None
        assert np.less_equal(last["low"], truth).all()
        assert np.less_equal(truth, last["high"]).all()
        assert (last["t"], last["fallback"], last["lost_users"]) == (HORIZON, True, SIZES[0])
        assert [level["lost"] for level in system.publisher.levels()] == [1, 1]
        opener = Opener(system.key, system.document.formats.digest)
        again = Publisher(system.document, system.database, opener)  # another process
        assert (again.estimate, history_of(again)) == (last, history)
        metrics = ServerMetrics(system.server).current().decode()
        assert f"overhand_users_lost {SIZES[0]}.0" in metrics

    run(tmp_path, test, plan=plan, most_waiting=HORIZON)


def test_nothing_but_garbage_is_a_sum_of_anything(tmp_path: Path) -> None:
    plan = shares_plan(oh.Bits())

    async def test(system: System) -> None:
        await send(system, [junk(system.document) for _ in range(HORIZON)])
        await system.publish()
        last = system.publisher.estimate
        assert last is not None
        assert (last["t"], last["low"], last["high"]) == (HORIZON, 0.0, HORIZON)
        assert (last["lost_users"], last["std"]) == (HORIZON, 0.0)

    run(tmp_path, test, plan=plan, most_waiting=HORIZON)


# --- the database ---------------------------------------------------------------------------------

DOCUMENT = Document(shares_plan(oh.Bits()), KEY.public_key)
VECTORS = Document(shares_plan(oh.RegressionStatistics(1), 4), KEY.public_key)


def broken(document: Document, name: Name, own: int = 0) -> Release:
    """A release of which a message does not open."""
    body = os.urandom(document.formats.level(name[0]).batch_bytes() - 1) + bytes([GARBAGE])
    return Release(Batch(*name), own, body)


def test_a_lost_batch_is_counted_and_neither_summed_nor_missing(place: str) -> None:
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        database.receive(broken(DOCUMENT, (1, 0)))
        receive(database, [(1, 1)], DOCUMENT)
        publisher = Publisher(DOCUMENT, database, ReadsThem(DOCUMENT))
        assert (1, 0) not in publisher.find_missing()
        assert publisher.step()
        counts = database.status().levels[1]
        assert (counts.lost, counts.published, counts.received) == (1, 0, 2)
        assert database.sums(0, 9)[0].value is None
        estimate = publisher.estimate
        assert estimate == {
            "t": 5, "value": 2.5, "low": 0.0, "high": 5.0, "std": 0.0,
            "fallback": True, "lost_users": 5,
        }  # fmt: skip
        for again in (publisher, Publisher(DOCUMENT, database, ReadsThem(DOCUMENT))):
            assert (1, 0) not in again.find_missing()


@pytest.mark.parametrize("seed", range(4))
def test_two_servers_and_a_restart_publish_the_same_of_lost_batches(
    tmp_path: Path, seed: int
) -> None:
    """Batches come in any order, some of them broken; a batch above makes up for one below."""
    lost = {(1, 3), (1, 26), (2, 1), (1, 30), (1, 74)}
    names = names_of(DOCUMENT)
    order = np.random.default_rng(seed).permutation(len(names)) if seed else range(len(names))
    with closing(ServerStore(tmp_path / "database.db", DOCUMENT.digest)) as database:
        servers = [Publisher(DOCUMENT, database, ReadsThem(DOCUMENT)) for _ in range(2)]
        for name, server in zip((names[i] for i in order), itertools.cycle(servers), strict=False):
            if name in lost:
                database.receive(broken(DOCUMENT, name))
            else:
                receive(database, [name], DOCUMENT)
            assert server.step()
        history = history_of(servers[0])
        assert estimates_of(database) == replayed(database, DOCUMENT)
        again = Publisher(DOCUMENT, database, ReadsThem(DOCUMENT))
        for each in (*servers, again):
            each.follow()
            assert (each.estimate, history_of(each)) == (history[-1], history)
        assert history[-1]["t"] == HORIZON
        assert history[-1]["lost_users"] >= 2 * SIZES[0]  # and sums drawn at will are not believed
        alarms = database.alarms()
        assert alarms
        assert len(set(alarms)) == len(alarms)  # though three servers have seen them
        for words in alarms:
            assert re.fullmatch(
                r"batch \d+ of level \d has a sum that honest users .* is lost", words
            )


def test_own_reports_of_a_lost_batch_count_as_nothing() -> None:
    """They are taken out of every other sum, too, and are not within 10 to 50."""
    plan = shares_plan(oh.Reals(10, 50), 4)
    total = Total(oh.SumServer(plan), None).with_sums([BatchSum(Batch(1, 0), 2, 4, 0.0, None)])
    latest = total.latest()
    assert latest is not None
    assert (latest.t, latest.interval(), total.server.lost_users) == (5, (30.0, 150.0), 3)


def test_a_later_plan_goes_on_from_users_who_were_lost(tmp_path: Path) -> None:
    """With how far they may be off, by coordinate."""
    old, new = str(tmp_path / "old.db"), str(tmp_path / "new.db")
    with closing(ServerStore(old, VECTORS.digest)) as database:
        database.receive(broken(VECTORS, (1, 0)))
        publisher = Publisher(VECTORS, database, ReadsThem(VECTORS))
        drain(publisher)
        before = publisher.estimate
    settled = settled_sum(VECTORS, old)
    assert Settled.from_json(settled.to_json()) == settled
    assert settled.bias_bound == tuple(SIZES[0] * VECTORS.plan.pending_bias_bound)
    with closing(ServerStore(new, VECTORS.digest, settled)) as database:
        publisher = Publisher(VECTORS, database, ReadsThem(VECTORS))
        assert before is not None
        assert publisher.estimate == {**before, "fallback": False, "lost_users": 0}
        database.receive(broken(VECTORS, (1, 0)))
        drain(publisher)
        after = publisher.estimate
        assert after is not None
        assert (after["t"], after["lost_users"]) == (2 * SIZES[0], SIZES[0])
        wider = np.subtract(after["high"], before["high"]) - SIZES[0] * VECTORS.plan.imputed
        assert wider == pytest.approx(SIZES[0] * VECTORS.plan.pending_bias_bound)
    with pytest.raises(oh.errors.InvalidValue, match="a bias_bound of 3 numbers"):
        Settled(settled.values, 5, settled.value, 1.0, (1.0,) * 3, 0.0, 0.0).estimate(
            VECTORS.plan.values
        )
