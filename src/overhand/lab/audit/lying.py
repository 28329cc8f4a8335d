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
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.client import AsyncClient
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener, open_release
from overhand.deploy.protocol.wire import ID_BYTES, Batch, MaskedSum, Offer, Release
from overhand.deploy.server.publishing import Publisher
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.batching import Arrival, mask_sum
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
from overhand.lab.audit.faults import as_kind, halve
from overhand.lab.audit.store import (
    document_of,
    noise_behind,
    seal_behind_noise,
    temporary_directory,
    unseal,
)
from overhand.mechanisms import ModularSum, PairsSum
from overhand.model import Counts, Floats, Messages
from overhand.planning import Plan
from overhand.randomness import Random, secure_random

WINDOW = 4
_AGAIN = 12  # how often a service asks for the same
_LIVES = 16  # of a server's database, if it is brought back from before its sums
_MESSAGES = 1 << 11  # so many runs are in a store that these are all that is played at once
_ALARMS = 64  # in a database
_TOGETHER = 64  # victims whose blocks are frozen together
_UNHEARD = logging.NullHandler()  # every lie raises an alarm: nobody need read them


class LiedTo(ServicesGame):
    """A stream of blocks of one user each, who holds 0 or is a victim, through a deployed service.

    With independent noise, or by Theorem 1 with noise that is white once it is filtered, what is
    watched of one victim tells nothing of another one's noise.
    """

    window = WINDOW
    """A victim is in every so many-th block: watched until the next one, and known after that."""

    messages = _MESSAGES
    names = ["filtered", "block"]

    @property
    def deployed(self) -> Plan:
        """With a planted fault, if there is one."""
        return replace(self.plan, mechanisms=(self.mechanism,))

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

    def _encode(self, document: Document, bits: NDArray[np.uint8], random: Random) -> Messages:
        (mechanism,) = document.mechanisms
        return mechanism.with_users(1).encode_rows(mechanism.values.opposites(bits), random)


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
        document = document_of(self.deployed)
        sent = self._encode(document, bits, random)
        level = document.formats.levels[0]
        sealed = seal_behind_noise(level, sent.sealed, random)
        lives = [self._publish(document, sealed, sent.clear, random) for _ in range(self.lives)]
        repeated = np.convolve(np.ones(self.copies), self._column)[: self.window]
        added = self._filtered(np.sum(lives, axis=0), self.lives * bits, repeated)
        return [lives[0], added]

    def _publish(
        self, document: Document, sealed: NDArray[np.uint8], clear: NDArray[np.uint64],
        random: Random,
    ) -> Floats:  # fmt: skip
        """What the real server publishes of each block."""
        with _server(document) as (publisher, database):
            self._prepare(database)
            for number in range(len(sealed)):
                again = number // self.window * self.window  # the victim's
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
        quiet = np.zeros((1, mechanism.values.dimension), np.int64)
        added = seal_behind_noise(level, mechanism.added(quiet).sealed, random)[0]
        body = level.pack(sealed.tobytes() + added.tobytes(), np.empty(0, np.uint64))
        database.receive(Release(batch, own, body))


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


@contextmanager
def _server(document: Document) -> Iterator[tuple[Publisher, ServerStore]]:
    with temporary_directory() as home:
        ServerStore.make_keys(document, Path(home, "database.keys"))
        with closing(ServerStore.of(document, Path(home, "database"))) as database:
            yield Publisher(document, database, _Unsealer()), database


class _Unsealer:
    """Opens what stands behind random bytes."""

    def open(self, level: int, ciphertexts: Iterable[bytes]) -> list[bytes | None]:
        return list(map(unseal, ciphertexts))


Ask = Callable[["Sequence[Batch]", Sequence[int]], Floats]
"""Has the store add up these blocks without some of their messages: what is seen of the sums."""


