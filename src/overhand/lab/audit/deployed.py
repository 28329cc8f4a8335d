"""What is deployed, attacked: reports go through a real store, and real services are lied to.

A server reads the releases of the shuffling service's `Store`. Or one of the two services lies: it
fills blocks around victims with what it knows, asks twice, sends again what it has sent, and reads
what comes back; or it puts a key of its own into the document, and opens what it is sent. The other
side is real, a `Publisher` with its `ServerStore` or the `Store`; and what it reads comes from real
clients.

Sealing is replaced. It hides messages from the shuffling service, and what is asked here is what
others see: so a message stands in the clear behind random bytes, and has a ciphertext's length.
Stores, which read neither, treat both alike.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.client import AsyncClient
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import (
    ID_BYTES,
    Batch,
    Formats,
    LevelFormat,
    MaskedSum,
    Offer,
    Release,
)
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler import batching
from overhand.deploy.shuffler.batching import Added, Arrival, OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.deploy.transport import Answer
from overhand.errors import InvalidValue
from overhand.lab.audit.attacks import NOTHING, LevelView, about_zero
from overhand.lab.audit.audit import Claim
from overhand.lab.audit.blocks import (
    ServicesFault,
    ServicesGame,
    StateNotAdvanced,
    has_state,
    with_noise_of,
)
from overhand.lab.audit.cases import Case, Deployment
from overhand.lab.audit.faults import as_kind, halve
from overhand.mechanisms import Mechanism, ModularSum, PairsSum
from overhand.model import Counts, Floats, Messages, Rows, Shuffled
from overhand.planning import SEAL_BYTES, Plan
from overhand.randomness import Random, secure_random

_GROUPS = (*[1] * 8, 8, 2, 3, 3, 16, 5, 11)
"""Reports per commit: single ones, a whole batch, parts of one, two batches, across borders."""
_HEAD_BYTES = 8  # two honest ciphertexts begin alike with probability 2^-64
_EPHEMERAL_BYTES = 32  # of the key that every ciphertext begins with
_MEMORY = Path("/dev/shm")  # where there is one, a commit waits for no disk
WINDOW = 4
_AGAIN = 12  # how often a service asks for the same
_LIVES = 24  # of a server's database, if it is brought back from before its sums
_MESSAGES = 1 << 11  # so many runs are in a store that these are all that is played at once
_ALARMS = 64  # in a database
_TOGETHER = 64  # victims whose blocks are frozen together
_UNHEARD = logging.NullHandler()  # every lie raises an alarm: nobody need read them


@dataclass(frozen=True)
class BehindNoise:
    """Seals and opens: what stands for a ciphertext is random bytes, 0s, and the message.

    The 0s stand for what authenticates it: other bytes do not open.
    """

    random: Random

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> list[bytes]:
        messages, tag = list(plaintexts), bytes(SEAL_BYTES - _EPHEMERAL_BYTES)
        hidden = self.random.words(len(messages) * _EPHEMERAL_BYTES, np.uint8)
        keys = hidden.reshape(-1, _EPHEMERAL_BYTES)
        return [key.tobytes() + tag + one for key, one in zip(keys, messages, strict=True)]

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[bytes | None]:
        return [
            None if any(one[_EPHEMERAL_BYTES:SEAL_BYTES]) else one[SEAL_BYTES:]
            for one in ciphertexts
        ]


class AllAlike(BehindNoise):
    """All that is sealed at once begins alike, as with a poor generator."""

    def seal(self, level: int, plaintexts: Iterable[bytes]) -> list[bytes]:
        sealed = super().seal(level, plaintexts)
        return [sealed[0][:_HEAD_BYTES] + one[_HEAD_BYTES:] for one in sealed]


def document_of(plan: Plan) -> Document:
    """A document of this plan, with a key that nobody needs."""
    return Document(plan, KeyPair.generate().public_key)


def arrivals_of(formats: Formats, sent: Sequence[Messages], random: Random) -> list[Arrival]:
    """The reports that have these messages, level by level."""
    sealer, parts = BehindNoise(random), []
    for level, (messages, clear) in zip(formats.levels, sent, strict=True):
        sealed = b"".join(sealer.seal(level.level, level.messages_to_bytes(messages)))
        rows = np.frombuffer(sealed, np.uint8).reshape(len(clear), -1)
        both = zip(rows, clear, strict=True)
        parts.append([level.pack(row.tobytes(), numbers) for row, numbers in both])
    return [Arrival(secrets.token_bytes(ID_BYTES), part) for part in zip(*parts, strict=True)]


def open_store(
    document: Document, home: str, sealer: BehindNoise, kind: type[Store] = Store
) -> Store:
    """A new one, with the shuffling service's noise, if it makes any, and this for its dummies."""
    is_of_services = document.plan.noise_by == "services"
    noise = OwnNoise(document, sealer, sealer.random) if is_of_services else None
    return kind(Path(home, "store"), document.formats, noise=noise)


