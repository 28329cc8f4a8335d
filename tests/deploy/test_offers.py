"""Pairs in two steps: offered in an order drawn once, frozen once, with noise drawn once."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import secrets
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.wire import Batch, LevelFormat, MaskedSum, Offer, Release
from overhand.deploy.shuffler.app import Admission, Backlogged, ShufflerMetrics
from overhand.deploy.shuffler.batching import Arrival, Outcome, Piece
from overhand.deploy.shuffler.sending import NotTaken, Sender
from overhand.deploy.shuffler.store import Alarm, Store, StoreTables
from overhand.deploy.transport import Answer, Unreachable
from overhand.errors import InvalidValue, ProtocolViolation, StoreUnavailable
from support.database_fixtures import Places
from support.noise_chains import (
    AnsweringServer,
    CountedNoise,
    NotedNoise,
    answer_full,
    answers_to,
    copied,
    masked_of,
    noise_of,
    number_of,
    open_chain,
    restore,
)
from support.services_noise_plans import SIZE, arrivals, served
from support.store_processes import Where, arrival

PAIRS = served("pairs")
LEVEL = PAIRS.formats.levels[0]
MODULUS = 1 << LEVEL.clear_bits
FIRST = Batch(1, 0)


def ciphertext(one: Arrival) -> bytes:
    return one.parts[0][: LEVEL.ciphertext_bytes]


def in_offer(body: bytes) -> list[bytes]:
    width = LEVEL.ciphertext_bytes
    return [body[at : at + width] for at in range(0, len(body), width)]


def due(users: Sequence[Arrival], block: int) -> int:
    """What the sum of these users and of a block's noise is."""
    return (sum(masked_of(PAIRS, one) for one in users) + noise_of(block)) % MODULUS


def rows_left(store: Store) -> list[int]:
    """How many rows there are of single reports, of orders, and of what is sent."""
    tables = ("messages_1", "offers", "bodies")
    return [
        store._database.read(lambda t, name=name: t.rows(f"SELECT count(*) FROM {name}"))[0][0]  # type: ignore[misc]
        for name in tables
    ]


@pytest.fixture
def noise() -> CountedNoise:
    return CountedNoise(PAIRS)


@pytest.fixture
def store(where: Where, noise: CountedNoise) -> Any:
    with closing(open_chain(where, PAIRS, noise)) as opened:
        yield opened


# --- the life of a block --------------------------------------------------------------------------


def test_a_block_is_offered_answered_acknowledged_and_scrubbed(
    store: Store, noise: CountedNoise
) -> None:
    users = arrivals(PAIRS, [1, 0, 1])
    store.admit(users)
    assert (store.unoffered(), store.unfrozen(), noise.draws) == ([FIRST], [FIRST], [])
    (offer,) = store.offer_all([FIRST])
    assert (offer.batch, offer.own) == (FIRST, 0)
    assert sorted(in_offer(offer.body)) == sorted(map(ciphertext, users))
    assert store.offer_all([FIRST]) == [offer], "the same bytes ever after"
    assert (store.unoffered(), store.unfrozen(), noise.draws) == ([], [FIRST], [])
    answers = answers_to(PAIRS, [offer])
    (masked,) = store.answer_all(answers)
    assert isinstance(masked, MaskedSum)
    assert masked.answer == hashlib.sha256(answers[FIRST]).digest()
    assert number_of(PAIRS, masked) == due(users, 0)
    assert (store.unfrozen(), store.frozen(), store.full()) == ([], [FIRST], [FIRST])
    assert rows_left(store) == [0, 0, 1], "of the masked numbers only their sum"
    assert (store.offer_all([FIRST]), store.outgoing([FIRST])) == ([], [masked])
    store.acknowledge_all({FIRST: masked.digest})
    assert (store.full(), store.scrub(), store.scrub()) == ([], 1, 0)
    assert rows_left(store) == [0, 0, 0]
    assert (store.outgoing([FIRST]), noise.blocks, store.alarms) == ([], 1, {})


@pytest.mark.parametrize("refused", [[], [0], [2], [0, 1], [0, 1, 2]])
def test_only_what_the_server_opened_is_in_a_sum(store: Store, refused: list[int]) -> None:
    """Catches a sum of all, and places that are those of the rows as they came."""
    users = arrivals(PAIRS, [1, 0, 1])
    for one in users:
        store.admit([one])
    (offer,) = store.offer_all([FIRST])
    by_ciphertext = {ciphertext(one): one for one in users}
    order = [by_ciphertext[one] for one in in_offer(offer.body)]
    (masked,) = store.answer_all(answers_to(PAIRS, [offer], refused))
    kept = [one for place, one in enumerate(order) if place not in refused]
    assert number_of(PAIRS, masked) == due(kept, 0)


