"""Services that are told to stop, whose databases are away, and whose clients never end."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from overhand.deploy.http.listening import Endpoint, Site, server_of
from overhand.deploy.protocol.wire import Release
from support.deployments import HORIZON, LOWEST, Deployment, lock_file
from support.killed_processes import (
    SECONDS,
    WEB,
    WITHOUT_WORKERS,
    Pause,
    Service,
    Setting,
    fill_disk,
    free_port,
    more_disk,
    runs,
    until,
)
from support.postgres import Postgres

STORE = "overhand.deploy.shuffler.store:Store"
OPENING = "overhand.deploy.server.publishing:open_release"
PATIENCE = Setting("overhand.deploy.http.application:PATIENCE", 1.0)
IMPATIENT = Setting("overhand.deploy.databases.database:_WAIT", 0.3)
SIGNALS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
LATE = b"the body did not arrive within 1 seconds"
SOON = 25.0  # seconds in which a service must be gone: an orchestrator waits for thirty


@contextmanager
def meanwhile(deployed: Deployment, service: Service) -> Iterator[None]:
    """Clients that send all reports at the same time as the test goes on."""
    thread = threading.Thread(target=deployed.reports.send, args=(service.url,))
    thread.start()
    yield
    thread.join()


@pytest.mark.slow
@SIGNALS
def test_a_shuffling_service_that_is_told_to_stop_answers_what_it_took(
    deployed: Deployment, tmp_path: Path, number: int
) -> None:
    server = deployed.server(changes=[WITHOUT_WORKERS])
    pause = Pause(f"{STORE}.admit", "before", 3, file=tmp_path / "pause")
    shuffler, reports = deployed.shuffler(changes=[pause]), deployed.reports
    with meanwhile(deployed, shuffler):
        until("a group is being committed", pause.is_reached)
        before = len(reports.counted)
        shuffler.tell(number)
        until("it takes no more", lambda: not shuffler.is_up())
        pause.go_on()
        assert shuffler.ended(SOON) == 0
    assert len(reports.counted) > before  # those under way, not those that came too late
    assert len(reports.counted) < HORIZON
    assert "stopped" in shuffler.said()
    reports.send_until_counted(deployed.shuffler().url)
    deployed.finish(server)


@SIGNALS
@pytest.mark.slow
def test_a_server_that_is_told_to_stop_while_it_opens_goes_on_after_its_restart(
    deployed: Deployment, tmp_path: Path, number: int
) -> None:
    pause = Pause(OPENING, "before", 3, file=tmp_path / "pause")
    server = deployed.server(changes=[pause])
    deployed.reports.send_until_counted(deployed.shuffler().url)
    until("a release is being opened", pause.is_reached)
    deployed.is_published(server)
    children = server.children()
    server.tell(number)
    until("it takes no more", lambda: not server.is_up())
    pause.go_on()
    assert server.ended(SOON) == 0
    assert "stopped" in server.said()
    until("its workers are gone", lambda: not any(map(runs, children)))
    deployed.finish(deployed.server())


def test_a_dashboard_that_is_open_does_not_keep_a_server_from_stopping(
    deployed: Deployment,
) -> None:
    server = deployed.server()
    with httpx.stream("GET", f"{server.url}/v1/events", timeout=SECONDS) as events:
        assert next(events.iter_lines()).startswith(":")
        assert server.stopped(seconds=SOON) == 0


@pytest.mark.slow
def test_a_server_that_never_answers_does_not_keep_a_shuffling_service_from_stopping(
    deployed: Deployment,
) -> None:
    deployed.relay.losses = deque(["time"])
    shuffler = deployed.shuffler()
    deployed.reports.send_until_counted(shuffler.url)
    until("a release is under way", lambda: deployed.sendings())
    assert shuffler.stopped(seconds=SOON) == 0
    deployed.relay.port = deployed.server_port
    server = deployed.server(changes=[WITHOUT_WORKERS])
    deployed.shuffler()
    deployed.finish(server)


@pytest.mark.slow
def test_a_database_that_was_away_is_used_again_when_it_is_back(
    deployed: Deployment, postgres: Postgres
) -> None:
    deployed.store, deployed.database = postgres.new_schema(), postgres.new_schema()
    private = free_port()
    numbers = f"http://127.0.0.1:{private}/metrics"
    server = deployed.server("--metrics-port", str(private))
    shuffler, reports = deployed.shuffler(), deployed.reports
    reports.send(shuffler.url, range(0, 18))
    assert "overhand_database_is_up 1.0" in WEB.get(numbers).text.splitlines()
    postgres.stop()
    try:
        assert "overhand_database_is_up 0.0" in WEB.get(numbers).text.splitlines()
        reports.send(shuffler.url, range(18, HORIZON))
        assert reports.answers == {200: 18, 503: HORIZON - 18}
        pair = (shuffler, server)
        assert [service.get("/healthz").status_code for service in pair] == [200, 200]
        # What was known less than a second ago is not asked again.
        until("both say so", lambda: {one.get("/readyz").status_code for one in pair} == {503})
    finally:
        postgres.start()
    reports.send_until_counted(shuffler.url)
    deployed.finish(server, 2 * SECONDS)  # it waits longer after every failure
    assert (shuffler.stopped(), server.stopped()) == (0, 0)


@pytest.mark.slow
def test_connections_that_the_database_ends_are_made_anew(
    deployed: Deployment, postgres: Postgres
) -> None:
    deployed.store, deployed.database = postgres.new_schema(), postgres.new_schema()
    server, shuffler, reports = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler(),
        deployed.reports,
    )
    for first in range(0, HORIZON, LOWEST * 2):
        reports.send(shuffler.url, range(first, first + LOWEST * 2))
        postgres.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    reports.send_until_counted(shuffler.url)
    assert reports.answers.keys() <= {200, 503}
    deployed.finish(server)
    assert (shuffler.stopped(), server.stopped()) == (0, 0)


@pytest.mark.slow
def test_a_late_batch_is_filled_although_the_database_was_away(
    deployed: Deployment, postgres: Postgres
) -> None:
    deployed.store = postgres.new_schema()
    deployed.server(changes=[WITHOUT_WORKERS])
    shuffler = deployed.shuffler("--deadline", "3")
    deployed.reports.send(shuffler.url, [0, 1])
    postgres.stop()
    try:
        until("it is missed", lambda: "a late batch stays open" in shuffler.said())
    finally:
        postgres.start()
    until("the batch is released", lambda: (1, 0) in deployed.releases)
    assert deployed.document.formats.unpack(Release, deployed.releases[1, 0]).own == LOWEST - 2
    assert shuffler.stopped() == 0


@pytest.mark.slow
def test_a_locked_store_admits_nothing_until_it_is_free(deployed: Deployment) -> None:
    server, shuffler = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler(changes=[IMPATIENT]),
    )
    reports = deployed.reports
    reports.send(shuffler.url, range(10))
    with closing(lock_file(deployed.folder / "shuffler.db")):
        reports.send(shuffler.url, range(10, 20))
        assert reports.answers == {200: 10, 503: 10}
    reports.send_until_counted(shuffler.url)
    deployed.finish(server)
    assert shuffler.stopped() == 0


@pytest.mark.slow
def test_a_locked_database_takes_and_publishes_nothing_until_it_is_free(
    deployed: Deployment, tmp_path: Path
) -> None:
    pause = Pause(OPENING, "after", 2, file=tmp_path / "pause")
    server = deployed.server(changes=[IMPATIENT, pause])
    shuffler, reports = deployed.shuffler(), deployed.reports
    reports.send_until_counted(shuffler.url)
    until("a release is being opened", pause.is_reached)
    with closing(lock_file(deployed.folder / "server.db")):
        pause.go_on()
        time.sleep(1.0)
        deployed.is_published(server)
    deployed.finish(server)
    assert (shuffler.stopped(), server.stopped()) == (0, 0)


def test_a_full_disk_admits_nothing_until_there_is_room(deployed: Deployment) -> None:
    server, shuffler, reports = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler(),
        deployed.reports,
    )
    reports.send(shuffler.url, range(10))
    fill_disk(shuffler.pid)
    reports.send(shuffler.url, range(10, 20))
    assert reports.answers == {200: 10, 503: 10}
    more_disk(shuffler.pid)
    reports.send_until_counted(shuffler.url)
    deployed.finish(server)
    assert shuffler.stopped() == 0
    said = shuffler.said()
    assert said.count("reports cannot be stored") == said.count("can be stored again") == 1


@pytest.mark.slow
def test_a_full_disk_of_the_server_delays_what_it_publishes(
    deployed: Deployment, tmp_path: Path
) -> None:
    pause = Pause(OPENING, "after", 2, file=tmp_path / "pause")
    server = deployed.server(changes=[pause])
    deployed.reports.send_until_counted(deployed.shuffler().url)
    until("a release is being opened", pause.is_reached)
    fill_disk(server.pid)
    pause.go_on()
    time.sleep(1.0)
    deployed.is_published(server)
    more_disk(server.pid)
    deployed.finish(server)
    assert server.stopped() == 0


BINARY = b"content-type: application/octet-stream\r\n"
HEAD = b"POST /v1/reports HTTP/1.1\r\nhost: here\r\n" + BINARY
BURDENS = {
    "half a body": HEAD + b"content-length: 100\r\n\r\nOVH2",
    "half a chunk": HEAD + b"transfer-encoding: chunked\r\n\r\n5\r\nOV",
    "a body without end": HEAD
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"400\r\n%b\r\n" % bytes(1024),
    "too long a body": HEAD + b"content-length: 1000000000\r\n\r\n" + bytes(10_000),
    "no request": bytes(range(256)),
}


def closed_after(service: Service, burdens: dict[str, bytes]) -> dict[str, bytes]:
    """What was answered on connections that sent these bytes, and no more, before they ended."""
    ends = {name: socket.create_connection(("127.0.0.1", _port(service))) for name in burdens}
    for name, end in ends.items():
        end.sendall(burdens[name])
    said, until_then = {}, time.monotonic() + SECONDS
    for name, end in ends.items():
        with closing(end):
            said[name] = b""
            try:
                while True:
                    end.settimeout(max(0.01, until_then - time.monotonic()))
                    some = end.recv(1 << 16)
                    if not some:
                        break
                    said[name] += some
            except ConnectionError:
                continue
            except TimeoutError:
                said[name] += b" and it is still open"
    return said


def _port(service: Service) -> int:
    return int(service.url.rpartition(":")[2])


def test_bodies_that_are_never_whole_are_given_up_and_others_are_served(
    deployed: Deployment,
) -> None:
    server, shuffler = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler(changes=[PATIENCE]),
    )
    with meanwhile(deployed, shuffler):
        said = closed_after(shuffler, BURDENS)
    assert not [name for name, answer in said.items() if b"still open" in answer]
    statuses = {name: answer.split(b" ")[1] for name, answer in said.items() if answer}
    assert statuses["half a body"] == statuses["half a chunk"] == b"408"
    assert all(LATE in said[name] for name in ("half a body", "half a chunk"))
    assert statuses["too long a body"] == b"413"
    deployed.reports.send_until_counted(shuffler.url)  # some may have been too slow, too
    deployed.finish(server)
    assert shuffler.stopped() == 0


@pytest.mark.slow
def test_bodies_that_are_never_whole_keep_no_release_from_the_server(
    deployed: Deployment,
) -> None:
    token = (deployed.folder / "token").read_text().strip().encode()
    head = b"PUT /v1/releases/1/0 HTTP/1.1\r\nhost: here\r\n" + BINARY
    head += b"authorization: Bearer " + token + b"\r\n"
    burdens = {name: sent.replace(HEAD, head) for name, sent in BURDENS.items()}
    server, shuffler = deployed.server(changes=[PATIENCE]), deployed.shuffler()
    deployed.reports.send_until_counted(shuffler.url)
    said = closed_after(server, burdens)
    assert not [name for name, answer in said.items() if b"still open" in answer]
    assert all(LATE in said[name] for name in ("half a body", "half a chunk"))
    deployed.finish(server)
    assert server.stopped() == 0


@pytest.mark.slow
def test_a_slow_client_does_not_keep_a_service_from_stopping(deployed: Deployment) -> None:
    """It waits for one for a third of the time that an orchestrator has, and then ends."""
    site = Site(None, Endpoint())  # type: ignore[arg-type]
    assert server_of(site).config.timeout_graceful_shutdown == 10
    shuffler = deployed.shuffler()
    with closing(socket.create_connection(("127.0.0.1", _port(shuffler)))) as slow:
        slow.sendall(BURDENS["half a body"])
        until("it was taken", lambda: shuffler.get("/healthz").status_code == 200)
        assert shuffler.stopped() == 0
