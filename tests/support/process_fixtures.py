"""Fixtures of the tests of whole processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.deployments import Deployment, prepared


@pytest.fixture(scope="session")
def prepared_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("deployment"))


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    """The address of a new database of either kind."""
    if request.param == "sqlite":
        return "some.db"
    return str(request.getfixturevalue("postgres").new_schema())


@pytest.fixture
def deployed(tmp_path: Path, prepared_files: Path) -> Iterator[Deployment]:
    """Whatever a test does to a deployment, its logs tell nothing about users."""
    with Deployment(tmp_path, prepared_files) as deployment:
        yield deployment
    deployment.check_logs()


CREDULOUS = """\
from overhand.planning import batch_sums
batch_sums.FALSE_ALARM = 1e-10
from overhand.__main__ import main
main()
"""


@pytest.fixture
def credulous_services(monkeypatch: pytest.MonkeyPatch) -> None:
    """Services that disbelieve an honest sum of a plan once in 10^10 runs, not once in 10^6.

    A demonstration would wait for the sum of such a batch in vain: with values as they are here,
    once in 20 million runs.
    """
    start = subprocess.Popen

    def start_credulous(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        python, *module = command[:3]
        assert module == ["-m", "overhand"]
        return start([python, "-c", CREDULOUS, *command[3:]], **options)

    one_machine = SimpleNamespace(Popen=start_credulous)
    monkeypatch.setattr("overhand.cli.one_machine.subprocess", one_machine)