def test_an_order_is_drawn_for_every_block_and_is_any(where: Where) -> None:
    """Of 6 orders, 8 blocks have the same with probability 6^-7: no more than a smoke test."""
    firsts = set()
    with closing(open_chain(where, PAIRS)) as store:
        for _ in range(8):
            users = arrivals(PAIRS, [1] * SIZE)
            store.admit(users)
            (offer,) = store.offer_all(store.unoffered())
            firsts.add(tuple(map([*map(ciphertext, users)].index, in_offer(offer.body))))
    assert len(firsts) > 1


def test_nothing_is_added_up_before_a_block_is_frozen(store: Store) -> None:
    """A piece has every user's row: else nobody could leave out what the server cannot open."""
    users = arrivals(PAIRS, [1, 0, 1])
    store.admit(users)
    store.offer_all([FIRST])
    (piece,) = store._read(lambda tables: list(tables.pieces(FIRST)))
    rows = {row.tobytes() for row in LEVEL.rows([piece.body])}
    assert rows == {one.parts[0] for one in users}


def list_pieces(tables: StoreTables, batch: Batch) -> list[Piece]:
    return list(tables.pieces(batch))


def test_pieces_have_their_rows_in_random_order(store: Store) -> None:
    """Likewise: that all orders are alike is seen to where `permute` is tested."""
    orders = set()
    for _ in range(8):
        users = arrivals(PAIRS, [1] * SIZE)
        store.admit(users)
        (piece,) = store._read(partial(list_pieces, batch=store.full()[-1]))
        orders.add(
            tuple(
                [one.parts[0] for one in users].index(r.tobytes()) for r in LEVEL.rows([piece.body])
            )
        )
    assert len(orders) > 1


def test_blocks_are_frozen_in_their_order_and_no_other(store: Store, noise: CountedNoise) -> None:
    users = arrivals(PAIRS, [1] * 9)
    store.admit(users)
    offers = store.offer_all(store.unfrozen())
    answers = answers_to(PAIRS, offers)
    later = {batch: answers[batch] for batch in (Batch(1, 1), Batch(1, 2))}
    assert store.answer_all(later) == [], "those before them have no answer yet"
    with pytest.raises(ProtocolViolation, match="before those before it"):
        store.freeze_all([Batch(1, 1)])
    assert noise.draws == []
    sums = store.answer_all(answers)
    assert [number_of(PAIRS, one) for one in sums] == [
        due(users[3 * block :][:3], block) for block in range(3)
    ]
    assert [blocks for _, blocks in noise.draws] == [3], "one draw for all of them"


def test_the_state_goes_from_block_to_block_and_from_process_to_process(where: Where) -> None:
    for block in range(4):
        noise = CountedNoise(PAIRS)
        with closing(open_chain(where, PAIRS, noise)) as store:
            users = arrivals(PAIRS, [1] * SIZE)
            store.admit(users)
            (masked,) = answer_full(store, PAIRS)
            assert number_of(PAIRS, masked) == due(users, block)
            assert (noise.starts, len(noise.draws)) == (int(block == 0), 1)


def test_the_plans_own_noise_runs_through_its_state(where: Where) -> None:
    """Not only a test's: as it is deployed."""
    noise = NotedNoise(PAIRS)
    with closing(open_chain(where, PAIRS, noise)) as store:
        store.admit(arrivals(PAIRS, [1] * 9))
        assert len(answer_full(store, PAIRS)) == 3
        assert (noise.blocks, noise.starts) == (3, 1)


def test_no_block_is_offered_or_frozen_early(store: Store) -> None:
    store.admit(arrivals(PAIRS, [1, 1]))
    for act in (store.offer_all, store.freeze_all):
        with pytest.raises(ProtocolViolation, match="cannot be frozen at 2 of 3"):
            act([FIRST])
    assert (store.unoffered(), store.unanswered(0)) == ([], [])


# --- answers --------------------------------------------------------------------------------------


