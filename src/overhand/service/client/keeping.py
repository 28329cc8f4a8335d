"""The reports that a device has made, in a file: none is made again, and each can be sent again.

The file is `OVC1` (`OVK1` if an older version wrote it), the SHA-256 of what follows, and for every
report whether it was delivered (1 byte), its length (4 bytes, big endian) and its bytes, which say
for which document it was made.
A recommender's rule that was seen last is there like a report that was delivered, behind `OVL1` and
the digest of its document.
A file that is not exactly that is refused: if it is unknown how many reports were made, no more are
made.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from overhand.errors import InvalidValue
from overhand.service.client.failures import AlreadyReported
from overhand.service.protocol import (
    REPORT_MAGIC,
    Document,
    UnsafeSecret,
    replace_secret,
    write_secret,
)

_MAGIC = b"OVC1"
_OLD_MAGIC = b"OVK1"  # which is that of the keys of batches as well
_RULE_MAGIC = b"OVL1"
_HEAD_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_ENTRY = struct.Struct(">?I")


class _Kept(NamedTuple):
    """A report, and whether a service said that it counted it."""

    is_delivered: bool
    report: bytes

    def is_for(self, document: Document) -> bool:
        return self.report.startswith(REPORT_MAGIC + document.formats.digest)

    def is_rule_of(self, document: Document) -> bool:
        return self.report.startswith(_RULE_MAGIC + document.formats.digest)


class KeptReports:
    """The reports of one person's device, which outlive the program that made them.

    There need not be a file yet. If it is lost, nobody knows that reports were made: keep it where
    the device keeps what it must not lose.

    >>> import tempfile
    >>> import overhand as oh
    >>> from overhand.service.protocol import KeyPair, encode_report
    >>> plan = oh.Plan.best(300, 2, oh.Privacy(1.0, 1e-6), noise="services")
    >>> document = Document(plan, KeyPair.generate().public_key)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = KeptReports(Path(folder, "reports"))
    ...     (made,) = kept.sealed(
    ...         document, 1, lambda: [encode_report(document, 1, oh.secure_random())]
    ...     )
    ...     assert kept.undelivered(document) == [made]
    ...     kept.note_delivered([made])
    ...     kept.undelivered(document)
    []
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).resolve()  # the same file, wherever the program goes

    @classmethod
    def create(cls, path: Path, reports: Iterable[bytes]) -> KeptReports:
        """Reports that are already made and were not delivered, in a new file."""
        write_secret(path, _packed(_Kept(False, report) for report in reports))
        return cls(path)

    def sealed(
        self, document: Document, count: int, encode: Callable[[], list[bytes]]
    ) -> list[bytes]:
        """`count` reports for this document, made by `encode` and saved before anyone gets them.

        `AlreadyReported` if that would be more than the plan allows per person: then none is made.
        """
        most = document.plan.reports
        if count > most:
            raise InvalidValue(f"{count} values: the plan allows {most} reports per person")
        with self._held() as kept:
            self._check_left(document, [one for one in kept if one.is_for(document)], count)
            made = encode()
            self._replace([*kept, *(_Kept(False, report) for report in made)])
        return made

    def _check_left(self, document: Document, made: Collection[_Kept], count: int) -> None:
        most = document.plan.reports
        if len(made) + count <= most:
            return
        left = [one.report for one in made if not one.is_delivered]
        advice = f"; {len(left)} of them are not known to be delivered: resend them" if left else ""
        raise AlreadyReported(
            f"{len(made)} of the {most} reports that the plan allows per person are in "
            f"{self._path}, so {count} more cannot be made{advice}",
            left,
            len(made) - len(left),
        )

    def made(self, document: Document) -> int:
        """How many reports were made for this document."""
        return sum(one.is_for(document) for one in self._read())

    def undelivered(self, document: Document) -> list[bytes]:
        """Those of them that are not known to be delivered."""
        kept = self._read()
        return [one.report for one in kept if one.is_for(document) and not one.is_delivered]

    def note_delivered(self, reports: Iterable[bytes]) -> None:
        """These need not be sent again."""
        delivered = set(reports)
        if delivered:
            with self._held() as kept:
                noted = [_Kept(is_done or r in delivered, r) for is_done, r in kept]
                if noted != kept:
                    self._replace(noted)

    def rule(self, document: Document) -> bytes | None:
        """The rule of this document that was seen last, as it was signed."""
        rules = (one.report for one in self._read() if one.is_rule_of(document))
        head = len(_RULE_MAGIC + document.formats.digest)
        return next((rule[head:] for rule in rules), None)

    def keep_rule(self, document: Document, rule: bytes) -> None:
        """This one was seen last."""
        with self._held() as kept:
            others = (one for one in kept if not one.is_rule_of(document))
            self._replace([*others, _Kept(True, _RULE_MAGIC + document.formats.digest + rule)])

    @contextmanager
    def _held(self) -> Iterator[list[_Kept]]:
        """What is kept now; no other process changes it meanwhile.

        The lock has a file of its own: this one is replaced, and nobody would wait for the old one.
        """
        beside = self._path.with_name(f".{self._path.name}.lock")
        try:
            lock = os.open(beside, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield self._read()
            finally:
                os.close(lock)
        except OSError as error:
            raise UnsafeSecret(f"cannot keep reports in {self._path}: {error}") from error

    def _read(self) -> list[_Kept]:
        try:
            return _parsed(self._path.read_bytes(), self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnsafeSecret(f"cannot read {self._path}: {error}") from error

    def _replace(self, kept: Iterable[_Kept]) -> None:
        replace_secret(self._path, _packed(kept))


def _packed(kept: Iterable[_Kept]) -> bytes:
    body = b"".join(_ENTRY.pack(done, len(report)) + report for done, report in kept)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _parsed(content: bytes, path: Path) -> list[_Kept]:
    body = content[_HEAD_BYTES:]
    digest = hashlib.sha256(body).digest()
    if content[:_HEAD_BYTES] not in (_MAGIC + digest, _OLD_MAGIC + digest):
        raise UnsafeSecret(
            f"{path} does not hold reports, or is damaged: it is unknown which were made"
        )
    kept, place = list[_Kept](), 0
    while place < len(body):
        is_delivered, length = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size + length
        kept.append(_Kept(is_delivered, body[place - length : place]))
    return kept
