"""A shuffling service that lies to the server or to clients, and the faults that it would find.

It fills batches around one victim, and reads what is published; or it puts a key of its own into
the document, and opens what it is sent. What it sends goes to the server's real code, a `Publisher`
with its `ServerStore`, and what it reads comes from real clients. Towards the server, sealing is
replaced, as for the store: messages stand behind random bytes, unless there is a key.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue, ProtocolViolation
from overhand.lab.audit.attacks import LevelView, about_zero
from overhand.lab.audit.cases import (
    APART,
    ONCE,
    TOGETHER,
    Case,
    Placement,
    base,
    messages_of,
    moves,
)
from overhand.lab.audit.faults import as_kind, halve_noise, without_noise
from overhand.lab.audit.store import seal_behind_noise, temporary_directory, unseal
from overhand.mechanisms import BallotSum, Mechanism, ModularSum, PairsSum
from overhand.model import Counts, Floats, Messages
from overhand.planning import Plan
from overhand.randomness import Random
from overhand.shuffle import with_added

if TYPE_CHECKING:  # all else is audited without the extra `service`
    from overhand.deploy.protocol.document import Document
    from overhand.deploy.protocol.keys import KeyPair
    from overhand.deploy.protocol.wire import Batch, LevelFormat, Release
    from overhand.deploy.transport import Answer

_RUNS_OF_A_STORE = 64
_PLAIN = 60  # one run in this many is enough for a fault that shows the value almost without noise
_UNHEARD = logging.NullHandler()  # every lie raises an alarm at the server: nobody need read them


@dataclass(frozen=True)
class LyingService:
    """The n - 1 attack: one victim in a batch, all else of known value, and no noise added.

    If a person may report more than once, all reports are in that batch, or in a batch each.
    Of every level the service knows all that the server will add up but the victim's value and
    the server's noise. Sums modulo a power of two it moves to the edge of their range, where one
    step more makes the server take a large sum for a small one.
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
    """How often the server begins with an empty database: once, unless one was restored."""

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
        starts = range(0, runs, _RUNS_OF_A_STORE)
        counts = [min(_RUNS_OF_A_STORE, runs - start) for start in starts]
        parts = [self._play_database(victim, count, random) for count in counts]
        return np.concatenate(parts, axis=1)

    def batches(self, run: int, level: int) -> list[Batch]:
        """Where the victim of a run is put at a level: its reports, and copies of each in turn.

        None is left out: a server does not open those behind too many that did not come.
        """
        from overhand.deploy.protocol.wire import Batch

        first = run * self._batches
        return [Batch(level, number) for number in range(first, first + self._batches)]

    @property
    def _batches(self) -> int:
        return self.placement.batches * self.copies

    def _play_database(self, victim: int, runs: int, random: Random) -> Floats:
        releases = list(self._releases(victim, runs, random))
        lives = [self._publish(releases) for _ in range(self.lives)]
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
        steps = np.rint((values[:, view.coordinates] - low) / mechanism.quantizer.unit)
        sums, wrapped = _return_from_edge(mechanism, steps.astype(np.int64))
        ratios = view.likelihood(sums + round(mechanism.offset))
        found["likelihood"][run] += ratios[0]
        found["publications added"][run] += ratios.sum()
        if "wrapped" in found:
            found["wrapped"][run] += wrapped[0]

    def _releases(self, victim: int, runs: int, random: Random) -> Iterator[Release]:
        """Level by level, and run by run."""
        from overhand.deploy.protocol.wire import Batch, Release

        victims = self.plan.values.opposites(np.full(runs * self.plan.reports, victim, np.uint8))
        levels = zip(self.document.formats.levels, self.document.mechanisms, strict=True)
        for level, mechanism in levels:
            own = mechanism.encode_rows(victims, random).gather(self.placement.reports)
            taken = self._mechanism_taken(mechanism)
            sealed = self._seal(level, own.sealed, random)
            for copy in range(self.copies):
                others = self._surround(taken, own, random)
                around = self._seal(level, others.sealed, random)
                ciphertexts = np.concatenate([sealed, around], axis=1)
                for part, (row, clear) in enumerate(zip(ciphertexts, others.clear, strict=True)):
                    batch = Batch(level.level, part * self.copies + copy)
                    body = level.pack(row.tobytes(), clear)
                    yield Release(batch, mechanism.size - taken.size, body)

    def _mechanism_taken(self, mechanism: Mechanism) -> Mechanism:
        """As the server takes it, for those places that are not empty."""
        return mechanism.with_users(self.placement.reports if self.is_alone else mechanism.size)

    def _surround(self, mechanism: Mechanism, own: Messages, random: Random) -> Messages:
        """What the service puts around each victim, and the sum of all that is in the clear."""
        batches, others = len(own.sealed), mechanism.size - self.placement.reports
        around = Messages(own.sealed[:, :0], own.clear)
        if others:
            zeros = mechanism.values.opposites(np.zeros(batches * others, np.uint8))
            sent = mechanism.encode_rows(zeros, random)
            if mechanism.noise_by == "users":
                # Bits that are 0: coins that show what they show on average, or shares of 0.
                zero = np.zeros_like(sent.sealed)
                zero[:, : round(mechanism.offset / mechanism.size)] = 1
                sent = Messages(zero, sent.clear)
            sealed, clear = sent.gather(others)
            around = Messages(sealed, own.clear + clear)
        if mechanism.noise_by == "services":
            around = with_added(around, without_noise(mechanism), random)
        clear = around.clear.copy()
        for coordinate, shift in _edge_shifts(mechanism).items():
            clear[:, coordinate] += np.uint64(shift % 2**mechanism.layout.clear_bits)
        return Messages(around.sealed, clear & np.uint64(2**mechanism.layout.clear_bits - 1))

    def _seal(self, level: LevelFormat, messages: NDArray[Any], random: Random) -> NDArray[Any]:
        if self.key is None:
            return seal_behind_noise(level, messages, random)
        plain = level.messages_to_bytes(messages)
        sealed = b"".join(self.document.sealer.seal(level.level, plain))
        return np.frombuffer(sealed, np.uint8).reshape(*messages.shape[:2], -1)

    @cached_property
    def _views(self) -> list[LevelView]:
        """By the law of the noise that the server adds."""
        reports = self.placement.reports
        return [LevelView(self._mechanism_taken(one), reports) for one in self.mechanisms]

    @cached_property
    def document(self) -> Document:
        from overhand.deploy.protocol.document import Document
        from overhand.deploy.protocol.keys import KeyPair

        users = _RUNS_OF_A_STORE * self._batches * self.mechanisms[-1].size
        tree, key = replace(self.plan.tree, horizon=users), self.key or KeyPair.generate()
        plan = replace(self.plan, tree=tree, mechanisms=self.mechanisms)
        return Document(plan, key.public_key)

    def _publish(self, releases: Sequence[Release]) -> dict[Batch, tuple[float, ...]]:
        """The sums that the real server makes of releases, if it makes any."""
        from overhand.deploy.protocol.sealing import Opener
        from overhand.deploy.server.publishing import Publisher
        from overhand.deploy.server.store import ServerStore

        document, formats = self.document, self.document.formats
        opener = _Unsealer() if self.key is None else Opener(self.key, formats.digest)
        logging.getLogger("overhand.deploy").addHandler(_UNHEARD)
        with temporary_directory() as home:
            ServerStore.make_keys(document, Path(home, "database.keys"))
            with closing(ServerStore.of(document, Path(home, "database"))) as database:
                for release in releases:
                    with suppress(ProtocolViolation):  # the service lies, and goes on
                        database.receive(formats.unpack_release(formats.pack_release(release)))
                publisher = Publisher(document, database, opener)
                while publisher.step():
                    pass
                sums = database.sums(0, len(releases))
        return {one.batch: one.value for one in sums if one.value is not None}


