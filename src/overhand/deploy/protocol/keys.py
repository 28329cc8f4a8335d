"""Secrets in files: the server's private key, and the tokens that processes identify with.

A secret's file is made once, whole, readable only by its owner, and never overwritten; a file that
others may read is refused, as ssh does. A file of tokens' hashes changes while a service reads it.

On Windows, where a client may run too, a file's mode says nothing about who reads it: there it is
as private as its folder. The services run elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from overhand.errors import InvalidValue, ServiceError

_MOST_SECRET_BYTES = 1 << 20
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OWNER = stat.S_IRUSR | stat.S_IWUSR

if sys.platform == "win32":
    import msvcrt

    _NOT_INHERITED = os.O_NOINHERIT | os.O_BINARY
    _LOCK_FILE = os.O_RDWR | os.O_CREAT | _NOT_INHERITED
    _NOT_WAITING = 0
    _POLL = 0.01  # seconds

    def wait_for_lock(descriptor: int) -> None:
        """Until no other process holds a file: for as long as it is open here."""
        while True:
            try:
                return msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except PermissionError:
                time.sleep(_POLL)

    def _make_durable(folder: Path) -> None:
        """The system does so by itself."""

    def _open_for_lock(path: Path) -> int:
        return os.open(path / ".lock" if path.is_dir() else path, _LOCK_FILE, _OWNER)

else:
    import fcntl

    _NOT_INHERITED = os.O_CLOEXEC
    _LOCK_FILE = os.O_RDWR | os.O_CREAT | _NOT_INHERITED
    _FOLDER = os.O_RDONLY | os.O_DIRECTORY | _NOT_INHERITED
    _NOT_WAITING = os.O_NONBLOCK

    def wait_for_lock(descriptor: int) -> None:
        """Until no other process holds a file: for as long as it is open here."""
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _make_durable(folder: Path) -> None:
        descriptor = os.open(folder, _FOLDER)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _open_for_lock(path: Path) -> int:
        return os.open(path, _FOLDER if path.is_dir() else _LOCK_FILE, _OWNER)


KEY_BYTES = 32
_HASH = "[0-9a-fA-F]{64}"
KEY_ID_BYTES = 8
TOKEN_BYTES = 32


class UnsafeSecret(ServiceError):
    """A secret's file that is missing, damaged, in the way, or not private."""


def write_secret(path: str | Path, secret: bytes) -> None:
    """Write a new file only its owner can read, durable and whole when its name appears."""
    with _beside(path, secret) as partial:
        os.link(partial, path)  # unlike a rename, it does not replace what is there


def replace_file(target: Path, content: bytes, *, keeps_owner: bool = False) -> None:
    """Replace a file: always the old or the new one is there, whole.

    Readable only by its owner, unless it keeps the owner and mode that it has.
    """
    with _beside(target, content) as partial:
        if keeps_owner:
            _hand_over(partial, os.stat(target))
        os.replace(partial, target)


@contextmanager
def _beside(path: str | Path, content: bytes) -> Iterator[Path]:
    """A file next to this one with the content, until it has its name: that is durable, too."""
    target = Path(path)
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.partial")
    try:
        try:
            _write_durably(partial, content)
            yield partial
        finally:
            partial.unlink(missing_ok=True)
        _make_durable(target.parent)
    except FileExistsError:
        raise UnsafeSecret(f"{path} exists: a secret is never overwritten") from None
    except OSError as error:
        raise UnsafeSecret(f"cannot write {path}: {error}") from error


