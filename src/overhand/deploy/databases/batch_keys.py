"""The keys of a store's batches, each of which is destroyed when its batch is done.

A database leaves copies behind that nobody can take back: a log, its archive, backups, pages that
were moved. So what it has of a batch is sealed under keys that the database never sees. They are
in a small file: from a batch's key follow those of all later batches of its level, and of no
earlier one. When a batch is done, the file is overwritten with the next key, and no copy of its
data can be read any more.

In the shuffler's store a batch is done when it is one release, in random order and added up: its
pieces would tell, with the server's key, who sent what. In the server's database it is done when
its sum is there: opening it again would draw new noise, and the same batch with two noises is
hidden less than with one.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from overhand.deploy.protocol.keys import UnsafeSecret, read_secret, wait_for_lock, write_secret
from overhand.deploy.protocol.wire import Batch
from overhand.errors import InvalidValue, ProtocolViolation

MARK_BYTES = 16
STATE = (1 << 64) - 1
"""In the place of a batch's own reports, for the state of noise that is sealed under its key."""
MOST_HELD = 16
"""Batches of a level that wait, or never came, whose keys do not keep those of later ones.

All that can be done with batches is done at once, in their order: what waits longer is damaged."""

_KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG_BYTES = 16
SEALED_BYTES = _NONCE_BYTES + _TAG_BYTES
"""By how much what is sealed is longer."""

_DIGEST_BYTES = hashlib.sha256().digest_size
_MAGIC = b"OVK"
_VERSION = 2  # the digit after the magic
_HEADER = struct.Struct(f">4s{_KEY_BYTES}s{_DIGEST_BYTES}s?H")
_LEVEL = struct.Struct(">HB")
_LINK = struct.Struct(f">Q{_KEY_BYTES}s")
_LINKS = 1 + MOST_HELD
_BATCH = struct.Struct(">HQQ")


class KeyGone(ProtocolViolation):
    """A batch whose key was destroyed: it is done, or was in a newer copy of the database."""


class BatchKeys:
    """The keys in the file `path`, which only its owner may read.

    Many threads and processes may use one file. A copy on another machine is moved on by the
    processes there; a batch is beyond reach when all copies are.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = Lock()
        content = read_secret(path)
        self._saved = _parse(content, self._path)
        self._is_whole = content == 2 * self._saved.record()  # or a crash left older keys in it

    @classmethod
    def create(cls, path: str | Path, levels: Sequence[int], document: bytes) -> BatchKeys:
        """New keys in a new file, for a store of the document with this digest."""
        draw = partial(secrets.token_bytes, _KEY_BYTES)
        fresh = {level: _LevelKeys(_Link(0, draw()), {}) for level in levels}
        record = _Saved(draw(), document, False, fresh).record()
        write_secret(path, record + record)
        return cls(path)

    @classmethod
    def for_new_store(cls, path: Path, document: bytes, noun: str, advice: str) -> BatchKeys:
        """Those for a new store of a document, which has had no other.

        `noun` is what its operator calls it, `advice` what can be done if it had one.
        """
        keys = cls(path)
        if keys._saved.document != document:
            raise InvalidValue(
                f"{path} has the keys of another document's {noun}: name another file with "
                f"--{noun}-keys"
            )
        if keys._saved.is_claimed:
            raise InvalidValue(
                f"this document was served before: {path} has the keys of its {noun}, and that "
                f"{noun} is not here. {advice}"
            )
        return keys

    @classmethod
    def for_store(
        cls, path: Path, name: str, levels: Sequence[int], noun: str, advice: str
    ) -> BatchKeys:
        """Those that a store was made with, by the name that it has for them."""
        if not path.exists():
            raise UnsafeSecret(
                f"there is no file {path} with the keys of the {noun}: if another machine has the "
                f"same {noun}, copy its file. {advice}"
            )
        keys = cls(path)
        if (keys.name, keys.levels) != (name, list(levels)):
            raise InvalidValue(f"{path} has the keys of another {noun}")
        return keys

    @property
    def levels(self) -> list[int]:
        return list(self._saved.levels)

    def claim(self) -> None:
        """They belong to a database now."""
        if not self._saved.is_claimed:
            with self._lock, self._hold_file() as (file, saved):
                _overwrite(file, saved._replace(is_claimed=True).record())
                self._saved = self._saved._replace(is_claimed=True)

    def has(self, batch: Batch) -> bool:
        """Whether the key of a batch is still there."""
        with self._lock:
            return self._saved.levels[batch.level].has(batch.number)

    def has_from(self, batch: Batch) -> bool:
        """Whether the keys of a batch and of all later ones of its level are still there."""
        with self._lock:
            return batch.number >= self._saved.levels[batch.level].first.number

    @property
    def name(self) -> str:
        """What tells these keys from others, and gives nothing away."""
        return self.mark(b"name", b"").hex()

    def mark(self, kind: bytes, content: bytes) -> bytes:
        """What is kept of something to know it again.

        Keyed, because otherwise the store and a release would show which messages make up a report.
        """
        return hashlib.blake2b(
            content, digest_size=MARK_BYTES, key=self._saved.marking, person=kind
        ).digest()

    def seal(self, batch: Batch, own: int, body: bytes) -> bytes:
        """Messages of a batch, of which this many reports are the service's own."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher(batch).encrypt(nonce, body, _BATCH.pack(*batch, own))

    def open(self, batch: Batch, own: int, sealed: bytes) -> bytes:
        """The messages, or `ProtocolViolation` if these are not what was sealed."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher(batch).decrypt(nonce, rest, _BATCH.pack(*batch, own))
        except (InvalidTag, ValueError):
            raise ProtocolViolation(f"the messages of {batch} are not what was stored") from None

    def _cipher(self, batch: Batch) -> AESGCM:
        with self._lock:
            return AESGCM(self._saved.levels[batch.level].seal(batch.number))

    def keep_only(self, needed: Mapping[int, Collection[int]]) -> None:
        """Destroy all keys, here and in the file, but those of these batches, by level.

        The last of a level that is needed is the open one: all after it are kept as well. If many
        wait, the keys of some that do not are kept with theirs.
        """
        with self._lock:
            known = self._saved.levels
            if self._is_whole and all(known[one].keeps_only(needed[one]) for one in needed):
                return
            with self._hold_file() as (file, saved):
                left = {one: known[one].narrow(needed[one], saved.levels[one]) for one in needed}
                saved = saved._replace(levels=left)
                _overwrite(file, saved.record())
            self._is_whole, self._saved = True, saved

    @contextmanager
    def _hold_file(self) -> Iterator[tuple[int, _Saved]]:
        """The file and what it says now, which no other process changes meanwhile."""
        try:
            file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
            try:
                wait_for_lock(file)
                saved = _parse(os.pread(file, os.fstat(file).st_size, 0), self._path)
                if saved.marking != self._saved.marking:
                    raise UnsafeSecret(f"{self._path} now has other keys")
                yield file, saved
            finally:
                os.close(file)
        except OSError as error:
            raise UnsafeSecret(f"cannot write {self._path}: {error}") from error


class _Link(NamedTuple):
    """A batch's place in the chain of its level."""

    number: int
    key: bytes


