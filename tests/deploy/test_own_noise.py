"""The server's own noise: one row for every sum, one state that goes on, and nothing undone."""

from __future__ import annotations

import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.databases.database import Database
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, MaskedSum, Release
from overhand.deploy.server import publishing
from overhand.deploy.server.app import ServerApp
from overhand.deploy.server.publishing import Publisher, Turns
from overhand.deploy.server.replay import NOISE_LEVEL
from overhand.deploy.server.store import ServerStore, ServerTables
from overhand.deploy.shuffler.batching import OwnNoise as ShufflersNoise
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.mechanisms import BallotSum
from overhand.noise import CorrelatedNoise
from overhand.randomness import secure_random
from support.database_fixtures import Places
from support.offered_blocks import BALLOTS, PAIRS, Block, block_of, publisher_of, send
from support.sealed_releases import open_database, restore_copy, sealed, take_copy
from support.server_stores import drain, history_of
from support.store_processes import Steps, Where, count_statements, end_of_child

ALL = [1, 1, 1]
FULL = BALLOTS.formats.level(1).size


class Crash(BaseException):
    pass


class Drawn:
    """What every call of the noise was given and gave, in this process; the noise itself is real.

    With `rows`, it is replaced by numbers that a test knows: 100, 200, 300 ..
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, is_known: bool = False) -> None:
        self.calls: list[tuple[bytes, int, bytes]] = []
        self.started = 0
        start, advance = CorrelatedNoise.start, CorrelatedNoise.advance

        def started(noise: CorrelatedNoise, random: Any, coordinates: int) -> Any:
            self.started += 1
            return start(noise, random, coordinates)

        def advanced(
            noise: CorrelatedNoise, state: Any, random: Any, blocks: int, clip: Any = None
        ) -> Any:
            rows, after = advance(noise, state, random, blocks, clip)
            self.calls.append((state.tobytes(), blocks, after.tobytes()))
            if is_known:
                first = sum(count for _, count, _ in self.calls[:-1])
                rows = 100 * np.arange(1 + first, 1 + first + blocks).reshape(-1, 1)
            return rows, after

        monkeypatch.setattr(CorrelatedNoise, "start", started)
        monkeypatch.setattr(CorrelatedNoise, "advance", advanced)

    @property
    def rows(self) -> int:
        return sum(count for _, count, _ in self.calls)

    def check_goes_on(self) -> None:
        """Every state is the one that the call before left."""
        for (_, _, left), (found, _, _) in zip(self.calls, self.calls[1:], strict=False):
            assert found == left


@pytest.fixture
def offered(where: Where) -> Iterator[ServerStore]:
    with closing(open_database(where, PAIRS)) as opened:
        yield opened


@pytest.fixture
def counted(where: Where) -> Iterator[ServerStore]:
    with closing(open_database(where, BALLOTS)) as opened:
        yield opened


def ballots(number: int, users: int = FULL) -> Release:
    """Without dummies of noise that a test does not know."""
    mechanism = BALLOTS.mechanisms[0]
    assert isinstance(mechanism, BallotSum)
    return sealed((1, number), [1] * users, BALLOTS)


def state_of(database: ServerStore) -> tuple[int, bytes] | None:
    """How many rows were drawn, and the state after them, opened."""
    found = database.read(lambda tables: tables.noise())
    if found is None:
        return None
    assert database.protection is not None
    rows, body = found
    return rows, database.protection.keys.open(Batch(NOISE_LEVEL, rows), 0, bytes(body))


# --- a row for each sum ---------------------------------------------------------------------------


def test_every_sum_has_a_row_and_the_state_goes_on_across_restarts_and_processes(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = Drawn(monkeypatch)
    for number in range(6):
        with closing(open_database(where, PAIRS)) as database:
            publisher = publisher_of(database)
            send(publisher, block_of(number, ALL))
            drain(publisher)
            assert state_of(database) == (number + 1, drawn.calls[-1][2])
    assert (drawn.started, [count for _, count, _ in drawn.calls]) == (1, [1] * 6)
    drawn.check_goes_on()


def test_a_state_that_is_not_kept_would_be_seen(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: its server begins anew with every block."""
    monkeypatch.setattr(ServerTables, "keep_noise", lambda *arguments: None)
    drawn, publisher = Drawn(monkeypatch), publisher_of(offered)
    for number in range(2):
        send(publisher, block_of(number, ALL))
        drain(publisher)
    with pytest.raises(AssertionError):
        drawn.check_goes_on()
    assert drawn.started == 2


