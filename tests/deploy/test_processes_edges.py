"""Services as an operator meets them: first starts, bad starts, certificates, tokens, metrics."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from overhand.deploy.protocol.keys import KeyPair, create_token
from support.certificates import make_certificates
from support.deployments import BINARY, HORIZON, LOWEST, Deployment, small_plan
from support.killed_processes import SECONDS, WEB, WITHOUT_WORKERS, free_port, until
from support.postgres import Postgres

# --- first starts ---------------------------------------------------------------------------------


@contextmanager
def program(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`python -m overhand`, as it is started by hand."""
    command = [sys.executable, "-m", "overhand", *words]
    with subprocess.Popen(
        command, cwd=folder, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.slow
def test_the_commands_of_the_readme_make_a_deployment(tmp_path: Path) -> None:
    small_plan().save(tmp_path / "plan.json")
    (tmp_path / "values.csv").write_text("1\n" * HORIZON)
    at, to = str(free_port()), str(free_port())
    with program(tmp_path, "prepare", "--plan", "plan.json") as prepare:
        assert prepare.wait(SECONDS) == 0, prepare.communicate()
    shuffler = ("shuffler", "--server", f"http://127.0.0.1:{to}", "--port", at, "--tick", "0.2")
    with (
        program(tmp_path, *shuffler) as one,
        program(tmp_path, "client", f"http://127.0.0.1:{at}", "--file", "values.csv") as client,
        program(tmp_path, "server", "--port", to, "--workers", "1") as two,
    ):
        said = client.communicate(timeout=2 * SECONDS)[0]
        assert (client.returncode, "48 counted" in said) == (0, True), said
        until("all is published", lambda: _reaches(f"http://127.0.0.1:{to}", HORIZON))
        for process in (one, two):
            process.send_signal(signal.SIGTERM)
        for process in (one, two):
            lines = process.communicate(timeout=SECONDS)[0].splitlines()
            assert process.returncode == 0, lines
            assert [json.loads(line)["event"] for line in lines][-1].endswith("stopped")


def _reaches(url: str, t: int) -> bool:
    try:
        estimate = WEB.get(f"{url}/v1/status").json()["estimate"]
    except httpx.TransportError:
        return False
    return estimate is not None and estimate["t"] == t


@pytest.mark.parametrize("first", ["server", "shuffler"])
@pytest.mark.slow
def test_either_service_may_be_started_first(deployed: Deployment, first: str) -> None:
    if first == "server":
        server = deployed.server()
    shuffler = deployed.shuffler()
    deployed.reports.send_until_counted(shuffler.url)
    if first == "shuffler":
        until("it has tried", lambda: len(deployed.sendings()))
        server = deployed.server()
    deployed.finish(server)
    assert (shuffler.stopped(), server.stopped()) == (0, 0)


# --- bad starts -----------------------------------------------------------------------------------


def _edit(name: str, change: Callable[[str], str]) -> Callable[[Deployment], None]:
    def edit(deployed: Deployment) -> None:
        path = deployed.folder / name
        path.write_text(change(path.read_text()))

    return edit


def _remove(name: str) -> Callable[[Deployment], None]:
    return lambda deployed: (deployed.folder / name).unlink()


def _open_to_others(name: str) -> Callable[[Deployment], None]:
    return lambda deployed: (deployed.folder / name).chmod(0o644)


def _other_key(deployed: Deployment) -> None:
    (deployed.folder / "server.key").unlink()
    KeyPair.generate().save(deployed.folder / "server.key")


def _store_of_another_plan(deployed: Deployment) -> None:
    """A service of another plan has used the same files before."""
    other = deployed.folder / "other"
    small_plan(HORIZON + LOWEST).save(deployed.folder / "other.json")
    code, said = deployed.command("prepare", "--plan", "other.json", "--directory", "other")
    assert code == 0, said
    for role, name in (("server", "server.db"), ("shuffler", "shuffler.db")):
        with Deployment(deployed.folder / f"of {role}", other) as before:
            service = getattr(before, role)()
            assert service.stopped() == 0
            shutil.copy(before.folder / name, deployed.folder / name)


def _nothing(deployed: Deployment) -> None:
    """The start itself is what is bad."""


BAD: dict[str, tuple[str, Callable[[Deployment], None], tuple[str, ...], str]] = {
    "missing document": ("both", _remove("document.json"), (), "document.json"),
    "no document": ("both", _edit("document.json", lambda text: "\x00"), (), "document"),
    "damaged document": ("both", _edit("document.json", lambda text: text + " "), (), "document"),
    "edited plan": (
        "both",
        _edit("document.json", lambda text: text.replace(": 48", ": 49")),
        (),
        "document",
    ),
    "missing key": ("server", _remove("server.key"), (), "server.key"),
    "other key": ("server", _other_key, (), "key"),
    "open key": ("server", _open_to_others("server.key"), (), "server.key"),
    "missing token": ("shuffler", _remove("token"), (), "token"),
    "open token": ("shuffler", _open_to_others("token"), (), "token"),
    "wrong digest": ("shuffler", _nothing, ("--pinned", "0" * 64), "000000000000"),
    "missing tokens": ("shuffler", _nothing, ("--tokens", "nowhere"), "nowhere"),
    "missing certificate": (
        "both",
        _nothing,
        ("--certificate", "a", "--certificate-key", "b"),
        "a",
    ),
    "no certificate": (
        "both",
        _nothing,
        ("--certificate", "document.json", "--certificate-key", "document.json"),
        "document.json and document.json are not a certificate and its key",
    ),
    "no database": ("shuffler", _nothing, ("--store", "postgresql://127.0.0.1:1/x"), "PostgreSQL"),
    "no folder": ("shuffler", _nothing, ("--store", "nowhere/shuffler.db"), "nowhere"),
    "no time to fill": ("shuffler", _nothing, ("--deadline", "0"), "deadline=0"),
    "no time at all": ("shuffler", _nothing, ("--tick", "nan"), "tick=nan"),
    "no patience": ("server", _nothing, ("--patience", "-5"), "patience=-5"),
    "no workers": ("server", _nothing, ("--workers", "0"), "workers=0"),
    "other plan": ("both", _store_of_another_plan, (), "made for|belongs to|plan"),
}
ROLES = {
    name: [bad[0]] if bad[0] != "both" else ["server", "shuffler"] for name, bad in BAD.items()
}


def says_one_line(code: int, said: str) -> str:
    """What a service that cannot start says: not a traceback, and not nothing."""
    lines = [line for line in said.splitlines() if line and not line.startswith('{"role"')]
    assert code not in (0, -signal.SIGKILL), said
    assert len(lines) == 1, said
    assert lines[0].startswith("error: ")
    return lines[0]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_start_is_one_clear_line(tmp_path: Path, prepared_files: Path, case: str) -> None:
    _, spoil, options, words = BAD[case]
    deployed = Deployment(tmp_path, prepared_files)
    spoil(deployed)
    for role in ROLES[case]:
        where = ["--server", "http://127.0.0.1:1"] if role == "shuffler" else []
        code, said = deployed.command(role, *where, "--port", str(free_port()), *options)
        line = says_one_line(code, said)
        assert any(word in line for word in words.split("|")), line


@pytest.mark.slow
@pytest.mark.parametrize("role", ["server", "shuffler"])
def test_a_port_that_is_taken_is_one_clear_line(
    deployed: Deployment, tmp_path_factory: pytest.TempPathFactory, role: str
) -> None:
    running = getattr(deployed, role)()
    taken = running.url.rpartition(":")[2]
    where = ["--server", "http://127.0.0.1:1"] if role == "shuffler" else []
    where += ["--store-keys", "shuffler.keys"] if role == "shuffler" else []
    line = says_one_line(*deployed.command(role, *where, "--port", taken))
    assert taken in line
    assert running.stopped() == 0  # nobody took anything away from it


# --- certificates ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_certificates_are_checked_on_both_hops(deployed: Deployment) -> None:
    make_certificates(deployed.folder)
    secured = ("--certificate", "some.pem", "--certificate-key", "some.key")
    server = deployed.server(*secured)
    shuffler = deployed.shuffler(*secured, server=server.url)  # it does not trust the server
    code, said = deployed.command("client", shuffler.url, "1")
    assert code not in (0, -signal.SIGKILL)
    assert "counted" not in said
    assert "is not trusted" in said
    values = deployed.folder / "values.csv"
    values.write_text("1\n" * HORIZON)
    code, said = deployed.command("client", shuffler.url, "--file", str(values), "--ca", "ca.pem")
    assert code == 0, said
    until("it has tried to send", lambda: "sending failed" in shuffler.said())
    assert not server.get("/v1/status").json()["levels"][0]["received"]
    assert shuffler.stopped() == 0
    deployed.shuffler(*secured, "--ca", "ca.pem", server=server.url)
    until("all is published", lambda: deployed.is_published(server))


# --- tokens and metrics ---------------------------------------------------------------------------


@pytest.mark.slow
def test_with_a_wrong_token_nothing_is_stored_and_nothing_is_lost(
    deployed: Deployment, address: str
) -> None:
    deployed.store = address
    create_token(deployed.folder / "other token")
    server, shuffler = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler("--token", "other token"),
    )
    deployed.reports.send_until_counted(shuffler.url)
    until("it has tried twice", lambda: deployed.relay.statuses[:2])
    assert set(deployed.relay.statuses) == {401}
    assert not any(level["received"] for level in server.get("/v1/status").json()["levels"])
    assert shuffler.stopped() == 0
    deployed.shuffler()
    deployed.finish(server)


