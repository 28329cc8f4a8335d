"""Stores for tests: messages that say whose they are, and processes that die on purpose."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from overhand.deploy.databases.database import Database, SqliteDatabase, is_postgres
from overhand.deploy.databases.postgres import PostgresDatabase, PostgresTransaction
from overhand.deploy.protocol.wire import SEAL_BYTES, Batch, Formats, LevelFormat, Release
from overhand.deploy.shuffler.batching import Arrival, Outcome
from overhand.deploy.shuffler.store import Store
from support.postgres import keys_of

ADMITTED, REPEATED = Outcome.ADMITTED, Outcome.REPEATED


def shape(level: int, size: int, messages: int, length: int = 49) -> LevelFormat:
    """A level whose ciphertexts have this length; the horizon says how many batches it has."""
    return LevelFormat(level, size, 0, messages, 8 * (length - SEAL_BYTES))


SHAPES = (shape(1, 2, 2), shape(2, 6, 1, 53))
HORIZON = 16
TRACED = (shape(1, 30, 40), shape(2, 300, 5))


def open_store(
    place: str | Path,
    levels: Sequence[LevelFormat] = SHAPES,
    horizon: int = HORIZON,
    keys: Path | None = None,
    document: str = "0" * 64,
) -> Store:
    whole = tuple(replace(level, batches=horizon // max(1, level.size)) for level in levels)
    return Store(place, Formats(bytes.fromhex(document), whole), keys)


class Where(NamedTuple):
    """A database, by a name that goes to other processes."""

    kind: str
    place: str

    def open(self, levels: Sequence[LevelFormat] = SHAPES, horizon: int = HORIZON) -> Store:
        return open_store(self.place, levels, horizon, self.keys)

    @property
    def keys(self) -> Path:
        return keys_of(self.place) if is_postgres(self.place) else Path(self.place + ".keys")


def message(user: int, level: LevelFormat, place: int) -> bytes:
    """A ciphertext that tells whose it is; the digest stands for the bytes that nobody reads."""
    name = f"{user:06d}.{level.level}.{place:03d}".encode()
    return (name + hashlib.sha512(name).digest())[: level.ciphertext_bytes]


def user_of(one: bytes) -> int:
    return int(one[:6])


def report(
    user: int,
    token: bytes | None = None,
    *,
    fills: int | None = None,
    levels: Sequence[LevelFormat] = SHAPES,
) -> Arrival:
    parts = [part(user, level) for level in levels]
    return arrival(parts, token, fills=fills, id=id_of(user))


def part(user: int, level: LevelFormat) -> bytes:
    messages = [message(user, level, place) for place in range(level.messages)]
    return b"".join(messages)


def arrival(
    parts: Iterable[bytes],
    token: bytes | None = None,
    *,
    fills: int | None = None,
    id: bytes | None = None,
) -> Arrival:
    """With an id of its own, unless told which."""
    return Arrival(secrets.token_bytes(16) if id is None else id, tuple(parts), token, fills)


def id_of(user: int) -> bytes:
    return hashlib.sha256(b"%d" % user).digest()[:16]


def admit(store: Store, users: Sequence[int]) -> list[Outcome]:
    return store.admit([report(user) for user in users])


def uneven_groups(users: Sequence[int], seed: int) -> list[list[int]]:
    """All users in a random order, in groups that straddle batches."""
    random = np.random.default_rng(seed)
    order = random.permutation(users).tolist()
    cuts = np.cumsum(random.integers(1, 23, len(order)))
    groups = np.split(np.array(order), cuts[cuts < len(order)])
    return [group.tolist() for group in groups]


def messages_in(body: bytes, level: LevelFormat) -> list[bytes]:
    return [one.tobytes() for one in level.ciphertexts(body)]


def users_in(body: bytes, level: LevelFormat) -> list[int]:
    """Whose messages a release or a piece holds: all of each user's, once."""
    found = messages_in(body, level)
    users = sorted({user_of(one) for one in found})
    whole = [message(user, level, i) for user in users for i in range(level.messages)]
    assert Counter(found) == Counter(whole)
    return users


