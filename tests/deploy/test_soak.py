"""Whatever fails between clients, shuffling service and server, every report counts once or never.

Property-based runs of `soak.Soak`, and the order in which messages leave the shuffling service.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.deploy.client import client as client_module
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.sending import Sender
from overhand.deploy.shuffler.store import Store
from support.faulty_services import Fault
from support.postgres import Postgres
from support.sampling import assert_uniform_over
from support.soak import PLANS, Soak, Step, crowd
from support.store_processes import messages_in, shape, user_of
from support.store_processes import report as store_report

ROOT = Path(__file__).resolve().parents[2]
NONE, BEFORE, AFTER, TWICE, LATE = Fault

OFTEN = ("report", "report", "report", "release", "publish")
SELDOM = (
    *("resend", "mix", "copy", "foreign", "malformed", "garbage", "fill", "deliver_late"),
    *("lose_store", "lose_database", "crash_shuffler", "crash_server"),
    *("release_early", "release_other"),
)
steps_drawn = st.lists(
    st.builds(
        Step,
        st.sampled_from(OFTEN * 2 + SELDOM),
        st.integers(1, 8),
        st.integers(0, 63),
        st.lists(st.sampled_from(Fault), max_size=4).map(tuple),
    ),
    min_size=8,
    max_size=24,
)


@pytest.fixture(scope="module", autouse=True)
def impatient() -> Iterator[None]:
    """Clients try again at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "_FIRST_WAIT", 0.0)
        patch.setattr(client_module, "_LONGEST_WAIT", 0.0)
        yield


def in_sqlite(kind: str, home: Path) -> Store:
    return Store(home / "store.db", crowd(kind).formats)


def in_postgres(dsn: str, kind: str, home: Path) -> Store:
    return Store(dsn, crowd(kind).formats, home / "store.keys")


