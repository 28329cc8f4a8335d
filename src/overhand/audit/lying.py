"""A shuffling service that lies: it fills batches around one victim, and reads what is published.

What it sends goes to the server's real code, a `Publisher` with its `Book`. Sealing is replaced, as
for the store: messages stand behind random bytes, unless there is a key.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand.audit.attacks import LevelView
from overhand.audit.cases import ONCE, Case, Placement, base, messages_of, moves
from overhand.audit.service_faults import without_noise
from overhand.audit.store import sealed_behind_noise, temporary_directory, unsealed
from overhand.errors import ProtocolViolation
from overhand.mechanisms import Mechanism, ModularSum
from overhand.model import Counts, Floats, Messages
from overhand.plan import Plan
from overhand.randomness import Random
from overhand.shufflers import with_added

if TYPE_CHECKING:  # all else is audited without the extra `service`
    from overhand.service.protocol import Batch, Document, KeyPair, LevelFormat, Opens, Release

_RUNS_OF_A_BOOK = 64
_UNHEARD = logging.NullHandler()  # every lie raises an alarm at the server: nobody need read them


@dataclass(frozen=True)
class LyingService:
    """The n - 1 attack: one victim in a batch, all else of known value, and no noise added.

    If a person may report more than once, all reports are in that batch, or in a batch each.
    Of every level the service knows all that the server will add up but the victim's value and
    the server's noise. Sums modulo a power of two it moves to the edge of their range, where one
    step more makes the server take a large sum for a small one.

    >>> from overhand.model import Privacy
    >>> from overhand.randomness import seeded_random
    >>> from overhand.values import BITS
    >>> case = Case("ballots", BITS, 1, 8, Privacy(1.0, 0.01), noise_by="services")
    >>> service = LyingService.of(case)
    >>> zero, one = (service.play(victim, 100, seeded_random(1), attempt=0) for victim in (0, 1))
    >>> zero.shape, service.names
    ((2, 100), ['likelihood', 'publications added'])
    """

    plan: Plan
    mechanisms: tuple[Mechanism, ...]
    """What the server has: those of the plan, or of a planted fault."""
    key: KeyPair | None = None
    """The server's, if messages are sealed in earnest."""
    placement: Placement = ONCE

    copies: ClassVar[int] = 1
    """In how many batches of a level each of the victim's messages is put."""
    is_alone: ClassVar[bool] = False
    """Whether all other places of its batches are said to be empty."""
    lives: ClassVar[int] = 1
    """How often the server begins with an empty book: once, unless one was restored."""

    @classmethod
    def of(cls, case: Case, key: KeyPair | None = None) -> LyingService:
        """Against the server of a plan."""
        return cls.against(case, case.deployment().mechanisms, key)

    @classmethod
    def against(
        cls, case: Case, mechanisms: tuple[Mechanism, ...], key: KeyPair | None = None
    ) -> LyingService:
        """Against a server that adds up with these mechanisms."""
        return cls(case.plan(), mechanisms, key, case.placement)

    @property
    def names(self) -> list[str]:
        wrapped = ["wrapped"] if isinstance(self.mechanisms[0], ModularSum) else []
        return ["likelihood", "publications added", *wrapped]

    @property
    def levels(self) -> int:
        return len(self.mechanisms)

    @property
    def messages(self) -> int:
        return messages_of(self.mechanisms)

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """The statistics of this many runs in which the victim holds 0 or 1."""
        starts = range(0, runs, _RUNS_OF_A_BOOK)
        counts = [min(_RUNS_OF_A_BOOK, runs - start) for start in starts]
        return np.concatenate([self._of_a_book(victim, count, random) for count in counts], axis=1)

    def batches(self, run: int, level: int) -> list[Batch]:
        """Where the victim of a run is put at a level: its reports, and copies of each in turn.

        None is left out: a server does not open those behind too many that did not come.
        """
        from overhand.service.protocol import Batch

        first = run * self._batches
        return [Batch(level, number) for number in range(first, first + self._batches)]

    @property
    def _batches(self) -> int:
        return self.placement.batches * self.copies

    def _of_a_book(self, victim: int, runs: int, random: Random) -> Floats:
        releases = list(self._releases(victim, runs, random))
        lives = [_published(self.document, releases, self._opener) for _ in range(self.lives)]
        found = {name: np.zeros(runs) for name in self.names}
        for level, view in enumerate(self._views, start=1):
            for run in range(runs):
                batches = self.batches(run, level)
                values = [sums[one] for sums in lives for one in batches if one in sums]
                if values:
                    self._read(view, np.array(values), run, found)
        return np.stack(list(found.values()))

    def _read(self, view: LevelView, values: Floats, run: int, found: dict[str, Floats]) -> None:
        """Add to the statistics what was published of one victim at one level."""
        mechanism = view.mechanism
        low = mechanism.size * mechanism.values.lows[view.coordinates]
        steps = np.rint((values[:, view.coordinates] - low) / mechanism.unit).astype(np.int64)
        sums, wrapped = _back_from_the_edge(mechanism, steps)
        ratios = view.likelihood(sums + round(mechanism.offset))
        found["likelihood"][run] += ratios[0]
        found["publications added"][run] += ratios.sum()
        if "wrapped" in found:
            found["wrapped"][run] += wrapped[0]

    def _releases(self, victim: int, runs: int, random: Random) -> Iterator[Release]:
        """Level by level, and run by run."""
        from overhand.service.protocol import Batch, Release

        victims = self.plan.values.opposites(np.full(runs * self.plan.reports, victim, np.uint8))
        for level, mechanism in zip(
            self.document.formats.levels, self.document.mechanisms, strict=True
        ):
            own = mechanism.encode_rows(victims, random).gathered(self.placement.reports)
            places = self._empty_places(mechanism)
            sealed = self._sealed(level, own.sealed, random)
            for copy in range(self.copies):
                others = self._around(self._taken(mechanism), own, random)
                ciphertexts = np.concatenate(
                    [sealed, self._sealed(level, others.sealed, random)], axis=1
                )
                for part, (row, clear) in enumerate(zip(ciphertexts, others.clear, strict=True)):
                    batch = Batch(level.level, part * self.copies + copy)
                    yield Release(batch, places, level.pack(row.tobytes(), clear))

    def _empty_places(self, mechanism: Mechanism) -> int:
        return mechanism.size - self.placement.reports if self.is_alone else 0

    def _taken(self, mechanism: Mechanism) -> Mechanism:
        """As the server takes it, for those places that are not empty."""
        return mechanism.with_users(mechanism.size - self._empty_places(mechanism))

    def _around(self, mechanism: Mechanism, own: Messages, random: Random) -> Messages:
        """What the service puts around each victim, and the sum of all that is in the clear."""
        batches, others = len(own.sealed), mechanism.size - self.placement.reports
        around = Messages(own.sealed[:, :0], own.clear)
        if others:
            zeros = mechanism.values.opposites(np.zeros(batches * others, np.uint8))
            sent = mechanism.encode_rows(zeros, random)
            if mechanism.noise_by == "users":
                sent = _without_noise(mechanism, sent)
            sealed, clear = sent.gathered(others)
            around = Messages(sealed, own.clear + clear)
        if mechanism.noise_by == "services":
            around = with_added(around, without_noise(mechanism), random)
        clear = around.clear.copy()
        for coordinate, shift in _to_the_edge(mechanism).items():
            clear[:, coordinate] += np.uint64(shift % 2**mechanism.clear_bits)
        return Messages(around.sealed, clear & np.uint64(2**mechanism.clear_bits - 1))

    def _sealed(self, level: LevelFormat, messages: NDArray[Any], random: Random) -> NDArray[Any]:
        if self.key is None:
            return sealed_behind_noise(level, messages, random)
        plain = level.messages_to_bytes(messages)
        sealed = b"".join(self.document.sealer.seal(level.level, plain))
        return np.frombuffer(sealed, np.uint8).reshape(*messages.shape[:2], -1)

    @cached_property
    def _views(self) -> list[LevelView]:
        """By the law of the noise that the server adds."""
        reports = self.placement.reports
        return [LevelView(self._taken(mechanism), reports) for mechanism in self.mechanisms]

    @cached_property
    def _key(self) -> KeyPair:
        from overhand.service.protocol import KeyPair

        return self.key or KeyPair.generate()

    @cached_property
    def document(self) -> Document:
        from overhand.service.protocol import Document

        users = _RUNS_OF_A_BOOK * self._batches * self.mechanisms[-1].size
        tree = replace(self.plan.tree, horizon=users)
        return Document(
            replace(self.plan, tree=tree, mechanisms=self.mechanisms), self._key.public_key
        )

    @property
    def _opener(self) -> Opens:
        from overhand.service.protocol import Opener

        if self.key is None:
            return _Unsealed()
        return Opener(self.key, self.document.formats.digest)


