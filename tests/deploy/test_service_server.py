"""The server over HTTP: releases, crashes, garbage, late batches and news."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.deploy.protocol.keys import new_token
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Batch, Report
from overhand.deploy.server import app as server_app
from overhand.deploy.server.app import ServerMetrics
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.running import BatchPadder
from overhand.errors import InvalidValue, StoreUnavailable
from support.loopback_system import PRIVACY, System, plan_for, run
from support.random_streams import keyed
from support.server_stores import history_of, waiting
from support.small_document import encode_report
from support.store_processes import freeze


async def filled(system: System, users: int) -> None:
    async with system.client(random=keyed(1)) as client:
        await client.report_many([1] * users)


def release_of(system: System, level: int = 1, number: int = 0) -> bytes:
    release = freeze(system.store, Batch(level, number))
    return system.document.formats.pack(release)


def test_a_release_is_kept_once_and_other_bytes_raise_an_alarm(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        body = release_of(system)
        other = body[:-1] + bytes([body[-1] ^ 1])
        async with system.at_server() as web:
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert (await web.put("/v1/releases/1/0", content=other)).status_code == 409
            assert system.publisher.step()
            published = list(history_of(system.publisher))
            assert (await web.put("/v1/releases/1/0", content=body)).status_code == 200
            assert not system.publisher.step()
            status = (await web.get("/v1/status")).json()
        assert history_of(system.publisher) == published
        assert (len(status["alarms"]), status["healthy"]) == (1, False)

    run(tmp_path, test)


@pytest.mark.parametrize("kind", ["text/plain", ""])
def test_a_release_of_another_content_type_is_refused(tmp_path: Path, kind: str) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        async with system.at_server() as web:
            headers, body = {"content-type": kind}, release_of(system)
            answer = await web.put("/v1/releases/1/0", content=body, headers=headers)
            assert (answer.status_code, waiting(system.database)) == (415, None)
            assert "application/octet-stream" in answer.json()["error"]

    run(tmp_path, test)


def test_only_the_shuffling_service_may_release(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        body = release_of(system)
        for token in (None, new_token(), ""):
            async with system.at_server(token) as web:
                assert (await web.put("/v1/releases/1/0", content=body)).status_code == 401
        async with system.at_server() as web:
            for path, content in (
                ("/v1/releases/1/1", body),
                ("/v1/releases/1/0", body[:-1]),
                ("/v1/releases/1/0", b""),
            ):
                assert (await web.put(path, content=content)).status_code == 400
        assert waiting(system.database) is None

    run(tmp_path, test)


def test_the_server_goes_on_after_a_crash_at_any_step(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, 60)
        await system.sender().send_all()  # received, and not opened
        straight = Publisher(
            system.document,
            ServerStore(tmp_path / "other.db", system.plan.digest),
            Opener(system.key, system.document.formats.digest),
        )
        while (received := waiting(system.database)) is not None:
            straight._store.receive(received)
            assert straight.step()
            again = Publisher(system.document, system.database, straight._opener)  # a new process
            assert history_of(again) == history_of(system.publisher)
            system.publisher = again
            assert again.step()
        assert history_of(system.publisher) == history_of(straight)
        assert len(history_of(straight)) > 3

    run(tmp_path, test)


def test_a_database_of_another_plan_is_refused(tmp_path: Path) -> None:
    ServerStore(tmp_path / "database.db", "a" * 64).close()
    with pytest.raises(InvalidValue, match="aaaaaaaaaaaa.*bbbbbbbbbbbb"):
        ServerStore(tmp_path / "database.db", "b" * 64)
    (tmp_path / "junk.db").write_bytes(b"junk" * 1000)
    with pytest.raises(InvalidValue, match="junk"):
        ServerStore(tmp_path / "junk.db", "a" * 64)


def test_garbage_is_counted_and_does_not_void_a_batch(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        formats = system.document.formats
        parts = tuple(secrets.token_bytes(level.part_bytes) for level in formats.levels)
        junk = formats.pack_report(Report(secrets.token_bytes(16), parts))
        async with system.client(random=keyed(1)) as client:
            await client.send(junk)
            await client.report_many([1] * (system.plan.tree.lowest - 1))
        await system.publish()
        lowest, estimate = system.publisher.levels()[0], system.publisher.estimate
        assert lowest["garbage"] == formats.levels[0].messages
        assert lowest["lost"] == 0
        assert estimate is not None
        assert estimate["low"] <= system.plan.tree.lowest - 1 <= estimate["high"]
        assert estimate["high"] - estimate["low"] > 2 * formats.levels[0].messages

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("values", "held"),
    [(oh.Bits(), [1, 0]), (oh.Histogram(3), [2, 0]), (oh.Reals(5, 9), [9.0, 5.0])],
    ids=["bit", "histogram", "real"],
)
@pytest.mark.usefixtures("mean_noise")
def test_a_late_batch_is_filled_by_the_service_and_taken_out_again(
    tmp_path: Path, values: oh.Values, held: list[Any]
) -> None:
    """Exactly: all noise is its mean, and values are whole steps."""
    plan = plan_for(values)

    async def test(system: System) -> None:
        lowest = plan.tree.lowest
        async with system.client(random=keyed(1)) as client:
            await client.report_many(held)
        filler = BatchPadder(system.store, system.admission, system.document, deadline=0.1)
        assert filler._missing(system.store.arrived) == 0  # its time has only begun
        await asyncio.sleep(0.15)
        missing = filler._missing(system.store.arrived)
        assert missing == lowest - 2
        await filler.fill(missing)
        await system.publish()
        estimate, level = system.publisher.estimate, system.publisher.levels()[0]
        assert estimate is not None
        assert (estimate["t"], level["own"]) == (lowest, missing)
        truth = plan.values.total(plan.values.rows(held))
        assert estimate["value"] == pytest.approx(truth, abs=1e-6)

    run(tmp_path, test, plan=plan)


@pytest.mark.parametrize("is_poisoned", [False, True])
def test_a_poisoned_report_is_seen_wherever_an_operator_looks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_poisoned: bool
) -> None:
    plan = oh.Plan.best(60, 2, PRIVACY, mechanism="pairs")
    alarm = "batch 0 of level 1 has a sum that honest users cannot have: it is lost"

    async def test(system: System) -> None:
        formats, lowest = system.document.formats, system.plan.tree.lowest
        body = encode_report(system.document, 1, keyed(1))
        level, report = formats.levels[0], formats.unpack_report(body)
        clear = level.clear(report.parts[0]) + np.uint64(is_poisoned << level.clear_bits - 1)
        clear &= np.uint64((1 << level.clear_bits) - 1)
        part = level.pack(level.ciphertexts(report.parts[0]).tobytes(), clear)
        digest = system.document.digest
        async with system.client(random=keyed(2), digest=digest) as client:
            await client.send(formats.pack_report(Report(report.id, (part,))))
            await client.report_many([1] * (lowest - 1))
        await system.publish()
        metrics = ServerMetrics(system.server).current().decode()
        for publisher in (system.publisher, system.new_publisher()):
            first, estimate = publisher.levels()[0], publisher.estimate
            assert (first["published"], first["lost"]) == (not is_poisoned, is_poisoned)
            assert estimate is not None
            assert estimate["lost_users"] == is_poisoned * lowest
        assert f'overhand_lost{{level="1"}} {float(is_poisoned)}' in metrics
        assert system.database.alarms() == [alarm] * is_poisoned
        raised = [one for one in caplog.records if one.message == "an alarm was raised"]
        assert [vars(one)["numbers"] for one in raised] == [{"alarm": alarm}] * is_poisoned

    run(tmp_path, test, plan=plan)


def test_a_batch_is_not_released_before_it_is_full(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest - 1)
        await system.publish()
        assert system.publisher.estimate is None
        assert all(level["received"] == 0 for level in system.publisher.levels())

    run(tmp_path, test)


def test_a_client_takes_no_other_document(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.client(digest="0" * 64) as client:
            with pytest.raises(InvalidValue, match="000000000000"):
                await client.report(1)
        for wrong in (2, -1, 0.5, "1", None):
            async with system.client() as client:
                with pytest.raises(InvalidValue):
                    await client.report(wrong)
        assert system.store.arrived == 0

    run(tmp_path, test)


def test_the_server_shows_its_state_and_history(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_server(None) as web:
            empty = (await web.get("/v1/status")).json()
            assert empty["estimate"] is None
            await filled(system, 60)
            await system.publish()
            status = (await web.get("/v1/status")).json()
            history = (await web.get("/v1/history")).json()
            page, script = await web.get("/"), await web.get("/static/dashboard.js")
            assert (await web.get("/static/../app.py")).status_code == 404
            again = (await web.get("/v1/hindsight")).json()
            for name in ("history", "hindsight"):
                assert (await web.get(f"/v1/{name}?coordinate=1")).status_code == 400
        assert status["guarantee"]["delta_spent"] <= status["guarantee"]["delta"]
        assert status["plan"]["digest"] == system.plan.digest
        assert history["t"] == sorted(history["t"])
        assert history["value"][-1] == status["estimate"]["value"]
        assert again["value"][-1] == pytest.approx(status["estimate"]["value"])
        assert set(history["t"]) <= set(again["t"])
        assert again["ratio"] <= 1
        assert "default-src 'self'" in page.headers["content-security-policy"]
        assert script.headers["content-type"].startswith("text/javascript")

    run(tmp_path, test)


def test_groups_are_told_with_their_means(tmp_path: Path) -> None:
    values = oh.Grouped(["DE", "FR"], of=oh.Reals(0, 10))

    async def test(system: System) -> None:
        async with system.at_server(None) as web:
            assert (await web.get("/v1/groups")).json() == {"t": 0, "groups": []}
            # An interval of 95 % is missed now and then: never by these users' noise.
            async with system.client(random=keyed(1)) as client:
                await client.report_many([("DE", 10.0)] * 46 + [("FR", 2.0)] * 10)
            await system.publish()
            told = (await web.get("/v1/groups")).json()
        latest = system.publisher.groups()
        assert told == json.loads(json.dumps(latest))
        assert (told["t"], [one["label"] for one in told["groups"]]) == (56, ["DE", "FR"])
        for one, users in zip(told["groups"], (46, 10), strict=True):
            assert one["count"]["low"] <= users <= one["count"]["high"]
            assert one["mean"] is None or 0 <= one["mean"]["low"] <= one["mean"]["high"] <= 10

    run(tmp_path, test, plan=plan_for(values))


def test_a_sum_without_groups_has_none_to_ask_for(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        async with system.at_server(None) as web:
            assert (await web.get("/v1/groups")).status_code == 404

    run(tmp_path, test)


async def heard(system: System) -> AsyncGenerator[str, None]:
    """What a listener is told, one event after the other."""
    with system.server.events.listen() as woken:
        async for told in system.server.events.stream(woken):
            for event in told.decode().split("\n\n")[:-1]:
                yield f"{event}\n\n"


def test_news_are_streamed(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        stream = heard(system)
        assert (await anext(stream)).startswith(":")
        assert (await anext(stream)).startswith("event: levels\n")
        await filled(system, system.plan.tree.lowest)
        await system.publish()
        system.server.events.announce()
        told = [await anext(stream) for _ in range(2)]
        assert [one.split("\n")[0] for one in told] == ["event: levels", "event: estimate"]
        assert json.loads(told[1].split("data: ", 1)[1]) == system.publisher.estimate

    run(tmp_path, test)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/history?coordinate=%C2%B2", 400),
        ("GET", "/v1/history?coordinate=-1", 400),
        ("GET", "/v1/history?coordinate=", 400),
        pytest.param("GET", f"/v1/history?coordinate={'9' * 5000}", 400, id="a long coordinate"),
        pytest.param("PUT", f"/v1/releases/1/{'9' * 5000}", 400, id="a long number"),
        ("PUT", "/v1/releases/%C2%B9/0", 400),
        ("PUT", "/v1/releases/one/0", 400),
        ("PUT", "/v1/releases/1/0/", 404),
        ("GET", "/v1/status/", 404),
        ("GET", "/nothing", 404),
        ("GET", "/static/nothing", 404),
        ("POST", "/v1/status", 405),
        ("GET", "/v1/releases/1/0", 405),
        ("HEAD", "/v1/events", 405),
    ],
)
def test_what_is_not_there_is_refused_in_the_usual_form(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    async def test(system: System) -> None:
        await filled(system, system.plan.tree.lowest)
        async with system.at_server() as web:
            release = release_of(system) if method == "PUT" else None
            asked = web.request(method, path, content=release)
            answer = await asyncio.wait_for(asked, 10)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/json"
        assert method == "HEAD" or list(answer.json()) == ["error"]
        assert ("allow" in answer.headers) == (status == 405)
        assert method != "HEAD" or answer.headers["allow"] == "GET"

    run(tmp_path, test)


def test_a_fault_is_told_as_such_and_no_more(tmp_path: Path) -> None:
    def broken() -> Any:
        raise KeyError("secret")

    async def test(system: System) -> None:
        system.database.alarms = broken  # type: ignore[method-assign]
        async with system.at_server() as web:
            web._transport.raise_app_exceptions = False  # type: ignore[attr-defined]
            answer = await web.get("/v1/status")
        assert (answer.status_code, answer.json()) == (500, {"error": "a fault"})
        assert int(answer.headers["retry-after"]) > 0

    run(tmp_path, test)


class Asked:
    """A database whose alarms are counted, and told unless it is away."""

    def __init__(self, *answers: list[str] | None) -> None:
        self.answers, self.times = answers, 0

    def alarms(self) -> list[str]:
        answer = self.answers[min(self.times, len(self.answers) - 1)]
        self.times += 1
        if answer is None:
            raise StoreUnavailable("the database is away")
        return answer


async def until(stream: Any, beginning: str) -> list[str]:
    """What is streamed up to something that begins so."""
    said = [await anext(stream)]
    async with asyncio.timeout(10):
        while not said[-1].startswith(beginning):
            said.append(await anext(stream))
    return said


def test_a_listener_without_news_costs_the_database_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "_HEARTBEAT", 0.01)

    async def test(system: System) -> None:
        system.server._store = database = Asked([], ["an alarm"])  # type: ignore[assignment]
        stream = heard(system)
        await until(stream, ": still")
        assert [await anext(stream) for _ in range(5)] == [": still here\n\n"] * 5
        assert database.times == 1
        system.server.events.announce()
        said = await until(stream, "event: alarm")
        assert json.loads(said[-1].split("data: ", 1)[1]) == "an alarm"

    run(tmp_path, test)


def test_news_are_written_once_for_all_who_listen(tmp_path: Path) -> None:
    """Fails if they are written once for each, or if a flood of news is told one by one."""

    async def test(system: System) -> None:
        system.server._store = database = Asked([])  # type: ignore[assignment]
        listeners = [heard(system) for _ in range(200)]
        for _ in range(2):
            assert len({await anext(one) for one in listeners}) == 1
        assert (database.times, system.server.events.listeners) == (1, 200)
        for _ in range(50):
            system.server.events.announce()
        told = await asyncio.gather(*(anext(one) for one in listeners))
        assert (database.times, len(set(told))) == (2, 1)
        for one in listeners:
            await one.aclose()
        assert system.server.events.listeners == 0

    run(tmp_path, test)


def test_others_are_answered_while_many_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few at a time: fails if all are woken at once."""
    monkeypatch.setattr(server_app, "_AT_ONCE", 10)

    async def test(system: System) -> None:
        listeners = [heard(system) for _ in range(100)]
        for _ in range(2):
            for one in listeners:
                await anext(one)
        told = [asyncio.ensure_future(anext(one)) for one in listeners]
        await asyncio.sleep(0.01)
        system.server.events.announce()
        seen = set()
        while not all(one.done() for one in told):
            seen.add(sum(one.done() for one in told))
            await asyncio.sleep(0)
        assert len(seen) >= 3, seen

    run(tmp_path, test)


def test_alarms_are_told_as_soon_as_the_database_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_app, "_HEARTBEAT", 0.01)

    async def test(system: System) -> None:
        system.server._store = Asked(None, None, ["an alarm"])  # type: ignore[assignment]
        stream = heard(system)
        said = await until(stream, "event: alarm")
        assert said.count(": still here\n\n") == 2
        assert [await anext(stream) for _ in range(3)] == [": still here\n\n"] * 3

    run(tmp_path, test)