class LyingServer(LiedTo):
    """The n - 1 attack on the real store of the shuffling service, which is asked several times."""

    names = [*LiedTo.names, "asked again", "subsets subtracted"]
    times: ClassVar[int] = _AGAIN
    """How often it asks again."""

    def _watch(self, bits: NDArray[np.uint8], random: Random) -> list[Floats]:
        document = document_of(self.deployed)
        (level,), sent = document.formats.levels, self._encode(document, bits, random)
        sealed = seal_behind_noise(level, sent.sealed, random)
        with temporary_directory() as home, closing(self._store(Path(home), document)) as store:
            for number, (row, clear) in enumerate(zip(sealed, sent.clear, strict=True)):
                part = level.pack(row.tobytes(), clear)
                store.admit([Arrival(secrets.token_bytes(ID_BYTES), (part,))])
                store.leave_empty(number)
            batches = store.full()
            groups = []
            for start in range(0, len(batches), _TOGETHER * self.window):
                group = batches[start : start + _TOGETHER * self.window]
                ask, victims = self._asker(document, store, group, sent), group[:: self.window]
                rows = ask(group, [])
                own = rows[:: self.window]
                again = sum((ask(victims, []) for _ in range(self.times)), own)
                groups.append((rows, again, own - ask(victims, [0])))
        return [np.concatenate(parts) for parts in zip(*groups, strict=True)]

    def _store(self, home: Path, document: Document) -> Store:
        noise = noise_behind(document, secure_random())
        return Store(home / "store", document.formats, noise=noise)

    def _asker(
        self, document: Document, store: Store, batches: Sequence[Batch], sent: Messages
    ) -> Ask:
        (mechanism,), (level,), formats = (
            document.mechanisms, document.formats.levels, document.formats
        )  # fmt: skip

        def count_ones(batches: Sequence[Batch], refused: Sequence[int]) -> Floats:
            releases = [one for one in store.freeze_all(batches) if isinstance(one, Release)]
            opened = [open_release(formats, one, _Unsealer())[0] for one in releases]
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


class AnsweredAgain(LyingServer):
    """To a store that makes another sum for every answer that it is given."""

    draws_again: ClassVar[bool] = False

    @classmethod
    def concerns(cls, plan: Plan) -> bool:
        return plan.mechanisms[0].layout.clear_numbers > 0

    def _store(self, home: Path, document: Document) -> Store:
        return _SummingAgain(home / "store", document, self.draws_again)


class DrawnAgain(AnsweredAgain):
    """And draws noise for it."""

    draws_again = True


class _SummingAgain(Store):
    def __init__(self, address: Path, document: Document, draws_again: bool) -> None:
        self._document, self._draws_again = document, draws_again
        self._frozen_blocks: dict[Batch, Any] = {}
        noise = noise_behind(document, secure_random())
        super().__init__(address, document.formats, noise=noise)

    def _freeze_block(self, block: Any, answers: Any, refused: Any, noise: Any) -> Any:
        added = next(noise)
        self._frozen_blocks[block.batch] = block, added
        return super()._freeze_block(block, answers, refused, iter([added]))

    def answer_all(self, answers: Mapping[Batch, bytes]) -> list[Any]:
        if not self._frozen_blocks.keys() >= answers.keys():
            return super().answer_all(answers)
        return [self._sum_again(batch, answer) for batch, answer in answers.items()]

    def _sum_again(self, batch: Batch, answer: bytes) -> MaskedSum:
        ((_, gathered, arranged), added), formats = (
            self._frozen_blocks[batch], self._document.formats
        )  # fmt: skip
        refused = formats.unpack_answer(formats.pack(arranged.offer), answer)
        if self._draws_again and (again := self._noise):
            ((added, *_), _) = again.draw(again.start(), 1)
        return mask_sum(formats.levels[0], gathered, arranged.places, answer, refused, added)


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
        view = LevelView(mechanism)
        return view.lean(mechanism.own_steps(sent)[:, view.coordinates] - view.at_zero)


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
