"""Files of hashes of tokens, which change while a service reads them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from overhand.errors import InvalidValue
from overhand.service.protocol.keys import UnsafeSecret, load_hashes, replace_file


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
    with _held_folder(target):
        before = load_hashes(target)
        unknown = set(revoked) - before
        if unknown:
            raise InvalidValue(f"{path} does not have {min(unknown).hex()}: nothing was changed")
        after = (before - set(revoked)) | set(added)
        if not after:
            raise InvalidValue(
                f"{path} would be empty, which counts as damaged: stop the service instead"
            )
        replace_file(target, hash_lines(after))
    return len(after)


@contextmanager
def _held_folder(target: Path) -> Iterator[None]:
    """Of a file that is replaced, so that it cannot be held itself."""
    try:
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnsafeSecret(f"cannot change {target}: {error}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