class _Unsealer:
    """Opens what stands behind random bytes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[bytes | None]:
        return list(map(unseal, ciphertexts))


def _edge_shifts(mechanism: Mechanism) -> dict[int, int]:
    """By coordinate, how far the sums of a victim's batch are moved, if it holds 0.

    To the last residue that is taken for a large sum, or to the first that is for a small one.
    """
    if not isinstance(mechanism, ModularSum) or mechanism.noise_by == "users":
        return {}
    known = base(mechanism)
    edge = mechanism.largest_sum + (mechanism.modulus - 1 - mechanism.largest_sum) // 2
    return {j: edge + (steps < 0) - int(known[j]) for j, steps in moves(mechanism).items()}


def _return_from_edge(mechanism: Mechanism, steps: Counts) -> tuple[Counts, Floats]:
    """Published sums as they would be had they not been moved, and whether they were wrapped."""
    shifts = np.array(list(_edge_shifts(mechanism).values()), np.int64)
    if not len(shifts):
        return steps, np.zeros(len(steps))
    moved, known = moves(mechanism), base(mechanism)
    at_zero = np.array([known[j] for j in moved], np.int64)
    signs = np.sign(np.array(list(moved.values()), np.int64))
    sides = np.where(steps < mechanism.size * mechanism.steps / 2, signs, -signs)
    from_zero = about_zero(steps - shifts - at_zero, mechanism)
    return from_zero + at_zero, sides.sum(axis=1).astype(np.float64)


class RestoredDatabase(LyingService):
    """The server's database is restored from before a batch was opened: noise is drawn twice.

    Each publication alone is as it should be; the mean of all three has less noise.
    """

    lives = 3


class LiftedFirst(PairsSum):
    """The server's noise is added to whole numbers, after residues were brought to their range.

    Where the sum is at the edge of that range, one step more moves it by the whole modulus: what
    is published tells on which side it was, and no noise hides that.
    """

    def _lift(self, sums: NDArray[Any], noise: Counts | None) -> Counts:
        lifted = super()._lift(sums, None)
        return lifted if noise is None else lifted + noise


@dataclass(frozen=True)
class ServerFault:
    """A fault by its name, how a server with it is lied to, and at how many levels."""

    name: str
    plant: Callable[[Case], LyingService]
    levels: int = 1
    one_in: int = _PLAIN
    """One run in this many is enough."""
    kind: str = BallotSum.kind
    """The kind of mechanism that it is planted in: the server's steps are the same for all."""
    placement: Placement = ONCE
    """Of the reports of a person, in the case that it is planted in."""