def test_another_answer_is_an_alarm_and_changes_nothing(store: Store, noise: CountedNoise) -> None:
    store.admit(arrivals(PAIRS, [1, 0, 1]))
    offers = store.offer_all([FIRST])
    (masked,) = store.answer_all(answers_to(PAIRS, offers))
    assert store.answer_all(answers_to(PAIRS, offers)) == [masked]
    assert store.alarms == {}, "the same answer is no alarm"
    for count in (1, 2):
        assert store.answer_all(answers_to(PAIRS, offers, [1])) == [masked]
        assert store.alarms == {Alarm.ANSWER: count}
    assert noise.blocks == 1


def test_an_answer_after_a_block_was_frozen_in_one_step_is_void(
    store: Store, noise: CountedNoise
) -> None:
    users = arrivals(PAIRS, [1, 0, 1])
    store.admit(users)
    (offer,) = store.offer_all([FIRST])
    (release,) = store.freeze_all([FIRST])
    assert isinstance(release, Release)
    assert release.body[: len(offer.body)] == offer.body, "in the order of the offer"
    assert number_of(PAIRS, release) == due(users, 0)
    assert rows_left(store) == [0, 0, 1]
    assert store.answer_all(answers_to(PAIRS, [offer], [0])) == [release]
    assert (store.alarms, noise.blocks) == ({Alarm.ANSWER: 1}, 1)


@pytest.mark.parametrize(
    "wrong",
    [b"", b"OVA3", bytes(36), b"OVA3" + bytes(32)],
    ids=["nothing", "short", "no magic", "of another offer"],
)
def test_what_is_no_answer_freezes_nothing(store: Store, noise: CountedNoise, wrong: bytes) -> None:
    """Nor does it undo a draw: nothing was drawn yet."""
    store.admit(arrivals(PAIRS, [1] * 6))
    answers = answers_to(PAIRS, store.offer_all(store.unfrozen()))
    with pytest.raises(InvalidValue):
        store.answer_all(answers | {Batch(1, 1): wrong})
    assert (noise.draws, len(store.unfrozen())) == ([], 2)


def test_an_answer_to_no_offer_freezes_nothing(store: Store, noise: CountedNoise) -> None:
    store.admit(arrivals(PAIRS, [1] * 3))
    with pytest.raises(ProtocolViolation, match="was not offered"):
        store.answer_all({FIRST: b""})
    assert (noise.draws, store.unfrozen()) == ([], [FIRST])


# --- in time --------------------------------------------------------------------------------------


