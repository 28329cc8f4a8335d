"""Pieces of open batches are folded together: each once, whoever is faster, and never for long."""

from __future__ import annotations

import asyncio
import itertools
import signal
import threading
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from overhand.deploy.protocol.wire import Batch, Formats, LevelFormat
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.app import ShufflerMetrics
from overhand.deploy.shuffler.batching import Gathered, Piece
from overhand.deploy.shuffler.running import PieceCompactor
from overhand.deploy.shuffler.store import Store, StoreTables
from overhand.errors import StoreUnavailable
from support.database_fixtures import Places
from support.sampling import assert_uniform_over
from support.store_processes import (
    Where,
    die_while_folding,
    fold_all,
    fold_and_die,
    freeze,
    part,
    report,
    shape,
    user_of,
    users_in,
)

SIZE = 100
LEVELS = (shape(1, SIZE, 1, numbers=6), shape(2, 2 * SIZE, 2, numbers=2, bits=64))
OPEN = Batch(1, 0)
MANY = 10_000


def admit(store: Store, users: Sequence[int]) -> None:
    """One commit for each of them."""
    for user in users:
        store.admit([report(user, levels=LEVELS)])


@pytest.fixture
def store(where: Where) -> Iterator[Store]:
    with closing(where.open(LEVELS, 10**6)) as opened:
        yield opened


def lengths(store: Store, name: Batch = OPEN) -> list[int]:
    return sorted(store._read(lambda tables: tables.lengths(name)).values())


def users_of(store: Store, name: Batch = OPEN) -> list[int]:
    """Whose messages the pieces hold; each piece has exactly the sum of its users."""
    pieces = store._read(lambda tables: list(tables.pieces(name)))
    found = [users_in(piece.body, LEVELS[name.level - 1]) for piece in pieces]
    return sorted(itertools.chain(*found))


# --- what a fold does -----------------------------------------------------------------------------


def test_eight_pieces_become_one_with_all_that_was_in_them(store: Store) -> None:
    admit(store, range(7))
    assert (store.fold(1), len(lengths(store))) == (0, 7)
    store.admit([report(7, levels=LEVELS), report(8, fills=0, levels=LEVELS)])
    admit(store, [9])
    assert (store.fold(1), store.fold(1)) == (9, 0)
    (piece,) = store._read(lambda tables: list(tables.pieces(OPEN)))
    assert (piece.own, users_of(store)) == (1, list(range(10)))
    assert len(lengths(store, Batch(2, 0))) == 9, "every level by itself"
    admit(store, range(10, SIZE))
    release = freeze(store, OPEN)
    assert (release.own, users_in(release.body, LEVELS[0])) == (1, list(range(SIZE)))


def test_a_batch_that_is_full_is_not_folded(store: Store) -> None:
    admit(store, range(SIZE))
    assert (store.fold(1), len(lengths(store))) == (0, SIZE)
    assert store.fold(2) > 0
    freeze(store, OPEN)
    assert (store.fold(1), lengths(store)) == (0, [])


def orders(count: int) -> Iterator[tuple[int, ...]]:
    alone = [Piece(OPEN, 0, part(user, LEVELS[0])) for user in range(4)]
    for _ in range(count):
        body = batching.fold_pieces(OPEN, LEVELS[0], Gathered.of(LEVELS[0], alone)).body
        yield tuple(user_of(one.tobytes()) for one in LEVELS[0].ciphertexts(body))


EVERY_ORDER = list(itertools.permutations(range(4)))


def test_a_folded_piece_has_no_borders() -> None:
    assert_uniform_over(orders(8000), EVERY_ORDER, discrepancy=1 / 24)


def test_the_order_test_sees_pieces_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "permute", lambda messages, random: messages)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(orders(8000), EVERY_ORDER, discrepancy=1 / 24)


# --- which pieces are folded ----------------------------------------------------------------------


