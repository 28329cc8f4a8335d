"""Numbers for operators: what waits, for how long, how quickly things go, and what runs."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

import overhand
from overhand.deploy.protocol.wire import Batch
from overhand.deploy.server.app import ServerMetrics, publish
from overhand.deploy.shuffler.batching import Arrival
from overhand.deploy.shuffler.running import MetricsCollector, OpenBatches
from overhand.deploy.transport import Answer
from support.deployments import DEGREE, HORIZON, LOWEST, small_plan
from support.loopback_system import System, run
from support.store_processes import freeze

Numbers = dict[tuple[str, str], float]


def numbers(text: bytes) -> Numbers:
    """Every sample by its name and the value of its label, if it has one."""
    return {
        (sample.name.removeprefix("overhand_"), ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def watched(system: System) -> MetricsCollector:
    return MetricsCollector(system.store, system.document.formats, system.admission, system.metrics)


async def report(system: System, users: int) -> None:
    async with system.client() as client:
        await client.report_many([1] * users)


class Taken:
    """A server that answers everything alike."""

    def __init__(self, status: int) -> None:
        self.status = status

    async def request(self, *words: Any) -> Answer:
        return Answer(self.status, b"{}")

    async def close(self) -> None:
        pass


def test_batches_are_unsent_until_the_server_has_them(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        watch = watched(system)
        assert numbers(watch.text())["unsent", "1"] == 0
        await report(system, LOWEST * DEGREE + LOWEST + 1)
        found = numbers(watch.text())
        assert (found["unsent", "1"], found["unsent", "2"]) == (DEGREE + 1, 1)
        freeze(system.store, Batch(1, 0))  # it is not sent, although it is frozen
        assert numbers(watch.text())["unsent", "1"] == DEGREE + 1
        await system.sender().send_all()
        found = numbers(watch.text())
        assert (found["unsent", "1"], found["unsent", "2"]) == (0, 0)
        assert found["send_seconds_count", ""] == DEGREE + 2
        assert found["set_aside", "1"] == 0
        assert (found["arrived", ""], found["store_is_up", ""], found["ready", ""]) == (
            LOWEST * DEGREE + LOWEST + 1,
            1,
            1,
        )

    run(tmp_path, test, plan=small_plan())


def test_a_batch_that_the_server_has_otherwise_is_set_aside(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        watch = watched(system)
        await report(system, LOWEST)
        sender = system.sender()
        sender._server = Taken(409)
        await sender.send_all()
        await sender.send_all()
        found = numbers(watch.text())
        assert (found["set_aside", "1"], found["unsent", "1"]) == (1, 1)

    run(tmp_path, test, plan=small_plan())


def test_a_report_is_timed_from_when_it_is_whole_to_its_commit(tmp_path: Path) -> None:
    async def main() -> None:
        system = System(tmp_path, small_plan())
        watch = watched(system)
        waiting = asyncio.create_task(
            system.admission.admit(Arrival.of(system.document.formats, system.report()))
        )
        while not system.admission.waiting:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        assert numbers(watch.text())["waiting", ""] == 1
        committing = asyncio.create_task(system.admission.run())
        await waiting
        found = numbers(watch.text())
        assert (found["waiting", ""], found["admission_seconds_count", ""]) == (0, 1)
        assert found["admission_seconds_sum", ""] >= 0.05
        system.admission.close()
        await committing

    asyncio.run(main())


def test_open_batches_age_from_when_they_were_first_seen_and_no_time_is_kept(
    tmp_path: Path,
) -> None:
    async def test(system: System) -> None:
        ages = OpenBatches(system.document.formats).ages
        assert ages(0, 10.0) == {1: 0, 2: 0}
        assert ages(1, 20.0) == {1: 0, 2: 0}
        assert ages(LOWEST - 1, 25.0) == {1: 5, 2: 5}
        assert ages(LOWEST, 26.0) == {1: 0, 2: 6}  # none is open at level 1
        assert ages(LOWEST + 1, 30.0) == {1: 0, 2: 10}
        assert ages(2 * LOWEST + 1, 40.0) == {1: 0, 2: 20}  # another one
        assert ages(HORIZON, 90.0) == {1: 0, 2: 0}
        again = OpenBatches(system.document.formats).ages  # a new process knows no time
        assert again(1, 99.0) == {1: 0, 2: 0}

    run(tmp_path, test, plan=small_plan())


def test_what_is_left_of_a_complete_plan_is_not_open(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        ages = OpenBatches(system.document.formats).ages
        assert ages(19, 0.0) == {1: 0, 2: 0}
        assert ages(19, 5.0) == {1: 5, 2: 5}
        assert ages(20, 6.0) == {1: 0, 2: 0}  # 8 of 12 at level 2, for good

    run(tmp_path, test, plan=small_plan(20))


def test_releases_are_unopened_until_they_are_published_and_that_is_timed(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        metrics, stopping = ServerMetrics(system.server), asyncio.Event()
        await report(system, 2 * LOWEST)
        await system.sender().send_all()
        system.publisher.follow()
        assert numbers(metrics.current())["unopened", "1"] == 2
        running = asyncio.create_task(publish(system.server, system.publisher, metrics, stopping))
        while numbers(metrics.current())["unopened", "1"]:
            await asyncio.sleep(0.01)
        stopping.set()
        system.server.arrived.set()
        await running
        found = numbers(metrics.current())
        assert (found["publish_seconds_count", ""], found["published", "1"]) == (2, 2)
        assert (found["ready", ""], found["database_is_up", ""]) == (1, 1)
        assert found["store_faults_total", ""] == 0

    run(tmp_path, test, plan=small_plan())


def test_both_services_say_what_they_run(tmp_path: Path) -> None:
    async def test(system: System) -> None:
        for text in (watched(system).text(), ServerMetrics(system.server).current()):
            line = next(line for line in text.decode().splitlines() if "build_info{" in line)
            assert f'version="{overhand.__version__}"' in line
            assert f'python="{platform.python_version()}"' in line
            assert line.endswith(" 1.0")
            assert "_created" not in text.decode()  # they are times

    run(tmp_path, test, plan=small_plan())
