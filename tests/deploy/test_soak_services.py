"""Whatever fails where services make the noise: every report counts once, every block has one sum.

Property-based runs of `chain_soak.ChainSoak`.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overhand.deploy.client import client as client_module
from overhand.deploy.shuffler.batching import OwnNoise
from overhand.deploy.shuffler.store import Store
from support.chain_soak import ChainSoak, crowd
from support.faulty_services import Fault
from support.postgres import Postgres
from support.soak import Step

NONE, BEFORE, AFTER, TWICE, LATE = Fault
OFTEN = ("report", "report", "report", "release", "publish")
SELDOM = (
    *("resend", "close", "force", "deliver_late", "lose_store", "lose_database"),
    *("crash_shuffler", "crash_server"),
)
STRANGE = ("copy", "junk")


def steps_of(names: Sequence[str]) -> st.SearchStrategy[list[Step]]:
    return st.lists(
        st.builds(
            Step,
            st.sampled_from(names),
            st.integers(1, 8),
            st.integers(0, 63),
            st.lists(st.sampled_from(Fault), max_size=4).map(tuple),
        ),
        min_size=8,
        max_size=24,
    )


@pytest.fixture(autouse=True)
def impatient(noiseless: None) -> Iterator[None]:
    """Clients try again at once, and nobody draws noise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "_FIRST_WAIT", 0.0)
        patch.setattr(client_module, "_LONGEST_WAIT", 0.0)
        yield


def in_sqlite(kind: str, home: Path) -> Store:
    document = crowd(kind).document
    return Store(home / "store.db", document.formats, noise=OwnNoise.of(document))


def in_postgres(dsn: str, kind: str, home: Path) -> Store:
    document = crowd(kind).document
    return Store(dsn, document.formats, home / "store.keys", OwnNoise.of(document))


def soak(
    kind: str, steps: Sequence[Step], opened: Callable[[str, Path], Store] = in_sqlite
) -> None:
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        asyncio.run(ChainSoak(kind, home, partial(opened, kind, home)).run(steps))


LIFE = (
    Step("report", 7, faults=(TWICE, AFTER, LATE, BEFORE)),
    Step("release", faults=(AFTER, NONE, LATE)),
    Step("resend", 5, 2, (LATE, TWICE)),
    Step("lose_store", faults=(AFTER, BEFORE, LATE, TWICE)),
    Step("report", 8),
    Step("close"),
    Step("crash_shuffler", 3, 9),
    Step("release", faults=(BEFORE,)),
    Step("lose_database", faults=(NONE, AFTER, LATE, BEFORE)),
    Step("force", faults=(NONE, AFTER)),
    Step("release"),
    Step("publish", faults=(NONE, LATE)),
    Step("publish", faults=(NONE, TWICE, NONE, AFTER)),
    Step("crash_server"),
    Step("deliver_late"),
    Step("report", 3),
    Step("release", faults=(TWICE, TWICE)),
    Step("publish"),
)


@pytest.mark.parametrize("kind", ["pairs", "ballots"])
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_life_with_every_fault(kind: str, store: str, request: pytest.FixtureRequest) -> None:
    if store == "sqlite":
        soak(kind, LIFE)
        return
    dsn = request.getfixturevalue("postgres").new_schema()
    soak(kind, LIFE, partial(in_postgres, dsn))


FIXTURES = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pairs", "ballots"])
@FIXTURES
@given(steps=steps_of(OFTEN * 2 + SELDOM))
def test_whatever_fails_the_published_sums_are_those_of_the_accepted(
    kind: str, steps: list[Step]
) -> None:
    soak(kind, steps)


@FIXTURES
@given(steps=steps_of(OFTEN * 2 + SELDOM + STRANGE * 2))
def test_copies_and_garbage_cost_nobody_else_anything(steps: list[Step]) -> None:
    soak("pairs", steps)


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps_of(OFTEN * 2 + SELDOM + STRANGE))
def test_whatever_fails_with_postgresql(postgres: Postgres, steps: list[Step]) -> None:
    soak("pairs", steps, partial(in_postgres, postgres.new_schema()))
