"""Services as processes that are killed at every step: nothing is lost, nothing counted twice."""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from overhand.deploy.client import AsyncClient
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.wire import Batch, Release
from support.deployments import BATCHES, HORIZON, LOWEST, Deployment, in_the_clear, pieces_left
from support.killed_processes import (
    UNSEALED,
    WITHOUT_WORKERS,
    Change,
    Kill,
    Pause,
    free_port,
    runs,
    until,
)
from support.postgres import Postgres
from support.relay import Loss, Relay

STORE = "overhand.deploy.shuffler.store:Store"
LEDGER = "overhand.deploy.shuffler.store:StoreTables"
DATABASE = "overhand.deploy.server.store:ServerStore"
DROP = f"{STORE}._drop"
SWEEP = "the sweep of the database"
SWEEPS = {
    "sqlite": "overhand.deploy.databases.database:SqliteDatabase.sweep",
    "postgres": "overhand.deploy.databases.postgres:PostgresDatabase.sweep",
}
OVERWRITE = "overhand.deploy.databases.batch_keys:_overwrite"
OPENING = "overhand.deploy.server.publishing:open_release"

SHUFFLER_STEPS = {
    "before a report is stored": Kill(f"{STORE}.admit", "before", 4),
    "before a commit": Kill(f"{LEDGER}.advance", "after", 4),
    "after a commit, before its answer": Kill(f"{STORE}.admit", "after", 4),
    "when a batch is full": Kill(f"{STORE}.freeze_all", "before", 2),
    "while a batch is frozen": Kill(f"{LEDGER}.freeze", "after", 2),
    "when a batch is frozen": Kill(f"{STORE}.freeze_all", "after", 2),
    "when a batch is sent": Kill(f"{STORE}.acknowledge_all", "before", 2),
    "when a batch is acknowledged": Kill(f"{STORE}.scrub", since=f"{STORE}.acknowledge_all"),
    "while a batch is scrubbed": Kill(DROP, "after", since=f"{STORE}.acknowledge_all"),
    "when messages are dropped": Kill(SWEEP, since=f"{STORE}.acknowledge_all"),
    "when a batch is swept": Kill(SWEEP, "after", since=f"{STORE}.acknowledge_all"),
    "before its key is destroyed": Kill(OVERWRITE, since=f"{LEDGER}.freeze"),
    "when its key is destroyed": Kill(OVERWRITE, "after", since=f"{LEDGER}.freeze"),
}
SERVER_STEPS = {
    "before a release is stored": Kill(f"{DATABASE}.receive", "before", 3),
    "after a release is stored": Kill(f"{DATABASE}.receive", "after", 3),
    "while a release is opened": Kill(OPENING, "after", 3),
    "before it is published": Kill(f"{DATABASE}.publish", "before", 3),
    "after it is published": Kill(f"{DATABASE}.publish", "after", 3),
}
QUICK = {
    *("after a commit, before its answer", "when its key is destroyed", "after it is published"),
    "both",
}


def some_are_slow(steps: Iterable[str]) -> list[Any]:
    """A process that is killed takes seconds: most of the steps are for `make test-slow`."""
    slow = pytest.mark.slow
    return [step if step in QUICK else pytest.param(step, marks=slow) for step in steps]


