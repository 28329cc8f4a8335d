"""Sealing single messages to the server, and opening those of a release.

HPKE (RFC 9180), base mode, X25519, HKDF-SHA256, AES-128-GCM. Every message is sealed on its own:
a key shared by the messages of one report would tell which belong together. `info` is the same for
all messages of a level, so it links none, and a message of another plan or level does not open.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Protocol

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from overhand import errors
from overhand.model import Shuffled
from overhand.service.protocol.keys import KEY_BYTES, KeyPair
from overhand.service.protocol.wire import (
    DIGEST_BYTES,
    MOST_LEVELS,
    VERSION,
    Formats,
    LevelFormat,
    Release,
)

SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_128_GCM)

_AT_ONCE = 1 << 14

Opened = bytes | None
"""A plaintext, or None for a ciphertext that does not open."""


class Opens(Protocol):
    """What opens ciphertexts: here and now, or in many processes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> Iterable[Opened]:
        """The plaintexts, in order."""


def info(digest: bytes, level: int) -> bytes:
    """What a message is bound to: version, plan and level.

    >>> info(bytes(32), 2)[:10], len(info(bytes(32), 2))
    (b'overhand/2', 43)
    """
    if len(digest) != DIGEST_BYTES:
        raise errors.InvalidValue(f"a digest has {DIGEST_BYTES} bytes, not {len(digest)}")
    number = errors.whole("level", level, least=1, most=MOST_LEVELS)
    return f"overhand/{VERSION}".encode() + digest + bytes([number])


class Sealer:
    """Seals messages of one plan to the server's public key."""

    def __init__(self, public_key: bytes, digest: bytes) -> None:
        if len(public_key) != KEY_BYTES:
            raise errors.InvalidValue(f"a public key has {KEY_BYTES} bytes, not {len(public_key)}")
        self._key = X25519PublicKey.from_public_bytes(public_key)
        self._digest = digest
        bound = info(digest, 1)
        try:
            SUITE.encrypt(b"", self._key, bound)
        except (ValueError, InvalidTag):
            raise errors.InvalidValue("the public key is weak: it would hide nothing") from None

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> list[bytes]:
        """One ciphertext per message."""
        bound = info(self._digest, level)
        return [SUITE.encrypt(plaintext, self._key, bound) for plaintext in plaintexts]


class Opener:
    """Opens messages of one plan."""

    def __init__(self, key: KeyPair, digest: bytes) -> None:
        self._key = key.private_key
        self._digest = digest

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[Opened]:
        """The plaintexts, in order; garbage is None, never an exception."""
        bound = info(self._digest, level)
        return [self._opened(ciphertext, bound) for ciphertext in ciphertexts]

    def _opened(self, ciphertext: bytes, bound: bytes) -> Opened:
        try:
            return SUITE.decrypt(ciphertext, self._key, bound)
        except InvalidTag:
            return None


def struck_out(messages: NDArray[np.uint8], places: NDArray[np.intp]) -> NDArray[np.uint8]:
    """Ciphertexts, one per row, with bytes that nobody can open at these places.

    Whoever opens them counts garbage, which any client may send.
    """
    result, width = messages.copy(), messages.shape[1]
    junk = np.frombuffer(secrets.token_bytes(len(places) * width), np.uint8)
    result[places] = junk.reshape(len(places), width)
    return result


def open_release(formats: Formats, release: Release, opener: Opens) -> tuple[Shuffled, int]:
    """The messages of a release that can be read, and how many cannot.

    A ciphertext that repeats another is garbage.
    """
    level = formats.level(release.batch.level)
    distinct = level.distinct(release.body, release.own)
    messages = readable(opener.open(level.level, _one_by_one(distinct)), level)
    shuffled = Shuffled(messages[np.newaxis], level.clear(release.body)[np.newaxis])
    return shuffled, level.batch_messages(release.own) - len(messages)


def _one_by_one(ciphertexts: NDArray[np.void]) -> Iterator[bytes]:
    for start in range(0, len(ciphertexts), _AT_ONCE):
        yield from ciphertexts[start : start + _AT_ONCE].tolist()


def readable(opened: Iterable[Opened], level: LevelFormat) -> NDArray[Any]:
    """The messages among what was opened.

    Garbage is what did not open, has the wrong length, or is not below 2^message_bits.
    """
    plaintexts, found = iter(opened), [level.bytes_to_messages([])]
    while some := list(islice(plaintexts, _AT_ONCE)):
        whole = [p for p in some if p is not None and len(p) == level.plaintext_bytes]
        messages = level.bytes_to_messages(whole)
        if level.has_numbers:
            messages = messages[messages <= np.uint64((1 << level.message_bits) - 1)]
        found.append(messages)
    return np.concatenate(found)