def temporary_directory() -> TemporaryDirectory[str]:
    """For a database that nobody needs for long."""
    return TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None)


@dataclass(frozen=True)
class ThroughStore(Deployment):
    """Every run is a batch of the highest level: all are in one store, with a long horizon.

    The order of messages comes from OS randomness, whatever the users draw from.
    """

    plan: Plan

    sealer: ClassVar[type[BehindNoise]] = BehindNoise
    """Of dummies."""

    @classmethod
    def of(cls, case: Case) -> ThroughStore:
        return cls(case.deployment().mechanisms, case.plan())

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        """Whether the order of its messages matters."""
        return mechanism.is_shuffle_model

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Shuffled]:
        """Encode, admit and freeze; then read the bytes of the releases, in their order."""
        document = document_of(self._plan_for(len(rows)))
        formats = document.formats
        left = iter(arrivals_of(formats, self.send(rows, random, attempt), random))
        with (
            temporary_directory() as home,
            closing(open_store(document, home, self.sealer(random))) as store,
        ):
            sizes = cycle(_GROUPS)
            while group := list(islice(left, next(sizes))):
                store.admit(group)
            releases = store.freeze_all(store.full())
        return [
            _read(level, [one.body for one in releases if one.batch.level == level.level])
            for level in formats.levels
        ]

    def _plan_for(self, users: int) -> Plan:
        if self.plan.noise_by == "services":
            return self.plan
        return replace(self.plan, tree=replace(self.plan.tree, horizon=users), horizon=users)


def _read(level: LevelFormat, bodies: Sequence[bytes]) -> Shuffled:
    """The messages of releases, one per row, in the order in which they were released.

    But those whose ciphertexts begin as others do come last: honest ones never do.
    """
    rows = np.stack([level.ciphertexts(body) for body in bodies])
    heads = np.ascontiguousarray(rows[:, :, :_HEAD_BYTES]).view(np.uint64)[:, :, 0]
    for row, of_row in zip(rows, heads, strict=True):
        _, places, counts = np.unique(of_row, return_inverse=True, return_counts=True)
        if counts.max() > 1:
            row[:] = row[np.argsort(counts[places], kind="stable")]
    plain = [one.tobytes() for one in rows[:, :, SEAL_BYTES:].reshape(-1, level.plaintext_bytes)]
    messages = level.bytes_to_messages(plain)
    messages = messages.reshape(*rows.shape[:2], *messages.shape[1:])
    return Shuffled(messages, np.stack([level.clear(body) for body in bodies]))