class _Unsealed:
    """Opens what stands behind random bytes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[bytes | None]:
        return list(map(unsealed, ciphertexts))


def _published(
    document: Document, releases: Sequence[Release], opener: Opens
) -> dict[Batch, tuple[float, ...]]:
    """The sums that the real server makes of releases, if it makes any."""
    from overhand.service.server import Book, Publisher

    logging.getLogger("overhand.service").addHandler(_UNHEARD)
    with temporary_directory() as home:
        Book.make_keys(document, Path(home, "book.keys"))
        with closing(Book.of(document, Path(home, "book"))) as book:
            for release in releases:
                try:
                    book.receive(
                        document.formats.unpack_release(document.formats.pack_release(release))
                    )
                except ProtocolViolation:
                    continue  # the service lies, and goes on
            publisher = Publisher(document, book, opener)
            while publisher.step():
                pass
            sums = book.sums(0, len(releases))
    return {one.batch: one.value for one in sums if one.value is not None}


def _without_noise(mechanism: Mechanism, messages: Messages) -> Messages:
    """Reports of bits that are 0: coins that show what they show on average, or shares of 0."""
    sealed = np.zeros_like(messages.sealed)
    sealed[:, : round(mechanism.offset / mechanism.size)] = 1
    return Messages(sealed, messages.clear)


def _edges(mechanism: Mechanism) -> dict[int, int]:
    """By coordinate, the last residue that is taken for a large sum, or the first for a small."""
    if not isinstance(mechanism, ModularSum) or mechanism.noise_by == "users":
        return {}
    room = (mechanism.modulus - 1 - mechanism.largest_sum) // 2
    edge = mechanism.largest_sum + room
    return {coordinate: edge + (steps < 0) for coordinate, steps in moves(mechanism).items()}


def _to_the_edge(mechanism: Mechanism) -> dict[int, int]:
    """How far the sums of a victim's batch are moved, by coordinate, if it holds 0."""
    known = base(mechanism)
    return {j: edge - int(known[j]) for j, edge in _edges(mechanism).items()}


def _back_from_the_edge(mechanism: Mechanism, steps: Counts) -> tuple[Counts, Floats]:
    """Published sums as they would be had they not been moved, and whether they were wrapped."""
    shifts = np.array(list(_to_the_edge(mechanism).values()), np.int64)
    if not len(shifts):
        return steps, np.zeros(len(steps))
    moved, known = moves(mechanism), base(mechanism)
    at_zero = np.array([known[j] for j in moved], np.int64)
    modulus = 2**mechanism.clear_bits
    from_zero = (steps - shifts - at_zero + modulus // 2) % modulus - modulus // 2
    signs = np.sign(np.array(list(moved.values()), np.int64))
    sides = np.where(steps < mechanism.size * mechanism.steps / 2, signs, -signs)
    return from_zero + at_zero, sides.sum(axis=1).astype(np.float64)
