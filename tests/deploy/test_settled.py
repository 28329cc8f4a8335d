"""A running sum that goes on although plan and key are new."""

from __future__ import annotations

import json
import math
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.running import settled_sum
from overhand.deploy.server.store import ServerStore, Settled
from overhand.errors import InvalidValue
from overhand.estimates import Estimate
from support.deployments import HORIZON, Deployment, prepared
from support.killed_processes import WITHOUT_WORKERS, until
from support.server_stores import DOCUMENT, NAMES, ReadsThem, drain, estimates_of, receive

BITS = Settled("bit", 1000, (412.5,), 7.0, (2.0,), 0.5, 1.0)


def opened(place: str | Path, settled: Settled | None = None) -> tuple[ServerStore, Publisher]:
    database = ServerStore(place, DOCUMENT.digest, settled)
    return database, Publisher(DOCUMENT, database, ReadsThem())


def test_what_a_plan_ended_with_comes_back_from_its_file(tmp_path: Path) -> None:
    vectors = oh.Vectors(3)
    estimate = Estimate(9, np.array([1.0, -2.5, 1e-9]), 3.0, 0.25, kurtosis=1.5, unit=0.5)
    plan = oh.Plan.best(60, 1, oh.Privacy(4.0, 1e-4), values=vectors, mechanism="pairs")
    settled = Settled.of(Document(plan, DOCUMENT.public_key), estimate)
    (path := tmp_path / "settled.json").write_text(settled.to_json())
    assert Settled.load(path) == settled
    again = settled.estimate(vectors)
    assert np.array_equal(again.value, estimate.value)
    assert (again.t, again.std, again.bias_bound) == (9, 3.0, 0.25)
    assert (again.kurtosis, again.unit) == (1.5, 0.5)
    assert BITS.estimate(oh.Bits()) == Estimate(1000, 412.5, 7.0, 2.0, 0, 0.5, 1.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"t": -1},
        {"t": 1.5},
        {"t": True},
        {"value": ["1"]},
        {"value": 3.0},
        {"value": [math.nan]},
        {"std": -1.0},
        {"std": math.inf},
        {"bias_bound": None},
        {"bias_bound": 2.0},
        {"bias_bound": [-1.0]},
        {"bias_bound": ["0"]},
        {"kurtosis": "0"},
        {"unit": -0.5},
    ],
    ids=str,
)
def test_a_damaged_file_is_one_clear_error(tmp_path: Path, changed: dict[str, Any]) -> None:
    written = {**json.loads(BITS.to_json()), **changed}
    (path := tmp_path / "settled.json").write_text(json.dumps(written))
    with pytest.raises(InvalidValue, match="not the final sum of a plan"):
        Settled.load(path)


def test_what_is_no_such_file_is_one_clear_error(tmp_path: Path) -> None:
    for content in (b"", b"[]", b"{}", b"junk", b"\xff"):
        (path := tmp_path / "settled.json").write_bytes(content)
        with pytest.raises(InvalidValue, match="not the final sum of a plan|cannot read"):
            Settled.load(path)
    with pytest.raises(InvalidValue, match="No such file"):
        Settled.load(tmp_path / "nowhere.json")


def test_a_sum_goes_on_as_one_of_the_same_values_only() -> None:
    for values in (oh.Reals(0, 2), oh.Histogram(2), oh.Vectors(1)):
        with pytest.raises(
            InvalidValue, match=f"sum of bit cannot continue as one of {values.spec}"
        ):
            BITS.estimate(values)


def test_a_new_database_goes_on_from_an_earlier_plan(place: str, tmp_path: Path) -> None:
    alone, publisher = opened(tmp_path / "alone.db")
    receive(alone, NAMES)
    drain(publisher)
    here = publisher.estimate
    assert here is not None
    database, publisher = opened(place, BITS)
    before = publisher.estimate
    assert before is not None
    assert (before["t"], before["value"], publisher.users_before) == (1000, 412.5, 1000)
    receive(database, NAMES)
    drain(publisher)
    after = publisher.estimate
    assert after is not None
    assert (after["t"], after["value"]) == (1000 + here["t"], 412.5 + here["value"])
    assert after["std"] == pytest.approx(math.hypot(7.0, here["std"]))
    assert after["high"] - after["low"] > max(
        here["high"] - here["low"], before["high"] - before["low"]
    )
    history = publisher.thin(0)
    assert (history["t"][0], history["value"][0]) == (1000, 412.5)
    assert history["t"][1:] == [
        1000 + t for t in Publisher(DOCUMENT, alone, ReadsThem()).thin(0)["t"]
    ]
    for one in (alone, database):
        one.close()


