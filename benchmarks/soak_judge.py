"""What became of the reports of a soak: each in one batch per level, every sum right, no alarm."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.soak_crowd import Heads, Known, heads_of, known_of
from benchmarks.soak_relay import Sent
from overhand.deploy.databases.database import is_postgres
from overhand.deploy.protocol.wire import Batch, LevelFormat, MaskedSum, Offer, Release
from overhand.deploy.server.store import ServerStore
from overhand.deploy.shuffler.batching import OwnNoise
from overhand.deploy.shuffler.store import Store
from overhand.model import Shuffled

if TYPE_CHECKING:
    from benchmarks.soak import Run, Service

Sums = dict[Batch, tuple[float, ...] | None]
"""The batch sums in a database."""
MISJUDGED = 1e-9
"""How likely a run is called wrong although every noise is what it should be."""
FLAT = 0.05
"""Memory is flat if the median of its last quarter is by less than this above that of its first."""


class Verdict(NamedTuple):
    """What is wrong at one level: all but the first two must be 0."""

    level: int
    batches: int
    """Batches that were published."""
    in_one_step: int
    """Of pairs: those that the server did not answer in time."""
    lost: int
    double: int
    strange: int
    """Ciphertexts that no user sent, beyond those that the service adds, or too few of these; and
    users whom the server did not count."""
    wrong_clear: int
    """Batches, open ones too, whose part in the clear is not the sum of their users'.

    Or, with noise of the service's in it, out of its reach; open ones have none."""
    wrong_sums: int
    """Sums in the database that are not those of their users, or out of reach of their noise."""
    sent_twice: int
    """Batches of which two releases, sums or offers were sent, which would show what was added to
    them, or that had two answers."""
    changed_sums: int
    """Batches whose sum in the database is not what it once was: two noises of one node."""
    alarms: int
    """Alarms of the server: here nobody lies, and no copy is restored."""

    @property
    def is_wrong(self) -> bool:
        return any(self[3:])


class _Found(NamedTuple):
    """One batch: what was sent of it, or its pieces if it is still open."""

    heads: Heads
    clear: NDArray[np.uint64]

    @classmethod
    def of_sent(cls, level: LevelFormat, ciphertexts: bytes, clear: bytes) -> _Found:
        """Its ciphertexts may have come before its part in the clear."""
        sealed = ciphertexts[: level.batch_messages() * level.ciphertext_bytes]
        return cls(heads_of(sealed, level), level.clear(clear))

    @classmethod
    def of_pieces(cls, level: LevelFormat, bodies: Sequence[bytes]) -> _Found:
        rows = level.rows(bodies)
        clear = level.sum_of(rows) if level.is_offered else np.empty(0, np.uint64)
        return cls(heads_of(rows[:, : level.ciphertext_bytes].tobytes(), level), clear)


def judge(run: Run, level: LevelFormat) -> Verdict:
    """Compare all releases and the open batch of a level with what the clients know."""
    known, formats = known_of(run.folder, level), run.document.formats
    released = dict[int, _Found]()
    for (kind, at, number), sent in run.relay.kept.items():
        if at == level.level and kind == "releases":
            body = formats.unpack(Release, sent).body
            released[number] = _Found.of_sent(level, body, body)
        elif at == level.level and kind == "sums":
            offer = formats.unpack(Offer, run.relay.kept[Sent("offers", at, number)])
            clear = formats.unpack(MaskedSum, sent).body
            released[number] = _Found.of_sent(level, offer.body, clear)
    waiting = _still_open(run, level, released)
    batches = [*released.values(), *waiting]
    everybody = known.heads.reshape(-1)
    heads, counts = np.unique(
        np.concatenate([everybody[:0], *(one.heads for one in batches)]), return_counts=True
    )
    senders = _senders(known, batches)
    added = [level.added_messages] * len(released) + [0] * len(waiting)
    everything = sums_of(run)
    sums = {batch: value for batch, value in everything.items() if batch.level == level.level}
    due = {
        Batch(level.level, number): _expected(run, level, known, places)
        for number, places in zip(released, senders, strict=False)
    }
    reach = _Reach.of(run, level, nodes=len(batches))
    return Verdict(
        level.level,
        len(sums),
        sum(one.kind == "releases" and level.is_offered for one in run.relay.kept),
        len(np.setdiff1d(everybody, heads)),
        int((counts - 1).sum()),
        sum(
            abs(len(one.heads) - len(places) - more)
            for one, places, more in zip(batches, senders, added, strict=True)
        )
        + absent_of(run),
        sum(
            not _is_clear_right(level, known, one, places, reach.clear if i < len(released) else 0)
            for i, (one, places) in enumerate(zip(batches, senders, strict=True))
        ),
        sum(
            not _is_within(sums.get(batch), due.get(batch), reach.total)
            for batch in sums.keys() | due.keys()
        ),
        _sent_twice(run, level.level),
        len(_changed(run, sums, level.level)),
        sum(_is_about(level.level, alarm) for alarm in alarms_of(run)),
    )