@pytest.mark.parametrize("step", some_are_slow(SHUFFLER_STEPS))
@pytest.mark.crash
def test_a_shuffling_service_that_is_killed_loses_nothing_and_counts_nothing_twice(
    deployed: Deployment, address: str, step: str
) -> None:
    deployed.store = address
    server = deployed.server(changes=[WITHOUT_WORKERS])
    kind = "postgres" if address.startswith("postgres") else "sqlite"
    kill = SHUFFLER_STEPS[step]
    kill = replace(kill, at=SWEEPS[kind] if kill.at == SWEEP else kill.at)
    killed = deployed.shuffler(changes=[kill])
    deployed.reports.send(killed.url, range(HORIZON // 2))
    # Not all batches at one tick: some steps are those of the second that is sent.
    until("it has sent", lambda: deployed.relay.statuses or not killed.process.is_alive())
    deployed.reports.send(killed.url)
    assert killed.was_killed()
    shuffler = deployed.shuffler()
    known = sorted(deployed.reports.counted)[:3]
    deployed.reports.send(shuffler.url, known)  # they are told the same again
    deployed.reports.send_until_counted(shuffler.url)
    deployed.finish(server)
    assert deployed.reports.answers.keys() <= {200, None}
    until("nothing is left in the store", lambda: not pieces_left(deployed))


@pytest.mark.slow
def test_what_was_sent_before_a_crash_is_sent_again_byte_for_byte(
    deployed: Deployment, address: str
) -> None:
    deployed.store = address
    server = deployed.server(changes=[WITHOUT_WORKERS])
    kill_before_anything_is_sent(deployed, [])
    for _ in range(2):
        assert deployed.shuffler(
            changes=[Kill(f"{STORE}.acknowledge_all", "before")], is_up=False
        ).was_killed()
    deployed.shuffler()
    until("nothing is left in the store", lambda: not pieces_left(deployed))
    deployed.finish(server)  # looks at every byte that was sent
    assert set(deployed.sendings().values()) == {3}


@pytest.mark.slow
def test_what_was_acknowledged_before_a_crash_is_scrubbed_after_it(
    deployed: Deployment, address: str
) -> None:
    deployed.store = address
    kill_when_all_is_sent(deployed, [Kill(f"{STORE}.scrub", since=f"{STORE}.acknowledge_all")])
    assert pieces_left(deployed)
    deployed.shuffler()
    until("nothing is left in the store", lambda: not pieces_left(deployed))


@pytest.mark.slow
def test_what_was_dropped_before_a_crash_is_swept_after_it(deployed: Deployment) -> None:
    kill = Kill(SWEEPS["sqlite"], since=f"{STORE}.acknowledge_all")
    kill_when_all_is_sent(deployed, [kill, *UNSEALED])
    assert in_the_clear(deployed)
    deployed.shuffler(changes=UNSEALED)
    until("nothing is left in the files", lambda: not in_the_clear(deployed))


def kill_when_all_is_sent(deployed: Deployment, changes: Sequence[Change]) -> None:
    """Then nothing of it is gone, and a service has only this left to do."""
    deployed.server(changes=[WITHOUT_WORKERS])
    kill_before_anything_is_sent(deployed, changes)
    assert deployed.shuffler(changes=changes, is_up=False).was_killed()
    assert len(deployed.relay.statuses) == sum(BATCHES)


def kill_before_anything_is_sent(deployed: Deployment, changes: Sequence[Change]) -> None:
    """All reports are counted by a service whose first tick never ends."""
    pause = Pause(f"{STORE}.claim_sending", file=deployed.folder / "pause")
    shuffler = deployed.shuffler(changes=[pause, *changes])
    deployed.reports.send_until_counted(shuffler.url)
    shuffler.tell(signal.SIGKILL)
    shuffler.ended()


@pytest.mark.parametrize("step", some_are_slow(SERVER_STEPS))
@pytest.mark.crash
def test_a_server_that_is_killed_publishes_all_and_revises_nothing(
    deployed: Deployment, address: str, step: str
) -> None:
    deployed.database = address
    workers = [] if step == "while a release is opened" else [WITHOUT_WORKERS]
    killed = deployed.server(changes=[SERVER_STEPS[step], *workers])
    shuffler = deployed.shuffler()
    deployed.reports.send_until_counted(shuffler.url)
    until("it is killed", lambda: deployed.is_published(killed) or not killed.process.is_alive())
    assert killed.was_killed()
    server = deployed.server(changes=[WITHOUT_WORKERS])
    deployed.finish(server)


def test_workers_of_a_killed_server_end_with_it(deployed: Deployment, tmp_path: Path) -> None:
    pause = Pause(f"{DATABASE}.publish", file=tmp_path / "pause")
    server = deployed.server(changes=[pause])
    deployed.reports.send_until_counted(deployed.shuffler().url)
    until("a release is opened", pause.is_reached)
    children = server.children()
    assert children
    server.tell(signal.SIGKILL)
    until("its workers are gone", lambda: not any(map(runs, children)))


# Two in a row: aiohttp sends a PUT that was cut off once more by itself.
LOSSES: dict[str, list[Loss | None]] = {
    "requests": ["request", "request", None] * 4,
    "answers": ["answer", "answer", None] * 4,
    "both": ["request", "answer", "answer", "request", None] * 2,
}


@pytest.mark.parametrize("losses", some_are_slow(LOSSES))
def test_what_is_lost_on_the_way_is_counted_once(deployed: Deployment, losses: str) -> None:
    deployed.relay.losses = deque(LOSSES[losses])
    server, shuffler = deployed.server(changes=[WITHOUT_WORKERS]), deployed.shuffler()
    with Relay(deployed.shuffler_port, free_port(), losses=deque(LOSSES[losses])) as relay:
        asyncio.run(_send_as_clients_do(deployed, relay.url))
    deployed.reports.counted = set(range(HORIZON))
    deployed.finish(server)
    assert len(relay.passed) > HORIZON
    assert "sending failed" in shuffler.said()
    assert shuffler.stopped() == 0


async def _send_as_clients_do(deployed: Deployment, url: str) -> None:
    async with AsyncClient(url) as client:
        await asyncio.gather(*(client.send(body) for body in deployed.reports.bodies))


def test_three_copies_at_once_are_counted_once(deployed: Deployment, address: str) -> None:
    deployed.store = address
    server, shuffler = deployed.server(changes=[WITHOUT_WORKERS]), deployed.shuffler()
    copies = [shuffler.url] * 2
    deployed.reports.send(shuffler.url, at_once=30, copies=copies)
    assert deployed.reports.answers == {200: 3 * HORIZON}
    deployed.finish(server)


@pytest.mark.slow
def test_two_shuffling_services_on_one_store_fill_batches_exactly(
    deployed: Deployment, postgres: Postgres
) -> None:
    """As on two machines: each has the keys in a file of its own."""
    deployed.store = postgres.new_schema()
    server = deployed.server(changes=[WITHOUT_WORKERS])
    first, second = (deployed.folder / name for name in ("shuffler.keys", "second.keys"))
    pair = [deployed.shuffler()]
    shutil.copy(first, second)
    pair.append(deployed.shuffler("--store-keys", second.name, port=free_port()))
    reports, late = deployed.reports, 3 * LOWEST
    reports.bodies += [deployed.report() for _ in range(late)]
    reports.send(pair[0].url, at_once=40, copies=[pair[1].url, pair[0].url])
    assert reports.answers == {200: 3 * HORIZON, 410: 3 * late}
    deployed.finish(server)
    until("nothing is left in the store", lambda: not pieces_left(deployed))
    until("the first has no key left", lambda: numbers_of(first) == BATCHES)
    until("the second has no key left", lambda: numbers_of(second) == BATCHES)
    assert [shuffler.stopped() for shuffler in pair] == [0, 0]


def numbers_of(keys: Path) -> tuple[int, ...]:
    """The first batch of every level whose key is there."""
    kept = BatchKeys(keys)
    return tuple(
        next(number for number in itertools.count() if kept.has(Batch(level, number)))
        for level in kept.levels
    )


@pytest.mark.parametrize("step", ["freeze_all", "acknowledge_all"])
@pytest.mark.slow
def test_a_shuffling_service_that_was_overtaken_by_another_goes_on(
    deployed: Deployment, postgres: Postgres, tmp_path: Path, step: str
) -> None:
    deployed.store = postgres.new_schema()
    server = deployed.server(changes=[WITHOUT_WORKERS])
    pause = Pause(f"{STORE}.{step}", file=tmp_path / "pause")
    slow = deployed.shuffler(changes=[pause])
    deployed.reports.send(slow.url, range(HORIZON // 2))
    until("it sends a batch", pause.is_reached)
    fast = deployed.shuffler(port=free_port())
    until("another has sent and scrubbed it", lambda: not pieces_left(deployed))
    assert fast.stopped() == 0
    pause.go_on()
    deployed.reports.send_until_counted(slow.url)
    deployed.finish(server)
    assert slow.stopped() == 0


@pytest.mark.slow
def test_a_second_server_on_the_same_database_goes_on_when_the_first_is_killed(
    deployed: Deployment, postgres: Postgres, tmp_path: Path
) -> None:
    deployed.database = postgres.new_schema()
    pause = Pause(OPENING, "before", 3, file=tmp_path / "pause")
    first = deployed.server(changes=[pause])
    deployed.reports.send_until_counted(deployed.shuffler().url)
    until("a release is being opened", pause.is_reached)
    until("all is sent", lambda: len(deployed.relay.statuses) >= sum(BATCHES))
    deployed.is_published(first)
    second = deployed.server(port=free_port())
    first.tell(signal.SIGKILL)
    deployed.finish(second)
    again = deployed.server()
    assert again.get("/v1/history").json() == second.get("/v1/history").json()


@pytest.mark.slow
def test_two_servers_on_one_database_publish_one_history(
    deployed: Deployment, postgres: Postgres
) -> None:
    deployed.database = postgres.new_schema()
    pair = [deployed.server(), deployed.server(port=free_port())]
    deployed.reports.send_until_counted(deployed.shuffler().url)
    deployed.finish(pair[0])
    deployed.finish(pair[1])  # whose history continues what the other said
    assert [server.stopped() for server in pair] == [0, 0]


@pytest.mark.slow
def test_a_batch_of_which_the_server_has_another_release_holds_up_no_other(
    deployed: Deployment,
) -> None:
    server = deployed.server()
    formats, token = deployed.document.formats, (deployed.folder / "token").read_text().strip()
    other = formats.pack(Release(Batch(1, 0), 0, bytes(formats.level(1).batch_bytes())))
    assert deployed.put(server, "/v1/releases/1/0", other, token) == 200
    shuffler = deployed.shuffler()
    deployed.reports.send_until_counted(shuffler.url)
    until("all batches are there", lambda: deployed.is_published(server))
    until("the server says so", lambda: server.get("/v1/status").json()["alarms"])
    until("the shuffling service says so", lambda: '"error"' in shuffler.said())
    assert shuffler.stopped() == 0
