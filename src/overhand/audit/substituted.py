"""A shuffling service that puts a key of its own into the document, and opens what it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from overhand.audit.attacks import LevelView
from overhand.audit.cases import ONCE, Case, Placement
from overhand.errors import InvalidValue
from overhand.mechanisms import Mechanism
from overhand.model import Floats, Messages
from overhand.plan import Plan
from overhand.randomness import Random

if TYPE_CHECKING:  # all else is audited without the extra `service`
    from overhand.service.protocol import Document, KeyPair
    from overhand.service.web import Answer


@dataclass(frozen=True)
class SubstitutedKey:
    """Real clients fetch the document from a service that has exchanged the server's key for its.

    One that knows the document's digest from elsewhere sends nothing. One that trusts the service,
    the planted fault, shows it all.

    >>> from overhand.model import Privacy
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import BITS
    >>> case = Case("ballots", BITS, 1, 8, Privacy(1.0, 0.01), noise_by="services")
    >>> for trusting in (False, True):
    ...     game = SubstitutedKey.of(case, trusting)
    ...     print([game.play(victim, 2, seeded_random(1), attempt=0).tolist() for victim in (0, 1)])
    [[[0.0, 0.0]], [[0.0, 0.0]]]
    [[[-1.0, -1.0]], [[1.0, 1.0]]]
    """

    plan: Plan
    trusting: bool = False

    names: ClassVar[list[str]] = ["opened"]
    mechanisms: ClassVar[tuple[Mechanism, ...]] = ()  # no law of noise tells what to expect
    placement: ClassVar[Placement] = ONCE

    @classmethod
    def of(cls, case: Case, trusting: bool = False) -> SubstitutedKey:
        return cls(case.plan(), trusting)

    @property
    def levels(self) -> int:
        return self.plan.tree.levels

    @property
    def messages(self) -> int:
        return self.plan.messages_per_user

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """What the service reads of this many clients that hold 0 or 1; 0 for those that refuse."""
        from overhand.service.client import AsyncClient
        from overhand.service.protocol import Document, KeyPair

        key = KeyPair.generate()
        service = _Service(Document(self.plan, key.public_key))
        honest = Document(self.plan, KeyPair.generate().public_key)
        client = AsyncClient(
            "http://unused",
            digest=None if self.trusting else honest.digest,
            trust_service=self.trusting,
            transport=service,
        )
        rows = self.plan.values.opposites(np.full(runs, victim, np.uint8))
        with suppress(InvalidValue):  # another document than the one that it knows
            asyncio.run(client.report_rows(rows))
        read = np.zeros(runs)
        read[: len(service.reports)] = _opened(service.document, key, service.reports)
        return read[np.newaxis]


@dataclass
class _Service:
    """Hands out a document, and keeps what clients send."""

    document: Document
    reports: list[bytes] = field(default_factory=list)

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        from overhand.service.web import Answer

        if body is None:
            return Answer(200, self.document.to_json().encode())
        self.reports.append(body)
        return Answer(200, b'{"status": "counted"}')

    async def close(self) -> None: ...


def _opened(document: Document, key: KeyPair, reports: Sequence[bytes]) -> Floats:
    """How far toward a 1 reports are, by what they say at the lowest level."""
    from overhand.service.protocol import Opener

    level, mechanism, formats = document.formats.level(1), document.mechanisms[0], document.formats
    opener, view, read = Opener(key, formats.digest), LevelView(mechanism), np.zeros(len(reports))
    for place, report in enumerate(reports):
        part = formats.unpack_report(report).parts[0]
        plain = opener.open(1, [row.tobytes() for row in level.ciphertexts(part)])
        messages = level.bytes_to_messages([one for one in plain if one is not None])
        sent = Messages(messages[np.newaxis], level.clear(part)[np.newaxis])
        read[place] = view.toward(mechanism.own_steps(sent)[:, view.coordinates] - view.at_zero)[0]
    return read
