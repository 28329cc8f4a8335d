"""Every store does the same: one suite, over a SQLite file and a real PostgreSQL server."""

from __future__ import annotations

import itertools
import multiprocessing
import re
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from overhand.randomness import secure_random
from overhand.service.databases import SqliteDatabase, Transaction, sqlite
from overhand.service.stores import (
    Arrival,
    BatchName,
    Lane,
    Outcome,
    Release,
    Store,
    batching,
    open_store,
)
from overhand.service.stores.batching import Piece
from overhand.service.stores.ledger import Ledger
from overhand.service.stores.transactional import TransactionalStore
from postgres import Postgres, running_postgres
from sampled import assert_uniform_over
from stores import (
    HORIZON,
    LANES,
    Where,
    admit_groups,
    arrival,
    check_all,
    die_at_each_step,
    freeze_all,
    live,
    live_and_die,
    message,
    messages_in,
    report,
    user_of,
    users_in,
)

ADMITTED, REPEATED = Outcome.ADMITTED, Outcome.REPEATED
TOKEN_USED, CLOSED = Outcome.TOKEN_USED, Outcome.CLOSED
NOT_NEEDED = Outcome.NOT_NEEDED


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with running_postgres() as running:
        yield running


@pytest.fixture(scope="session")
def pool() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(3, mp_context=multiprocessing.get_context("spawn")) as workers:
        yield workers


class Places:
    """New databases of one kind."""

    def __init__(self, kind: str, folder: Path, server: Postgres | None) -> None:
        self.kind, self.folder, self._server = kind, folder, server
        self._numbers = itertools.count()

    def new(self) -> Where:
        if self._server is not None:
            return Where(self.kind, self._server.new_schema())
        return Where(self.kind, str(self.folder / f"store{next(self._numbers)}.db"))

    def files(self) -> list[Path]:
        """Where the database keeps what it was given, its log of changes aside in PostgreSQL."""
        if self._server is None:
            return list(self.folder.iterdir())
        self._server.run("CHECKPOINT")
        return [path for path in (self._server.folder / "base").rglob("*") if path.is_file()]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Places:
    server = request.getfixturevalue("server") if request.param == "postgres" else None
    return Places(request.param, tmp_path_factory.mktemp("stores"), server)


@pytest.fixture
def where(places: Places) -> Where:
    return places.new()


@pytest.fixture
def store(where: Where) -> Iterator[TransactionalStore]:
    with closing(where.open()) as opened:
        yield opened


def admit(store: Store, users: Sequence[int]) -> list[Outcome]:
    return store.admit([report(user) for user in users])


# --- the life of a batch --------------------------------------------------------------------------


def test_a_batch_is_filled_frozen_acknowledged_and_scrubbed(store: Store) -> None:
    lowest, name = LANES[0], BatchName(1, 0)
    assert (store.arrived, store.full()) == (0, [])
    assert admit(store, [7]) == [ADMITTED]
    assert (store.arrived, store.full()) == (1, [])
    assert admit(store, [8, 9]) == [ADMITTED, ADMITTED]
    assert (store.arrived, store.full()) == (3, [name])
    release = store.freeze(name)
    assert (release.name, release.own, release.repeats) == (name, 0, 0)
    assert users_in(release.body, lowest) == [7, 8]
    assert store.full() == [name]
    store.acknowledge(name, release.digest)
    assert store.full() == []
    assert store.freeze(name) == release
    assert (store.scrub(), store.scrub()) == (1, 0)
    store.acknowledge(name, release.digest)
    with pytest.raises(ProtocolViolation, match="scrubbed"):
        store.freeze(name)
    assert admit(store, [7, 8, 9]) == [REPEATED] * 3


def test_a_group_is_cut_where_batches_end(store: Store) -> None:
    admit(store, range(13))
    assert [tuple(name) for name in store.full()] == [*((1, i) for i in range(6)), (2, 0), (2, 1)]
    assert users_in(store.freeze(BatchName(1, 4)).body, LANES[0]) == [8, 9]
    assert check_all(store) == set(range(12))


def test_the_horizon_closes_the_store_and_leaves_no_trace_of_the_rest(where: Where) -> None:
    with closing(where.open(horizon=2)) as store:
        assert admit(store, [1, 2, 3, 1]) == [ADMITTED, ADMITTED, CLOSED, REPEATED]
        assert admit(store, [3, 2]) == [CLOSED, REPEATED]
        assert store.arrived == 2