def test_blocks_that_wait_have_their_noise_together_in_their_order(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, blocks = publisher_of(offered), [block_of(number, ALL) for number in range(5)]
    answers = [publisher.answer(block.offer) for block in blocks]
    for place in (3, 0, 4, 2, 1):
        offered.receive(blocks[place].masked(answers[place]))
    drawn = Drawn(monkeypatch, is_known=True)
    assert publisher.step()
    assert not publisher.step()
    assert [count for _, count, _ in drawn.calls] == [5]
    assert [one.batch.number for one in offered.sums(0, 9)] == list(range(5))
    modulus = 1 << PAIRS.formats.level(1).clear_bits
    found = [
        round(one.value[0] - 3 - 100 * i)
        for i, one in enumerate(offered.sums(0, 9), 1)
        if one.value
    ]
    assert [one % modulus for one in found] == [0] * 5


@pytest.mark.parametrize("document", [PAIRS, BALLOTS], ids=["pairs", "ballots"])
def test_what_is_lost_takes_no_row(
    tmp_path: Path, document: Document, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of pairs, garbage in one step; ballots lose nothing, so all of theirs have one."""
    where = Where("sqlite", str(tmp_path / "database.db"))
    with closing(open_database(where, document)) as database:
        releases = [
            block_of(number, ALL).release() if document is PAIRS else ballots(number)
            for number in range(5)
        ]
        drawn, publisher = Drawn(monkeypatch), publisher_of(database, document)
        for release in releases[:4]:
            if release.batch.number in (1, 2):
                release = Release(release.batch, 0, b"\1" * 40 + release.body[40:])
            database.receive(release)
        drain(publisher)
        is_lost = [one.value is None for one in database.sums(0, 9)]
        assert is_lost == ([False, True, True, False] if document is PAIRS else [False] * 4)
        state = state_of(database)
        assert state is not None
        assert state[0] == drawn.rows == is_lost.count(False)
        assert publisher._total.drawn == drawn.rows
        database.receive(releases[4])
        drain(publisher_of(database, document))
    drawn.check_goes_on()


def test_of_two_who_open_a_block_one_draws_noise(
    where: Where, offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing rests on claims: who comes second draws nothing at all."""
    monkeypatch.setattr(Database, "claim", lambda self, table, key: True)
    monkeypatch.setattr(Database, "unclaim", lambda self, table, key: None)
    send(publisher_of(offered), block_of(0, ALL))
    with closing(open_database(where, PAIRS)) as other:
        drawn, publishers = Drawn(monkeypatch), [publisher_of(offered), publisher_of(other)]
        totals = []
        for publisher in publishers:
            with publisher._store.claim_releases() as waiting:
                totals.append([publisher._unmask(one) for one in waiting])  # type: ignore[arg-type]
        for publisher, total in zip(publishers, totals, strict=True):
            publisher._store.add_sums(total)
            publisher._publish()
        assert offered.sums(0, 9) == other.sums(0, 9)
        assert (len(offered.sums(0, 9)), drawn.rows) == (1, 1)
        assert publishers[0].estimate == publishers[1].estimate is not None


def test_clipped_noise_is_what_is_added_to_ballots(
    counted: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    mechanism, clips = BALLOTS.mechanisms[0], []
    advance = CorrelatedNoise.advance

    def seen(noise: Any, state: Any, random: Any, blocks: int, clip: Any = None) -> Any:
        clips.append(clip)
        return advance(noise, state, random, blocks, clip)

    monkeypatch.setattr(CorrelatedNoise, "advance", seen)
    counted.receive(ballots(0))
    drain(publisher_of(counted, BALLOTS))
    (clip,) = clips[-1:]
    assert isinstance(mechanism, BallotSum)
    assert clip(np.array([[-(10**6)]])).tolist() == [[-mechanism.bound]]


# --- nothing undoes a draw ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "broken", ["_to_published", "keep_only", "alarm"], ids=["estimate", "key", "check"]
)
@pytest.mark.crash
def test_what_looks_at_a_sum_cannot_undo_its_noise(
    where: Where, offered: ServerStore, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker who could make it fail would choose among draws (`docs/correlated.md`)."""

    def crash(*arguments: Any) -> Any:
        if broken != "keep_only" or 0 not in arguments[1][1]:  # it has a sum now
            raise Crash

    drawn, publisher = Drawn(monkeypatch), publisher_of(offered)
    block = block_of(0, ALL)
    answer = publisher.answer(block.offer)
    offered.receive(block.masked(answer))
    if broken == "alarm":  # a sum that honest users cannot have is looked at when it is stored
        monkeypatch.setattr(type(PAIRS.plan.plausibility), "is_possible", lambda *_: False)
    owner = {"_to_published": publishing, "keep_only": BatchKeys, "alarm": ServerStore}[broken]
    with monkeypatch.context() as patch:
        patch.setattr(owner, broken, crash)
        for _ in range(3):
            with pytest.raises(Crash):
                publisher.step()
    (kept,) = offered.sums(0, 9)
    assert (drawn.rows, offered.status().levels[1].published) == (1, 0)
    with closing(open_database(where, PAIRS)) as other:
        again = publisher_of(other)
        drain(again)
        assert other.status().levels[1].published == 1  # with its estimate, and not before
        assert other.sums(0, 9) == [kept]
        assert (len(history_of(again)), drawn.rows) == (1, 1)
        assert len(other.alarms()) == int(broken == "alarm")


@pytest.mark.parametrize("statement", ["forget", "keep_noise", "add_sum", "advance"])
@pytest.mark.crash
def test_a_crash_before_the_sum_is_stored_leaves_the_state_as_it_was(
    where: Where, offered: ServerStore, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State and sum are of one transaction: what was drawn in it is nowhere, and drawn afresh."""
    publisher = publisher_of(offered)
    send(publisher, block_of(0, ALL))
    drain(publisher)
    before, sums = state_of(offered), offered.sums(0, 9)
    send(publisher, block_of(1, ALL))
    drawn = Drawn(monkeypatch)

    def crash(tables: ServerTables, *arguments: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(ServerTables, statement, crash)
        with pytest.raises(Crash):
            publisher.step()
    assert (state_of(offered), offered.sums(0, 9)) == (before, sums)
    assert before is not None
    with closing(open_database(where, PAIRS)) as other:
        drain(publisher_of(other))
        assert len(other.sums(0, 9)) == 2
        assert state_of(other) == (2, drawn.calls[-1][2])
    assert {found for found, _, _ in drawn.calls} == {before[1]}


def live_and_die(
    where: Where, notes: str, sent: Sequence[tuple[Block, Release]], last: int | None
) -> int:
    """Take blocks in two steps and releases, and publish, until step `last`; what was shown."""
    steps, database = Steps(last), open_database(where, PAIRS)
    count_statements(database._database, steps)
    assert database.protection is not None
    database.protection.keys.keep_only = steps.counted(database.protection.keys.keep_only)  # type: ignore[method-assign]
    with Path(notes).open("a", buffering=1) as file:
        publisher = publisher_of(database)
        for block, release in sent:
            take(publisher, block, release, lambda answer: file.write(f"answer {answer.hex()}\n"))
            while publisher.step():
                file.write(f"{publisher.estimate}\n")
    return steps.taken


def take(
    publisher: Publisher, block: Block, release: Release, say: Callable[[bytes], object]
) -> None:
    """Even ones in two steps; odd ones are offered, and then released in one."""
    answer = publisher.answer(block.offer)
    say(answer)
    if block.batch.number % 2:
        publisher._store.receive(release)
    else:
        publisher._store.receive(block.masked(answer))


def die_at_each_step(cases: Sequence[tuple[Where, str, Any, int]]) -> list[int]:
    return [end_of_child(live_and_die, *case) for case in cases]


@pytest.mark.slow
def test_after_a_kill_at_any_step_no_block_has_two_answers_two_sums_or_two_noises(
    places: Places, pool: ProcessPoolExecutor, tmp_path: Path
) -> None:
    """What was shown stays, and what comes again ends as it began."""
    blocks = [block_of(number, ALL) for number in range(3)]
    sent = [(block, block.release()) for block in blocks]
    whole = (places.new(), str(tmp_path / "whole"), sent, None)
    steps = pool.submit(live_and_die, *whole).result()
    cases = [(places.new(), str(tmp_path / str(n)), sent, n) for n in range(steps)]
    assert pool.submit(die_at_each_step, cases).result() == [-signal.SIGKILL] * steps
    shown = 0
    for where, notes, _, _ in cases:
        said = Path(notes).read_text().splitlines() if Path(notes).exists() else []
        with closing(open_database(where, PAIRS)) as database:
            publisher, answers = publisher_of(database), list[bytes]()
            before = database.sums(0, 9)
            for block, release in sent:
                take(publisher, block, release, answers.append)
                drain(publisher)
            assert database.sums(0, 9)[: len(before)] == before
            assert [one.batch.number for one in database.sums(0, 9)] == [0, 1, 2]
            state = state_of(database)
            assert state is not None
            assert state[0] == 3
            told = {f"answer {one.hex()}" for one in answers}
            assert set(said) <= told | {str(one) for one in history_of(publisher)}
            assert len(history_of(publisher)) == 3
            assert database.alarms() == []
        keys = BatchKeys(where.keys)
        gone = [*(block.batch for block in blocks), *(Batch(NOISE_LEVEL, row) for row in range(3))]
        assert not any(map(keys.has, gone))
        assert keys.has(Batch(NOISE_LEVEL, 3))
        shown += len(said)
    assert shown


# --- the state that is kept -----------------------------------------------------------------------


def test_a_state_cannot_be_opened_once_it_was_replaced(
    where: Where, offered: ServerStore, places: Places
) -> None:
    """Two states show all blocks between them: the database may have copies of every one."""
    publisher, kept = publisher_of(offered), list[tuple[int, bytes]]()
    for number in range(4):
        send(publisher, block_of(number, ALL))
        drain(publisher)
        found = offered.read(lambda tables: tables.noise())
        assert found is not None
        kept.append((found[0], bytes(found[1])))
    keys = BatchKeys(where.keys)
    assert [rows for rows, _ in kept] == [1, 2, 3, 4]
    for rows, body in kept[:-1]:
        with pytest.raises(ProtocolViolation, match="is gone"):
            keys.open(Batch(NOISE_LEVEL, rows), 0, body)
    rows, body = kept[-1]
    state = keys.open(Batch(NOISE_LEVEL, rows), 0, body)
    content = b"".join(path.read_bytes() for path in places.files())
    assert state[:8] not in content


@pytest.mark.parametrize("damage", ["DELETE FROM noise", "UPDATE noise SET body = ?"], ids=str)
def test_a_state_that_is_lost_begins_anew_with_an_alarm(
    offered: ServerStore, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publisher_of(offered)
    for number in range(3):
        send(publisher, block_of(number, ALL))
        drain(publisher)
    values = [bytes(100)] * damage.count("?")
    offered._write(lambda tables: tables._transaction.change(damage, *values))
    drawn = Drawn(monkeypatch)
    for number in range(3, 5):
        send(publisher, block_of(number, ALL))
        drain(publisher)
    assert offered.alarms() == ["the state of the server's noise was lost after 3 batches"]
    assert (drawn.started, len(offered.sums(0, 9))) == (1, 5)
    assert state_of(offered) == (5, drawn.calls[-1][2])
    drawn.check_goes_on()


def test_a_state_of_another_time_is_no_state(offered: ServerStore) -> None:
    """One that was put back would draw the same noise again."""
    publisher = publisher_of(offered)
    send(publisher, block_of(0, ALL))
    drain(publisher)
    old = offered.read(lambda tables: tables.noise())
    assert old is not None
    send(publisher, block_of(1, ALL))
    drain(publisher)
    offered._write(lambda tables: tables.keep_noise(2, bytes(old[1])))
    send(publisher, block_of(2, ALL))
    drain(publisher)
    assert offered.alarms() == ["the state of the server's noise was lost after 2 batches"]
    offered._write(lambda tables: tables.keep_noise(1, bytes(old[1])))
    send(publisher, block_of(3, ALL))
    with pytest.raises(ProtocolViolation, match="the database is older than its keys"):
        publisher.step()
    assert len(offered.sums(0, 9)) == 3


def test_an_old_copy_with_an_old_state_is_refused(where: Where, offered: ServerStore) -> None:
    publisher, block = publisher_of(offered), block_of(1, ALL)
    send(publisher, block_of(0, ALL), block)
    take_copy(offered)
    drain(publisher)
    restore_copy(offered)
    with closing(open_database(where, PAIRS)) as old:
        with pytest.raises(InvalidValue, match="the database is older than its keys"):
            publisher_of(old)
        with pytest.raises(ProtocolViolation), old.claim_releases():
            pass


class Streams:
    """Where noise was drawn from, in this process: references that keep nothing alive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.drawn_from: list[weakref.ref[Any]] = []
        advance = CorrelatedNoise.advance

        def advanced(noise: CorrelatedNoise, state: Any, random: Any, *rest: Any) -> Any:
            self.drawn_from.append(weakref.ref(random))
            return advance(noise, state, random, *rest)

        monkeypatch.setattr(CorrelatedNoise, "advance", advanced)

    def check_gone(self, draws: int) -> None:
        assert [stream() for stream in self.drawn_from] == [None] * draws


def test_no_random_stream_outlives_the_draw_it_was_made_for(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key would let whoever reads the memory reproduce all earlier noise."""
    streams, publisher = Streams(monkeypatch), publisher_of(offered)
    noise = ShufflersNoise(BALLOTS)
    state = noise.start()
    for number in range(3):
        send(publisher, block_of(number, ALL))
        drain(publisher)
        _, state = noise.draw(state, 1)
    streams.check_gone(draws=6)


def test_a_stream_that_is_kept_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    streams, noise = Streams(monkeypatch), ShufflersNoise(BALLOTS, random=secure_random())
    noise.draw(noise.start(), 1)
    with pytest.raises(AssertionError):
        streams.check_gone(draws=1)


# --- what is told ---------------------------------------------------------------------------------


def test_the_server_tells_what_its_plan_promises_and_how_far_it_goes(offered: ServerStore) -> None:
    publisher, plan = publisher_of(offered), PAIRS.plan
    send(publisher, *(block_of(number, ALL) for number in range(3)))
    drain(publisher)
    status = ServerApp(PAIRS, offered, publisher, []).status()
    assert (status["plan"]["horizon"], status["plan"]["most_users"]) == (12, plan.most_users)
    assert (status["guarantee"]["mu"], status["guarantee"]["noise_by"]) == (plan.mu, "services")
    assert status["guarantee"]["mu"] > 0
    (level,) = status["levels"]
    assert (level["published"], level["batches"]) == (3, 4), "those that are expected"


def test_in_hindsight_is_what_was_published(offered: ServerStore) -> None:
    """Blocks are all that there is to know: nothing above them says more of them."""
    publisher = publisher_of(offered)
    for number in range(4):
        send(publisher, block_of(number, ALL))
        drain(publisher)
    told = publisher.hindsight(0)
    assert told["t"] == [3, 6, 9, 12]
    assert told == {**publisher.thin(0), "ratio": 1.0}


@pytest.mark.usefixtures("noiseless")
def test_a_plan_goes_on_beyond_its_horizon(offered: ServerStore) -> None:
    publisher = publisher_of(offered)
    send(publisher, *(block_of(number, ALL) for number in range(6)))
    drain(publisher)
    estimate = publisher.estimate
    assert estimate is not None
    assert (estimate["t"], estimate["value"]) == (18, 18.0)


# --- in the order of numbers ----------------------------------------------------------------------


def numbers_of(database: ServerStore) -> list[int]:
    return [one.batch.number for one in database.sums(0, 99)]


def test_later_blocks_wait_for_an_earlier_one(counted: ServerStore) -> None:
    publisher = publisher_of(counted, BALLOTS)
    for number in (0, 2, 4, 3):
        counted.receive(ballots(number))
        drain(publisher)
    assert numbers_of(counted) == [0]
    counted.receive(ballots(1))
    drain(publisher)
    assert numbers_of(counted) == [0, 1, 2, 3, 4]


def test_patience_ends_and_what_is_missing_holds_up_nothing_any_more(
    counted: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("overhand.deploy.server.publishing.time.monotonic", lambda: now[0])
    publisher = publisher_of(counted, BALLOTS, patience=10.0)
    steps = [(0.0, 1, []), (9.9, 2, []), (10.0, 3, [1, 2, 3]), (10.0, 4, [1, 2, 3, 4])]
    for later, number, found in steps:
        now[0] = 100.0 + later
        counted.receive(ballots(number))
        drain(publisher)
        assert numbers_of(counted) == found
    counted.receive(ballots(6))  # another one is missing, and has its time
    drain(publisher)
    assert numbers_of(counted) == [1, 2, 3, 4]
    counted.receive(ballots(0))
    counted.receive(ballots(5))
    drain(publisher)
    assert numbers_of(counted) == [1, 2, 3, 4, 0, 5, 6]
    assert publisher.estimate is not None
    assert publisher.estimate["t"] == 7 * FULL


def test_only_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "MOST_HELD", 3)
    turns = Turns(patience=10.0)
    assert turns.stop([1], [0], 0.0) == 0
    assert turns.stop([1, 2, 3], [0], 1.0) == 0
    assert turns.stop([1, 2, 3, 4], [0], 2.0) == 4, "all whose keys can be destroyed"
    assert turns.stop([4, 5], [0, 4], 3.0) == 7, "0 holds up nothing any more"
    assert turns.stop([7], [0, 6], 4.0) == 6
    assert turns.stop([7], [0, 6], 13.9) == 6
    assert turns.stop([7], [0, 6], 14.0) == 9
    assert turns.stop([], [0, 6, 8], 15.0) == 10
    assert turns.stop([9], [0, 6, 8], 16.0) == 8
    assert turns.stop([0, 9], [0, 6, 8], 17.0) == 8


def test_none_has_noise_whose_key_could_not_be_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the patience: a copy from before it had would be taken for the database."""
    monkeypatch.setattr(publishing, "MOST_HELD", 2)
    turns = Turns(patience=0.0)
    assert turns.stop([3], [0], 0.0) == 3
    assert turns.stop([2, 3], [0], 0.0) == 3
    assert turns.stop([3, 9], [0, 1, 3], 0.0) == 4
    assert turns.stop([9], [0, 1, 3], 0.0) == 4


def test_a_sum_alone_waits_its_turn(offered: ServerStore) -> None:
    """An answer is given at once; only the noise has an order."""
    publisher, first, second = publisher_of(offered), block_of(0, ALL), block_of(1, ALL)
    answers = [publisher.answer(block.offer) for block in (second, first)]
    offered.receive(second.masked(answers[0]))
    drain(publisher)
    assert numbers_of(offered) == []
    masked: MaskedSum = first.masked(answers[1])
    offered.receive(masked)
    drain(publisher)
    assert numbers_of(offered) == [0, 1]