def _hand_over(path: Path, before: os.stat_result) -> None:
    """Give it to the owner of another file: its reader may not be its writer."""
    now = os.stat(path)
    if sys.platform != "win32" and (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.chown(path, before.st_uid, before.st_gid)
    os.chmod(path, stat.S_IMODE(before.st_mode))


def read_secret(path: str | Path) -> bytes:
    """The bytes of a file that only its owner can read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NOT_INHERITED | _NOT_WAITING)
    except OSError as error:
        raise UnsafeSecret(f"cannot read {path}: {error}") from error
    try:
        mode = os.fstat(descriptor).st_mode  # of the file, not of what is named now
        if not stat.S_ISREG(mode):
            raise UnsafeSecret(f"{path} is not a file")
        if mode & _OTHERS and sys.platform != "win32":
            raise UnsafeSecret(
                f"{path} can be accessed by others (mode {stat.S_IMODE(mode):04o}): chmod 600 it, "
                "and replace the secret if others may have read it"
            )
        return os.read(descriptor, _MOST_SECRET_BYTES)
    finally:
        os.close(descriptor)


def _write_durably(path: Path, secret: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOT_INHERITED, _OWNER)
    with os.fdopen(descriptor, "wb") as file:
        file.write(secret)
        file.flush()
        os.fsync(descriptor)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Wait until no other process holds this lock: a folder, or a file that is made if need be."""
    descriptor = _open_for_lock(path)
    try:
        wait_for_lock(descriptor)
        yield
    finally:
        os.close(descriptor)  # which lets go of it


class _PrivateKey:
    """A private key in a file, and the public one that belongs to it."""

    _kind: ClassVar[Any]
    _name: ClassVar[str]

    def __init__(self, private_key: Any) -> None:
        self.private_key = private_key
        self.public_key: bytes = private_key.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> Self:
        return cls(cls._kind.generate())

    @classmethod
    def of_raw(cls, private_key: bytes) -> Self:
        """The key that has these 32 bytes: how worker processes get it."""
        return cls(cls._kind.from_private_bytes(private_key))

    @property
    def raw(self) -> bytes:
        """The 32 bytes of the private key."""
        return bytes(self.private_key.private_bytes_raw())

    def save(self, path: str | Path) -> None:
        """Write it to a new file that only its owner can read."""
        pem = self.private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_secret(path, pem)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The key of a file that only its owner can read."""
        pem = read_secret(path)
        try:
            private_key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UnsafeSecret(f"{path} is not a private key: {error}") from None
        if not isinstance(private_key, cls._kind):
            raise UnsafeSecret(f"{path} is not an {cls._name} key")
        return cls(private_key)


class KeyPair(_PrivateKey):
    """The server's HPKE key pair. One plan has one key: a new key comes with a new plan."""

    _kind, _name = X25519PrivateKey, "X25519"
    private_key: X25519PrivateKey


class PolicyKey(_PrivateKey):
    """The Ed25519 key by which a server signs the policies of a recommender."""

    _kind, _name = Ed25519PrivateKey, "Ed25519"
    private_key: Ed25519PrivateKey

    def sign(self, content: bytes) -> bytes:
        """A signature, which is the same for the same content."""
        return self.private_key.sign(content)


def key_id(public_key: bytes) -> bytes:
    """What a public key is called: the first 8 bytes of its SHA-256."""
    return hashlib.sha256(public_key).digest()[:KEY_ID_BYTES]


def new_token() -> str:
    """A token that cannot be guessed, in characters that need no quoting."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_token(token: str) -> bytes:
    """What a service that only checks a token keeps of it; a random token needs no salt."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


def matches(token: str, expected: bytes) -> bool:
    """Whether this is the token of that hash, compared in constant time."""
    return hmac.compare_digest(hash_token(token), expected)


def create_token(path: str | Path) -> str:
    """A new token, in a new file."""
    token = new_token()
    write_secret(path, token.encode() + b"\n")
    return token


def load_token(path: str | Path) -> str:
    """The token of a file that only its owner can read."""
    try:
        token = read_secret(path).decode("ascii").strip()
    except UnicodeDecodeError:
        raise UnsafeSecret(f"{path} is not a token") from None
    if len(token) < len(new_token()):
        raise UnsafeSecret(f"{path} holds {len(token)} characters: too few for a token")
    return token


def load_hashes(path: str | Path) -> frozenset[bytes]:
    """The hashes of tokens, in hex, one per line."""
    try:
        lines = Path(path).read_text("ascii").splitlines()
    except (OSError, ValueError) as error:
        raise UnsafeSecret(f"cannot read hashes of tokens from {path}: {error}") from error
    for place, line in enumerate(lines, start=1):
        if re.fullmatch(_HASH, line.strip()) is None:
            raise UnsafeSecret(f"{path}, line {place}: a hash of a token has 64 hexadecimal digits")
    if not lines:
        raise UnsafeSecret(f"{path} does not hold hashes of tokens: it is empty")
    return frozenset(bytes.fromhex(line.strip()) for line in lines)


def hash_lines(hashes: Collection[bytes]) -> bytes:
    """What a file of hashes holds. Sorted: the order must not reveal that of the tokens."""
    return "".join(f"{line}\n" for line in sorted(one.hex() for one in hashes)).encode("ascii")


def change_hashes(
    path: str | Path, *, added: Collection[bytes] = (), revoked: Collection[bytes] = ()
) -> int:
    """Add hashes to a file and remove others, or change nothing; returns how many it has then.

    A reader of the file sees all of the change or none of it. Two writers at the same time wait
    for each other.
    """
    target = Path(path).resolve()  # or a link would be replaced
    try:
        with hold_lock(target.parent):  # the file itself is replaced, so it cannot be held
            before = load_hashes(target)
            unknown = set(revoked) - before
            if unknown:
                words = f"{path} does not have {min(unknown).hex()}: nothing was changed"
                raise InvalidValue(words)
            after = (before - set(revoked)) | set(added)
            if not after:
                raise InvalidValue(
                    f"{path} would be empty, which counts as damaged: stop the service instead"
                )
            replace_file(target, hash_lines(after), keeps_owner=True)
    except OSError as error:
        raise UnsafeSecret(f"cannot change {target}: {error}") from error
    return len(after)