def test_no_reports_are_no_work(store: Store) -> None:
    assert store.admit([]) == []
    assert (store.arrived, store.scrub()) == (0, 0)


def test_own_reports_are_counted_for_every_batch(store: Store) -> None:
    own = [report(user, is_own=True) for user in (2, 6)]
    store.admit([report(1), own[0], report(3)])
    store.admit([report(4), report(5), own[1]])
    counts = [store.freeze(name).own for name in store.full()]
    assert counts == [1, 0, 1, 2]


def test_an_own_report_fills_a_batch_and_never_begins_one(store: Store) -> None:
    own = [report(user, is_own=True) for user in range(1, 6)]
    assert store.admit([own[0], report(7)]) == [NOT_NEEDED, ADMITTED]
    assert store.admit(own[1:4]) == [ADMITTED, NOT_NEEDED, NOT_NEEDED]
    assert store.arrived == 2
    assert store.admit([report(8), own[2]]) == [ADMITTED, ADMITTED]  # it left no trace before


# --- repeats and tokens ---------------------------------------------------------------------------


def test_a_report_is_counted_once_within_and_across_groups(store: Store) -> None:
    assert admit(store, [1, 1, 2]) == [ADMITTED, REPEATED, ADMITTED]
    assert admit(store, [2, 3, 1]) == [REPEATED, ADMITTED, REPEATED]
    assert store.arrived == 3


def test_one_part_of_an_earlier_report_makes_a_repeat(store: Store) -> None:
    mixed = arrival([report(1).parts[0], report(9).parts[1]])
    assert store.admit([report(1), mixed]) == [ADMITTED, REPEATED]
    assert store.admit([mixed, report(9)]) == [REPEATED, ADMITTED]


def test_a_token_admits_one_report_and_its_retries(store: Store) -> None:
    assert store.admit([report(1, b"a"), report(2, b"a")]) == [ADMITTED, TOKEN_USED]
    assert store.admit([report(1, b"a"), report(3, b"a")]) == [REPEATED, TOKEN_USED]
    assert store.admit([report(2, b"b"), report(3)]) == [ADMITTED, ADMITTED]


def test_a_refused_report_spends_no_token(store: Store) -> None:
    assert store.admit([report(1), report(1, b"a"), report(2, b"a")]) == [
        ADMITTED,
        REPEATED,
        ADMITTED,
    ]


def test_equal_messages_are_kept_once_and_void_nothing(store: Store) -> None:
    lowest, first = LANES[0], report(1)
    stolen = message(1, lowest, 0) + message(2, lowest, 1)
    assert store.admit([first, arrival([stolen, report(2).parts[1]])]) == [ADMITTED] * 2
    release = store.freeze(BatchName(1, 0))
    found = messages_in(release.body, lowest)
    known = {message(1, lowest, 0), message(1, lowest, 1), message(2, lowest, 1)}
    assert release.repeats == 1
    assert len(found) == len(set(found)) == 4
    assert known < set(found)


@pytest.mark.parametrize(
    "wrong",
    [
        arrival([*report(1).parts, b""]),
        arrival(report(1).parts[:1]),
        arrival([report(1).parts[0][1:], report(1).parts[1]]),
        Arrival(report(1).ids[:1], report(1).parts),
        Arrival((b"short", b"ids"), report(1).parts),
    ],
    ids=["a part too many", "a part too few", "a byte too few", "an id too few", "short ids"],
)
def test_reports_of_another_shape_never_touch_the_database(store: Store, wrong: Arrival) -> None:
    with pytest.raises(InvalidValue):
        store.admit([report(2), wrong])
    assert store.arrived == 0


# --- steps that are not allowed -------------------------------------------------------------------


