"""`overhand demo`, as whoever tries it first runs it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from overhand.cli.one_machine import _free_ports
from overhand.deploy.protocol.document import Document
from support.cli_runner import as_json, overhand
from support.killed_processes import free_port, until


@pytest.mark.slow
@pytest.mark.usefixtures("credulous_services")
@pytest.mark.parametrize(
    ("more", "values", "kind"),
    [
        (["--mechanism", "coins"], "bit", "coins"),
        ([], "bit", "ballots"),
        ([], "vector:3", "pairs"),
        ([], "grouped:DE,FR:real:0:1", "pairs"),
    ],
)
def test_the_whole_system_counts_a_crowd(
    more: list[str], values: str, kind: str, tmp_path: Path
) -> None:
    """By the exact law of the noise, it is off by seven deviations once in 10^10 runs at most."""
    how = (*more, "--values", values, "--users", "1500", "--epsilon", "4")
    result = as_json("demo", *how, "--directory", str(tmp_path))
    plan = Document.load(tmp_path / "document.json").plan
    assert plan.mechanisms[0].kind == kind
    assert result["users"] > 1400
    assert abs(result["error"]) < 7 * result["std"]


def test_too_few_users_are_refused_in_the_words_of_the_option() -> None:
    result = overhand("demo", "--users", "5")
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: users=5 must be a whole number of at least 100\n"


def test_a_port_that_is_taken_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = overhand("demo", "--users", "150", "--port", port)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"--port {port}: Address already in use" in result.stderr


def test_ports_are_kept_for_the_services_and_from_others() -> None:
    with _free_ports(0, 0) as ports:
        assert len(set(ports)) == 2
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("signum", "what"),
    [
        (signal.SIGTERM, ["--rate", "20", "--users", "400"]),
        (signal.SIGHUP, ["--rate", "20", "--users", "400"]),
        (signal.SIGINT, ["--recommender", "--users", "1500", "--epsilon", "8"]),
    ],
)
def test_a_signal_ends_the_services_and_removes_their_keys(
    signum: signal.Signals, what: list[str], tmp_path: Path
) -> None:
    """A demo that is killed while its crowd reports: nothing listens, and no key is left."""
    port = free_port()
    command = [sys.executable, "-m", "overhand", "demo", *what]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [*command, "--port", str(port)],
        env=environment,
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # in the background, too
    ) as demo:
        until("the dashboard is up", lambda: answers(port), 120)
        assert list(tmp_path.rglob("server.key"))
        demo.send_signal(signum)
        assert demo.wait(timeout=120) == 128 + signum
    assert not answers(port)
    assert not list(tmp_path.iterdir())


def answers(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0