def _is_about(level: int, alarm: str) -> bool:
    """Those that name no level are of the noise, which one level has."""
    return " of level " not in alarm or f" of level {level} " in f"{alarm} "


def _sent_twice(run: Run, level: int) -> int:
    """Batches with two offers or two answers, or two of what ends them: releases and sums."""
    sent: dict[tuple[str, int], set[bytes]] = {}
    for name, digests in run.relay.digests.items():
        if name.level == level:
            kind = "offers" if name.kind == "offers" else "end"
            sent.setdefault((kind, name.number), set()).update(digests)
    for name, answers in run.relay.answers.items():
        if name.level == level and name.kind == "offers":
            sent[("answers", name.number)] = answers
    return len({number for (_, number), found in sent.items() if len(found) > 1})


class _Reach(NamedTuple):
    """How far noise of the services takes what is seen, except with a small probability."""

    clear: int = 0
    """In steps, modulo 2^clear_bits: that of the shuffling service alone."""
    total: float = 0.0
    """Of a sum, by both."""

    @classmethod
    def of(cls, run: Run, level: LevelFormat, nodes: int) -> _Reach:
        plan = run.document.plan
        if plan.noise_by == "users" or run.noiseless:
            return cls()
        mechanism = run.document.mechanisms[level.level - 1]
        numbers = 2 * len(run.document.formats.levels) * nodes * plan.values.dimension
        rarely = MISJUDGED / max(1, numbers)
        return cls(
            mechanism.honest_noise().tail_quantile(rarely),
            mechanism.noise().tail_quantile(rarely) * mechanism.quantizer.unit,
        )


def _is_within(
    found: tuple[float, ...] | None, due: tuple[float, ...] | None, reach: float
) -> bool:
    if found is None or due is None:
        return False
    return bool(np.all(np.abs(np.subtract(found, due)) <= reach))


def _changed(run: Run, sums: Sums, level: int) -> set[Batch]:
    """Batches of a level that once had another sum, or have none any more."""
    return {
        batch
        for earlier in run.sums
        for batch, value in earlier.items()
        if batch.level == level and sums.get(batch, ()) != value
    }


def _still_open(run: Run, level: LevelFormat, released: dict[int, _Found]) -> list[_Found]:
    address = run.store if is_postgres(run.store) else run.folder / run.store
    noise = OwnNoise.of(run.document)
    with closing(Store(address, run.document.formats, run.keys, noise)) as store:

        def pieces(number: int) -> list[bytes]:
            batch = Batch(level.level, number)
            return store._read(lambda tables: [piece.body for piece in tables.pieces(batch)])

        numbers = store._read(lambda tables: tables.numbers(level.level)) - released.keys()
        return [_Found.of_pieces(level, pieces(number)) for number in sorted(numbers)]


