"""What a store gives away: releases in no order of arrival, and no trace of what was scrubbed."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from scipy import stats

from overhand.deploy.databases import database as sqlite
from overhand.deploy.databases import postgres as postgres_database
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.batching import Outcome, Piece
from overhand.deploy.shuffler.store import Store
from overhand.errors import StoreUnavailable
from overhand.randomness import secure_random
from support.database_fixtures import Places
from support.postgres import Postgres
from support.sampling import assert_uniform_over
from support.store_processes import (
    REPEATED,
    TRACED,
    Where,
    freeze,
    message,
    messages_in,
    open_store,
    report,
    shape,
    uneven_groups,
    user_of,
)

# --- the order of a release -----------------------------------------------------------------------


def orders(count: int) -> list[tuple[int, ...]]:
    messages = np.arange(4 * 16, dtype=np.uint8).reshape(4, 16)
    random = secure_random()
    return [tuple((batching.permute(messages, random)[:, 0] // 16).tolist()) for _ in range(count)]


EVERY_ORDER = list(itertools.permutations(range(4)))


def test_every_order_is_as_likely_as_any_other() -> None:
    assert_uniform_over(orders(8000), EVERY_ORDER, discrepancy=1 / 24)


def as_it_came(messages: Any, random: object) -> Any:
    return messages


def turned(messages: Any, random: Any) -> Any:
    """A random start, but the same neighbours: 4 orders of 24."""
    return np.roll(messages, int(random.words(1, np.uint64)[0] % np.uint64(4)), axis=0)


@pytest.mark.parametrize("mutant", [as_it_came, turned])
def test_the_order_test_sees(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "permute", mutant)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(orders(8000), EVERY_ORDER, discrepancy=1 / 24)


PAIRS = (shape(1, 2, 1),)


def pair_orders(where: Where) -> list[bool]:
    """Whether the first of two users is first in the release of their batch."""
    with closing(where.open(PAIRS, 10**6)) as store:
        store.admit([report(user, levels=PAIRS) for user in range(300)])
        bodies = [messages_in(freeze(store, name).body, PAIRS[0]) for name in store.full()]
    return [user_of(first) < user_of(second) for first, second in bodies]


def test_releases_come_in_any_order(where: Where) -> None:
    assert_uniform_over(pair_orders(where), [True, False], discrepancy=0.5)


def test_the_release_test_sees_the_order_of_arrival(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "permute", as_it_came)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(pair_orders(where), [True, False], discrepancy=0.5)


MANY = 15_000  # so many ranks are off by 0.05 with probability 1e-9
ONE = (shape(1, MANY, 1),)


def rank_correlation(bodies: Sequence[bytes]) -> float:
    return float(stats.spearmanr(range(len(bodies)), [user_of(one) for one in bodies])[0])


def test_a_release_does_not_tell_who_came_first(where: Where) -> None:
    with closing(where.open(ONE, MANY)) as store:
        for start in range(0, MANY, 500):
            store.admit([report(user, levels=ONE) for user in range(start, start + 500)])
        body = freeze(store, Batch(1, 0)).body
    assert abs(rank_correlation(messages_in(body, ONE[0]))) < 0.05


@pytest.fixture
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose files can be searched: what is left in them must be nothing, sealed or not."""
    monkeypatch.setattr(BatchKeys, "seal", lambda keys, name, own, body: body)
    monkeypatch.setattr(BatchKeys, "open", lambda keys, name, own, sealed: sealed)


@pytest.mark.slow
def test_the_tables_of_sqlite_do_not_tell_who_came_first(tmp_path: Path, unsealed: None) -> None:
    with closing(open_store(tmp_path / "store.db", ONE, MANY)) as store:
        alone = [Piece(Batch(1, 0), 0, message(user, ONE[0], 0)) for user in range(MANY)]
        store._write(lambda ledger: ledger.add(alone))
        rows = store._database.read(lambda reading: reading.rows("SELECT body FROM messages_1"))
    assert abs(rank_correlation([body for (body,) in rows])) < 0.05