def test_numbers_about_users_are_on_the_private_port_alone(deployed: Deployment) -> None:
    private = free_port()
    server, shuffler = (
        deployed.server(changes=[WITHOUT_WORKERS]),
        deployed.shuffler("--metrics-port", str(private)),
    )
    deployed.reports.send(shuffler.url, range(5))
    for service in (server, shuffler):
        assert service.get("/healthz").status_code == 200
        assert service.get("/metrics").status_code == 404
    numbers = WEB.get(f"http://127.0.0.1:{private}/metrics")
    assert numbers.status_code == 200
    assert "overhand_arrived 5.0" in numbers.text.splitlines()
    assert "_created" not in numbers.text  # they are times
    assert WEB.get(f"http://127.0.0.1:{private}/v1/document").status_code == 404
    headers, version = shuffler.get("/healthz").headers, server.get("/healthz").headers
    assert not {"server", "date"} & {*headers, *version}


def test_a_shuffling_service_says_nothing_about_its_database(
    deployed: Deployment, postgres: Postgres
) -> None:
    deployed.store = postgres.new_schema()
    shuffler = deployed.shuffler()
    deployed.reports.send(shuffler.url, range(3))
    postgres.stop()
    try:
        body = deployed.reports.bodies[3]
        answer = WEB.post(f"{shuffler.url}/v1/reports", content=body, headers=BINARY)
    finally:
        postgres.start()
    assert answer.status_code == 503
    assert os.fsdecode(postgres.folder) not in answer.text + shuffler.said()
    assert "postgres" not in (answer.text + shuffler.said()).lower()
