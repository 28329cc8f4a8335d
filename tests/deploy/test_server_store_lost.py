"""A database that is lost where the server makes noise: its document is never served again."""

from __future__ import annotations

import gc
import shutil
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.databases.batch_keys import BatchKeys
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, UnsafeSecret
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.running import settled_sum
from overhand.deploy.server.store import ServerStore, ServerTables, Settled
from overhand.errors import InvalidValue, OverhandError
from overhand.planning import Plan
from support.cli_runner import Result, as_json, overhand
from support.database_fixtures import Places
from support.sealed_releases import BALLOTS, PAIRS, full, open_database, publisher_of, sealed
from support.server_stores import DOCUMENT, drain
from support.store_processes import Where

FEW = [(1, 0), (1, 1)]
WAY_OUT = ("Bring back the newest database", "`overhand settle`", "`overhand prepare`", "--after")


class Crash(BaseException):
    pass


def publish_few(database: ServerStore) -> None:
    for name in FEW:
        database.receive(full(name))
    drain(publisher_of(database))
    assert len(database.sums(0, 9)) >= len(FEW)


def check_advice(words: str) -> None:
    """It says what can be done, and nothing that would lead to a second noise."""
    assert all(part in words for part in WAY_OUT), words
    assert "new keys" not in words
    assert "new database" not in words


@pytest.mark.parametrize("also_lost", [[], ["keys"]], ids=["database", "database and keys"])
@pytest.mark.parametrize("has_sums", [False, True], ids=["waiting", "published"])
def test_no_second_database_of_a_document_is_begun(
    places: Places, also_lost: list[str], has_sums: bool
) -> None:
    """Whoever has the releases could send them again, and take the mean of two noises."""
    where, empty = places.new(), places.new()
    with closing(open_database(where)) as database:
        database.receive(full((1, 2)))
        if has_sums:
            publish_few(database)
    if also_lost:
        where.keys.unlink()
    for _ in range(2):  # what is refused leaves nothing that would be accepted
        with pytest.raises(OverhandError) as refused:
            ServerStore.of(BALLOTS, empty.place, keys=where.keys)
        check_advice(str(refused.value))
    assert where.keys.exists() != bool(also_lost), "nobody makes them again"
    with pytest.raises(InvalidValue, match="there is no database of a server here"):
        ServerStore(empty.place, BALLOTS.digest, begins=False)


def test_a_database_whose_keys_are_lost_leads_to_a_new_plan(where: Where) -> None:
    with closing(open_database(where)) as database:
        publish_few(database)
    where.keys.unlink()
    with pytest.raises(UnsafeSecret, match="if another machine has the same database") as refused:
        ServerStore.of(BALLOTS, where.place, keys=where.keys)
    check_advice(str(refused.value))
    assert settled_sum(BALLOTS, where.place).t == 4


