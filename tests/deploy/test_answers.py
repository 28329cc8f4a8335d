"""The server's side of pairs in two steps: it answers once, and publishes one sum of those."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overhand.deploy.protocol.keys import hash_token, new_token
from overhand.deploy.protocol.sealing import WorkersLost
from overhand.deploy.protocol.wire import Batch, MaskedSum
from overhand.deploy.server.app import ServerApp
from overhand.deploy.server.replay import MARK_BYTES
from overhand.deploy.server.store import BatchSum, ServerStore, ServerTables
from overhand.errors import ProtocolViolation, StoreUnavailable
from overhand.mechanisms import PairsSum
from support.asgi import AsgiTransport
from support.offered_blocks import BALLOTS, PAIRS, block_of, publisher_of, send
from support.sealed_releases import open_database, restore_copy, take_copy
from support.server_stores import drain, new_database
from support.store_processes import Where

ALL = [1, 1, 1]


@pytest.fixture
def offered(where: Where) -> Iterator[ServerStore]:
    with closing(open_database(where, PAIRS)) as opened:
        yield opened


def seen(database: ServerStore) -> tuple[Any, ...]:
    """All that the database says, alarms aside."""
    masks = database.read(lambda tables: tables._transaction.rows("SELECT * FROM masks"))
    offers = database.read(lambda tables: tables._transaction.rows("SELECT * FROM offers"))
    marks = database.read(lambda tables: tables.marks_after(0))
    waiting = database.read(lambda tables: tables.waiting("number"))
    return database.status(), offers, masks, marks, waiting, database.sums(0, 99)


def summed(database: ServerStore) -> dict[int, tuple[float, int]]:
    """By number, the sums, and how many users each lacks."""
    sums = database.sums(0, 99)
    return {one.batch.number: (one.value[0], one.absent) for one in sums if one.value is not None}


# --- the answer -----------------------------------------------------------------------------------


@pytest.mark.usefixtures("noiseless")
def test_what_does_not_open_or_came_before_is_refused_and_costs_nobody_else(
    offered: ServerStore,
) -> None:
    """One garbage message cost a whole block when its users were added up before they were read."""
    publisher, first = publisher_of(offered), block_of(0, ALL)
    send(publisher, first)
    for number, other in enumerate((first.junk(), first.seeds[1]), start=1):
        block = block_of(number, ALL).with_seeds({1: other})
        assert block.refused(publisher.answer(block.offer)) == [1]
        send(publisher, block)
    twice = block_of(3, ALL)
    twice = twice.with_seeds({2: twice.seeds[0]})
    assert twice.refused(publisher.answer(twice.offer)) == [2], "the first of equal ones counts"
    send(publisher, twice)
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0), **{number: (2.0, 1) for number in range(1, 4)}}
    assert publisher.estimate is not None
    assert (publisher.estimate["t"], publisher.estimate["lost_users"]) == (12, 0)
    assert publisher._people([3, 6, 9, 12]) == [3, 5, 7, 9]
    assert offered.alarms() == [
        f"1 messages of batch {number} of level 1 came before and do not count" for number in (2, 3)
    ]
    (level,) = publisher.levels()
    assert (level["garbage"], level["repeats"], level["lost"], level["own"]) == (3, 2, 0, 0)


@pytest.mark.usefixtures("noiseless")
def test_a_block_may_lack_users_or_all_of_them(offered: ServerStore) -> None:
    publisher, garbage = publisher_of(offered), block_of(2, ALL)
    none = garbage.with_seeds({place: garbage.junk() for place in range(3)})
    send(publisher, block_of(0, [1, 1]), block_of(1, [1]), none, block_of(3, []))
    drain(publisher)
    assert summed(offered) == {0: (2.0, 1), 1: (1.0, 2), 2: (0.0, 3), 3: (0.0, 3)}
    assert publisher.estimate is not None
    assert publisher.estimate["value"] == 3.0


def test_the_same_offer_has_the_same_answer_at_any_time(where: Where, offered: ServerStore) -> None:
    publisher = publisher_of(offered)
    send(publisher, earlier := block_of(0, ALL))
    block = block_of(1, ALL).with_seeds({0: earlier.seeds[0]})
    answer = publisher.answer(block.offer)
    assert block.refused(answer) == [0]
    with closing(open_database(where, PAIRS)) as other:
        assert publisher_of(other).answer(block.offer) == answer
        send(publisher, block)
        drain(publisher)
        assert publisher_of(other).answer(block.offer) == answer
    assert len(offered.alarms()) == 1


@pytest.mark.parametrize("is_published", [False, True])
def test_a_second_offer_of_a_block_is_refused_and_changes_nothing(
    offered: ServerStore, is_published: bool
) -> None:
    """Whoever had two answers could have two sums, and so single users."""
    publisher, block = publisher_of(offered), block_of(0, ALL)
    answer = publisher.answer(block.offer)
    if is_published:
        send(publisher, block)
        drain(publisher)
    before = seen(offered)
    others = (
        block_of(0, ALL),
        replace(block, seeds=block.seeds[::-1]),
        replace(block, seeds=block.seeds[:2], own=1),
        block.with_seeds({1: block.junk()}),
    )
    for other in others:
        with pytest.raises(ProtocolViolation, match="another offer of batch 0 of level 1"):
            publisher.answer(other.offer)
    assert seen(offered) == before
    assert offered.alarms() == ["another offer of batch 0 of level 1"]
    assert publisher.answer(block.offer) == answer


def test_offers_at_once_have_one_answer(where: Where) -> None:
    """Of the same block, and of two blocks with the same message: it counts in one of them."""
    with ThreadPoolExecutor(4) as threads:
        databases = [open_database(where, PAIRS) for _ in range(4)]
        publishers = [publisher_of(database) for database in databases]
        first = block_of(0, ALL)
        found = list(threads.map(lambda one: one.answer(first.offer), publishers))
        assert len(set(found)) == 1
        victim = block_of(1, ALL).seeds[0]
        blocks = [block_of(number, ALL).with_seeds({0: victim}) for number in range(2, 6)]
        answers = list(
            threads.map(lambda i: publishers[i].answer(blocks[i].offer), range(len(blocks)))
        )
        refused = [block.refused(answer) for block, answer in zip(blocks, answers, strict=True)]
        assert sorted(refused) == [[], [0], [0], [0]]
        for database in databases:
            database.close()


def test_the_beginning_of_a_seed_is_enough_to_be_refused(offered: ServerStore) -> None:
    publisher, first, second = publisher_of(offered), block_of(0, ALL), block_of(1, ALL)
    publisher.answer(first.offer)
    forged = first.seeds[2][:MARK_BYTES] + second.seeds[2][MARK_BYTES:]
    block = second.with_seeds({2: forged})
    assert block.refused(publisher.answer(block.offer)) == [2]


def test_a_mark_that_is_not_stored_with_the_answer_lets_a_message_count_twice(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that the tests of marks are there for: it marks nothing when it answers."""
    monkeypatch.setattr(ServerTables, "add_marks", lambda *_: None)
    publisher, first = publisher_of(offered), block_of(0, ALL)
    publisher.answer(first.offer)
    block = block_of(1, ALL).with_seeds({0: first.seeds[0]})
    assert block.refused(publisher.answer(block.offer)) == []