def test_only_what_was_unanswered_for_long_is_due(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [10_000.0]
    monkeypatch.setattr("overhand.deploy.shuffler.store.time.time", lambda: now[0])
    for _ in range(3):
        store.admit(arrivals(PAIRS, [1] * SIZE))
        store.offer_all(store.unoffered())
        now[0] += 100
    assert store.unanswered(301) == []
    assert store.unanswered(200) == [FIRST, Batch(1, 1)]
    store.freeze_all([FIRST])
    assert store.unanswered(200) == [Batch(1, 1)]


def test_a_late_block_is_closed_with_those_who_are_in_it(store: Store) -> None:
    users = arrivals(PAIRS, [1, 1])
    store.admit(users)
    assert (store.leave_empty(0), store.full()) == (1, [FIRST])
    (offer,) = store.offer_all([FIRST])
    assert (offer.own, len(in_offer(offer.body))) == (1, 2)
    (masked,) = store.answer_all(answers_to(PAIRS, [offer], [0, 1]))
    assert (masked.own, number_of(PAIRS, masked)) == (1, due([], 0))


def test_what_waits_for_the_server_is_measured(store: Store) -> None:
    rows, batch = SIZE * LEVEL.part_bytes, LEVEL.batch_bytes()
    store.admit(arrivals(PAIRS, [1] * 8))
    assert store.waiting_bytes == 2 * rows, "an open block waits for nobody"
    answer_full(store, PAIRS)
    assert store.waiting_bytes == 2 * batch
    store.acknowledge_all({one.batch: one.digest for one in store.outgoing(store.frozen())})
    assert store.waiting_bytes == 0


def test_reports_are_refused_while_too_much_waits(store: Store) -> None:
    most = SIZE * LEVEL.part_bytes
    admission = Admission(store, most_bytes=most)

    async def main() -> None:
        stopping, users = asyncio.Event(), arrivals(PAIRS, [1] * 7)
        running = asyncio.create_task(admission.run())

        async def look() -> None:
            stopping.clear()
            looking = asyncio.create_task(admission.follow_backlog(stopping))
            await asyncio.sleep(0.05)
            stopping.set()
            await looking

        for one in users[:3]:
            await admission.admit(one)
        await look()
        for one in users[3:6]:
            assert await admission.admit(one) is Outcome.ADMITTED
        await look()
        with pytest.raises(Backlogged, match="waits for the server"):
            await admission.admit(users[6])
        answer_full(store, PAIRS)
        store.acknowledge_all({one.batch: one.digest for one in store.outgoing(store.frozen())})
        await look()
        assert await admission.admit(users[6]) is Outcome.ADMITTED
        admission.close()
        await running

    asyncio.run(main())


# --- crashes, copies and races --------------------------------------------------------------------


class Crash(Exception):
    """The process ends here."""


def crash_at(monkeypatch: pytest.MonkeyPatch, place: Any, name: str, when: str) -> None:
    function = getattr(place, name)

    def crashing(*arguments: Any, **options: Any) -> Any:
        if when == "before":
            raise Crash
        function(*arguments, **options)
        raise Crash

    monkeypatch.setattr(place, name, crashing)


STEPS: list[tuple[str, Any, str, str]] = [
    ("before the offer is kept", StoreTables, "add_offers", "before"),
    ("in its transaction", StoreTables, "add_offers", "after"),
    ("after it was kept", Store, "offer_all", "after"),
    ("before the sum is kept", StoreTables, "freeze_next", "before"),
    ("in its transaction, with noise drawn", StoreTables, "freeze_next", "after"),
    ("before keys are destroyed", Store, "destroy_keys", "before"),
    ("after they are destroyed", Store, "destroy_keys", "after"),
    ("before it is sent", Store, "outgoing", "before"),
    ("after it was sent", Store, "acknowledge_all", "before"),
    ("after the server had it", Store, "acknowledge_all", "after"),
    ("before it is scrubbed", Store, "scrub", "before"),
]


@pytest.mark.parametrize("step", STEPS, ids=[step[0] for step in STEPS])
def test_a_crash_at_any_step_costs_no_report_and_no_second_noise(
    where: Where, monkeypatch: pytest.MonkeyPatch, step: Any
) -> None:
    """The server has one offer and one sum of every block, whatever happened between them.

    `AnsweringServer` refuses other bytes for a block: a second order, or a second noise.
    """
    _, place, name, when = step
    users, server = arrivals(PAIRS, [1, 0, 1] * 2), AnsweringServer(PAIRS, [1])
    with closing(open_chain(where, PAIRS, CountedNoise(PAIRS))) as store:
        store.admit(users)
        with monkeypatch.context() as patch:
            crash_at(patch, place, name, when)
            with pytest.raises(Crash):
                asyncio.run(send_twice(sender_of(store, server)))
    with closing(open_chain(where, PAIRS, CountedNoise(PAIRS))) as store:
        asyncio.run(sender_of(store, server).send_all())
        assert (store.full(), store.alarms) == ([], {})
    for block, masked in server.sums().items():
        offer = PAIRS.formats.unpack(Offer, server.kept["offers", block])
        kept = [row for place, row in enumerate(in_offer(offer.body)) if place != 1]
        mine = [one for one in users if ciphertext(one) in kept]
        assert number_of(PAIRS, masked) == due(mine, block), "noise of the block, drawn in turn"
    assert sorted(server.sums()) == [0, 1]


async def send_twice(sender: Sender) -> None:
    """What was sent at one tick is scrubbed at the next."""
    for _ in range(2):
        await sender.send_all()


def sender_of(store: Store, server: AnsweringServer, **options: float) -> Sender:
    return Sender(store, PAIRS, server, ShufflerMetrics(), **options)


def test_the_crashes_are_seen_by_a_server_if_noise_is_drawn_again(where: Where) -> None:
    """The mutant of the test above: a service that forgets a sum that it sent."""
    server = AnsweringServer(PAIRS)
    with closing(open_chain(where, PAIRS, CountedNoise(PAIRS))) as store:
        store.admit(arrivals(PAIRS, [1] * 3))
        asyncio.run(sender_of(store, server).send_all())
        (masked,) = server.sums().values()
        other = replace(masked, body=bytes([masked.body[0] ^ 1]) + masked.body[1:])
        packed = PAIRS.formats.pack(other)
        assert asyncio.run(server.request("PUT", "/v1/sums/1/0", packed)).status == 409


def test_two_processes_on_one_store_draw_once_for_each_block(where: Where) -> None:
    """The slower throws away what it drew, and sends what the faster has kept."""
    slow, fast, found = CountedNoise(PAIRS), CountedNoise(PAIRS), list[Any]()
    with (
        closing(open_chain(where, PAIRS, slow)) as store,
        closing(open_chain(where, PAIRS, fast)) as faster,
    ):
        store.admit(arrivals(PAIRS, [1] * 6))
        offers = store.offer_all(store.unfrozen())
        assert faster.offer_all(faster.unfrozen()) == offers
        draw = slow.draw

        def overtaken(state: bytes, blocks: int) -> Any:
            if not found:
                found.extend(faster.answer_all(answers_to(PAIRS, offers[:1])))
            return draw(state, blocks)

        slow.draw = overtaken  # type: ignore[method-assign]
        sums = store.answer_all(answers_to(PAIRS, offers))
        assert sums[:1] == found
        assert faster.outgoing(store.frozen()) == sums
        assert [blocks for _, blocks in slow.draws] == [2, 1], "the first draw was thrown away"
        (before, _), (after, _) = slow.draws
        assert (before, after) != (after, before), "and the second follows the other's"
        assert store.alarms == faster.alarms == {}


def test_processes_that_offer_one_block_agree_on_its_order(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_chain(where, PAIRS)) as store, closing(open_chain(where, PAIRS)) as faster:
        store.admit(arrivals(PAIRS, [1] * 3))
        arrange, first = store._arrange, list[Any]()

        def overtaken(batches: Any) -> Any:
            blocks = arrange(batches)
            first.extend(faster.offer_all(batches))
            return blocks

        monkeypatch.setattr(store, "_arrange", overtaken)
        assert store.offer_all([FIRST]) == first == faster.offer_all([FIRST])


def test_an_offer_that_comes_after_its_block_was_frozen_is_not_kept(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(open_chain(where, PAIRS)) as store, closing(open_chain(where, PAIRS)) as faster:
        store.admit(arrivals(PAIRS, [1] * 3))
        arrange = store._arrange

        def overtaken(batches: Any) -> Any:
            blocks = arrange(batches)
            answer_full(faster, PAIRS)
            return blocks

        monkeypatch.setattr(store, "_arrange", overtaken)
        assert store.offer_all([FIRST]) == []
        assert store.unanswered(0) == []


def test_noise_that_was_not_kept_is_seen_by_nobody(
    store: Store, noise: CountedNoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.admit(users := arrivals(PAIRS, [1] * 3))
    answers = answers_to(PAIRS, store.offer_all([FIRST]))

    def away(work: object) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(store._database, "write", away)
        with pytest.raises(StoreUnavailable):
            store.answer_all(answers)
    assert (store.unfrozen(), store.outgoing([FIRST])) == ([FIRST], [])
    (masked,) = store.answer_all(answers)
    assert number_of(PAIRS, masked) == due(users, 0)
    assert len({state for state, _ in noise.draws}) == 1, "before the same state, drawn again"


@pytest.mark.parametrize("taken", ["before it", "when full", "when offered"])
def test_a_restored_copy_draws_no_second_noise_for_a_block(where: Where, taken: str) -> None:
    """Neither who runs nor who starts can: the key of the block and of the old state is gone."""
    noise = NotedNoise(PAIRS)
    with closing(open_chain(where, PAIRS, noise)) as store:
        copy = copied(store)
        store.admit(arrivals(PAIRS, [1] * 4))
        if taken != "before it":
            copy = copied(store)
        offers = store.offer_all([FIRST])
        if taken == "when offered":
            copy = copied(store)
        store.answer_all(answers_to(PAIRS, offers))
        restore(store, copy)
        with pytest.raises(ProtocolViolation):
            go_on(store)
        with pytest.raises(InvalidValue, match="older than its keys"):
            open_chain(where, PAIRS)
        assert noise.blocks == 1


def go_on(store: Store) -> None:
    """As if nothing had been frozen."""
    store.admit(arrivals(PAIRS, [1] * 3))
    store.freeze_all([FIRST])


def test_an_old_state_cannot_be_opened_any_more(store: Store) -> None:
    """It is sealed under the key of the next block to be frozen, which goes with that block."""
    states = []
    for _ in range(3):
        store.admit(arrivals(PAIRS, [1] * 3))
        answer_full(store, PAIRS)
        states.append(store._read(lambda tables: tables.noise()))
    for number, sealed in states[:-1]:
        with pytest.raises(ProtocolViolation, match="gone"):
            store._keys.open(Batch(1, number), (1 << 64) - 1, sealed)
    number, sealed = states[-1]
    assert store._keys.open(Batch(1, number), (1 << 64) - 1, sealed) == (3).to_bytes(8, "little")


@pytest.mark.parametrize(
    "fault", ["DELETE FROM noise", "UPDATE noise SET body = ?"], ids=["gone", "unreadable"]
)
def test_a_state_that_was_lost_starts_anew_and_is_an_alarm_once(
    store: Store, noise: CountedNoise, fault: str
) -> None:
    store.admit(arrivals(PAIRS, [1] * 3))
    answer_full(store, PAIRS)
    values = (secrets.token_bytes(36),) if "?" in fault else ()
    store._database.write(lambda writing: writing.change(fault, *values))
    users = arrivals(PAIRS, [1] * 6)
    store.admit(users)
    first, second = answer_full(store, PAIRS)
    assert (first.batch, second.batch) == (Batch(1, 1), Batch(1, 2))
    assert number_of(PAIRS, first) == due(users[:3], 0), "noise from the beginning"
    assert (store.alarms, noise.starts) == ({Alarm.NOISE: 1}, 2)
    store.admit(arrivals(PAIRS, [1] * 3))
    answer_full(store, PAIRS)
    assert store.alarms == {Alarm.NOISE: 1}


@pytest.mark.parametrize("offered", [True, False])
def test_a_damaged_block_is_lost_and_holds_up_nobody(
    store: Store, noise: CountedNoise, offered: bool
) -> None:
    users = arrivals(PAIRS, [1] * 9)
    store.admit(users)
    if offered:
        store.offer_all(store.unfrozen())
    change = "UPDATE messages_1 SET own = own + 1 WHERE number = 1"
    store._database.write(lambda writing: writing.change(change))
    whole = [FIRST, Batch(1, 2)]
    if not offered:
        assert [one.batch for one in store.offer_all(store.unfrozen())] == whole
    found = store.freeze_all(store.unfrozen())
    assert [one.batch for one in found] == whole
    assert [number_of(PAIRS, one) for one in found] == [due(users[:3], 0), due(users[6:], 1)]
    assert (store.alarms, noise.blocks, store.unfrozen()) == ({Alarm.DAMAGED: 1}, 2, [])


# --- any sequence of steps, against a model -------------------------------------------------------

steps_drawn = st.lists(
    st.one_of(
        st.integers(1, 5),
        st.sampled_from(["close", "offer", "answer", "answer", "one step", "send", "restart"]),
    ),
    max_size=16,
)


class Model:
    """Places in their order, a user or None, and how far their blocks are."""

    def __init__(self) -> None:
        self.places: list[Arrival | None] = []
        self.frozen = 0
        self.offers: dict[Batch, Any] = {}
        self.outgoing: dict[Batch, Any] = {}

    @property
    def full(self) -> int:
        return len(self.places) // SIZE

    def check(self, one: Any, refused: Sequence[int]) -> None:
        block = one.batch.number
        assert block == self.frozen, "in their order"
        self.frozen += 1
        users = [user for user in self.places[SIZE * block :][:SIZE] if user is not None]
        by_ciphertext = {ciphertext(user): user for user in users}
        order = [by_ciphertext[each] for each in in_offer(self.offers[one.batch].body)]
        kept = [user for place, user in enumerate(order) if place not in refused]
        assert number_of(PAIRS, one) == due(kept, block)
        assert one.own == SIZE - len(users)
        self.outgoing[one.batch] = one


@settings(max_examples=25)
@given(steps=steps_drawn)
def test_any_sequence_of_steps_does_what_the_model_does(places: Places, steps: list[Any]) -> None:
    where, model = places.new(), Model()
    crowd = iter(arrivals(PAIRS, [1] * 80))
    store = open_chain(where, PAIRS, CountedNoise(PAIRS))
    try:
        for step in steps:
            if step == "restart":
                store.close()
                store = open_chain(where, PAIRS, CountedNoise(PAIRS))
            else:
                take(step, store, model, crowd)
            numbers = [batch.number for batch in store.unfrozen()]
            assert numbers == list(range(model.frozen, model.full))
            assert store.alarms == {}
    finally:
        store.close()


def take(step: Any, store: Store, model: Model, crowd: Any) -> None:
    if isinstance(step, int):
        coming = list(itertools.islice(crowd, min(step, LEVEL.batches * SIZE - len(model.places))))
        store.admit(coming)
        model.places += coming
    elif step == "close":
        missing = store.leave_empty(len(model.places) // SIZE)
        assert missing == -len(model.places) % SIZE
        model.places += [None] * missing
    elif step == "send":
        store.acknowledge_all({one.batch: one.digest for one in store.outgoing(store.frozen())})
        store.scrub()
    else:
        offers = store.offer_all(store.unfrozen())
        for offer in offers:
            assert model.offers.setdefault(offer.batch, offer) == offer
        if step == "answer":
            for one in store.answer_all(answers_to(PAIRS, offers[:2], [0])):
                model.check(one, [0])
        elif step == "one step":
            for one in store.freeze_all([offer.batch for offer in offers[:1]]):
                model.check(one, [])


# --- what the service sends -----------------------------------------------------------------------


def test_blocks_are_offered_and_their_sums_sent(store: Store) -> None:
    server, users = AnsweringServer(PAIRS), arrivals(PAIRS, [1] * 7)
    store.admit(users)
    asyncio.run(sender_of(store, server).send_all())
    assert {n: number_of(PAIRS, one) for n, one in server.sums().items()} == {
        0: due(users[:3], 0),
        1: due(users[3:6], 1),
    }
    assert sorted(server.asked[:2]) == [("offers", 0), ("offers", 1)], "side by side"
    assert (store.full(), store.waiting_bytes, server.releases()) == ([], 0, {})
    asyncio.run(sender_of(store, server).send_all())
    assert len(server.asked) == 4, "what the server has is sent no more"


def test_a_server_that_is_away_costs_no_report(store: Store) -> None:
    server = AnsweringServer(PAIRS)
    server.is_away = True
    sender = sender_of(store, server)
    for _ in range(3):
        store.admit(arrivals(PAIRS, [1] * 3))
        with pytest.raises(Unreachable):
            asyncio.run(sender.send_all())
    assert len(store.unfrozen()) == 3
    server.is_away = False
    asyncio.run(sender.send_all())
    assert sorted(server.sums()) == [0, 1, 2]


def test_after_the_stated_time_a_block_is_frozen_without_an_answer(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of single reports can be read then, though the server is still away."""
    now, server = [10_000.0], AnsweringServer(PAIRS)
    monkeypatch.setattr("overhand.deploy.shuffler.store.time.time", lambda: now[0])
    server.is_away = True
    sender = sender_of(store, server, answer_within=100)
    store.admit(users := arrivals(PAIRS, [1] * 3))
    for later, unfrozen in ((0, 1), (99, 1), (101, 0)):
        now[0] = 10_000.0 + later
        with pytest.raises(Unreachable):
            asyncio.run(sender.send_all())
        assert len(store.unfrozen()) == unfrozen
    assert not store._keys.has(FIRST)
    server.is_away = False
    asyncio.run(sender.send_all())
    assert number_of(PAIRS, server.releases()[0]) == due(users, 0)


class SilentServer(AnsweringServer):
    """Never says anything."""

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("is_silent", [True, False])
def test_a_block_is_frozen_in_time_whatever_the_server_does(store: Store, is_silent: bool) -> None:
    """Neither a request that takes for ever nor the pause after many failures holds it up."""
    server = SilentServer(PAIRS) if is_silent else AnsweringServer(PAIRS)
    server.is_away = True
    sender = sender_of(store, server, answer_within=1, tick=0.05)
    sender._failures = 20  # after one more the next tick comes in 25 seconds at the earliest
    store.admit(arrivals(PAIRS, [1] * 3))

    async def main() -> None:
        stopping = asyncio.Event()
        running = asyncio.create_task(sender.run(stopping))
        await asyncio.sleep(0.5)
        store.admit(arrivals(PAIRS, [1] * 3))
        started = time.monotonic()
        while len(store.frozen()) < 2:
            assert time.monotonic() < started + 20, "they are not frozen in time"
            await asyncio.sleep(0.01)
        stopping.set()
        await running

    asyncio.run(main())
    assert not store._keys.has(FIRST)


@pytest.mark.parametrize("status", [409, 500, None])
def test_a_block_that_is_not_answered_does_not_hold_up_the_others_for_ever(
    store: Store, monkeypatch: pytest.MonkeyPatch, status: int | None
) -> None:
    now, server = [10_000.0], AnsweringServer(PAIRS)
    monkeypatch.setattr("overhand.deploy.shuffler.store.time.time", lambda: now[0])
    server.troubles["offers", 0] = status
    sender = sender_of(store, server, answer_within=100)
    store.admit(arrivals(PAIRS, [1] * 3))

    def tick() -> None:
        try:
            asyncio.run(sender.send_all())
        except (NotTaken, Unreachable):
            assert status != 409

    tick()
    now[0] += 50
    store.admit(arrivals(PAIRS, [1] * 3))
    tick()
    assert (server.sums(), len(store.unfrozen())) == ({}, 2), "the second waits for the first"
    now[0] += 51
    tick()
    assert list(server.releases()) == [0]
    assert list(server.sums()) == [1]
    assert store.full() == []


def test_a_sum_that_the_server_has_another_of_is_put_aside(store: Store) -> None:
    server, metrics = AnsweringServer(PAIRS), ShufflerMetrics()
    sender = Sender(store, PAIRS, server, metrics)
    server.troubles["sums", 0] = 409
    store.admit(arrivals(PAIRS, [1] * 6))
    for _ in range(2):
        asyncio.run(sender.send_all())
    assert list(server.sums()) == [1]
    assert server.asked.count(("sums", 0)) == 1
    assert metrics.set_aside.labels(1)._value.get() == 1


def test_an_answer_that_cannot_be_read_is_asked_for_again(
    store: Store, noise: CountedNoise, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = AnsweringServer(PAIRS)
    answer = server.answer
    store.admit(arrivals(PAIRS, [1] * 3))
    with monkeypatch.context() as patch:
        patch.setattr(server, "answer", lambda number: answer(number) + b"x")
        with pytest.raises(NotTaken, match="cannot be read"):
            asyncio.run(sender_of(store, server).send_all())
    assert noise.draws == []
    asyncio.run(sender_of(store, server).send_all())
    assert list(server.sums()) == [0]


class Looking(AnsweringServer):
    """A server that sees which keys the service has when a sum comes."""

    def __init__(self, keys: Path) -> None:
        super().__init__(PAIRS)
        self._keys = keys
        self.had: list[bool] = []

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if "/sums/" in path:
            self.had.append(BatchKeys(self._keys).has(Batch(1, int(path.split("/")[-1]))))
        return await super().request(method, path, body)


@pytest.mark.parametrize("is_other", [False, True], ids=["the same process", "another"])
@pytest.mark.crash
def test_keys_that_a_fault_left_are_destroyed_before_a_sum_is_sent(
    where: Where, store: Store, is_other: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a block that was frozen at an earlier tick, or by somebody who is gone."""
    server = Looking(where.keys)
    with closing(open_chain(where, PAIRS)) as other:
        store.admit(arrivals(PAIRS, [1] * 3))
        with monkeypatch.context() as patch:
            crash_at(patch, BatchKeys, "keep_only", "before")
            with pytest.raises(Crash):
                asyncio.run(sender_of(store, server).send_all())
        assert (store.frozen(), server.had) == ([FIRST], [])
        assert BatchKeys(where.keys).has(FIRST)
        asyncio.run(sender_of(other if is_other else store, server).send_all())
    assert (list(server.sums()), server.had) == ([0], [False])


def test_a_server_that_is_silent_is_asked_a_few_times_a_tick(store: Store) -> None:
    """Every request may take a minute, and blocks that are due wait for the end of the tick."""
    server = AnsweringServer(PAIRS)
    server.is_away = True
    store.admit(arrivals(PAIRS, [1] * 24))
    with pytest.raises(Unreachable):
        asyncio.run(sender_of(store, server).send_all())
    assert len(server.asked) == 4
    server.is_away = False
    asyncio.run(sender_of(store, server).send_all())
    assert len(server.sums()) == 8


# --- what no store serves -------------------------------------------------------------------------


def test_a_store_has_the_noise_of_its_plan_and_no_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="noise="):
        Store(tmp_path / "store.db", PAIRS.formats)
    tree: LevelFormat = replace(LEVEL, is_filled=True)
    with pytest.raises(InvalidValue, match="only if services"):
        Store(tmp_path / "store.db", replace(PAIRS.formats, levels=(tree,)))
    two = replace(PAIRS.formats, levels=(LEVEL, replace(LEVEL, level=2, size=6)))
    with pytest.raises(InvalidValue, match="one level"):
        Store(tmp_path / "store.db", two, noise=NotedNoise(PAIRS))


def test_numbers_that_are_too_large_are_never_admitted(store: Store) -> None:
    (one,) = arrivals(PAIRS, [1])
    report = one.parts[0][: LEVEL.ciphertext_bytes] + b"\xff" * LEVEL.clear_bytes
    with pytest.raises(InvalidValue, match="not below"):
        LEVEL.clear(report)
    with pytest.raises(InvalidValue):
        store.admit([arrival([report + b"x"])])
