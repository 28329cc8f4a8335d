"""Hindsight of a deployment: from the sums of a database, one coordinate at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import BatchSum, Length, ServerStore, Settled
from overhand.sums import SumServer
from support.kind_plans import kind_plan
from support.server_stores import KEY, ReadsThem, names_of

VALUES = oh.Histogram(3)
DOCUMENT = Document(kind_plan(oh.RegularTree(60, (2, 2, 3)), VALUES, combine=True), KEY.public_key)
LOST, OWN, FAR, DAMAGED = (1, 4), (1, 9), (2, 5), (1, 11)
EARLIER = Settled(VALUES.spec, 1000, (5.0, 400.0, 595.0), 7.0, (2.0,), 0.5, 1.0)


def sums() -> Iterator[BatchSum]:
    """Of all batches: two are lost, one is damaged, and one has a sum that nobody believes."""
    random = np.random.default_rng(3)
    for name in names_of(DOCUMENT):
        size = DOCUMENT.formats.level(name[0]).size
        value = (
            None if name in (LOST, OWN) else tuple(random.integers(0, size + 1, 3).astype(float))
        )
        if name == FAR:
            value = (1e6, 0.0, 0.0)
        own, bias_bound = int(name == OWN), 0.5 * (name == DAMAGED)
        yield BatchSum(Batch(*name), own, 0, bias_bound, value)


def publisher_of(path: Path, settled: Settled | None = None) -> Publisher:
    database = ServerStore(path / "database.db", DOCUMENT.digest, settled)
    every = list(sums())

    def write(tables: object) -> None:
        for place, one in enumerate(every, start=1):
            tables.add_sum(place, one)  # type: ignore[attr-defined]
        tables.advance(Length(len(every), 0, len(every)))  # type: ignore[attr-defined]

    database._write(write)
    return Publisher(DOCUMENT, database, ReadsThem(DOCUMENT))


def archived() -> SumServer:
    server = SumServer(DOCUMENT.plan, archive=True, checks=True)
    for one in sums():
        node = DOCUMENT.plan.tree.node(*one.batch)
        if one.value is None:
            server.lose(node, one.own)
        else:
            server.receive_sum(node, np.array(one.value), one.bias_bound, one.own)
    return server


def test_a_database_tells_what_a_server_of_all_coordinates_does(tmp_path: Path) -> None:
    publisher, history = publisher_of(tmp_path), archived().hindsight()
    assert any("cannot have" in alarm for alarm in publisher._store.alarms())
    low, high = history.interval(0.95)
    for coordinate in range(3):
        told = publisher.hindsight(coordinate)
        assert told["t"] == history.t.tolist()
        assert told["value"] == pytest.approx(history.value[:, coordinate])
        assert told["low"] == pytest.approx(low[:, coordinate])
        assert told["high"] == pytest.approx(high[:, coordinate])
        assert told["ratio"] == pytest.approx(history.ratio)
        assert publisher.hindsight(coordinate) is told  # the database is not read again


def test_it_goes_on_from_an_earlier_plan(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone, after = publisher_of(tmp_path / "one"), publisher_of(tmp_path / "two", EARLIER)
    for coordinate, before in enumerate(EARLIER.value):
        told, first = after.hindsight(coordinate), alone.hindsight(coordinate)
        assert told["t"] == [1000 + t for t in first["t"]]
        assert told["value"] == pytest.approx([before + value for value in first["value"]])
        widths = [np.subtract(one["high"], one["low"]) for one in (told, first)]
        assert (widths[0] > np.maximum(widths[1], 4 * 7.0)).all()


def test_many_points_are_thinned_and_the_last_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher = publisher_of(tmp_path)
    whole = publisher.hindsight(0)
    monkeypatch.setattr("overhand.deploy.server.publishing._HISTORY", 7)
    publisher._retold = (0, {})
    few = publisher.hindsight(0)
    assert len(few["t"]) <= 7
    assert few["t"][-1] == whole["t"][-1]
    assert set(few["value"]) <= set(whole["value"])
    assert few["ratio"] == whole["ratio"]  # of all points


def test_an_empty_database_has_no_history(tmp_path: Path) -> None:
    database = ServerStore(tmp_path / "database.db", DOCUMENT.digest)
    told = Publisher(DOCUMENT, database, ReadsThem(DOCUMENT)).hindsight(2)
    assert told == {"t": [], "value": [], "low": [], "high": [], "ratio": 1.0}