def test_no_batch_is_frozen_early(store: Store) -> None:
    for users in range(6):
        for name in (BatchName(2, 0), BatchName(1, users // 2), BatchName(1, 10**6)):
            with pytest.raises(ProtocolViolation, match="cannot be frozen at"):
                store.freeze(name)
        admit(store, [users])
    assert store.freeze(BatchName(2, 0)).own == 0


def test_only_the_digest_of_the_release_acknowledges_it(store: Store) -> None:
    name = BatchName(1, 0)
    admit(store, [1, 2])
    with pytest.raises(ProtocolViolation, match="before it was frozen"):
        store.acknowledge(name, bytes(32))
    digest = store.freeze(name).digest
    with pytest.raises(ProtocolViolation, match=digest.hex()):
        store.acknowledge(name, bytes(32))
    assert (store.full(), store.scrub()) == ([name], 0)


@pytest.mark.parametrize("name", [BatchName(3, 0), BatchName(0, 0), BatchName(1, -1)])
def test_batches_outside_the_plan_are_refused(store: Store, name: BatchName) -> None:
    with pytest.raises(InvalidValue, match="no batch"):
        store.freeze(name)
    with pytest.raises(InvalidValue, match="no batch"):
        store.acknowledge(name, bytes(32))


@pytest.mark.parametrize(
    ("lanes", "horizon"),
    [
        ((), 1),
        (LANES[::-1], 1),
        ((LANES[0], LANES[0]), 1),
        ((Lane(0, 2, 2, 16),), 1),
        ((Lane(1, 0, 2, 16),), 1),
        ((Lane(1, 2, 0, 16),), 1),
        ((Lane(1, 2, 2, 15),), 1),
        ((Lane(1, 10**6, 100, 49),), 1),
        (LANES, 0),
    ],
)
def test_plans_that_no_store_can_serve_are_refused(
    where: Where, lanes: Sequence[Lane], horizon: int
) -> None:
    with pytest.raises(InvalidValue):
        where.open(lanes, horizon)


def test_a_store_is_not_opened_for_another_plan(where: Where, store: Store) -> None:
    admit(store, [1])
    for lanes, horizon in ((LANES, HORIZON + 1), (LANES[:1], HORIZON)):
        with pytest.raises(InvalidValue, match=r'"horizon": 16.*not for.*"horizon": 1[67]'):
            where.open(lanes, horizon)
    with closing(where.open()) as again:
        assert again.arrived == 1


# --- any sequence of steps, against a model -------------------------------------------------------

USERS = 24
reports_drawn = st.builds(
    lambda user, part, token, is_own: (
        report(user, token, is_own=is_own)
        if part is None
        else arrival([report(part).parts[0], report(user).parts[1]], token, is_own=is_own)
    ),
    st.integers(1, USERS),
    st.one_of(st.none(), st.none(), st.integers(1, USERS)),
    st.sampled_from([None, None, None, b"a", b"b", b"c"]),
    st.booleans(),
)
steps_drawn = st.lists(
    st.one_of(
        st.lists(reports_drawn, max_size=8),
        st.lists(reports_drawn, max_size=8),
        st.sampled_from(["freeze", "acknowledge", "scrub", "restart"]),
    ),
    max_size=14,
)


class Model:
    """What a store promises, as plainly as it can be said."""

    def __init__(self) -> None:
        self.admitted: list[Arrival] = []
        self.tokens: set[bytes] = set()
        self.releases: dict[BatchName, Release] = {}
        self.acknowledged: list[BatchName] = []
        self.scrubbed = 0

    def admit(self, new: Arrival) -> Outcome:
        if any(set(new.ids) & set(old.ids) for old in self.admitted):
            return REPEATED
        if new.token in self.tokens:
            return TOKEN_USED
        if len(self.admitted) == HORIZON:
            return CLOSED
        if new.is_own and len(self.admitted) % LANES[0].size == 0:
            return NOT_NEEDED
        self.admitted.append(new)
        self.tokens |= set() if new.token is None else {new.token}
        return ADMITTED

    def batch(self, name: BatchName) -> list[Arrival]:
        size = LANES[name.level - 1].size
        return self.admitted[name.number * size : (name.number + 1) * size]

    def full(self) -> list[BatchName]:
        names = [
            BatchName(lane.level, number)
            for lane in LANES
            for number in range(len(self.admitted) // lane.size)
        ]
        return [name for name in names if name not in self.acknowledged]

    def check(self, release: Release) -> None:
        """Exact contents; reports that share no part share no messages."""
        batch, lane = self.batch(release.name), LANES[release.name.level - 1]
        parts = [messages_in(one.parts[lane.level - 1], lane) for one in batch]
        assert Counter(messages_in(release.body, lane)) == Counter(itertools.chain(*parts))
        assert release.own == sum(one.is_own for one in batch)
        assert self.releases.setdefault(release.name, release) == release


def run(steps: Sequence[Any], where: Where) -> None:
    model, store = Model(), where.open()
    try:
        for step in steps:
            if isinstance(step, list):
                assert store.admit(step) == [model.admit(one) for one in step]
            elif step == "restart":
                store.close()
                store = where.open()
            elif step == "scrub":
                assert store.scrub() == len(model.acknowledged) - model.scrubbed
                model.scrubbed = len(model.acknowledged)
            else:
                take(step, store, model)
            assert (store.arrived, store.full()) == (len(model.admitted), model.full())
    finally:
        store.close()


def take(step: str, store: Store, model: Model) -> None:
    """Freeze all batches, or half of them and acknowledge these."""
    names = store.full()
    for name in names if step == "freeze" else names[::2]:
        release = store.freeze(name)
        model.check(release)
        if step == "acknowledge":
            store.acknowledge(name, release.digest)
            model.acknowledged.append(name)


@settings(max_examples=40)
@given(steps=steps_drawn)
def test_any_sequence_of_steps_does_what_the_model_does(places: Places, steps: list[Any]) -> None:
    run(steps, places.new())


class CountsTwice(Model):
    def admit(self, new: Arrival) -> Outcome:
        self.admitted.append(new)
        return ADMITTED


def test_the_model_sees_a_report_that_is_counted_twice(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("test_stores.Model", CountsTwice)
    with pytest.raises(AssertionError):
        run([[report(1)], [report(1)]], places.new())


# --- many at once ---------------------------------------------------------------------------------

WIDE = (Lane(1, 4, 2, 20), Lane(2, 40, 1, 20))


def uneven_groups(users: Sequence[int], seed: int) -> list[list[int]]:
    """All users in a random order, in groups that straddle batches."""
    random = np.random.default_rng(seed)
    order = random.permutation(users).tolist()
    cuts = np.cumsum(random.integers(1, 23, len(order)))
    groups = np.split(np.array(order), cuts[cuts < len(order)])
    return [group.tolist() for group in groups]


def test_three_copies_at_the_same_time_are_counted_once(where: Where) -> None:
    barrier = threading.Barrier(3)
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(3) as pool:

        def send(seed: int) -> int:
            admitted = 0
            for user in range(30):
                barrier.wait()
                admitted += store.admit([report(user, lanes=WIDE)]).count(ADMITTED)
            return admitted

        assert sum(pool.map(send, range(3))) == 30 == store.arrived


def test_threads_that_race_fill_exact_batches(where: Where) -> None:
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(4) as pool:

        def send(seed: int) -> int:
            groups = uneven_groups(range(403), seed)
            reports = [[report(user, lanes=WIDE) for user in group] for group in groups]
            return sum(store.admit(group).count(ADMITTED) for group in reports)

        assert sum(pool.map(send, range(4))) == 403 == store.arrived
        assert len(check_all(store, WIDE)) == 400


def test_processes_that_race_fill_exact_batches(where: Where, pool: ProcessPoolExecutor) -> None:
    copies = 3 if where.kind == "postgres" else 2
    groups = [uneven_groups(range(403), seed) for seed in range(copies)]
    assert sum(pool.map(admit_groups, [where] * copies, groups, [WIDE] * copies)) == 403
    with closing(where.open(WIDE, 10**6)) as store:
        names = store.full()
        bodies = list(pool.map(freeze_all, [where] * copies, [names] * copies, [WIDE] * copies))
        assert all(one == bodies[0] for one in bodies)
        assert [store.freeze(name).body for name in names] == bodies[0]
        assert len(check_all(store, WIDE)) == 400


def test_the_first_to_freeze_a_batch_decides_its_order(
    where: Where, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit(store, [1, 2])
    make, first = batching.released, list[Release]()

    def overtaken(name: BatchName, *others: Any) -> Release:
        monkeypatch.setattr(batching, "released", make)
        with closing(where.open()) as faster:
            first.append(faster.freeze(name))
        return make(name, *others)

    monkeypatch.setattr(batching, "released", overtaken)
    assert [store.freeze(BatchName(1, 0))] == first


def test_batches_are_sent_and_scrubbed_while_reports_arrive(where: Where) -> None:
    with closing(where.open(WIDE, 10**6)) as store, ThreadPoolExecutor(2) as pool:

        def send(seed: int) -> None:
            for group in uneven_groups(range(403), seed):
                store.admit([report(user, lanes=WIDE) for user in group])

        sending, found = [pool.submit(send, seed) for seed in range(2)], list[BatchName]()
        while len(found) < 110:
            for name in store.full():
                release = store.freeze(name)
                assert (
                    len(users_in(release.body, WIDE[name.level - 1])) == WIDE[name.level - 1].size
                )
                store.acknowledge(name, release.digest)
                found.append(name)
            store.scrub()
        assert [one.result() for one in sending] == [None, None]
        assert len(set(found)) == 110


def test_many_may_make_the_same_store_at_once(places: Places) -> None:
    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            where = places.new()
            stores = list(pool.map(lambda _, where=where: where.open(), range(6)))
            assert [admit(one, [1]) for one in stores].count([ADMITTED]) == 1
            for one in stores:
                one.close()


# --- kill -9 --------------------------------------------------------------------------------------


def check_promises(where: Where, notes: Path) -> None:
    """Whatever was said before the kill holds, and the rest of the life can be lived."""
    said = [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []
    promised = max((int(line[1]) for line in said if line[0] == "admitted"), default=0)
    frozen = {
        BatchName(int(line[1]), int(line[2])): line[3] for line in said if line[0] == "frozen"
    }
    with closing(where.open()) as store:
        retried = store.admit([report(user, b"token %d" % user) for user in range(1, promised + 1)])
        assert retried == [REPEATED] * promised
        for name, digest in frozen.items():
            with suppress(ProtocolViolation):  # scrubbed, which only acknowledged ones are
                assert store.freeze(name).digest.hex() == digest
        before = {name: store.freeze(name) for name in store.full()}
        live(store, lambda said: None)
        assert (store.arrived, len(store.full())) == (6, 1)
        assert users_in(store.freeze(BatchName(1, 2)).body, LANES[0]) == [5, 6]
        for name, release in before.items():
            store.acknowledge(name, release.digest)


def test_a_kill_at_any_step_loses_and_repeats_nothing(
    places: Places, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    whole = pool.submit(live_and_die, places.new(), str(tmp_path / "whole"), None)
    steps = whole.result()
    assert steps > 30
    cases = [(places.new(), str(tmp_path / f"notes{last}"), last) for last in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    for where, notes, _ in cases:
        check_promises(where, Path(notes))


# --- the order of a release -----------------------------------------------------------------------


def orders(count: int) -> list[tuple[int, ...]]:
    messages = np.arange(4 * 16, dtype=np.uint8).reshape(4, 16)
    random = secure_random()
    return [tuple((batching.permuted(messages, random)[:, 0] // 16).tolist()) for _ in range(count)]


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
    monkeypatch.setattr(batching, "permuted", mutant)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(orders(8000), EVERY_ORDER, discrepancy=1 / 24)


PAIRS = (Lane(1, 2, 1, 16),)


def pair_orders(where: Where) -> list[bool]:
    """Whether the first of two users is first in the release of their batch."""
    with closing(where.open(PAIRS, 10**6)) as store:
        store.admit([report(user, lanes=PAIRS) for user in range(300)])
        bodies = [messages_in(store.freeze(name).body, PAIRS[0]) for name in store.full()]
    return [user_of(first) < user_of(second) for first, second in bodies]


def test_releases_come_in_any_order(where: Where) -> None:
    assert_uniform_over(pair_orders(where), [True, False], discrepancy=0.5)


def test_the_release_test_sees_the_order_of_arrival(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "permuted", as_it_came)
    with pytest.raises(AssertionError, match="if uniform"):
        assert_uniform_over(pair_orders(where), [True, False], discrepancy=0.5)


MANY = 15_000  # so many ranks are off by 0.05 with probability 1e-9
ONE = (Lane(1, MANY, 1, 16),)


def rank_correlation(bodies: Sequence[bytes]) -> float:
    return float(stats.spearmanr(range(len(bodies)), [user_of(one) for one in bodies])[0])


def test_a_release_does_not_tell_who_came_first(where: Where) -> None:
    with closing(where.open(ONE, MANY)) as store:
        for start in range(0, MANY, 500):
            store.admit([report(user, lanes=ONE) for user in range(start, start + 500)])
        body = store.freeze(BatchName(1, 0)).body
    assert abs(rank_correlation(messages_in(body, ONE[0]))) < 0.05


def test_the_tables_of_sqlite_do_not_tell_who_came_first(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", ONE, MANY)) as store:
        alone = [Piece(BatchName(1, 0), 0, message(user, ONE[0], 0)) for user in range(MANY)]
        store._write(lambda ledger: ledger.add(alone))
        rows = store._database.read(lambda reading: reading.rows("SELECT body FROM messages_1"))
    assert abs(rank_correlation([body for (body,) in rows])) < 0.05


# --- what is left ---------------------------------------------------------------------------------

TRACED = (Lane(1, 30, 40, 49), Lane(2, 300, 5, 49))
FIRST = 700_000  # users that no other test has
NAME = re.compile(rb"7\d{5}\.\d\.\d{3}")


def found_in(files: Sequence[Path]) -> set[bytes]:
    """The names of messages of these users, wherever they are in the files.

    A database cuts what is long into pages, here and there through a name: not all are found.
    """
    return {found for path in files for found in NAME.findall(path.read_bytes())}


def names_in(release: Release) -> set[bytes]:
    return {one[:12] for one in messages_in(release.body, TRACED[release.name.level - 1])}


def test_nothing_of_a_scrubbed_batch_is_left_in_the_files(places: Places) -> None:
    with closing(places.new().open(TRACED, 10**6)) as store:
        for group in uneven_groups(range(FIRST, FIRST + 910), seed=3):
            store.admit([report(user, lanes=TRACED) for user in group])
        gone = set[bytes]()
        for name in store.full()[:-1]:
            release = store.freeze(name)
            store.acknowledge(name, release.digest)
            gone |= names_in(release)
        assert len(found_in(places.files()) & gone) > 0.9 * len(gone)
        assert store.scrub() == 32
        kept, left = names_in(store.freeze(BatchName(2, 2))), found_in(places.files())
        assert len(left & kept) > 0.9 * len(kept)
        assert not left & gone
        assert admit_again(store) == {REPEATED}


def names_that_move(path: Path) -> set[bytes]:
    """The names of messages in pages of SQLite that hold many rows, and copies of moved ones."""
    held = path.read_bytes()
    pages = [held[start : start + 4096] for start in range(0, len(held), 4096)]
    return set[bytes]().union(*(NAME.findall(page) for page in pages if page[0] in (2, 5, 10, 13)))


@pytest.mark.parametrize("padding", [sqlite._PADDING, ""], ids=["padded", "mutant"])
def test_messages_in_sqlite_never_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, padding: str
) -> None:
    monkeypatch.setattr(sqlite, "_PADDING", padding)
    with closing(open_store(tmp_path / "store.db", TRACED, 10**6)) as store:
        for users in (range(FIRST, FIRST + 1), range(FIRST + 1, FIRST + 50)):
            store.admit([report(user, lanes=TRACED) for user in users])
        store.scrub()
    assert found_in([tmp_path / "store.db"])
    assert bool(names_that_move(tmp_path / "store.db")) == (not padding)


def admit_again(store: Store) -> set[Outcome]:
    users = range(FIRST, FIRST + 910)
    return set(store.admit([report(user, lanes=TRACED) for user in users]))


# --- databases that cannot ------------------------------------------------------------------------


def test_a_batch_that_lost_messages_is_not_released(store: TransactionalStore) -> None:
    admit(store, [1])
    store._write(lambda ledger: ledger.drop(BatchName(1, 0)))
    admit(store, [2])
    with pytest.raises(ProtocolViolation, match="holds 2 of 4 messages"):
        store.freeze(BatchName(1, 0))


def connection_of(store: TransactionalStore) -> sqlite3.Connection:
    assert isinstance(store._database, SqliteDatabase)
    return store._database._connection


def test_a_full_database_takes_nothing_and_recovers(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", TRACED, 10**6)) as store:
        store.admit([report(1, lanes=TRACED)])
        connection = connection_of(store)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count = {pages + 5}")
        many = [report(user, lanes=TRACED) for user in range(2, 200)]
        with pytest.raises(StoreUnavailable, match="full"):
            store.admit(many)
        assert store.arrived == 1
        connection.execute("PRAGMA max_page_count = 1000000")
        assert set(store.admit(many)) == {ADMITTED}


def test_a_read_only_file_takes_nothing_and_recovers(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", LANES, HORIZON)) as store:
        connection_of(store).execute("PRAGMA query_only = ON")
        with pytest.raises(StoreUnavailable, match="readonly"):
            admit(store, [1])
        assert store.arrived == 0
        connection_of(store).execute("PRAGMA query_only = OFF")
        assert admit(store, [1]) == [ADMITTED]


def test_a_locked_file_takes_nothing_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_WAIT", 0.05)
    path = tmp_path / "store.db"
    with (
        closing(open_store(path, LANES, HORIZON)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as other,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            admit(store, [1])
        other.execute("ROLLBACK")
        other.execute("BEGIN")
        other.execute("SELECT * FROM progress").fetchall()
        assert admit(store, [1, 2]) == [ADMITTED, ADMITTED]
        store.acknowledge(BatchName(1, 0), store.freeze(BatchName(1, 0)).digest)
        with pytest.raises(StoreUnavailable, match="reader"):
            store.scrub()
        other.execute("ROLLBACK")
        assert store.scrub() == 1


def test_files_that_are_no_stores_give_one_clear_error(tmp_path: Path) -> None:
    (garbage := tmp_path / "garbage").write_bytes(bytes(range(256)) * 64)
    with closing(sqlite3.connect(tmp_path / "foreign")) as foreign:
        foreign.execute("CREATE TABLE progress (other TEXT)")
    with closing(open_store(damaged := tmp_path / "damaged", LANES, HORIZON)):
        pass
    damaged.write_bytes(damaged.read_bytes()[:5000] + b"x" * 4000)
    before = (tmp_path / "foreign").read_bytes()
    for path in (garbage, tmp_path / "foreign", damaged):
        with pytest.raises(InvalidValue, match="store"):
            open_store(path, LANES, HORIZON)
    assert (tmp_path / "foreign").read_bytes() == before
    with pytest.raises(StoreUnavailable, match="No such file"):
        open_store(tmp_path / "nowhere" / "store.db", LANES, HORIZON)
    with pytest.raises(StoreUnavailable, match="unable to open"):
        open_store(tmp_path, LANES, HORIZON)


def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    with closing(open_store(tmp_path / "store.db", LANES, HORIZON)) as store:
        admit(store, [1])
        assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store.db", LANES, HORIZON)
    store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        admit(store, [1])


def test_a_server_that_restarts_is_found_again(server: Postgres) -> None:
    where = Where("postgres", server.new_schema())
    with closing(where.open()) as store:
        admit(store, [1, 2, 3])
        server.stop()
        with pytest.raises(StoreUnavailable, match="PostgreSQL"):
            admit(store, [4])
        with pytest.raises(StoreUnavailable, match="PostgreSQL"):
            where.open()
        server.start()
        assert admit(store, [3, 4]) == [REPEATED, ADMITTED]
        server.stop()
        server.start()
        assert store.arrived == 4


def test_a_read_only_server_takes_nothing_and_recovers(server: Postgres) -> None:
    dsn = server.new_schema()
    with closing(Where("postgres", dsn).open()) as store:
        store._database.write(
            lambda writing: writing.change("SET default_transaction_read_only = on")
        )
        with pytest.raises(StoreUnavailable, match="read-only"):
            admit(store, [1])
        store.close()
        assert admit(store, [1]) == [ADMITTED]


def test_a_database_of_something_else_gives_one_clear_error(server: Postgres) -> None:
    for columns in ("other TEXT", "plan TEXT, arrived BIGINT"):
        dsn = server.new_schema()
        with psycopg.connect(dsn) as connection:
            connection.execute(f"CREATE TABLE progress ({columns})".encode())
        with pytest.raises(InvalidValue, match="not a store"):
            Where("postgres", dsn).open()


def test_a_deadlock_is_tried_again(server: Postgres) -> None:
    failures = iter([psycopg.errors.DeadlockDetected, psycopg.errors.SerializationFailure])

    def work(writing: Transaction) -> int:
        for failure in failures:
            writing.change(f"DO $$ BEGIN RAISE EXCEPTION SQLSTATE '{failure.sqlstate}'; END $$")
        return Ledger(writing).arrived()

    with closing(Where("postgres", server.new_schema()).open()) as store:
        assert store._database.write(work) == 0