def check_all(store: Store, levels: Sequence[LevelFormat] = SHAPES) -> set[int]:
    """Freeze all that is full: exact batches, which cover the same users at every level."""
    batches = {
        name: users_in(freeze(store, name).body, levels[name.level - 1]) for name in store.full()
    }
    for (place, number), users in batches.items():
        level, lowest = levels[place - 1], levels[0].size
        assert len(users) == level.size
        children = range(number * level.size // lowest, (number + 1) * level.size // lowest)
        assert users == sorted(user for child in children for user in batches[Batch(1, child)])
    return {user for users in batches.values() for user in users}


# --- what other processes do ----------------------------------------------------------------------


def admit_groups(
    where: Where, groups: Sequence[Sequence[int]], levels: Sequence[LevelFormat]
) -> int:
    """Admit groups of users; how many of them this process was the first to bring."""
    with closing(where.open(levels, 10**6)) as store:
        outcomes = [
            outcome
            for group in groups
            for outcome in store.admit([report(user, levels=levels) for user in group])
        ]
    assert set(outcomes) <= {ADMITTED, REPEATED}
    return outcomes.count(ADMITTED)


def freeze_all(where: Where, names: Sequence[Batch], levels: Sequence[LevelFormat]) -> list[bytes]:
    with closing(where.open(levels, 10**6)) as store:
        return [freeze(store, name).body for name in names]


def live(store: Store, say: Callable[[str], object]) -> None:
    """All steps of two levels' batches; what was promised is said after each step."""
    for users in ([1], [2, 3], [4, 5, 6]):
        store.admit([report(user, b"token %d" % user) for user in users])
        say(f"admitted {users[-1]}")
    for name in (Batch(1, 0), Batch(1, 1), Batch(2, 0)):
        release = freeze_unless_scrubbed(store, name)
        if release is not None:
            say(f"frozen {name.level} {name.number} {release.hex()}")
            store.acknowledge_all({name: release})
            say(f"acknowledged {name.level} {name.number}")
    store.scrub()
    say("scrubbed")


def freeze(store: Store, name: Batch) -> Release:
    """The release of a batch that is full and not scrubbed."""
    (release,) = store.freeze_all([name])
    assert isinstance(release, Release)
    return release


def freeze_unless_scrubbed(store: Store, name: Batch) -> bytes | None:
    return next((release.digest for release in store.freeze_all([name])), None)


class Steps:
    """Counts what is asked of the database, and dies before step number `last`."""

    def __init__(self, last: int | None) -> None:
        self.taken, self._last = 0, last

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            if self.taken == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
            self.taken += 1
            return function(*arguments, **options)

        return step


class CountedConnection:
    """A connection of SQLite whose statements are steps."""

    def __init__(self, connection: Any, steps: Steps) -> None:
        self._connection = connection
        self.execute = steps.counted(connection.execute)
        self.executemany = steps.counted(connection.executemany)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def count_statements(database: Database, steps: Steps) -> None:
    """Make every statement of a database a step: for a process that dies, nothing is undone."""
    if isinstance(database, SqliteDatabase):
        counted = CountedConnection(database._connection, steps)
        database._connection = counted  # type: ignore[assignment]
    else:
        kind, whole = PostgresTransaction, PostgresDatabase
        kind._run = steps.counted(kind._run)  # type: ignore[method-assign]
        kind.change_many = steps.counted(kind.change_many)  # type: ignore[method-assign]
        whole._ask_claims = steps.counted(whole._ask_claims)  # type: ignore[method-assign]


def live_and_die(where: Where, notes: str, last: int | None) -> int:
    """Run `live` until step `last`, with notes in a file; how many steps there are."""
    steps, store = Steps(last), where.open()
    count_statements(store._database, steps)
    with Path(notes).open("a", buffering=1) as file:
        live(store, lambda said: file.write(said + "\n"))
    return steps.taken


def die_at_each_step(cases: Sequence[tuple[Where, str, int]]) -> list[int]:
    """How each case ended, in a child of its own."""
    return [end_of_child(live_and_die, *case) for case in cases]


def end_of_child(function: Callable[..., object], *arguments: Any) -> int:
    """How a child ends that runs this; forked because a fresh process takes a second."""
    child = os.fork()
    if child == 0:
        try:
            function(*arguments)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
