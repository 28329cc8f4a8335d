"""That a message counts once: what it costs to receive, open and publish, and to keep the marks.

`python -m benchmarks.services.once ROUNDS`. Releases of ballots among dummies, for a database that
has marks of a million other messages; with marks and without them in turns. One release at a time,
and so short that one process opens it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from unittest.mock import patch

from benchmarks.services.rows import Row, answer
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import OpenerPool
from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.replay import MARK_BYTES, ReplayProtection
from overhand.deploy.server.store import ServerStore, ServerTables
from overhand.planning import Plan
from overhand.randomness import secure_random
from overhand.shuffle import with_added

BEFORE = 10**6
RELEASES = 100


def sealed_releases(document: Document) -> list[Release]:
    """Batches of the lowest level as the shuffling service sends them, but for their order."""
    level, mechanism, random = document.formats.level(1), document.mechanisms[0], secure_random()
    noise, _ = mechanism.advance_noise(mechanism.start_noise(random), random, RELEASES)
    releases = []
    for number in range(RELEASES):
        users = mechanism.encode_many([1] * level.size, random).gather(level.size)
        messages = with_added(users, mechanism, noise[number : number + 1]).sealed.reshape(-1)
        ciphertexts = document.sealer.seal(1, level.messages_to_bytes(messages))
        releases.append(Release(Batch(1, number), 0, b"".join(ciphertexts)))
    return releases


def store_with_marks(document: Document, path: Path) -> float:
    """Make a database that has seen a million messages; the bytes of its file for each of them."""
    messages = document.formats.level(1).batch_messages()
    ServerStore.make_keys(document, Path(f"{path}.keys"))
    ServerStore.of(document, path).close()
    empty, releases = path.stat().st_size, BEFORE // messages

    def fill(tables: ServerTables) -> None:
        for place in range(1, releases + 1):
            tables.add_marks(place, secrets.token_bytes(MARK_BYTES * messages))

    with closing(ServerStore.of(document, path)) as database:
        database._write(fill)
    return (path.stat().st_size - empty) / (releases * messages)


def seconds(document: Document, path: Path, releases: list[Release], pool: OpenerPool) -> float:
    """From the first release that comes to the last that is published."""
    first, *others = releases
    with closing(ServerStore.of(document, path)) as database:
        publisher = Publisher(document, database, pool)
        database.receive(first)  # reads all marks
        started = time.perf_counter()
        for release in others:
            database.receive(release)
            publisher.step()
        return time.perf_counter() - started


def unmarked(
    protection: ReplayProtection, release: Release, tables: ServerTables
) -> tuple[bytes, int]:
    return release.body, 0


def measured(rounds: int) -> Iterator[Row]:
    plan = Plan.best(10**6, epsilon=1.0, mechanism="ballots")
    key = KeyPair.generate()
    document = Document(plan, key.public_key)
    releases, found = sealed_releases(document), list[tuple[float, float]]()
    with (
        tempfile.TemporaryDirectory() as folder,
        OpenerPool(key, document.formats.digest, os.cpu_count() or 1) as pool,
    ):
        kept = store_with_marks(document, database := Path(folder) / "database.db")

        def once_more() -> float:
            copy = Path(folder) / f"{secrets.token_hex(8)}.db"
            for end in ("", ".keys"):
                shutil.copy(f"{database}{end}", f"{copy}{end}")
            return seconds(document, copy, releases, pool)

        once_more()
        for _ in range(rounds):
            with patch.object(ReplayProtection, "strike_repeats", unmarked):
                without = once_more()
            found.append((once_more(), without))
    messages = document.formats.level(1).batch_messages() * (RELEASES - 1)
    name = "Releases received, opened and published, each message once"
    yield Row(name, messages / min(took for took, _ in found), "messages/s")
    ratio = median(without / took for took, without in found)
    yield Row(f"{name} : however often", 100 * ratio, "% of its rate", least=90)
    yield Row("A database's marks of a million messages", kept, "bytes per message", most=24)


def main() -> None:
    answer(measured(int(sys.argv[1])))


if __name__ == "__main__":
    main()