def test_a_history_has_no_more_points_for_its_beginning(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.deploy.server.publishing._HISTORY", 4)
    database, publisher = opened(place, BITS)
    receive(database, NAMES)
    drain(publisher)
    times, estimate = publisher.thin(0)["t"], publisher.estimate
    assert estimate is not None
    assert len(estimates_of(database)) > 4 >= len(times)
    assert (times[0], times[-1]) == (1000, estimate["t"])
    database.close()


def test_what_a_database_began_with_stays(place: str) -> None:
    database, publisher = opened(place, BITS)
    receive(database, NAMES[:3])
    drain(publisher)
    estimate = publisher.estimate
    database.close()
    for settled in (None, BITS):
        again, publisher = opened(place, settled)
        assert (again.settled, publisher.estimate) == (BITS, estimate)
        again.close()
    with pytest.raises(InvalidValue, match="the database was begun"):
        ServerStore(place, DOCUMENT.digest, Settled("bit", 1, (1.0,), 0.0, (0.0,), 0.0, 0.0))


def test_a_database_that_began_without_goes_on_without(place: str) -> None:
    ServerStore(place, DOCUMENT.digest).close()
    with pytest.raises(InvalidValue, match="the database was begun"):
        ServerStore(place, DOCUMENT.digest, BITS)
    with closing(ServerStore(place, DOCUMENT.digest)) as database:
        assert database.settled is None


def test_a_batch_that_reaches_nobody_publishes_nothing(place: str) -> None:
    database, publisher = opened(place, BITS)
    receive(database, [(1, 1)])
    drain(publisher)
    assert estimates_of(database) == []
    assert publisher.thin(0)["t"] == [1000]
    database.close()


def test_plans_follow_each_other_for_as_long_as_one_likes(place: str) -> None:
    database, publisher = opened(place, BITS)
    receive(database, NAMES)
    drain(publisher)
    estimate = publisher.estimate
    database.close()
    settled = settled_sum(DOCUMENT, place)
    assert estimate is not None
    assert (settled.values, settled.t) == ("bit", estimate["t"])
    assert (settled.value[0], settled.std) == (estimate["value"], estimate["std"])


def test_there_is_nothing_to_settle_without_a_batch(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="there is no database"):
        settled_sum(DOCUMENT, str(tmp_path / "nowhere.db"))
    assert not list(tmp_path.iterdir())
    ServerStore(tmp_path / "server.db", DOCUMENT.digest).close()
    with pytest.raises(InvalidValue, match="nothing was published"):
        settled_sum(DOCUMENT, str(tmp_path / "server.db"))


@pytest.mark.slow
def test_a_deployment_goes_on_with_a_new_plan_and_key(deployed: Deployment, tmp_path: Path) -> None:
    server = deployed.server(changes=[WITHOUT_WORKERS])
    deployed.reports.send_until_counted(deployed.shuffler().url)
    deployed.finish(server)
    first = server.get("/v1/status").json()["estimate"]
    assert deployed.command("settle") == (0, f"{HORIZON} users in settled.json\n")
    code, said = deployed.command("settle")
    assert (code, "settled.json exists" in said) == (2, True)
    (files := tmp_path / "more").mkdir()
    with Deployment(tmp_path / "next", prepared(files)) as following:
        assert following.document.digest != deployed.document.digest
        after = str(deployed.folder / "settled.json")
        server = following.server("--after", after, changes=[WITHOUT_WORKERS])
        assert server.get("/v1/status").json()["estimate"] == {**first, "fallback": False}
        following.reports.send_until_counted(following.shuffler().url)
        until("all is published", lambda: following.is_published(server))
        status = server.get("/v1/status").json()
        assert (status["estimate"]["t"], status["plan"]["users_before"]) == (2 * HORIZON, HORIZON)
        assert server.stopped() == 0
        again = following.server(changes=[WITHOUT_WORKERS])
        assert again.get("/v1/status").json()["estimate"] == status["estimate"]


def test_the_document_of_another_plan_settles_nothing(tmp_path: Path) -> None:
    other = Document(DOCUMENT.plan, bytes(31) + b"\x09")
    database, publisher = opened(tmp_path / "server.db")
    receive(database, NAMES)
    drain(publisher)
    database.close()
    with pytest.raises(InvalidValue, match="belongs to the document"):
        settled_sum(other, str(tmp_path / "server.db"))
