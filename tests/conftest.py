"""Hypothesis draws the same examples on every run, unless it is asked to explore.

HYPOTHESIS_PROFILE=thorough draws more of them, and explore new ones each time: what that finds is a
bug, but not one of the change at hand, so no gate runs it.
"""

from __future__ import annotations

import os

# One process of tests per core: threads of the linear algebra would only wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What is printed is the same at any terminal.
os.environ["COLUMNS"] = "80"

import pytest
from hypothesis import settings

# What these assert for tests is told as fully as what a test asserts.
pytest.register_assert_rewrite("support")
pytest_plugins = (
    "support.browser_fixtures",
    "support.process_fixtures",
    "support.log_fixtures",
    "support.database_fixtures",
)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("thorough", derandomize=True, max_examples=200, deadline=None)
settings.register_profile("explore", derandomize=False, max_examples=200, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One more than there are cores: many tests wait for processes that they started."""
    return (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "crash: kills or crashes a process; slow on PostgreSQL")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Crashes on PostgreSQL are slow, the same ones on SQLite are not; slow tests may take long."""
    for item in items:
        parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if item.get_closest_marker("crash") is not None and "postgres" in parameters:
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("slow") is not None:
            item.add_marker(pytest.mark.timeout(1800))
