"""A service that lies to the other one, whose deployed code it talks to.

It fills blocks around victims with what it knows, asks twice, sends again what it has sent, and
reads what comes back; or it puts a key of its own into the document, and opens what it is sent. One
side is real, a `Publisher` with its `ServerStore` or the shuffling service's `Store`; and what it
reads comes from real clients. Between them sealing is replaced, as for the store.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from overhand.errors import InvalidValue
from overhand.lab.audit.attacks import LevelView, about_zero
from overhand.lab.audit.audit import Claim, Game
from overhand.lab.audit.blocks import Filter, StateNotAdvanced, WatchedBlocks, with_noise_of
from overhand.lab.audit.cases import Case
from overhand.lab.audit.faults import as_kind
from overhand.lab.audit.store import (
    document_of,
    noise_behind,
    seal_behind_noise,
    temporary_directory,
    unseal,
)
from overhand.mechanisms import Mechanism, ModularSum, PairsSum
from overhand.model import Counts, Floats, Messages
from overhand.noise import CorrelatedNoise
from overhand.planning import Plan
from overhand.randomness import Random
from overhand.shuffle import with_added

if TYPE_CHECKING:  # all else is audited without the extra `service`
    from overhand.deploy.protocol.document import Document
    from overhand.deploy.protocol.keys import KeyPair
    from overhand.deploy.protocol.wire import Batch, MaskedSum
    from overhand.deploy.server.publishing import Publisher
    from overhand.deploy.server.store import ServerStore
    from overhand.deploy.shuffler.store import Store
    from overhand.deploy.transport import Answer

WINDOW = 4
_AGAIN = 12  # how often a service asks for the same
_LIVES = 16  # of a server's database, if it is brought back from before its sums
_MESSAGES = 1 << 11  # so many runs are in a store that these are all that is played at once
_ALARMS = 64  # in a database
_TOGETHER = 64  # victims whose blocks are frozen together
_UNHEARD = logging.NullHandler()  # every lie raises an alarm: nobody need read them


@dataclass(frozen=True)
class LiedTo(Game):
    """A stream of blocks of one user each, who holds 0 or is a victim, through a deployed service.

    With independent noise, or by Theorem 1 with noise that is white once it is filtered, what is
    watched of one victim tells nothing of another one's noise.
    """

    plan: Plan
    deployed: Plan
    """The same, or that of a planted fault."""
    window: ClassVar[int] = WINDOW
    """A victim is in every so many-th block: watched until the next one, and known after that."""

    messages = _MESSAGES
    more: ClassVar[tuple[str, ...]] = ()
    """Statistics of what else it does."""

    @classmethod
    def of(cls, case: Case) -> Self:
        return cls(case.plan(), case.plan())

    @classmethod
    def concerns(cls, case: Case) -> bool:
        """Whether the lie can be told about it."""
        return True

    @property
    def claim(self) -> Claim:
        return WatchedBlocks.of(self.plan).claim

    @property
    def names(self) -> list[str]:  # type: ignore[override]
        return ["filtered", "block", *self.more]

    @cached_property
    def _column(self) -> Floats:
        noise = self.plan.mechanisms[0].noise_share
        if isinstance(noise, CorrelatedNoise):
            return Filter(noise).column(self.window)
        return np.asarray(np.eye(1, self.window)[0])

    @property
    def expected_mu(self) -> float | None:
        noise = self.plan.mechanisms[0].noise_share
        if not isinstance(noise, CorrelatedNoise):
            return None
        return math.sqrt(float(self._column @ self._column) / (noise.deviation**2 + 1 / 12))

    @property
    def spreads(self) -> dict[str, float]:
        square = float(self._column @ self._column)
        mu = self.expected_mu
        return {} if mu is None else {"filtered": (square / mu) ** 2}

    def play(self, victim: int, runs: int, random: Random, attempt: int) -> Floats:
        bits = np.zeros(runs * self.window, np.uint8)
        bits[:: self.window] = victim
        logging.getLogger("overhand.deploy").addHandler(_UNHEARD)
        rows, *more = self._watch(bits, random)
        return np.stack([self._filter(rows, bits), rows[:: self.window], *more])

    def _filter(self, rows: Floats, due: NDArray[Any], column: Floats | None = None) -> Floats:
        """Sums of each victim's window, as the best test has them, less all other victims' part.

        What is `due` of the victims in each block is what the plan lets them count for.
        """
        noise, white = self.plan.mechanisms[0].noise_share, rows - due
        if isinstance(noise, CorrelatedNoise):
            white = np.convolve(Filter(noise).column(len(rows)), white)[: len(rows)]
        own = np.multiply.outer(due[:: self.window], self._column)
        by = self._column if column is None else column
        return np.asarray((white.reshape(own.shape) + own) @ by, np.float64)

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        """What is seen of each block, less what is known; and the other statistics."""
        raise NotImplementedError

    def _encode(self, document: Document, bits: NDArray[np.uint8], random: Random) -> Messages:
        (mechanism,) = document.mechanisms
        return mechanism.with_users(1).encode_rows(mechanism.values.opposites(bits), random)


@dataclass(frozen=True)
class PlantedMechanism:
    """A lie, to a service that has another mechanism than the plan's."""

    lie: type[LiedTo]
    change: Callable[[Mechanism], Mechanism]
    needs_state: bool = False

    def concerns(self, case: Case) -> bool:
        has_state = case.plan().mu is not None or not self.needs_state
        return has_state and self.lie.concerns(case)

    def of(self, case: Case) -> LiedTo:
        plan = case.plan()
        return self.lie(plan, replace(plan, mechanisms=(self.change(plan.mechanisms[0]),)))


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
    more: ClassVar[tuple[str, ...]] = ("publications added",)

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        document = document_of(self.deployed)
        sent = self._encode(document, bits, random)
        level = document.formats.levels[0]
        sealed = seal_behind_noise(level, sent.sealed, random)
        lives = [self._publish(document, sealed, sent.clear, random) for _ in range(self.lives)]
        repeated = np.convolve(np.ones(self.copies), self._column)[: self.window]
        added = self._filter(np.sum(lives, axis=0), self.lives * bits, repeated)
        return [lives[0], added]

    def _publish(
        self, document: Document, sealed: NDArray[np.uint8], clear: NDArray[np.uint64],
        random: Random,
    ) -> Floats:  # fmt: skip
        """What the real server publishes of each block."""
        with _server(document) as (publisher, database):
            self._prepare(database)
            for number in range(len(sealed)):
                again = number // self.window * self.window  # the victim's, if it is sent again
                users = [number]
                if again < number < again + self.copies:
                    users.append(again)
                self._send(publisher, database, number, sealed[users, 0], clear[users], random)
            while publisher.step():
                pass
            sums = {one.batch.number: one.value for one in database.sums(0, len(sealed))}
        return np.array([sums[number][0] for number in range(len(sealed))])  # type: ignore[index]

    def _prepare(self, database: ServerStore) -> None:
        """For a planted fault."""

    def _move(self, total: NDArray[np.uint64], number: int) -> NDArray[np.uint64]:
        """What is said of the sum in the clear of a block."""
        return total

    def _send(
        self, publisher: Publisher, database: ServerStore, number: int,
        sealed: NDArray[np.uint8], clear: NDArray[np.uint64], random: Random,
    ) -> None:  # fmt: skip
        """A block of these messages, the other places of which are said to be empty."""
        from overhand.deploy.protocol.wire import Batch, MaskedSum, Offer, Release

        document = publisher.document
        (level,), (mechanism,) = document.formats.levels, document.mechanisms
        batch, own = Batch(level.level, number), mechanism.size - len(sealed)
        if level.is_offered:
            offer = Offer(batch, own, sealed.tobytes())
            answer = publisher.answer(offer)
            refused = document.formats.unpack_answer(document.formats.pack(offer), answer)
            total = self._move(level.add_up(np.delete(clear, refused, axis=0)), number)
            digest = hashlib.sha256(answer).digest()
            database.receive(MaskedSum(batch, own, digest, level.pack(b"", total)))
            return
        nothing = Messages.of(np.empty((1, 0), mechanism.encode(0, random).sealed.dtype))
        quiet = np.zeros((1, mechanism.values.dimension), np.int64)
        dummies = with_added(nothing, mechanism, quiet).sealed
        added = seal_behind_noise(level, dummies, random)[0]
        body = level.pack(sealed.tobytes() + added.tobytes(), np.empty(0, np.uint64))
        database.receive(Release(batch, own, body))