@pytest.mark.parametrize("dying", [(ServerTables, "begin"), (BatchKeys, "claim")], ids=str)
@pytest.mark.crash
def test_a_crash_before_anything_came_strands_nobody(
    where: Where, dying: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the database is there, and after that but before its keys are claimed."""

    def crash(*arguments: Any) -> None:
        raise Crash

    owner, name = dying
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, crash)
        with pytest.raises(Crash):
            open_database(where)
    gc.collect()  # a connection that was left open warns here, and not in some later test
    with closing(open_database(where)) as database:
        publish_few(database)


def test_another_machine_serves_the_same_database_and_begins_no_other(
    places: Places, tmp_path: Path
) -> None:
    """With keys that were copied before the first start, or later."""
    where, empty = places.new(), places.new()
    ServerStore.make_keys(BALLOTS, where.keys)
    copies = [tmp_path / f"{name}-{where.keys.name}" for name in ("before", "later")]
    shutil.copy(where.keys, copies[0])
    with closing(open_database(where)) as database:
        shutil.copy(where.keys, copies[1])
        publish_few(database)
        for copy, number in zip(copies, (2, 3), strict=True):
            with closing(ServerStore.of(BALLOTS, where.place, keys=copy)) as other:
                other.receive(full((1, number)))
                drain(publisher_of(other))
        assert len(database.sums(0, 9)) == len(FEW) + 2
    for copy in copies:
        with pytest.raises(InvalidValue, match="this document was served before"):
            ServerStore.of(BALLOTS, empty.place, keys=copy)


def test_keys_are_for_the_database_of_one_document(where: Where) -> None:
    ServerStore.make_keys(PAIRS, where.keys)
    with pytest.raises(InvalidValue, match="another document's database: .* --database-keys"):
        ServerStore.of(BALLOTS, where.place, keys=where.keys)
    open_database(where, PAIRS).close()


def test_users_noise_needs_no_keys_and_any_database_may_be_begun(where: Where) -> None:
    ServerStore.make_keys(DOCUMENT, where.keys)
    assert not where.keys.exists()
    ServerStore.of(DOCUMENT, where.place).close()


def test_what_is_settled_must_be_there(where: Where) -> None:
    """A mutant that begins a database here would strand the server that comes later."""
    with pytest.raises(InvalidValue, match="there is no database"):
        settled_sum(BALLOTS, where.place)
    open_database(where).close()


# --- as an operator sees it -----------------------------------------------------------------------


class Operator:
    """A directory that `overhand prepare` made, and a database that has come some way."""

    def __init__(self, home: Path, plan_file: Path) -> None:
        self.home = home
        as_json("prepare", "--plan", str(plan_file), "--directory", str(home))
        self.document = Document.load(home / "document.json")
        self.opener = Opener(KeyPair.load(home / "server.key"), self.document.formats.digest)
        self.database, self.keys = home / "server.db", home / "server.db.keys"

    def serve(self, number: int, settled: Settled | None = None) -> dict[str, Any]:
        """Open the database, publish a batch of users who hold 1, and close it."""
        with closing(ServerStore.of(self.document, self.database, settled)) as database:
            size = self.document.formats.level(1).size
            database.receive(sealed((1, number), [1] * size, self.document))
            drain(publisher := Publisher(self.document, database, self.opener))
            assert publisher.estimate is not None
            return publisher.estimate

    def start(self, port: int) -> Result:
        """At a port that is taken: a server that does not refuse ends as well."""
        files = {"document": "document.json", "key": "server.key", "token-hash": "token.sha256"}
        options = [word for name in files for word in (f"--{name}", str(self.home / files[name]))]
        return overhand("server", *options, "--database", str(self.database), "--port", str(port))


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as holding:
        holding.bind(("127.0.0.1", 0))
        holding.listen()
        yield holding.getsockname()[1]


@pytest.mark.usefixtures("noiseless")
def test_what_a_server_says_leads_from_a_lost_database_to_a_new_plan(
    tmp_path: Path, taken_port: int
) -> None:
    Plan.best(60, 2, oh.Privacy(4.0, 1e-4), mechanism="pairs").save(plan := tmp_path / "plan.json")
    lost = Operator(tmp_path / "first", plan)
    assert lost.keys.stat().st_mode & 0o777 == 0o600
    before = lost.serve(0)
    shutil.copy(lost.database, backup := tmp_path / "backup.db")
    lost.serve(1)
    for name in (lost.database, lost.keys):
        name.unlink()
        refused = lost.start(taken_port)
        assert (refused.returncode, refused.stdout) == (2, "")
        check_advice(refused.stderr)
    with pytest.raises(UnsafeSecret):
        lost.serve(0)

    settled = ("--document", str(lost.home / "document.json"), "--database", str(backup))
    assert as_json("settle", *settled, "--out", str(out := tmp_path / "settled.json"))["users"]
    following = Operator(tmp_path / "second", plan)
    assert following.document.digest != lost.document.digest
    after = following.serve(0, Settled.load(out))
    assert (after["t"], after["value"]) == (2 * before["t"], 2 * before["value"])