def _senders(known: Known, batches: Sequence[_Found]) -> list[NDArray[np.intp]]:
    """Where among all ciphertexts those of batches are that some user sent."""
    everybody = known.heads.reshape(-1)
    order = np.argsort(everybody)
    ordered = everybody[order]
    at = [np.searchsorted(ordered, one.heads) % len(order) for one in batches]
    return [
        order[places[ordered[places] == one.heads]] for places, one in zip(at, batches, strict=True)
    ]


def _is_clear_right(
    level: LevelFormat, known: Known, found: _Found, places: NDArray[np.intp], reach: int
) -> bool:
    """Whether what was added up came from those whose messages are in the batch, and no others.

    But for noise of so many steps, up or down, modulo 2^clear_bits.
    """
    if not level.clear_numbers:
        return True
    modulus = 1 << level.clear_bits
    due = level.add_up(known.clear[places // level.messages])
    off = [(int(one) - int(other)) % modulus for one, other in zip(found.clear, due, strict=True)]
    return all(min(one, modulus - one) <= reach for one in off)


def _expected(
    run: Run, level: LevelFormat, known: Known, places: NDArray[np.intp]
) -> tuple[float, ...]:
    """The sum of a batch: of the values themselves, unless users add noise to them."""
    if run.document.plan.noise_by == "services":
        total = run.document.plan.values.total(known.rows[places])
    else:
        messages = known.messages.reshape(-1)[places][np.newaxis]
        mechanism = run.document.mechanisms[level.level - 1]
        total = mechanism.sum_of(Shuffled(messages, np.empty((1, 0), np.uint64)))
    return tuple(np.atleast_1d(np.asarray(total, np.float64)).tolist())


def sums_of(run: Run) -> Sums:
    """The batch sums in the server's database, which nobody else may have open."""
    with closing(ServerStore(run.folder / "server.db", run.document.digest)) as database:
        return {summed.batch: summed.value for summed in database.sums(0, 10**9)}


def absent_of(run: Run) -> int:
    """Users whom the server's sums lack: here all are honest."""
    with closing(ServerStore(run.folder / "server.db", run.document.digest)) as database:
        return sum(summed.absent + summed.garbage for summed in database.sums(0, 10**9))


def alarms_of(run: Run) -> list[str]:
    """The alarms in the server's database."""
    with closing(ServerStore(run.folder / "server.db", run.document.digest)) as database:
        return database.alarms()


def memory(service: Service) -> tuple[float, float, float, bool]:
    """First and last quarter of the last life, the slope per 10,000 reports, whether it is flat."""
    samples = service.last_life()
    quarter = max(1, len(samples) // 4)
    first, last = (
        statistics.median(one.mebibytes for one in some)
        for some in (samples[:quarter], samples[-quarter:])
    )
    counted = [one.counted / 10_000 for one in samples]
    slope = 0.0
    if len(set(counted)) > 1:
        slope = statistics.linear_regression(counted, [one.mebibytes for one in samples]).slope
    return first, last, slope, last <= (1 + FLAT) * first


def tables(run: Run, verdicts: Sequence[Verdict]) -> Iterator[Table]:
    kind = f"{run.mechanism}{', noiseless services' if run.noiseless else ''}"
    title = f"{run.counted:,} reports, {run.kills} kills, {kind}"
    found = Table(title=title, box=None)
    for heading in Verdict._fields:
        found.add_column(heading.replace("_", " "), justify="right")
    for verdict in verdicts:
        found.add_row(*map(str, verdict))
    yield found
    sizes = Table(title="Memory of the last life", box=None)
    for heading in ("", "lives", "first quarter MiB", "last quarter MiB", "MiB/10,000 reports", ""):
        sizes.add_column(heading, justify="right")
    for service in run.services:
        first, last, slope, is_flat = memory(service)
        numbers = f"{first:.1f}", f"{last:.1f}", f"{slope:+.2f}"
        sizes.add_row(service.name, str(service.lives), *numbers, "flat" if is_flat else "grows")
    yield sizes
