"""The reports that a device has made, in a file, and what is said of those that were not counted.

None is made again, and each can be sent again. The file is `OVC1`, the SHA-256 of what follows, and
for every report whether it was delivered (1 byte), its length (4 bytes, big endian) and its bytes,
which say for which document it was made. A recommender's policy that was seen last is there like a
report that was delivered, behind `OVL1` and the digest of its document. A file that is not exactly
that is refused: if it is unknown how many reports were made, no more are made.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import UnsafeSecret, hold_lock, replace_file, write_secret
from overhand.deploy.protocol.wire import REPORT_MAGIC
from overhand.errors import InvalidValue, ServiceError

_MAGIC = b"OVC1"
_POLICY_MAGIC = b"OVL1"
_HEAD_BYTES = len(_MAGIC) + hashlib.sha256().digest_size
_ENTRY = struct.Struct(">?I")


class NotCounted(ServiceError):
    """Reports that were not counted, or may not have been.

    `reports` are their bytes: to try again, `send` those, as often as you like. Reporting the
    value again instead would cost privacy again, and might count twice. `counted` others were
    counted, and nothing that came after was encoded.

    >>> import asyncio
    >>> from overhand.deploy.client import AsyncClient
    >>> from overhand.deploy.transport import Answer
    >>> class Closed:
    ...     async def request(self, method, path, body=None):
    ...         return Answer(410, b'{"error": "all places are taken"}')
    >>> client = AsyncClient("https://shuffle.example", transport=Closed())
    >>> try:
    ...     asyncio.run(client.send(b"an encoded report"))
    ... except NotCounted as error:
    ...     print(error, error.reports)
    POST /v1/reports failed: 410: all places are taken (b'an encoded report',)
    """

    def __init__(self, words: str, reports: Collection[bytes] = (), counted: int = 0) -> None:
        super().__init__(words)
        self.reports = tuple(reports)
        self.counted = counted


class Outdated(NotCounted):
    """The service runs another plan or key now, and certainly did not count this report.

    >>> raise Outdated("POST /v1/reports failed: 409: the document is another", [b"a report"])
    Traceback (most recent call last):
    overhand.deploy.client.journal.Outdated: POST /v1/reports failed: 409: the document is another
    """


class AlreadyReported(NotCounted):
    """A device has made all the reports that the plan allows per person, and makes no more.

    `reports` are those that are not known to be delivered: `resend` sends them. `counted` others
    were delivered.

    >>> raise AlreadyReported("1 of 1 reports is made", [b"a report that was not delivered"])
    Traceback (most recent call last):
    overhand.deploy.client.journal.AlreadyReported: 1 of 1 reports is made
    """


class _Kept(NamedTuple):
    """A report, and whether a service said that it counted it."""

    is_delivered: bool
    report: bytes

    def is_for(self, document: Document, magic: bytes = REPORT_MAGIC) -> bool:
        return self.report.startswith(magic + document.formats.digest)


class ReportJournal:
    """The reports of one person's device, which outlive the program that made them.

    There need not be a file yet. If it is lost, nobody knows that reports were made: keep it where
    the device keeps what it must not lose.

    >>> import tempfile
    >>> import overhand as oh
    >>> from overhand.deploy.protocol.keys import KeyPair
    >>> from overhand.deploy.protocol.document import encode_reports
    >>> plan = oh.Plan.best(300, epsilon=1.0, delta=1e-6, mechanism="pairs")
    >>> document = Document(plan, KeyPair.generate().public_key)
    >>> rows, random = plan.values.rows([1]), oh.secure_random()
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = ReportJournal(Path(folder, "reports"))
    ...     (made,) = kept.make(document, 1, lambda: encode_reports(document, rows, random))
    ...     assert kept.find_undelivered(document) == [made]
    ...     kept.note_delivered([made])
    ...     kept.find_undelivered(document)
    []
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path).resolve()  # the same file, wherever the program goes

    @classmethod
    def create(cls, path: Path, reports: Iterable[bytes]) -> ReportJournal:
        """Reports that are already made and were not delivered, in a new file."""
        write_secret(path, _pack(_Kept(False, report) for report in reports))
        return cls(path)

    def make(
        self, document: Document, count: int, encode: Callable[[], list[bytes]]
    ) -> list[bytes]:
        """`count` reports for this document, made by `encode` and saved before anyone gets them.

        `AlreadyReported` if that would be more than the plan allows per person: then none is made.
        """
        most = document.plan.reports
        if count > most:
            raise InvalidValue(f"{count} values: the plan allows {most} reports per person")
        with self._hold() as kept:
            before = [one for one in kept if one.is_for(document)]
            left = [one.report for one in before if not one.is_delivered]
            if len(before) + count > most:
                advice = f"; {len(left)} of them are not known to be delivered: resend them"
                raise AlreadyReported(
                    f"{len(before)} of the {most} reports that the plan allows per person are in "
                    f"{self._path}, so {count} more cannot be made{advice if left else ''}",
                    left,
                    len(before) - len(left),
                )
            made = encode()
            self._replace([*kept, *(_Kept(False, report) for report in made)])
        return made

    def count_made(self, document: Document) -> int:
        """How many reports were made for this document."""
        return sum(one.is_for(document) for one in self._read())

    def find_undelivered(self, document: Document) -> list[bytes]:
        """Those of them that are not known to be delivered."""
        kept = self._read()
        return [one.report for one in kept if one.is_for(document) and not one.is_delivered]

    def note_delivered(self, reports: Iterable[bytes]) -> None:
        """These need not be sent again."""
        delivered = set(reports)
        if delivered:
            with self._hold() as kept:
                noted = [_Kept(is_done or r in delivered, r) for is_done, r in kept]
                if noted != kept:
                    self._replace(noted)

    def policy(self, document: Document) -> bytes | None:
        """The policy of this document that was seen last, as it was signed."""
        head, kept = len(_POLICY_MAGIC + document.formats.digest), self._read()
        policies = (one.report[head:] for one in kept if one.is_for(document, _POLICY_MAGIC))
        return next(policies, None)

    def keep_policy(self, document: Document, policy: bytes) -> None:
        """This one was seen last."""
        with self._hold() as kept:
            others = (one for one in kept if not one.is_for(document, _POLICY_MAGIC))
            self._replace([*others, _Kept(True, _POLICY_MAGIC + document.formats.digest + policy)])

    @contextmanager
    def _hold(self) -> Iterator[list[_Kept]]:
        """What is kept now; no other process changes it meanwhile.

        The lock has a file of its own: this one is replaced, and nobody would wait for the old one.
        """
        beside = self._path.with_name(f".{self._path.name}.lock")
        try:
            with hold_lock(beside):
                yield self._read()
        except OSError as error:
            raise UnsafeSecret(f"cannot keep reports in {self._path}: {error}") from error

    def _read(self) -> list[_Kept]:
        try:
            return _parse(self._path.read_bytes(), self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UnsafeSecret(f"cannot read {self._path}: {error}") from error

    def _replace(self, kept: Iterable[_Kept]) -> None:
        replace_file(self._path, _pack(kept))


def _pack(kept: Iterable[_Kept]) -> bytes:
    body = b"".join(_ENTRY.pack(done, len(report)) + report for done, report in kept)
    return _MAGIC + hashlib.sha256(body).digest() + body


def _parse(content: bytes, path: Path) -> list[_Kept]:
    body = content[_HEAD_BYTES:]
    digest = hashlib.sha256(body).digest()
    if content[:_HEAD_BYTES] != _MAGIC + digest:
        raise UnsafeSecret(
            f"{path} does not hold reports, or is damaged: it is unknown which were made"
        )
    kept, place = list[_Kept](), 0
    while place < len(body):
        is_delivered, length = _ENTRY.unpack_from(body, place)
        place += _ENTRY.size + length
        kept.append(_Kept(is_delivered, body[place - length : place]))
    return kept