def pages_of(path: Path, users: int) -> list[list[int]]:
    """By level, the page of the file in which each user's messages begin."""
    places = dict[bytes, int]()
    for found in re.finditer(rb"\d{6}\.\d\.000", path.read_bytes()):
        places.setdefault(found[0], found.start() // 4096)
    return [
        [places[f"{user:06d}.{level}.000".encode()] for user in range(users)] for level in (1, 2)
    ]


def assert_pages_tell_nothing(place: Path, users: int, most: float) -> None:
    """Reports that came one by one: neither their order nor what belongs together is in pages."""
    levels = (shape(1, 2 * users, 3), shape(2, 4 * users, 3))
    with closing(open_store(place, levels, 10 * users)) as store:
        for user in range(users):
            store.admit([report(user, levels=levels)])
        store._database.sweep([])
        lowest, upper = pages_of(place, users)
    for one, other in ((range(users), lowest), (range(users), upper), (lowest, upper)):
        assert abs(stats.spearmanr(one, other).statistic) < most
        assert np.mean(np.abs(np.subtract(one, other)) < 8) < 0.1


def test_the_pages_of_sqlite_do_not_tell_who_came_first(tmp_path: Path, unsealed: None) -> None:
    """Three correlations are 0.35 off with probability 8e-12; one by one in new pages all are 1."""
    assert_pages_tell_nothing(tmp_path / "store.db", 400, 0.35)


@pytest.mark.slow
def test_the_pages_of_sqlite_are_uncorrelated(tmp_path: Path, unsealed: None) -> None:
    """So many users that three correlations are off by that with probability 2e-10."""
    assert_pages_tell_nothing(tmp_path / "store.db", 17_000, 0.05)


def test_the_test_of_pages_sees_an_unscattered_file(
    tmp_path: Path, unsealed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite.SqliteTransaction, "scatter", lambda *_: None)
    with pytest.raises(AssertionError):
        assert_pages_tell_nothing(tmp_path / "store.db", 100, 0.35)


# --- what is left ---------------------------------------------------------------------------------

FIRST = 700_000  # users that no other test has
NAME = re.compile(rb"7\d{5}\.\d\.\d{3}")


def found_in(files: Sequence[Path]) -> set[bytes]:
    """The names of messages of these users, wherever they are in the files.

    A database cuts what is long into pages, here and there through a name: not all are found.
    """
    return {found for path in files for found in NAME.findall(path.read_bytes())}


def names_in(release: Release) -> set[bytes]:
    return {one[:12] for one in messages_in(release.body, TRACED[release.batch.level - 1])}


@pytest.mark.slow
def test_nothing_of_a_scrubbed_batch_is_left_in_the_files(places: Places, unsealed: None) -> None:
    with closing(places.new().open(TRACED, 10**6)) as store:
        for group in uneven_groups(range(FIRST, FIRST + 910), seed=3):
            store.admit([report(user, levels=TRACED) for user in group])
        gone = set[bytes]()
        for name in store.full()[:-1]:
            release = freeze(store, name)
            store.acknowledge_all({name: release.digest})
            gone |= names_in(release)
        assert len(found_in(places.files()) & gone) > 0.9 * len(gone)
        assert store.scrub() == 32
        kept, left = names_in(freeze(store, Batch(2, 2))), found_in(places.files())
        assert len(left & kept) > 0.9 * len(kept)
        assert not left & gone
        assert admit_again(store) == {REPEATED}


READING = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1"
WRITING = "BEGIN; SELECT pg_current_xact_id()"


def left_of_a_batch(postgres: Postgres, beside: str, patch: pytest.MonkeyPatch) -> set[bytes]:
    """What is in the files after a scrub that another transaction has put off."""
    dsn, batch = postgres.new_schema(), Batch(1, 0)
    with (
        closing(Where("postgres", dsn).open(TRACED, 10**6)) as store,
        psycopg.connect(dsn, autocommit=True) as other,
    ):
        store.admit([report(user, levels=TRACED) for user in range(FIRST, FIRST + 50)])
        other.execute(beside.encode())
        release = freeze(store, batch)
        store.acknowledge_all({batch: release.digest})
        with patch.context() as hasty, suppress(StoreUnavailable):
            hasty.setattr(postgres_database, "_SWEEP_WAIT", 0.05)
            store.scrub()
        other.execute("ROLLBACK")
        store.scrub()
    left = names_in(release) & found_in(Places("postgres", postgres.folder, postgres).files())
    postgres.drop_schema(dsn)
    return left


@pytest.mark.parametrize("beside", [READING, WRITING], ids=["reader", "writer"])
def test_rows_that_others_may_still_read_are_swept_later(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, unsealed: None, beside: str
) -> None:
    assert not left_of_a_batch(postgres, beside, monkeypatch)
    monkeypatch.setattr(postgres_database, "_wait_for_others", lambda connection: None)
    assert left_of_a_batch(postgres, beside, monkeypatch)


def names_that_move(path: Path) -> set[bytes]:
    """The names of messages in pages of SQLite that hold many rows, and copies of moved ones."""
    held = path.read_bytes()
    pages = [held[start : start + 4096] for start in range(0, len(held), 4096)]
    return set[bytes]().union(*(NAME.findall(page) for page in pages if page[0] in (2, 5, 10, 13)))


@pytest.mark.parametrize("padding", [sqlite._PADDING, ""], ids=["padded", "mutant"])
def test_messages_in_sqlite_never_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsealed: None, padding: str
) -> None:
    monkeypatch.setattr(sqlite, "_DIALECT", replace(sqlite._DIALECT, padding=padding))
    with closing(open_store(tmp_path / "store.db", TRACED, 10**6)) as store:
        for users in (range(FIRST, FIRST + 1), range(FIRST + 1, FIRST + 50)):
            store.admit([report(user, levels=TRACED) for user in users])
        freeze(store, Batch(1, 0))
        store._database.sweep(["bodies"])
    assert found_in([tmp_path / "store.db"])
    assert bool(names_that_move(tmp_path / "store.db")) == (not padding)


def admit_again(store: Store) -> set[Outcome]:
    users = range(FIRST, FIRST + 910)
    return set(store.admit([report(user, levels=TRACED) for user in users]))
