"""Fixtures of the tests of whole processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
