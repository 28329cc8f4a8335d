"""The public document: what a client needs to know, and the reports that are made for it.

It holds the plan's parameters and the server's public key. The server writes it, the shuffling
service pins its `digest` and gives the same bytes to every client; a client never takes it from the
server, which could give each client its own key and so tell them apart.

There is one way to write a document. Any other text is refused: with an unknown field, another
order or another space it could carry a mark, and its digest would differ. So the digest is what
`sha256sum` prints for the file.

A plan has one key for as long as it runs; a new key comes with a new plan.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from overhand import errors
from overhand.bandits import learner_for
from overhand.deploy.protocol.keys import key_id
from overhand.deploy.protocol.learning import Learning, SignedPolicy
from overhand.deploy.protocol.sealing import Sealer, info
from overhand.deploy.protocol.wire import ID_BYTES, VERSION, Formats, LevelFormat, Report
from overhand.mechanisms import Mechanism
from overhand.model import Messages, Rows
from overhand.planning import Plan, fields_of, parameters
from overhand.randomness import Random

_FLOAT_MARGIN = 1e-9
_MOST_CHARACTERS = 1 << 18
_WIDEST_NOISE = float(1 << 20)
"""Steps of standard deviation: tables of wider noise fit into no ordinary memory."""
_MOST_STEPS = 1 << 20
"""Noise that can be deployed hides no finer ones, and the accountant tabulates a shift by them."""

_UNREADABLE = (
    errors.OverhandError,
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


class DamagedDocument(errors.DamagedPlan):
    """A document that no server of this version wrote."""


@dataclass(frozen=True)
class Document:
    """A plan that can be deployed, and the key that its messages are sealed to.

    A recommender's document also says how it learns.
    """

    plan: Plan
    public_key: bytes
    learning: Learning | None = None

    def __post_init__(self) -> None:
        if self.learning is not None:
            learner_for(self.plan, self.learning.learner)
        self._check_noise()
        _ = self.formats, self.sealer  # refuse what cannot be sent, or sealed

    def _check_noise(self) -> None:
        """A short report may still require endless work: shares carry noise of any width."""
        for level, mechanism in enumerate(self.plan.mechanisms, start=1):
            errors.whole("steps", mechanism.steps, least=1, most=_MOST_STEPS)
            if mechanism.noise_by == "services":
                continue
            width = math.sqrt(mechanism.noise().variance)
            if not width <= _WIDEST_NOISE:
                raise errors.InvalidValue(
                    f"the noise of level {level} has a standard deviation of {width:.3g} steps: "
                    f"at most {_WIDEST_NOISE:.3g} can be deployed"
                )

    @cached_property
    def formats(self) -> Formats:
        """The layout of everything that is sent under this document."""
        return Formats.of(self.plan, self.digest)

    @cached_property
    def sealer(self) -> Sealer:
        """Seals messages for this plan and key."""
        return Sealer(self.public_key, self.formats.digest)

    @cached_property
    def mechanisms(self) -> tuple[Mechanism, ...]:
        """The plan's mechanisms, as they run under this document, lowest level first."""
        digest = self.formats.digest
        levels = enumerate(self.plan.mechanisms, start=1)
        return tuple(mechanism.bind_to(info(digest, level)) for level, mechanism in levels)

    @property
    def key_id(self) -> bytes:
        return key_id(self.public_key)

    @property
    def version(self) -> int:
        return VERSION

    @property
    def constant(self) -> float | None:
        """What the first feature of all arms is, if this is a recommender that goes by it."""
        return None if self.learning is None else self.learning.constants.constant

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the document's text: what the shuffling service pins."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def policy(self, content: str | bytes) -> SignedPolicy:
        """The policy of a text, if the server signed it for this document of a recommender."""
        assert self.learning is not None
        key, dimension = self.learning.policy_key, self.learning.constants.dimension
        return SignedPolicy.from_json(content, key, self.formats.digest, dimension)

    def check_guarantee(self) -> None:
        """Recompute the guarantee; `Infeasible` if the plan spends more than it promises.

        The plan says which noise is added; that it is enough can be computed and need not be
        believed. It takes the accountant a moment, so it is not part of reading.
        """
        spent, promised = self.plan.delta_spent, self.plan.privacy.delta
        if not spent <= promised * (1 + _FLOAT_MARGIN):
            raise errors.Infeasible(
                f"the plan promises {self.plan.privacy} but spends delta={spent:.3g}"
            )

    def to_json(self) -> str:
        """The document's text."""
        entries = {
            "version": self.version,
            "plan": parameters(self.plan),
            "plan_digest": self.plan.digest,
            "public_key": self.public_key.hex(),
            "key_id": self.key_id.hex(),
            **({} if self.learning is None else {"learning": self.learning.entry()}),
        }
        return json.dumps(entries, indent=2) + "\n"

    @classmethod
    def load(cls, path: str | Path, pinned: str | None = None) -> Document:
        """Read a document from a file, if it has the pinned digest."""
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise DamagedDocument(f"cannot read the document {path}: {error}") from error
        return cls.from_bytes(content, pinned)

    @classmethod
    def from_bytes(cls, content: bytes, pinned: str | None = None) -> Document:
        """The document of these bytes, if they have the pinned digest.

        The digest comes first: another document is not worth reading.
        """
        digest = hashlib.sha256(content).hexdigest()
        if pinned is not None and digest != pinned:
            raise errors.InvalidValue(f"the document has the digest {digest}, not {pinned}")
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            raise DamagedDocument(f"the document is not text: {error}") from error
        return cls.from_json(text)

    @classmethod
    def from_json(cls, text: str) -> Document:
        """The document of a text, or `DamagedDocument` if anything in it was changed."""
        if len(text) > _MOST_CHARACTERS:
            raise DamagedDocument(
                f"{len(text)} characters: a document has at most {_MOST_CHARACTERS}"
            )
        try:
            saved = json.loads(text)
            version, written = saved["version"], saved["plan_digest"]
            if version != VERSION:
                raise errors.InvalidValue(f"version {version!r} is not {VERSION}")
            plan = Plan(**fields_of(saved["plan"]))
            if plan.digest != written:
                raise errors.InvalidValue(
                    f"the plan's digest is {plan.digest[:12]}, not {str(written)[:12]}"
                )
            learning = Learning.of_entry(saved["learning"]) if "learning" in saved else None
            document = cls(plan, bytes.fromhex(saved["public_key"]), learning)
            expected = document.to_json()
        except _UNREADABLE as error:
            raise DamagedDocument(f"this is not a document: {error}") from error
        if text != expected:
            raise DamagedDocument("the document is not in its canonical form: it was edited")
        return document


def encode_reports(document: Document, rows: Rows, random: Random) -> list[bytes]:
    """The reports of these checked values: encoded afresh for every level, every message sealed on
    its own.

    Made once and sent until they are acknowledged: another report of the same value has other
    noise, counts again, and costs privacy again.
    """
    formats = document.formats
    levels = zip(formats.levels, document.mechanisms, strict=True)
    parts = [
        _parts(document, level, mechanism.encode_rows(rows, random)) for level, mechanism in levels
    ]
    return [
        formats.pack_report(Report(secrets.token_bytes(ID_BYTES), report))
        for report in zip(*parts, strict=True)
    ]


def _parts(document: Document, level: LevelFormat, messages: Messages) -> list[bytes]:
    """The part of every user for this level."""
    ciphertexts = document.sealer.seal(level.level, level.messages_to_bytes(messages.sealed))
    starts = range(0, len(ciphertexts), level.messages)
    rows = [b"".join(ciphertexts[start : start + level.messages]) for start in starts]
    return [level.pack(row, numbers) for row, numbers in zip(rows, messages.clear, strict=True)]