def _lie_about_one_report(case: Case) -> LyingService:
    """Persons report more often than the noise is for."""
    return LyingService.against(case, replace(case, placement=ONCE).mechanisms)


def _fault_of(
    name: str, server: Callable[[Sequence[Mechanism]], tuple[Mechanism, ...]], **fields: Any
) -> ServerFault:
    """A server with these mechanisms, made of those of the plan."""
    return ServerFault(
        name, lambda case: LyingService.against(case, server(case.mechanisms)), **fields
    )


SERVER_FAULTS = (
    _fault_of("server's noise halved", halve_noise, one_in=12),
    ServerFault("noise drawn again", RestoredDatabase.of),
    _fault_of("noise after lifting", partial(as_kind, LiftedFirst), kind=PairsSum.kind),
    _fault_of(
        "a level without noise", lambda right: (*right[:-1], without_noise(right[-1])), levels=2
    ),
    ServerFault("noise for one report", _lie_about_one_report, placement=TOGETHER),
    ServerFault(
        "noise for one, apart",
        _lie_about_one_report,
        one_in=40,
        kind=PairsSum.kind,
        placement=APART,
    ),
)


@dataclass(frozen=True)
class SubstitutedKey:
    """Real clients fetch the document from a service that has exchanged the server's key for its.

    One that knows the document's digest from elsewhere sends nothing. One that trusts the service,
    the planted fault, shows it all.
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
        from overhand.deploy.client import AsyncClient
        from overhand.deploy.protocol.document import Document
        from overhand.deploy.protocol.keys import KeyPair

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
        read[: len(service.reports)] = _lean_of_reports(service.document, key, service.reports)
        return read[np.newaxis]


@dataclass
class _Service:
    """Hands out a document, and keeps what clients send."""

    document: Document
    reports: list[bytes] = field(default_factory=list)

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        from overhand.deploy.transport import Answer

        if body is None:
            return Answer(200, self.document.to_json().encode())
        self.reports.append(body)
        return Answer(200, b'{"status": "counted"}')

    async def close(self) -> None: ...


def _lean_of_reports(document: Document, key: KeyPair, reports: Sequence[bytes]) -> Floats:
    """How far reports lean toward a 1, by what they say at the lowest level."""
    from overhand.deploy.protocol.sealing import Opener

    level, mechanism, formats = document.formats.level(1), document.mechanisms[0], document.formats
    opener, view, read = Opener(key, formats.digest), LevelView(mechanism), np.zeros(len(reports))
    for place, report in enumerate(reports):
        part = formats.unpack_report(report).parts[0]
        plain = opener.open(1, [row.tobytes() for row in level.ciphertexts(part)])
        messages = level.bytes_to_messages([one for one in plain if one is not None])
        sent = Messages(messages[np.newaxis], level.clear(part)[np.newaxis])
        read[place] = view.lean(mechanism.own_steps(sent)[:, view.coordinates] - view.at_zero)[0]
    return read
