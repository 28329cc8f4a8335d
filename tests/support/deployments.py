"""A whole deployment of processes, all its reports, and what must be true of them in the end."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import signal
import sqlite3
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import numpy as np
import psycopg

import overhand as oh
from overhand.deploy.databases.database import is_postgres
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import Release
from overhand.model import Shuffled
from overhand.noise import Coins
from overhand.randomness import HALF
from overhand.sums import SumServer
from support.all_reports import CLIENT, FORWARDED, Reports
from support.killed_processes import SECONDS, WEB, Change, Service, fork, free_port, until
from support.random_streams import keyed
from support.relay import Relay
from support.small_document import encode_report

LOWEST, DEGREE, HORIZON = 4, 3, 48
BATCHES = (HORIZON // LOWEST, HORIZON // (LOWEST * DEGREE))
BINARY = {"content-type": "application/octet-stream"}


def small_plan(horizon: int = HORIZON) -> oh.Plan:
    """Twelve batches of four users and four of twelve, four coins a user: private enough."""
    tree = oh.RegularTree(horizon, (LOWEST, DEGREE))
    mechanisms = tuple(oh.CoinSum(size, Coins(4, HALF)) for size in tree.sizes)
    return oh.Plan(tree, mechanisms, oh.Privacy(4.0, 1e-4), 2)


@dataclass
class Deployment:
    """Both services in a folder of their own, and a relay between them that keeps all releases."""

    folder: Path
    files: Path
    store: str = "shuffler.db"
    database: str = "server.db"
    services: list[Service] = field(default_factory=list)

    def __post_init__(self) -> None:
        shutil.copytree(self.files, self.folder, dirs_exist_ok=True)
        self.document = Document.from_json((self.folder / "document.json").read_text())
        self.server_port, self.shuffler_port = free_port(), free_port()
        self.relay = Relay(self.server_port, free_port())
        self.histories: list[dict[str, list[float]]] = []
        # Of the system's coins one plan in 4e7 has a sum that the server does not believe. With
        # these no batch has one, whoever is in it.
        self._random = keyed(1)
        self.reports = Reports(self.document, [self.report() for _ in range(HORIZON)])

    def __enter__(self) -> Deployment:
        self.relay.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        for service in self.services:
            if service.process.is_alive():
                service.tell(signal.SIGKILL)
            service.process.join(SECONDS)
        self.relay.__exit__()

    def report(self) -> bytes:
        return encode_report(self.document, 1, self._random)

    def start(
        self, role: str, *options: str, changes: Sequence[Change] = (), url: str = ""
    ) -> Service:
        """A process of this role, whether or not it will come up."""
        log = self.folder / f"{role}-{len(self.services)}.log"
        service = Service(fork([role, *options], self.folder, log, changes), log, url)
        self.services.append(service)
        return service

    def command(self, *words: str, changes: Sequence[Change] = ()) -> tuple[int, str]:
        """What a command that ends by itself says."""
        log = self.folder / f"{words[0]}-{time.monotonic_ns()}.out"
        service = Service(fork(words, self.folder, log, changes), log, "")
        return service.ended(), service.said()

    def shuffler(
        self,
        *options: str,
        changes: Sequence[Change] = (),
        port: int | None = None,
        server: str | None = None,
        is_up: bool = True,
    ) -> Service:
        port = port or self.shuffler_port
        to = ["--server", server or self.relay.url, "--store", self.store, "--port", str(port)]
        keys = [] if "--store-keys" in options else ["--store-keys", "shuffler.keys"]
        tick = [] if "--tick" in options else ["--tick", "0.05"]
        url = f"{_scheme(options)}://127.0.0.1:{port}"
        service = self.start("shuffler", *to, *keys, *tick, *options, changes=changes, url=url)
        if is_up:
            until("the shuffling service is up", service.is_up)
        return service

    def server(
        self, *options: str, changes: Sequence[Change] = (), port: int | None = None
    ) -> Service:
        port = port or self.server_port
        url = f"{_scheme(options)}://127.0.0.1:{port}"
        at = ["--database", self.database, "--port", str(port), "--workers", "1"]
        service = self.start("server", *at, *options, changes=changes, url=url)
        until("the server is up", service.is_up)
        return service

    def put(self, service: Service, path: str, body: bytes, token: str) -> int:
        headers = BINARY | {"authorization": f"Bearer {token}"}
        return WEB.put(service.url + path, content=body, headers=headers).status_code

    @property
    def releases(self) -> dict[tuple[int, int], bytes]:
        """What was sent to the server, which is the same however often it was."""
        found: dict[tuple[int, int], bytes] = {}
        for passed in list(self.relay.passed):
            if passed.method == "PUT":
                level, number = map(int, passed.path.split("/")[-2:])
                sent = found.setdefault((level, number), passed.body)
                assert sent == passed.body, f"two releases of {level}/{number}"
        return found

    def sendings(self) -> Counter[str]:
        return Counter(passed.path for passed in self.relay.passed if passed.method == "PUT")

    def is_published(self, server: Service) -> bool:
        """Whether all batches of the plan are; looks at the history on the way."""
        try:
            levels = server.get("/v1/status").json()["levels"]
            self.histories.append(server.get("/v1/history").json())
        except httpx.TransportError:
            return False
        return all(level["published"] == level["batches"] for level in levels)

    def finish(self, server: Service, seconds: float = SECONDS) -> None:
        """All batches are published, of all users, once each, and never revised."""
        until("all batches are published", lambda: self.is_published(server), seconds)
        assert len(self.reports.counted) == HORIZON
        self.check_releases()
        self.check_history()
        status = server.get("/v1/status").json()
        assert status["estimate"]["value"] == self.histories[-1]["value"][-1]
        assert [level["received"] for level in status["levels"]] == list(BATCHES)
        assert all(level["own"] == level["garbage"] == 0 for level in status["levels"])

    def check_releases(self) -> None:
        """Every user is in one batch a level, whole and once, and the same users at all levels."""
        found = self.releases
        assert set(found) == {(level, n) for level in (1, 2) for n in range(BATCHES[level - 1])}
        batch_of: dict[int, dict[int, int]] = {1: {}, 2: {}}
        for level, users in batch_of.items():
            shape = self.document.formats.level(level)
            everybody = range(len(self.reports.bodies))
            owner = {c: user for user in everybody for c in self.reports.ciphertexts(user, level)}
            for number in range(shape.batches):
                released = self.document.formats.unpack(Release, found[level, number])
                assert released.own == 0
                width = shape.ciphertext_bytes
                sent = [
                    released.body[at : at + width] for at in range(0, len(released.body), width)
                ]
                counts = Counter(owner[ciphertext] for ciphertext in set(sent))
                assert len(set(sent)) == len(sent)
                assert set(counts.values()) == {shape.messages}
                assert len(counts) == shape.size
                assert not users.keys() & counts.keys()
                users.update(dict.fromkeys(counts, number))
        assert batch_of[1].keys() == self.reports.counted
        assert {user: number // DEGREE for user, number in batch_of[1].items()} == batch_of[2]

    def check_history(self) -> None:
        """What was published follows from the releases, and each look continues the last."""
        for before, after in itertools.pairwise(self.histories):
            for name in ("t", "value", "low", "high"):
                assert after[name][: len(before[name])] == before[name]
        last = self.histories[-1]
        np.testing.assert_allclose(last["value"][-1], self.expected(), rtol=1e-12)
        assert last["t"][-1] == HORIZON

    def expected(self) -> float:
        """The estimate by the definition, message by message, from what was sent."""
        server = SumServer(self.document.plan)
        opener = Opener(KeyPair.load(self.folder / "server.key"), self.document.formats.digest)
        for (level, number), body in sorted(self.releases.items()):
            shape = self.document.formats.level(level)
            width, sent = shape.ciphertext_bytes, self.document.formats.unpack(Release, body).body
            opened = opener.open(
                level, [sent[at : at + width] for at in range(0, len(sent), width)]
            )
            messages = [int.from_bytes(message or b"", "little") for message in opened]
            sealed = np.array([messages], np.uint8)
            node = self.document.plan.tree.node(level, number)
            server.receive(node, Shuffled(sealed, np.empty((1, 0), np.uint64)))
        return float(server.estimate().value)

    def logs(self) -> list[str]:
        """All lines but those of the interpreter about a process that was killed."""
        said = "".join(service.said() for service in self.services)
        # It quotes its own call below the warning: in one line up to 3.11, or its first alone.
        lines = [line for line in said.splitlines() if line != "  warnings.warn("]
        return [line for line in lines if "resource_tracker" not in line]

    def check_logs(self) -> None:
        """Every line is JSON, and none tells of a user, a secret or a time."""
        secret = (self.folder / "token").read_text().strip()
        ids = [self.document.formats.unpack_report(body).id.hex() for body in self.reports.bodies]
        some = [self.reports.ciphertexts(user, 1)[0] for user in range(HORIZON)]
        words = [FORWARDED, CLIENT, secret, *ids, *(c.hex()[:24] for c in some)]
        words += [repr(c[:8])[2:-1] for c in some]
        for line in self.logs():
            assert line.startswith("{"), line
            entry = json.loads(line)
            assert not [word for word in words if word in line], line
            assert not re.search(r"\d{4}-\d\d-\d\d|\d\d:\d\d|\b\d{10}\b", line), line
            assert not {"time", "timestamp", "asctime", "created"} & entry.keys(), line


def _scheme(options: Sequence[str]) -> str:
    return "https" if "--certificate" in options else "http"


_ROWS = """SELECT (SELECT count(*) FROM messages_1) + (SELECT count(*) FROM messages_2)
    + (SELECT count(*) FROM bodies)"""


def pieces_left(deployment: Deployment) -> int:
    """How many pieces of batches are in the store."""
    if is_postgres(deployment.store):
        with psycopg.connect(deployment.store) as server:
            return int(server.execute(_ROWS).fetchone()[0])  # type: ignore[index]
    with tempfile.TemporaryDirectory() as name:  # a reader would be in the way of the service
        for path in deployment.folder.glob(f"{deployment.store}*"):
            shutil.copy(path, name)
        with closing(sqlite3.connect(Path(name, deployment.store))) as copy:
            try:
                return int(copy.execute(_ROWS).fetchone()[0])
            except sqlite3.DatabaseError:  # copied while it was written
                return 1


def in_the_clear(deployment: Deployment) -> int:
    """How many users' ciphertexts can be found in the files of a SQLite store."""
    kept = b"".join(p.read_bytes() for p in deployment.folder.glob(f"{deployment.store}*"))
    reports = deployment.reports
    return sum(
        any(reports.ciphertexts(user, level)[0] in kept for level in (1, 2))
        for user in range(HORIZON)
    )


def lock_file(path: Path) -> sqlite3.Connection:
    """What another process does that holds a SQLite file for itself, until it is closed."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def prepared(folder: Path) -> Path:
    """What `overhand prepare` makes of the small plan."""
    small_plan().save(folder / "plan.json")
    made = folder / "made"
    process = fork(
        ["prepare", "--plan", "plan.json", "--directory", "made"], folder, folder / "log", []
    )
    process.join(SECONDS)
    assert process.exitcode == 0, (folder / "log").read_text()
    return made