class _LevelKeys:
    """The keys of a level's batches: each link is made of the one before, each key of its link.

    The chain goes on from its first link; of batches before that some keys are held.
    """

    def __init__(self, first: _Link, held: dict[int, bytes]) -> None:
        self.first, self.held = first, held
        self._links = [first.key]

    def has(self, number: int) -> bool:
        return number >= self.first.number or number in self.held

    def seal(self, number: int) -> bytes:
        """The key of a batch."""
        if not self.has(number):
            first = self.first.number
            raise KeyGone(f"the key of batch {number} is gone, the first is that of {first}")
        if number in self.held:
            return self.held[number]
        return hmac.digest(self._link(number).key, b"seal", "sha256")

    def _link(self, number: int) -> _Link:
        first = self.first.number
        while len(self._links) <= number - first:
            self._links.append(hmac.digest(self._links[-1], b"next", "sha256"))
        return _Link(number, self._links[number - first])

    def keeps_only(self, numbers: Collection[int]) -> bool:
        held, first = _divide(numbers)
        return first <= self.first.number and self.held.keys() <= set(held)

    def narrow(self, numbers: Collection[int], file: _LevelKeys) -> _LevelKeys:
        """What is left if only these are needed; what another process has destroyed stays so."""
        needed = {number for number in numbers if self.has(number) and file.has(number)}
        frontier = max(self.first.number, file.first.number)
        held, first = _divide({*needed, max([frontier, *needed])})
        return _LevelKeys(self._link(first), {number: self.seal(number) for number in held})


def _divide(numbers: Collection[int]) -> tuple[list[int], int]:
    """The batches whose keys are kept one by one, and the first of the others."""
    ordered = sorted(numbers)
    held = ordered[: min(MOST_HELD, len(ordered) - 1)]
    return held, ordered[len(held)]


class _Saved(NamedTuple):
    """What is in the file."""

    marking: bytes
    document: bytes
    is_claimed: bool
    """Whether a database was opened with the keys: they are for no other."""
    levels: dict[int, _LevelKeys]

    def record(self) -> bytes:
        """Of a length that never changes, with a digest at its end."""
        body = _HEADER.pack(_MAGIC + b"%d" % _VERSION, *self[:-1], len(self.levels))
        for level, keys in self.levels.items():
            links = [keys.first, *keys.held.items()]
            links += [(0, bytes(_KEY_BYTES))] * (_LINKS - len(links))
            body += _LEVEL.pack(level, len(keys.held))
            body += b"".join(_LINK.pack(*link) for link in links)
        return body + hashlib.sha256(body).digest()


def _parse(content: bytes, path: Path) -> _Saved:
    """The first of the file's two records, or the second if the first was being written."""
    if (version := _version(content)) > _VERSION:  # also if it was still writing the second record
        raise UnsafeSecret(
            f"{path} has schema {version}, but this program only knows up to {_VERSION}: run the "
            "newer version"
        )
    half = len(content) // 2
    for record in (content[:half], content[half:]):
        body, digest = record[:-_DIGEST_BYTES], record[-_DIGEST_BYTES:]
        if _version(body) == _VERSION and hashlib.sha256(body).digest() == digest:
            return _read(body)
    raise UnsafeSecret(f"{path} does not hold the keys of batches, or is damaged")


def _version(content: bytes) -> int:
    """That of a file or record of keys; of anything else 0."""
    digit = content[len(_MAGIC) : len(_MAGIC) + 1]
    return int(digit) if content.startswith(_MAGIC) and digit.isdigit() else 0


def _read(body: bytes) -> _Saved:
    _, marking, document, is_claimed, count = _HEADER.unpack_from(body)
    levels, place = {}, _HEADER.size
    for _ in range(count):
        level, held = _LEVEL.unpack_from(body, place)
        place += _LEVEL.size
        links = [_Link(*_LINK.unpack_from(body, place + i * _LINK.size)) for i in range(1 + held)]
        levels[level] = _LevelKeys(links[0], dict(links[1:]))
        place += _LINKS * _LINK.size
    return _Saved(marking, document, is_claimed, levels)


def _overwrite(file: int, record: bytes) -> None:
    """In place, so that no block keeps what was there; one of the two records is always whole."""
    for place in (0, len(record)):
        os.pwrite(file, record, place)
        os.fsync(file)