def test_an_answer_whose_transaction_runs_twice_refuses_nothing_of_its_own(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = offered._database.write

    def twice(work: Callable[[Any], Any]) -> Any:
        def undone(transaction: Any) -> Any:
            work(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write(undone)
        return write(work)

    monkeypatch.setattr(offered._database, "write", twice)
    publisher = publisher_of(offered)
    for number in range(3):
        block = block_of(number, ALL)
        assert block.refused(publisher.answer(block.offer)) == []


# --- the sum --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize("is_published", [False, True])
def test_a_second_sum_is_refused_and_changes_nothing(
    where: Where, offered: ServerStore, is_published: bool
) -> None:
    """The difference of two sums over two subsets is one user's masked number."""
    publisher, block = publisher_of(offered), block_of(0, ALL)
    answer = publisher.answer(block.offer)
    assert offered.receive(block.masked(answer))
    if is_published:
        drain(publisher)
    before = seen(offered)
    for other in (block.masked(answer, 1), block.masked(answer, 7)):
        with pytest.raises(ProtocolViolation, match="another sum of batch 0 of level 1"):
            offered.receive(other)
    with closing(open_database(where, PAIRS)) as other_process:
        assert not other_process.receive(block.masked(answer)), "the same bytes are fine"
    assert seen(offered) == before
    assert len(offered.alarms()) == 1
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0)}