class KeptOrder(ThroughStore):
    """Messages stay as they came, in a commit group and in the release."""

    def permute(self, messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
        """What stands for the one function of the store that orders messages."""
        return messages

    def transcript(self, rows: Rows, random: Random, attempt: int) -> list[Shuffled]:
        module: Any = batching
        right, module.permute = module.permute, self.permute
        try:
            return super().transcript(rows, random, attempt)
        finally:
            module.permute = right


class KeptReports(KeptOrder):
    """Whole reports are permuted, at the one level that there is."""

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        return super().concerns(mechanism) and mechanism.layout.messages_per_user > 1

    def permute(self, messages: NDArray[np.uint8], random: Random) -> NDArray[np.uint8]:
        each = self.mechanisms[0].layout.messages_per_user
        reports = messages.reshape(-1, each, messages.shape[1])
        return random.permute(reports).reshape(messages.shape)


class LookAlike(ThroughStore):
    """The ciphertexts of all dummies of a batch begin alike.

    In any order, they can be told from users' messages.
    """

    sealer = AllAlike

    @classmethod
    def concerns(cls, mechanism: Mechanism) -> bool:
        return mechanism.layout.added_messages > 0


STORE_FAULTS: dict[str, type[ThroughStore]] = {
    "store keeps order": KeptOrder,
    "store keeps reports": KeptReports,
    "dummies look alike": LookAlike,
}
"""Faults of the order in which messages leave, planted where users take part in one level."""


class LiedTo(ServicesGame):
    """A stream of blocks of one user each, who holds 0 or is a victim, through a deployed service.

    With independent noise, or by Theorem 1 with noise that is white once it is filtered, what is
    watched of one victim tells nothing of another one's noise.
    """

    window = WINDOW
    """A victim is in every so many-th block: watched until the next one, and known after that."""

    messages = _MESSAGES
    names = ["filtered", "block"]

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        bits = np.zeros(runs * self.window, np.uint8)
        bits[:: self.window] = victim
        logging.getLogger("overhand.deploy").addHandler(_UNHEARD)
        rows, *more = self._watch(bits, random)
        return np.stack([self._filtered(rows, bits), rows[:: self.window], *more])

    def _filtered(self, rows: Floats, due: NDArray[Any], column: Floats | None = None) -> Floats:
        """Sums of each victim's window, as the best test has them, less all other victims' part.

        What is `due` of the victims in each block is what the plan lets them count for.
        """
        white = self._whiten(rows - due)
        own = np.multiply.outer(due[:: self.window], self._column)
        by = self._column if column is None else column
        return np.asarray((white.reshape(own.shape) + own) @ by, np.float64)

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        """What is seen of each block, less what is known; and the other statistics."""
        raise NotImplementedError

    def _report(
        self, bits: NDArray[np.uint8], random: Random
    ) -> tuple[Document, Messages, list[Arrival]]:
        """A document, with a planted fault if there is one, and what users with these bits send."""
        document = document_of(replace(self.plan, mechanisms=(self.mechanism,)))
        rows = self.mechanism.values.opposites(bits)
        sent = document.mechanisms[0].with_users(1).encode_rows(rows, random)
        return document, sent, arrivals_of(document.formats, [sent], random)


class LiftedFirst(PairsSum):
    """Noise is added to whole numbers, after residues were brought to their range.

    Where the sum is at the edge of that range, one step more moves it by the whole modulus: what
    is published tells on which side it was, and no noise hides that.
    """

    def _lift(self, sums: NDArray[Any], noise: Counts | None) -> Counts:
        lifted = super()._lift(sums, None)
        return lifted if noise is None else lifted + noise


class LyingService(LiedTo):
    """The n - 1 attack: every user's block goes to the server alone, and with no noise."""

    copies: ClassVar[int] = 1
    """In how many blocks, one after the other, a victim's message is put."""
    lives: ClassVar[int] = 1
    """How often the server begins with an empty database: once, unless one was restored."""
    names = [*LiedTo.names, "publications added"]

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        document, _, arrivals = self._report(bits, random)
        lives = [self._publish(document, arrivals, random) for _ in range(self.lives)]
        repeated = np.convolve(np.ones(self.copies), self._column)[: self.window]
        added = self._filtered(np.sum(lives, axis=0), self.lives * bits, repeated)
        return [lives[0], added]

    def _publish(self, document: Document, arrivals: Sequence[Arrival], random: Random) -> Floats:
        """What the real server publishes of each block."""
        with temporary_directory() as home:
            ServerStore.make_keys(document, Path(home, "database.keys"))
            with closing(ServerStore.of(document, Path(home, "database"))) as database:
                publisher = Publisher(document, database, BehindNoise(random))
                self._prepare(database)
                for number, arrival in enumerate(arrivals):
                    victim = number // self.window * self.window
                    again = [victim] if victim < number < victim + self.copies else []
                    parts = [arrival.parts[0], *(arrivals[one].parts[0] for one in again)]
                    self._send(publisher, database, number, parts, random)
                while publisher.step():
                    pass
                sums = {one.batch.number: one.value for one in database.sums(0, len(arrivals))}
        return np.array([sums[number][0] for number in range(len(arrivals))])  # type: ignore[index]

    def _prepare(self, database: ServerStore) -> None:
        """For a planted fault."""

    def _move(self, total: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
        """What is said of the sum in the clear of a block."""
        return total

    def _send(
        self, publisher: Publisher, database: ServerStore, number: int, parts: Sequence[bytes],
        random: Random,
    ) -> None:  # fmt: skip
        """A block of these reports, the other places of which are said to be empty."""
        formats, (mechanism,) = publisher.document.formats, publisher.document.mechanisms
        (level,) = formats.levels
        batch, own = Batch(level.level, number), mechanism.size - len(parts)
        sealed = b"".join(level.ciphertexts(part).tobytes() for part in parts)
        if level.is_offered:
            offer = Offer(batch, own, sealed)
            answer = publisher.answer(offer)
            refused = formats.unpack_answer(formats.pack(offer), answer)
            clear = np.stack([level.clear(part) for part in parts])
            total = self._move(level.add_up(np.delete(clear, refused, axis=0)), number)
            digest = hashlib.sha256(answer).digest()
            database.receive(MaskedSum(batch, own, digest, level.pack(b"", total)))
        else:
            quiet = mechanism.added(np.zeros((1, mechanism.values.dimension), np.int64))
            plain = level.messages_to_bytes(quiet.sealed)
            added = b"".join(BehindNoise(random).seal(level.level, plain))
            database.receive(Release(batch, own, sealed + added))


class MovedToEdge(LyingService):
    """Victims' sums are moved: one step more, and the server makes a small one of a large one."""

    names = [*LyingService.names, "wrapped"]

    @classmethod
    def concerns(cls, plan: Plan) -> bool:
        return isinstance(plan.mechanisms[0], ModularSum)

    @cached_property
    def _edge(self) -> int:
        (mechanism,) = self.plan.mechanisms
        assert isinstance(mechanism, ModularSum)
        largest = mechanism.with_users(1).largest_sum
        return largest + (mechanism.modulus - 1 - largest) // 2

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """In many databases: every such sum raises an alarm."""
        counts = [min(_ALARMS, runs - start) for start in range(0, runs, _ALARMS)]
        parts = [super(MovedToEdge, self).play(victim, n, random, attempt) for n in counts]
        return np.concatenate(parts, axis=1)

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        rows, added = super()._watch(bits, random)
        victims = rows[:: self.window]
        wrapped = victims < 0
        victims[:] = about_zero(victims.astype(np.int64) - self._edge, self.plan.mechanisms[0])
        return [rows, added, wrapped.astype(np.float64)]

    def _move(self, total: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
        shift = 0 if number % self.window else self._edge
        modulus = 1 << self.plan.mechanisms[0].layout.clear_bits
        return np.asarray((total + np.uint64(shift)) % np.uint64(modulus))


class Replayed(LyingService):
    """A victim's ciphertext is in all blocks of its window: it must count in the first alone."""

    copies = WINDOW


class ForgottenMarks(Replayed):
    """The server knows no message again."""

    def _prepare(self, database: ServerStore) -> None:
        protection: Any = database.protection
        protection.mark = lambda messages, tables: np.zeros(len(messages), np.bool_)


class RestoredDatabase(LyingService):
    """The server's database is brought back from before the first sum: all noise is drawn again.

    Each publication alone is as it should be; the mean of all of them has less noise.
    """

    window = 1
    lives = _LIVES


Ask = Callable[[Sequence[Batch], Sequence[int]], Floats]
"""Has the store add up these blocks without some of their messages: what is seen of the sums."""


class LyingServer(LiedTo):
    """The n - 1 attack on the real store of the shuffling service, which is asked several times."""

    names = [*LiedTo.names, "asked again", "subsets subtracted"]
    times: ClassVar[int] = _AGAIN
    """How often it asks again."""
    store: ClassVar[type[Store]] = Store

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        document, sent, arrivals = self._report(bits, random)
        sealer = BehindNoise(secure_random())
        with (
            temporary_directory() as home,
            closing(open_store(document, home, sealer, self.store)) as store,
        ):
            for number, arrival in enumerate(arrivals):
                store.admit([arrival])
                store.leave_empty(number)
            batches = store.full()
            groups = []
            for start in range(0, len(batches), _TOGETHER * self.window):
                group = batches[start : start + _TOGETHER * self.window]
                ask = self._asker(document, store, group, sent)
                victims = group[:: self.window]
                rows = ask(group, [])
                own = rows[:: self.window]
                again = sum((ask(victims, []) for _ in range(self.times)), own)
                groups.append((rows, again, own - ask(victims, [0])))
        return [np.concatenate(parts) for parts in zip(*groups, strict=True)]

    def _asker(
        self, document: Document, store: Store, batches: Sequence[Batch], sent: Messages
    ) -> Ask:
        (mechanism,), (level,), formats = (
            document.mechanisms, document.formats.levels, document.formats
        )  # fmt: skip

        def count_ones(batches: Sequence[Batch], refused: Sequence[int]) -> Floats:
            releases = [one for one in store.freeze_all(batches) if isinstance(one, Release)]
            opener = BehindNoise(secure_random())
            opened = [open_release(formats, one, opener)[0] for one in releases]
            ones = [np.count_nonzero(shuffled.sealed == 1) for shuffled in opened]
            return np.array(ones, np.float64) - mechanism.offset

        if not level.is_offered:
            return count_ones
        packed = {one.batch: formats.pack(one) for one in store.offer_all(batches)}

        def add_up(batches: Sequence[Batch], refused: Sequence[int]) -> Floats:
            answers = {one: formats.pack_answer(packed[one], refused) for one in batches}
            sums = {one.batch: level.clear(one.body)[0] for one in store.answer_all(answers)}
            shown = np.array([sums[batch] for batch in batches], np.uint64)
            if not refused:
                shown += mechanism.mask_sums(sent.sealed[[one.number for one in batches]])[:, 0]
            return about_zero(shown.astype(np.int64), mechanism).astype(np.float64)

        return add_up


class SummingAgain(Store):
    """It makes another sum for every answer that it is given."""

    draws_again: ClassVar[bool] = False

    def __init__(self, *opened: Any, **more: Any) -> None:
        self._frozen: dict[Batch, tuple[Any, Added]] = {}
        super().__init__(*opened, **more)

    def _freeze_block(self, block: Any, answers: Any, refused: Any, noise: Any) -> Any:
        added = next(noise)
        self._frozen[block.batch] = block, added
        return super()._freeze_block(block, answers, refused, iter([added]))

    def answer_all(self, answers: Mapping[Batch, bytes]) -> list[Any]:
        if not self._frozen.keys() >= answers.keys():
            return super().answer_all(answers)
        return [self._sum_again(batch, answer) for batch, answer in answers.items()]

    def _sum_again(self, batch: Batch, answer: bytes) -> Any:
        block, added = self._frozen[batch]
        if self.draws_again and (again := self._noise):
            ((added, *_), _) = again.draw(again.start(), 1)
        offer = self._formats.pack(block.arranged.offer)
        refused = {batch: self._formats.unpack_answer(offer, answer)}
        return super()._freeze_block(block, {batch: answer}, refused, iter([added]))


class DrawingAgain(SummingAgain):
    """And draws noise for it."""

    draws_again = True


class AnsweredAgain(LyingServer):
    store = SummingAgain

    @classmethod
    def concerns(cls, plan: Plan) -> bool:
        return plan.mechanisms[0].layout.clear_numbers > 0


class DrawnAgain(AnsweredAgain):
    """Asked so often that a thousand blocks leave no doubt about it."""

    store = DrawingAgain
    times = 2 * _AGAIN


@dataclass(frozen=True)
class SubstitutedKey(ServicesGame):
    """Real clients fetch the document from a service that has exchanged the server's key for its.

    One that knows the document's digest from elsewhere sends nothing. One that trusts the service,
    the planted fault, shows it all.
    """

    trusting: bool = False

    names = ["opened"]
    claim = Claim(NOTHING)
    expected_mu = None
    spreads: ClassVar[dict[str, float]] = {}

    @property
    def messages(self) -> int:
        return self.plan.messages_per_user

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        """What the service reads of this many clients that hold 0 or 1; 0 for those that refuse."""
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
        read = np.zeros((1, runs))
        if service.reports:
            read[0, : len(service.reports)] = service.read(key)
        return read


@dataclass
class _Service:
    """Hands out a document, and keeps what clients send."""

    document: Document
    reports: list[bytes] = field(default_factory=list)

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        if body is None:
            return Answer(200, self.document.to_json().encode())
        self.reports.append(body)
        return Answer(200, b'{"status": "counted"}')

    async def close(self) -> None: ...

    def read(self, key: KeyPair) -> Floats:
        """How far reports, of one message each, lean toward a 1."""
        (level,), (mechanism,) = self.document.formats.levels, self.document.mechanisms
        parts = [self.document.formats.unpack_report(report).parts[0] for report in self.reports]
        opener = Opener(key, self.document.formats.digest)
        opened = opener.open(level.level, [level.ciphertexts(part)[0].tobytes() for part in parts])
        messages = level.bytes_to_messages([one for one in opened if one is not None])
        sent = Messages(messages[:, np.newaxis], np.stack([level.clear(part) for part in parts]))
        return LevelView(mechanism).own_lean(sent)


STORE_LIES: dict[str, type[ServicesGame]] = {"store, lied to": LyingServer}
"""What a lying server does to the real store of the shuffling service."""
SERVER_LIES: dict[str, type[ServicesGame]] = {
    "server, lied to": LyingService,
    "replayed": Replayed,
    "at the edge": MovedToEdge,
    "key exchanged": SubstitutedKey,
}
"""What a lying service does to the real server, and to clients."""

_stand_still = partial(with_noise_of, StateNotAdvanced)

STORE_LIED_FAULTS: dict[str, ServicesFault] = {
    "service's noise halved": ServicesFault(LyingServer, halve),
    "service's state stands": ServicesFault(LyingServer, _stand_still, has_state),
    "a second subset summed": ServicesFault(AnsweredAgain),
    "offer drawn again": ServicesFault(DrawnAgain),
}
SERVER_FAULTS: dict[str, ServicesFault] = {
    "server's noise halved": ServicesFault(LyingService, halve),
    "server's state stands": ServicesFault(LyingService, _stand_still, has_state),
    "noise after lifting": ServicesFault(MovedToEdge, lambda right: as_kind(LiftedFirst, right)),
    "noise drawn again": ServicesFault(RestoredDatabase),
    "a message counts twice": ServicesFault(ForgottenMarks),
    "key not checked": ServicesFault(SubstitutedKey, fields={"trusting": True}),
}