def simulated(level: LevelFormat, reports: int, pieces: int) -> tuple[list[int], int, int]:
    """Pieces that are folded as they come: what stays, messages written again, longest fold."""
    kept, names = dict[bytes, int](), itertools.count()
    written = longest = 0
    for _ in range(pieces):
        kept[next(names).to_bytes(8)] = 64 * reports + level.clear_bytes
        while keys := batching.to_fold(level, kept):
            gone = [kept.pop(key) for key in keys]
            sealed = sum(gone) - len(gone) * level.clear_bytes
            written += sealed // level.ciphertext_bytes
            longest = max(longest, sum(gone))
            kept[next(names).to_bytes(8)] = sealed + level.clear_bytes
    return list(kept.values()), written, longest


@pytest.mark.parametrize("reports", [1, 3, 40])
@pytest.mark.parametrize("numbers", [1, MANY])
def test_few_pieces_are_left_and_messages_are_written_again_seldom(
    numbers: int, reports: int
) -> None:
    level, count = shape(1, 10**6, 1, 64, numbers=numbers, bits=24), 3_000
    kept, written, longest = simulated(level, reports, count)
    total = reports * count
    worth = 16 * (level.clear_bytes + 4096) // 64  # reports of a piece that is left alone
    assert len(kept) <= 7 * 5 + 2 * total / worth
    assert written <= 5 * total  # 8^5 is more than there are
    assert longest <= 1 << 22


def test_pieces_that_are_worth_what_they_cost_are_left_alone() -> None:
    level = shape(1, 10**6, 1, 64, numbers=MANY, bits=24)
    worth = 16 * (level.clear_bytes + 4096)
    for sealed, count in ((worth, 0), (worth - 64, 7)):  # of these, so many are four megabytes
        some = {bytes([key]): sealed + level.clear_bytes for key in range(20)}
        assert len(batching.to_fold(level, some)) == count


def test_pieces_longer_than_a_fold_are_folded_by_twos() -> None:
    level = shape(1, 10**6, 1, 64, numbers=1_500_000, bits=24)
    kept, _, longest = simulated(level, 1, 40)
    assert longest < 3 * level.part_bytes
    assert len(kept) < 24


def test_a_release_is_made_of_many_sums_without_all_of_them_in_memory(tmp_path: Any) -> None:
    level = shape(1, 400, 1, 64, numbers=MANY, bits=64)
    where = Where("sqlite", str(tmp_path / "store.db"))
    with closing(where.open([level], 400)) as store:
        for user in range(400):
            store.admit([report(user, levels=[level])])
        tracemalloc.start()
        body = freeze(store, OPEN).body
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert users_in(body, level) == list(range(400))
    assert peak < 100 * level.clear_bytes


def test_numbers_are_added_up_a_few_at_a_time() -> None:
    level = LevelFormat(1, 512, 1, 1, 128, MANY, 24)
    bodies = [level.pack(bytes(64), np.full(MANY, user, np.uint64)) for user in range(512)]
    tracemalloc.start()
    _, clear = level.gather(bodies)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert set(clear.tolist()) == {511 * 256}
    assert peak < 1 << 23


# --- others at the same time ----------------------------------------------------------------------