@pytest.mark.usefixtures("noiseless")
def test_a_second_sum_that_were_kept_would_be_seen(
    offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant of the test above: whatever comes is the first."""
    publisher, block = publisher_of(offered), block_of(0, ALL)
    answer = publisher.answer(block.offer)
    offered.receive(block.masked(answer))
    monkeypatch.setattr(ServerTables, "register", lambda *_: True)
    monkeypatch.setattr(ServerTables, "keep", _keep_anew)
    offered.receive(block.masked(answer, 1))
    drain(publisher)
    assert summed(offered) != {0: (3.0, 0)}


def _keep_anew(tables: ServerTables, batch: Batch, own: int, body: bytes) -> None:
    statement = "UPDATE unopened SET body = ? WHERE level = ? AND number = ?"
    tables._transaction.change(statement, body, *batch)


def test_a_sum_is_of_the_answer_that_was_given(offered: ServerStore) -> None:
    publisher, block, never = publisher_of(offered), block_of(0, ALL), block_of(1, ALL)
    answer = publisher.answer(block.offer)
    formats = PAIRS.formats
    another = formats.pack_answer(formats.pack(block.offer), [0])
    before = seen(offered)
    wrong = (
        block.masked(another),
        replace(block.masked(answer), own=1),
        never.masked(formats.pack_answer(formats.pack(never.offer), [])),
        MaskedSum(Batch(1, 2), 0, block.masked(answer).answer, block.masked(answer).body),
    )
    for masked in wrong:
        with pytest.raises(
            ProtocolViolation, match=r"another sum of .*, or one for another answer"
        ):
            offered.receive(masked)
    assert seen(offered) == before
    assert len(offered.alarms()) == 3


def test_masks_are_sealed_and_gone_when_the_sum_is_there(offered: ServerStore) -> None:
    publisher, block = publisher_of(offered), block_of(0, ALL)
    send(publisher, block)
    _, _, ((_, _, _, own, body),), *_ = seen(offered)
    assert own == 0
    assert offered.protection is not None
    opened = offered.protection.keys.open(block.batch, 0, bytes(body))
    mechanism = PAIRS.mechanisms[0]
    assert isinstance(mechanism, PairsSum)
    plain = [one for one in publisher._opener.open(1, block.seeds) if one is not None]
    seeds = np.frombuffer(b"".join(plain), np.uint8).reshape(1, 3, -1)
    assert np.frombuffer(opened, "<u8").tolist() == mechanism.mask_sums(seeds)[0].tolist()
    drain(publisher)
    assert seen(offered)[2] == []
    with pytest.raises(ProtocolViolation, match="is gone"):
        offered.protection.keys.open(block.batch, 0, bytes(body))


# --- in one step ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("noiseless")
def test_a_block_that_was_not_answered_in_time_comes_in_one_step(offered: ServerStore) -> None:
    publisher = publisher_of(offered)
    damaged = block_of(1, ALL)
    damaged = damaged.with_seeds({1: damaged.junk()})
    for block in (block_of(0, ALL), damaged, block_of(2, [1])):
        assert offered.receive(block.release())
        assert not offered.receive(block.release())
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0), 2: (1.0, 2)}
    assert offered.sums(1, 1) == [BatchSum(Batch(1, 1), 0, 1, 0.0, None)]
    assert (publisher.estimate or {})["lost_users"] == 3
    with pytest.raises(ProtocolViolation, match="another offer of batch 0"):
        publisher.answer(block_of(0, ALL).offer)


@pytest.mark.usefixtures("noiseless")
def test_a_release_after_an_answer_has_the_messages_of_the_offer_in_its_order(
    offered: ServerStore,
) -> None:
    """The server answered, and the service had not heard of it."""
    publisher, block = publisher_of(offered), block_of(0, ALL)
    answer = publisher.answer(block.offer)
    before = seen(offered)
    others = (
        block_of(0, ALL),
        replace(block, seeds=block.seeds[::-1]),
        replace(block, seeds=block.seeds[:2], own=1),
        block.with_seeds({0: block.junk()}),
    )
    for other in others:
        with pytest.raises(ProtocolViolation, match="with other messages than offered"):
            offered.receive(other.release())
    assert seen(offered) == before
    assert len(offered.alarms()) == 1
    assert offered.receive(block.release())
    with pytest.raises(ProtocolViolation, match="another sum"):
        offered.receive(block.masked(answer))
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0)}
    assert publisher.answer(block.offer) == answer
    assert publisher.levels()[0]["repeats"] == 0, "its own marks are those of the offer"


@pytest.mark.usefixtures("noiseless")
def test_what_the_answer_refused_costs_a_block_in_one_step(offered: ServerStore) -> None:
    """A message of another block is in the sum, and cannot be taken out of it."""
    publisher, first = publisher_of(offered), block_of(0, ALL)
    block = block_of(1, ALL).with_seeds({2: first.seeds[0]})
    send(publisher, first)
    assert block.refused(publisher.answer(block.offer)) == [2]
    offered.receive(block.release())
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0)}
    assert offered.sums(1, 1) == [BatchSum(Batch(1, 1), 0, 1, 0.0, None)]


@pytest.mark.usefixtures("noiseless")
def test_a_release_and_the_answer_to_its_offer_that_meet_cost_no_block(
    where: Where, offered: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own marks are none of another's: else all of it would have come before."""
    publisher, block, find = publisher_of(offered), block_of(0, ALL), ServerTables.offer
    with ThreadPoolExecutor(1) as threads, closing(open_database(where, PAIRS)) as other:
        answer, answering = publisher_of(other).answer, list[Any]()

        def meanwhile(tables: ServerTables, batch: Batch) -> Any:
            found = find(tables, batch)
            monkeypatch.setattr(ServerTables, "offer", find)
            answering.append(threads.submit(answer, block.offer))
            wait(answering, timeout=0.5)  # in vain, if it has to wait for the release
            return found

        monkeypatch.setattr(ServerTables, "offer", meanwhile)
        offered.receive(block.release())
        with pytest.raises(ProtocolViolation, match="another offer of batch 0"):
            answering[0].result()
    drain(publisher)
    assert summed(offered) == {0: (3.0, 0)}


def test_a_message_counts_once_however_it_comes(offered: ServerStore) -> None:
    publisher, first, last = publisher_of(offered), block_of(0, ALL), block_of(1, ALL)
    publisher.answer(first.offer)
    again = block_of(2, ALL).with_seeds({0: first.seeds[0]})  # offered, then in one step
    offered.receive(again.release())
    offered.receive(last.release())
    block = block_of(3, ALL).with_seeds({1: last.seeds[0]})  # in one step, then offered
    assert block.refused(publisher.answer(block.offer)) == [1]
    assert offered.status().levels[1].repeats == 2
    assert len(offered.alarms()) == 2


# --- old copies -----------------------------------------------------------------------------------


def test_an_old_copy_takes_no_offer_of_a_block_that_has_a_sum(
    where: Where, offered: ServerStore
) -> None:
    publisher, block = publisher_of(offered), block_of(0, ALL)
    take_copy(offered)
    send(publisher, block)
    drain(publisher)
    restore_copy(offered)
    with closing(open_database(where, PAIRS)) as old:
        publisher._store = old
        with pytest.raises(ProtocolViolation, match="came again: the database is older"):
            publisher.answer(block.offer)
        assert len(old.alarms()) == 1
        assert old.sums(0, 9) == []


# --- over HTTP ------------------------------------------------------------------------------------


class Site:
    """A server's routes, called as the shuffling service calls them."""

    def __init__(self, app: ServerApp, token: str | None) -> None:
        self._transport = AsgiTransport(app, token)

    def put(self, kind: str, number: int, body: bytes) -> tuple[int, bytes]:
        answer = asyncio.run(self._transport.request("PUT", f"/v1/{kind}/1/{number}", body))
        return answer.status, answer.body


def test_routes_take_offers_and_sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    formats, token = PAIRS.formats, new_token()
    with closing(new_database(PAIRS, tmp_path / "database.db")) as database:
        publisher = publisher_of(database)
        app = ServerApp(PAIRS, database, publisher, [hash_token(token)])
        site, block = Site(app, token), block_of(0, ALL)
        offer = formats.pack(block.offer)
        assert Site(app, None).put("offers", 0, offer)[0] == 401
        for body in (offer[:-1], offer + b"\0", b"", formats.pack(block.release())):
            assert site.put("offers", 0, body)[0] == 400
        assert site.put("offers", 1, offer)[0] == 400, "not of the batch in its path"

        with monkeypatch.context() as patch:
            patch.setattr(publisher._opener, "open", _raise(WorkersLost("closed")))
            assert site.put("offers", 0, offer)[0] == 503
        with monkeypatch.context() as patch:
            patch.setattr(database, "_write", _raise(StoreUnavailable("full")))
            assert site.put("offers", 0, offer)[0] == 503
        status, answer = site.put("offers", 0, offer)
        assert (status, block.refused(answer)) == (200, [])
        assert site.put("offers", 0, offer) == (200, answer)
        assert site.put("offers", 0, formats.pack(block_of(0, ALL).offer))[0] == 409

        sent = formats.pack(block.masked(answer))
        assert Site(app, None).put("sums", 0, sent)[0] == 401
        assert site.put("sums", 0, sent[:-1])[0] == 400
        for _ in range(2):
            assert site.put("sums", 0, sent)[0] == 200
        assert site.put("sums", 0, formats.pack(block.masked(answer, 1)))[0] == 409
        assert app.arrived.is_set()
        assert len(app.status()["alarms"]) == 2


def test_what_is_not_offered_has_no_routes_for_it(tmp_path: Path) -> None:
    token = new_token()
    with closing(new_database(BALLOTS, tmp_path / "database.db")) as database:
        app = ServerApp(BALLOTS, database, publisher_of(database, BALLOTS), [hash_token(token)])
        for kind in ("offers", "sums"):
            assert Site(app, token).put(kind, 0, b"OVO3")[0] == 404


def _raise(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: object) -> Any:
        raise error

    return fail
