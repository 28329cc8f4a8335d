"""The keys of a store's batches, each of which is destroyed with its batch.

A database leaves copies behind that nobody can take back: a log, its archive, backups, pages that
were moved. With the server's key they would tell who sent what. So whatever a store writes is
sealed under keys that the database never sees. They are in a small file: from a batch's key follow
those of all later batches of its level, and of no earlier one. When nothing of a batch is left, the
file is overwritten with the next key, and no copy of the batch can be read any more.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from overhand.errors import ProtocolViolation
from overhand.service.keys import UnsafeSecret, read_secret, write_secret
from overhand.service.stores.store import BatchName

MARK_BYTES = 16
_KEY_BYTES = 32
_NONCE_BYTES = 12
_MAGIC = b"OVK1"
_HEADER = struct.Struct(f">4s{_KEY_BYTES}sH")
_LINK = struct.Struct(f">HQ{_KEY_BYTES}s")
_BATCH = struct.Struct(">HQQ")
_DIGEST_BYTES = hashlib.sha256().digest_size


class KeyGone(ProtocolViolation):
    """A batch whose key was destroyed: nothing was left of it."""


class BatchKeys:
    """The keys in the file `path`, which only its owner may read.

    Many threads and processes may use one file. A copy on another machine is moved on by the
    processes there; a batch is beyond reach when all copies are.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._lock = Lock()
        content = read_secret(path)
        saved = _parsed(content, self._path)
        self._is_whole = content == 2 * saved.record()  # or a crash left older keys in it
        self._marking = saved.marking
        self._chains = {level: _Chain(*link) for level, link in saved.links.items()}

    @classmethod
    def create(cls, path: str | Path, levels: Sequence[int]) -> BatchKeys:
        """New keys in a new file."""
        links = {level: _Link(0, secrets.token_bytes(_KEY_BYTES)) for level in levels}
        record = _Saved(secrets.token_bytes(_KEY_BYTES), links).record()
        write_secret(path, record + record)
        return cls(path)

    @property
    def firsts(self) -> dict[int, int]:
        """By level, the number of the first batch whose key is still there."""
        return {level: chain.first for level, chain in self._chains.items()}

    @property
    def name(self) -> str:
        """What tells these keys from others, and gives nothing away."""
        return self.mark(b"name", b"").hex()

    def mark(self, kind: bytes, content: bytes) -> bytes:
        """What is kept of something to know it again.

        Keyed, or whoever has the store and a release could try which messages make up a report.
        """
        return hashlib.blake2b(
            content, digest_size=MARK_BYTES, key=self._marking, person=kind
        ).digest()

    def seal(self, name: BatchName, own: int, body: bytes) -> bytes:
        """Messages of a batch, of which so many reports are the service's own."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher(name).encrypt(nonce, body, _BATCH.pack(*name, own))

    def open(self, name: BatchName, own: int, sealed: bytes) -> bytes:
        """The messages, or `ProtocolViolation` if these are not what was sealed."""
        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            return self._cipher(name).decrypt(nonce, rest, _BATCH.pack(*name, own))
        except (InvalidTag, ValueError):
            raise ProtocolViolation(f"the messages of {name} are not what was stored") from None

    def _cipher(self, name: BatchName) -> AESGCM:
        with self._lock:
            link = self._chains[name.level].link(name.number)
        return AESGCM(hmac.digest(link.key, b"seal", "sha256"))

    def destroy_before(self, firsts: Mapping[int, int]) -> None:
        """Destroy the keys of all batches before these, by level, here and in the file."""
        with self._lock:
            is_done = all(chain.first >= firsts[level] for level, chain in self._chains.items())
            if is_done and self._is_whole:
                return
            with _held(self._path) as file:
                saved = _parsed(os.pread(file, os.fstat(file).st_size, 0), self._path)
                if saved.marking != self._marking:
                    raise UnsafeSecret(f"{self._path} has the keys of another store")
                # Another process may have come further than this one; nobody goes back.
                links = {
                    level: chain.link(max(chain.first, firsts[level], saved.links[level].number))
                    for level, chain in self._chains.items()
                }
                _overwrite(file, _Saved(self._marking, links).record())
            self._is_whole = True
            self._chains = {level: _Chain(*link) for level, link in links.items()}


class _Link(NamedTuple):
    """The key of a batch."""

    number: int
    key: bytes


class _Chain:
    """The keys of a level's batches, each made of the one before, from some number on."""

    def __init__(self, number: int, key: bytes) -> None:
        self.first = number
        self._keys = [key]

    def link(self, number: int) -> _Link:
        if number < self.first:
            raise KeyGone(f"the key of batch {number} is gone, the first is that of {self.first}")
        while len(self._keys) <= number - self.first:
            self._keys.append(hmac.digest(self._keys[-1], b"next", "sha256"))
        return _Link(number, self._keys[number - self.first])


class _Saved(NamedTuple):
    """What is in the file."""

    marking: bytes
    links: dict[int, _Link]

    def record(self) -> bytes:
        """Of a length that never changes, with a digest at its end."""
        body = _HEADER.pack(_MAGIC, self.marking, len(self.links))
        body += b"".join(_LINK.pack(level, *link) for level, link in self.links.items())
        return body + hashlib.sha256(body).digest()


def _parsed(content: bytes, path: Path) -> _Saved:
    """The first of the file's two records, or the second if the first was being written."""
    half = len(content) // 2
    for record in (content[:half], content[half:]):
        body, digest = record[:-_DIGEST_BYTES], record[-_DIGEST_BYTES:]
        if body[: len(_MAGIC)] == _MAGIC and hashlib.sha256(body).digest() == digest:
            _, marking, _ = _HEADER.unpack_from(body)
            links = _LINK.iter_unpack(body[_HEADER.size :])
            return _Saved(marking, {level: _Link(number, key) for level, number, key in links})
    raise UnsafeSecret(f"{path} does not hold the keys of a store, or is damaged")


@contextmanager
def _held(path: Path) -> Iterator[int]:
    """The file, which no other process changes meanwhile."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)
    except OSError as error:
        raise UnsafeSecret(f"cannot write {path}: {error}") from error


def _overwrite(file: int, record: bytes) -> None:
    """In place, so that no block keeps what was there; one of the two records is always whole."""
    for place in (0, len(record)):
        os.pwrite(file, record, place)
        os.fsync(file)