def overtake(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Do something between the two transactions of the next fold."""
    folded = batching.fold_pieces

    def slow(*arguments: Any) -> Piece:
        monkeypatch.setattr(batching, "fold_pieces", folded)
        work()
        return folded(*arguments)

    monkeypatch.setattr(batching, "fold_pieces", slow)


def test_pieces_that_somebody_else_folds_are_folded_once(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, range(9))
    with closing(where.open(LEVELS, 10**6)) as other:
        other._database.claim = lambda table, key: True  # type: ignore[method-assign]
        overtake(monkeypatch, lambda: other.fold(1))
        assert store.fold(1) == 0
    assert (len(lengths(store)), users_of(store)) == (1, list(range(9)))


def test_a_batch_that_is_frozen_meanwhile_is_left_alone(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, range(SIZE - 1))
    with closing(where.open(LEVELS, 10**6)) as other:

        def finish() -> None:
            admit(other, [SIZE])
            freeze(other, OPEN)

        overtake(monkeypatch, finish)
        assert store.fold(1) == 0
    assert (lengths(store), store.unfrozen()) == ([], [])
    where.open(LEVELS, 10**6).close()


def test_a_fold_and_a_freeze_at_the_same_time_leave_nothing_behind(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fold has deleted its pieces and not yet put the new one there: now the freeze begins."""
    admit(store, range(SIZE - 1))
    deleted, going_on, add = threading.Event(), threading.Event(), StoreTables.add

    def slow(tables: StoreTables, pieces: Any) -> None:
        deleted.set()
        assert going_on.wait(20)
        add(tables, pieces)

    def fill() -> None:
        admit(other, [SIZE])
        monkeypatch.setattr(StoreTables, "add", slow)

    with (
        closing(where.open(LEVELS, 10**6)) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        overtake(monkeypatch, fill)
        fold = pool.submit(store.fold, 1)
        assert deleted.wait(20)
        release = pool.submit(freeze, other, OPEN)
        assert not wait([release], timeout=0.3).done
        going_on.set()
        assert fold.result() > 0
        assert len(users_in(release.result().body, LEVELS[0])) == SIZE
    assert (lengths(store), store.unfrozen()) == ([], [])
    where.open(LEVELS, 10**6).close()


@pytest.mark.crash
def test_a_kill_at_any_step_of_a_fold_loses_and_repeats_nothing(
    places: Places, pool: ProcessPoolExecutor
) -> None:
    def filled() -> Where:
        where = places.new()
        with closing(where.open(LEVELS, 10**6)) as store:
            admit(store, range(9))
        return where

    steps = pool.submit(fold_and_die, filled(), LEVELS, None).result()
    assert steps > 15
    cases = [(filled(), LEVELS, last) for last in range(steps)]
    assert pool.submit(die_while_folding, cases).result() == [-signal.SIGKILL] * steps
    counts = set()
    for where, _, _ in cases:
        with closing(where.open(LEVELS, 10**6)) as store:
            counts.add(len(lengths(store)))
            assert users_of(store) == list(range(9))
            store.fold(1)
            assert (len(lengths(store)), users_of(store)) == (1, list(range(9)))
    assert counts <= {1, 9}


# --- in the background ----------------------------------------------------------------------------


def test_the_service_folds_while_it_runs_and_says_how_much(where: Where, store: Store) -> None:
    formats, metrics = Formats(bytes(32), LEVELS), ShufflerMetrics()
    admit(store, range(20))

    async def main() -> None:
        stopping = asyncio.Event()
        running = asyncio.create_task(
            PieceCompactor(store, formats, metrics, tick=0.01).run(stopping)
        )
        while len(lengths(store, Batch(2, 0))) > 1:
            await asyncio.sleep(0.01)
        stopping.set()
        await running

    asyncio.run(main())
    assert (len(lengths(store)), users_of(store)) == (1, list(range(20)))
    assert 'folded_total{level="1"} 20.0' in metrics.text().decode()


def test_a_level_that_cannot_be_folded_holds_up_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fold, metrics = store.fold, ShufflerMetrics()

    def failing(level: int) -> int:
        if level == 1:
            raise StoreUnavailable("away")
        return fold(level)

    admit(store, range(20))
    monkeypatch.setattr(store, "fold", failing)
    formats = Formats(bytes(32), LEVELS)
    asyncio.run(PieceCompactor(store, formats, metrics).fold_all(asyncio.Event()))
    assert (len(lengths(store)), len(lengths(store, Batch(2, 0)))) == (20, 1)


def test_levels_without_numbers_are_left_as_they_are(where: Where) -> None:
    bare = (shape(1, SIZE, 1),)
    with closing(where.open(bare, 10**6)) as store:
        for user in range(20):
            store.admit([report(user, levels=bare)])
        folder = PieceCompactor(store, Formats(bytes(32), bare), ShufflerMetrics())
        asyncio.run(folder.fold_all(asyncio.Event()))
        assert len(lengths(store)) == 20
        assert fold_all(store, bare) > 0
