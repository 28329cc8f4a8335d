"""Where the services make the noise: a message counts once, the noise of a batch is drawn once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.replay import (
    MARK_BYTES,
    CiphertextIndex,
    fingerprints_of,
)
from overhand.deploy.server.store import ServerStore
from overhand.errors import ProtocolViolation
from overhand.noise import IndependentNoise
from support.sealed_releases import (
    BALLOTS,
    PAIRS,
    ciphertext,
    full,
    open_database,
    publisher_of,
    sealed,
    values_of,
    with_ciphertexts,
)
from support.server_stores import drain, new_database
from support.store_processes import Where

# --- once in a plan's life ------------------------------------------------------------------------


def test_messages_that_came_before_are_struck_counted_and_alarmed(
    where: Where, protected: ServerStore
) -> None:
    """In an earlier release, through another process, or in the same one."""
    first, second = full((1, 0)), full((1, 1))
    copied = with_ciphertexts(
        second, {3: ciphertext(first, 7), 5: ciphertext(second, 2), 6: ciphertext(first, 0)}
    )
    protected.receive(first)
    with closing(open_database(where)) as other:
        assert other.receive(copied)
        assert other.status().levels[1].repeats == 3
        words = ["3 messages of batch 1 of level 1 came before and do not count"]
        assert other.alarms() == words
        with other.claim_releases() as kept:
            rows = [BALLOTS.formats.level(1).ciphertexts(one.body) for one in (kept[1], copied)]
        same = (rows[0] == rows[1]).all(axis=1)
        assert np.flatnonzero(~same).tolist() == [3, 5, 6]
        assert len({*map(bytes, rows[0])}) == len(rows[0])
    publisher = publisher_of(protected)
    drain(publisher)
    assert (publisher.levels()[0]["repeats"], publisher.levels()[0]["garbage"]) == (3, 3)
    for sent in (first, copied):
        assert not protected.receive(sent), "the same bytes again are fine"
    assert (protected.alarms(), protected.status().levels[1].repeats) == (words, 3)
    with pytest.raises(ProtocolViolation, match="another release of batch 1"):
        protected.receive(second)


def test_the_beginning_of_a_ciphertext_is_enough_to_be_struck(protected: ServerStore) -> None:
    first, second = full((1, 0)), full((1, 1))
    forged = ciphertext(first, 4)[:MARK_BYTES] + ciphertext(second, 4)[MARK_BYTES:]
    protected.receive(first)
    protected.receive(with_ciphertexts(second, {4: forged}))
    assert protected.status().levels[1].repeats == 1


@pytest.mark.usefixtures("noiseless")
def test_a_victim_whom_a_lying_service_puts_into_ten_batches_counts_once(
    protected: ServerStore,
) -> None:
    victim = sealed((1, 0), [1, 0])
    protected.receive(victim)
    for number in range(1, 10):
        protected.receive(with_ciphertexts(full((1, number)), {0: ciphertext(victim, 0)}))
    publisher = publisher_of(protected)
    drain(publisher)
    assert values_of(protected) == {Batch(1, 0): 1.0, **{Batch(1, n): 0.0 for n in range(1, 10)}}
    assert [one.bias_bound for one in protected.sums(0, 10)] == [0.0] + 9 * [1.0]
    assert (len(protected.alarms()), publisher.levels()[0]["repeats"]) == (9, 9)


def test_a_transaction_that_runs_twice_strikes_nothing_of_its_own(
    protected: ServerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that is ahead of the database would take the second run's messages for repeats."""
    write = protected._database.write

    def twice(work: Callable[[Any], Any]) -> Any:
        def undone(transaction: Any) -> Any:
            work(transaction)
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write(undone)
        return write(work)

    monkeypatch.setattr(protected._database, "write", twice)
    for number in range(3):
        assert protected.receive(full((1, number)))
    assert (protected.status().levels[1].repeats, protected.alarms()) == (0, [])