def soak(
    kind: str,
    steps: Sequence[Step],
    opened: Callable[[str, Path], Store] = in_sqlite,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        asyncio.run(Soak(kind, home, partial(opened, kind, home)).run(steps))


LIFE = (
    Step("report", 7, faults=(TWICE, AFTER, LATE, BEFORE)),
    Step("release", faults=(AFTER, NONE, LATE)),
    Step("resend", 5, 2, (LATE, TWICE)),
    Step("lose_store", faults=(AFTER, BEFORE, LATE, TWICE)),
    Step("report", 8),
    Step("release_early"),
    Step("fill"),
    Step("crash_shuffler", 3, 9),
    Step("release", faults=(BEFORE,)),
    Step("lose_database", faults=(NONE, AFTER, LATE, BEFORE)),
    Step("release"),
    Step("publish", faults=(NONE, LATE)),
    Step("publish", faults=(NONE, TWICE, NONE, AFTER)),
    Step("crash_server"),
    Step("deliver_late"),
    Step("publish"),
    Step("release_other"),
    Step("malformed", 3),
    Step("report", 3),
)
"""A run with faults of every kind, and without garbage: all of it must be published."""


@pytest.mark.parametrize("kind", list(PLANS))
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_life_with_every_fault(kind: str, store: str, request: pytest.FixtureRequest) -> None:
    if store == "sqlite":
        soak(kind, LIFE)
        return
    dsn = request.getfixturevalue("postgres").new_schema()
    soak(kind, LIFE, partial(in_postgres, dsn))


@pytest.mark.parametrize(
    "kind",
    [kind if kind == "coins" else pytest.param(kind, marks=pytest.mark.slow) for kind in PLANS],
)
@settings(max_examples=25)
@given(steps=steps_drawn)
def test_whatever_fails_the_published_sums_are_those_of_the_accepted(
    kind: str, steps: list[Step]
) -> None:
    soak(kind, steps)


@pytest.mark.slow
@settings(max_examples=6)
@given(steps=steps_drawn)
def test_whatever_fails_with_postgresql(postgres: Postgres, steps: list[Step]) -> None:
    soak("shares", steps, partial(in_postgres, postgres.new_schema()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "store"),
    [("coins", "sqlite"), ("pairs", "sqlite"), ("ballots", "postgres"), ("pairs", "postgres")],
)
def test_processes_that_are_killed_lose_nothing_and_count_nothing_twice(
    mechanism: str, store: str
) -> None:
    """The short version of `python -m benchmarks soak`, which says what it found."""
    options = ("--mechanism", mechanism, "--store", store)
    few = ("--reports", "4000", "--pause", "4")
    command = [sys.executable, "-m", "benchmarks", "soak", *options, *few]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout + done.stderr


# --- two senders, and one that is contradicted ----------------------------------------------------


def with_soak(test: Callable[[Soak], Awaitable[None]]) -> None:
    """Run a test on a deployment of coins, after reports for four lowest batches."""

    async def main(home: Path) -> None:
        soak = Soak("coins", home, partial(in_sqlite, "coins", home))
        soak.system.start()
        try:
            await soak.report(Step("report", 4 * crowd("coins").formats.levels[0].size))
            await test(soak)
            soak.check()
        finally:
            await soak.system.stop()

    with tempfile.TemporaryDirectory() as name:
        asyncio.run(main(Path(name)))


def held(soak: Soak) -> int:
    """Rows of messages of full batches."""
    store = soak.system.store
    full = store.arrived // crowd("coins").formats.levels[0].size
    query = (
        f"SELECT number FROM messages_1 WHERE number < {full} UNION ALL SELECT number FROM bodies"
    )
    return len(store._database.read(lambda reading: reading.rows(query)))


@pytest.mark.parametrize("fails", [BEFORE, AFTER, LATE])
def test_what_was_acknowledged_is_scrubbed_in_the_end(fails: Fault) -> None:
    async def test(soak: Soak) -> None:
        calls = ["unfrozen", "freeze_all", "frozen", "acknowledge_all"]
        soak.system.store_script.extend([NONE] * len(calls) + [fails])
        await soak.system.send_all()
        assert soak.full() == []
        await soak.system.send_all()
        assert held(soak) == 0

    with_soak(test)


def test_a_batch_that_another_process_sent_and_scrubbed_is_no_error() -> None:
    async def test(soak: Soak) -> None:
        loop, store = asyncio.get_running_loop(), soak.open_store()

        class Overtaken:
            """A store whose full batches are all sent by somebody else, once they were listed."""

            def frozen(self) -> list[Batch]:
                found = store.frozen()
                asyncio.run_coroutine_threadsafe(soak.system.sender.send_all(), loop).result()
                return found

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        slow: Any = Overtaken()
        server, document = soak.system.to_server, soak.system.document
        await Sender(slow, document, server, ShufflerMetrics()).send_all()
        store.close()

    with_soak(test)


def test_a_batch_of_which_the_server_has_another_release_holds_up_no_other() -> None:
    async def test(soak: Soak) -> None:
        first, *others = soak.full()
        forged = secrets.token_bytes(soak.formats.level(first.level).batch_bytes())
        assert await soak.put(first, 0, forged) == 200
        await soak.system.sender.send_all()
        assert soak.full() == [first]
        soak.system.to_server.handled = [
            one for one in soak.system.to_server.handled if one.status != 409
        ]
        assert set(soak.kept()) == set(others)

    with_soak(test)


# --- the order in which messages leave ------------------------------------------------------------

PAIR = shape(1, 2, 2)
EVERY_ORDER = list(itertools.permutations([(1, 0), (1, 1), (2, 0), (2, 1)]))
BATCHES = 5_200
"""So many show an order whose probability is off by 1/24, at both rates of `sampled`."""


def orders() -> Iterator[tuple[tuple[int, int], ...]]:
    """Whose messages, and which, stand where in releases of two users with two messages each."""
    for _ in range(BATCHES):
        alone = [
            piece
            for arrived, user in enumerate((1, 2))
            for piece in batching.pieces([PAIR], [store_report(user, levels=[PAIR])], arrived)
        ]
        gathered = batching.Gathered.of(Batch(1, 0), PAIR, alone)
        body = batching.build_release(PAIR, gathered).body
        yield tuple((user_of(one), int(one[9:12])) for one in messages_in(body, PAIR))


def test_a_release_has_no_order_and_no_borders_of_reports() -> None:
    """All 24 orders of four messages, so also those in which a report's stand side by side."""
    assert_uniform_over(orders(), EVERY_ORDER, discrepancy=1 / 24)


def as_it_came(messages: Any, random: Any) -> Any:
    return messages


def report_by_report(messages: Any, random: Any) -> Any:
    """Reports in random order, and messages within each: 8 orders of 24."""
    if len(messages) < 4:
        return batching_permuted(messages, random)
    pairs = messages.reshape(2, 2, -1)
    turned = pairs[random.permute(np.arange(2))]
    return turned.reshape(messages.shape)


def turned(messages: Any, random: Any) -> Any:
    """A random start, but the same neighbours."""
    return np.roll(messages, int(random.permute(np.arange(len(messages)))[0]), axis=0)


batching_permuted = batching.permute


@pytest.mark.parametrize(
    "mutant", [as_it_came, report_by_report, pytest.param(turned, marks=pytest.mark.slow)]
)
def test_the_test_of_orders_sees(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives some order a probability that is off by 1/24 or more: none, or twice its due."""
    monkeypatch.setattr(batching, "permute", mutant)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(orders(), EVERY_ORDER, discrepancy=1 / 24)