class MovedToEdge(LyingService):
    """Victims' sums are moved: one step more, and the server makes a small one of a large one."""

    more = ("publications added", "wrapped")

    @classmethod
    def concerns(cls, case: Case) -> bool:
        return isinstance(case.mechanisms[0], ModularSum)

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


@contextmanager
def _server(document: Document) -> Iterator[tuple[Publisher, ServerStore]]:
    from overhand.deploy.server.publishing import Publisher
    from overhand.deploy.server.store import ServerStore

    with temporary_directory() as home:
        ServerStore.make_keys(document, Path(home, "database.keys"))
        with closing(ServerStore.of(document, Path(home, "database"))) as database:
            yield Publisher(document, database, _Unsealer()), database


class _Unsealer:
    """Opens what stands behind random bytes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[bytes | None]:
        return list(map(unseal, ciphertexts))


LieFault = type[LiedTo] | PlantedMechanism
SERVER_LIES: dict[str, type[LyingService]] = {
    "server, lied to": LyingService,
    "replayed": Replayed,
    "at the edge": MovedToEdge,
}
"""What a lying service does to the real server."""
SERVER_FAULTS: dict[str, LieFault] = {
    "server's noise halved": PlantedMechanism(LyingService, lambda right: right.reduce(0.5)),
    "server's state stands": PlantedMechanism(
        LyingService, partial(with_noise_of, StateNotAdvanced), True
    ),
    "noise after lifting": PlantedMechanism(
        MovedToEdge, lambda right: as_kind(LiftedFirst, [right])[0]
    ),
    "noise drawn again": RestoredDatabase,
    "a message counts twice": ForgottenMarks,
}


Ask = Callable[["Sequence[Batch]", Sequence[int]], Floats]
"""Has the store add up these blocks without some of their messages: what is seen of the sums."""


class LyingServer(LiedTo):
    """The n - 1 attack on the real store of the shuffling service, which is asked several times."""

    more = ("asked again", "subsets subtracted")
    times: ClassVar[int] = _AGAIN
    """How often it asks again."""

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        from overhand.deploy.protocol.wire import ID_BYTES
        from overhand.deploy.shuffler.batching import Arrival

        document = document_of(self.deployed)
        (level,), sent = document.formats.levels, self._encode(document, bits, random)
        sealed = seal_behind_noise(level, sent.sealed, random)
        with temporary_directory() as home, closing(self._store(Path(home), document)) as store:
            for number, (row, clear) in enumerate(zip(sealed, sent.clear, strict=True)):
                part = level.pack(row.tobytes(), clear)
                store.admit([Arrival(secrets.token_bytes(ID_BYTES), (part,))])
                store.leave_empty(number)
            batches = store.full()
            asker = self._ask_answered if level.is_offered else self._ask_released
            groups = []
            for start in range(0, len(batches), _TOGETHER * self.window):
                group = batches[start : start + _TOGETHER * self.window]
                ask, victims = asker(document, store, group, sent), group[:: self.window]
                rows = ask(group, [])
                own = rows[:: self.window]
                again = sum((ask(victims, []) for _ in range(self.times)), own)
                groups.append((rows, again, own - ask(victims, [0])))
        return [np.concatenate(parts) for parts in zip(*groups, strict=True)]

    def _store(self, home: Path, document: Document) -> Store:
        from overhand.deploy.shuffler.store import Store
        from overhand.randomness import secure_random

        noise = noise_behind(document, secure_random())
        return Store(home / "store", document.formats, noise=noise)

    def _ask_released(
        self, document: Document, store: Store, batches: Sequence[Batch], sent: Messages
    ) -> Ask:
        (mechanism,), (level,) = document.mechanisms, document.formats.levels

        def ask(batches: Sequence[Batch], refused: Sequence[int]) -> Floats:
            counts = []
            for release in store.freeze_all(batches):
                plain = [unseal(row.tobytes()) for row in level.ciphertexts(release.body)]
                found = level.bytes_to_messages([one for one in plain if one is not None])
                counts.append(np.count_nonzero(found == 1) - mechanism.offset)
            return np.array(counts, np.float64)

        return ask

    def _ask_answered(
        self, document: Document, store: Store, batches: Sequence[Batch], sent: Messages
    ) -> Ask:
        (mechanism,), (level,), formats = (
            document.mechanisms, document.formats.levels, document.formats
        )  # fmt: skip
        packed = {one.batch: formats.pack(one) for one in store.offer_all(batches)}

        def ask(batches: Sequence[Batch], refused: Sequence[int]) -> Floats:
            answers = {one: formats.pack_answer(packed[one], refused) for one in batches}
            sums = {one.batch: level.clear(one.body)[0] for one in store.answer_all(answers)}
            shown = np.array([sums[batch] for batch in batches], np.uint64)
            if not refused:
                shown += mechanism.mask_sums(sent.sealed[[one.number for one in batches]])[:, 0]
            return about_zero(shown.astype(np.int64), mechanism).astype(np.float64)

        return ask


class AnsweredAgain(LyingServer):
    """To a store that makes another sum for every answer that it is given."""

    draws_again: ClassVar[bool] = False

    @classmethod
    def concerns(cls, case: Case) -> bool:
        return case.mechanisms[0].layout.clear_numbers > 0

    def _store(self, home: Path, document: Document) -> Store:
        return _summing_again(home, document, draws_again=self.draws_again)


class DrawnAgain(AnsweredAgain):
    """And draws noise for it."""

    draws_again = True


def _summing_again(home: Path, document: Document, *, draws_again: bool) -> Store:
    from overhand.deploy.shuffler.batching import mask_sum
    from overhand.deploy.shuffler.store import Store
    from overhand.randomness import secure_random

    noise = noise_behind(document, secure_random())

    class Summing(Store):
        def __init__(self) -> None:
            self.frozen_blocks: dict[Batch, Any] = {}
            super().__init__(home / "store", document.formats, noise=noise)

        def _freeze_block(self, block: Any, answers: Any, refused: Any, noise: Any) -> Any:
            added = next(noise)
            self.frozen_blocks[block.batch] = block, added
            return super()._freeze_block(block, answers, refused, iter([added]))

        def answer_all(self, answers: Mapping[Batch, bytes]) -> list[Any]:
            if not self.frozen_blocks.keys() >= answers.keys():
                return super().answer_all(answers)
            return [self._sum_again(batch, answer) for batch, answer in answers.items()]

        def _sum_again(self, batch: Batch, answer: bytes) -> MaskedSum:
            (_, gathered, arranged), added = self.frozen_blocks[batch]
            offer = document.formats.pack(arranged.offer)
            refused = document.formats.unpack_answer(offer, answer)
            if draws_again and (again := noise):
                ((added, *_), _) = again.draw(again.start(), 1)
            level = document.formats.levels[0]
            return mask_sum(level, gathered, arranged.places, answer, refused, added)

    return Summing()


STORE_LIES: dict[str, type[LyingServer]] = {"store, lied to": LyingServer}
"""What a lying server does to the real store of the shuffling service."""
STORE_LIED_FAULTS: dict[str, LieFault] = {
    "service's noise halved": PlantedMechanism(LyingServer, lambda right: right.reduce(0.5)),
    "service's state stands": PlantedMechanism(
        LyingServer, partial(with_noise_of, StateNotAdvanced), True
    ),
    "a second subset summed": AnsweredAgain,
    "offer drawn again": DrawnAgain,
}


@dataclass(frozen=True)
class SubstitutedKey(Game):
    """Real clients fetch the document from a service that has exchanged the server's key for its.

    One that knows the document's digest from elsewhere sends nothing. One that trusts the service,
    the planted fault, shows it all.
    """

    plan: Plan
    trusting: bool = False

    names = ["opened"]

    @classmethod
    def of(cls, case: Case, trusting: bool = False) -> SubstitutedKey:
        return cls(case.plan(), trusting)

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