def test_a_restart_knows_all_messages(where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overhand.deploy.server.store._AT_ONCE", 2)
    releases = [full((1, number)) for number in range(6)]
    with closing(open_database(where)) as database:
        for release in releases[:5]:
            database.receive(release)
        drain(publisher_of(database))
    with closing(open_database(where)) as again:
        copies = {place: ciphertext(release, place) for place, release in enumerate(releases[:5])}
        again.receive(with_ciphertexts(releases[5], copies))
        assert again.status().levels[1].repeats == 5


mark_sets = st.lists(st.lists(st.integers(0, 60), max_size=12), max_size=8)


@given(added=mark_sets, asked=st.lists(st.integers(0, 60), min_size=1, max_size=20))
def test_marks_are_a_set(added: list[list[int]], asked: list[int]) -> None:
    """Also of marks that end in zeros, which strings of NumPy do not show."""

    def marks(numbers: list[int]) -> Any:
        padding = MARK_BYTES - 2
        marks = b"".join(bytes([n % 3, n]) + bytes(padding) for n in numbers)
        return np.frombuffer(marks, f"S{MARK_BYTES}")

    found = CiphertextIndex()
    for some in added:
        found.add([marks(some)])
    known = {number for some in added for number in some}
    assert found.find(marks(asked)).tolist() == [number in known for number in asked]


def test_a_mark_is_the_beginning_of_a_ciphertext() -> None:
    release = full((1, 0))
    rows = BALLOTS.formats.level(1).ciphertexts(release.body)
    assert fingerprints_of(rows).tobytes() == b"".join(bytes(row[:MARK_BYTES]) for row in rows)


# --- places that nobody took ----------------------------------------------------------------------


@pytest.mark.usefixtures("noiseless")
@pytest.mark.parametrize(
    ("document", "held"), [(BALLOTS, [1, 1]), (PAIRS, [9.0, 6.0])], ids=["bits", "reals"]
)
def test_empty_places_of_a_late_batch_are_not_in_its_sum(
    tmp_path: Path, document: Document, held: list[Any]
) -> None:
    """A mutant that takes out the least value for each, or counts them, is off by 5 for a real."""
    with closing(new_database(document, tmp_path / "database.db")) as database:
        for number, some in enumerate((held[:1], held, [])):
            database.receive(sealed((1, number), some, document))
        publisher = publisher_of(database, document)
        drain(publisher)
        assert list(values_of(database).values()) == [held[0], sum(held), 0]
        assert {one.bias_bound for one in database.sums(0, 9)} == {0.0}
        estimate = publisher.estimate
        assert estimate is not None
        assert (estimate["t"], estimate["lost_users"]) == (6, 0)
        assert [level["own"] for level in publisher.levels()] == [3]


@pytest.mark.parametrize("held", [[9.0], [9.0, 6.0]], ids=["late", "full"])
def test_noise_of_late_batches_is_that_of_full_ones_about_the_truth(
    tmp_path: Path, held: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each service draws once for a block, and both draws are in the sum."""
    draws = iter([7, -30])

    def advance(noise: Any, state: Any, random: Any, blocks: int, clip: Any = None) -> Any:
        assert (noise, blocks) == (PAIRS.plan.mechanisms[0].noise_share, 1)
        return np.array([[next(draws)]]), state

    monkeypatch.setattr(IndependentNoise, "advance", advance)
    with closing(new_database(PAIRS, tmp_path / "database.db")) as database:
        database.receive(sealed((1, 0), held, PAIRS))
        drain(publisher_of(database, PAIRS))
        (found,) = values_of(database).values()
    unit = PAIRS.plan.mechanisms[0].quantizer.unit
    assert found == pytest.approx(sum(held) + (7 - 30) * unit)


def test_users_of_a_lost_batch_are_those_who_were_there(tmp_path: Path) -> None:
    with closing(new_database(PAIRS, tmp_path / "database.db")) as database:
        release = sealed((1, 0), [9.0], PAIRS)
        database.receive(Release(release.batch, 1, b"\1" * 40 + release.body[40:]))
        publisher = publisher_of(database, PAIRS)
        drain(publisher)
        assert publisher.estimate is not None
        assert (publisher.estimate["t"], publisher.estimate["lost_users"]) == (2, 1)
