"""The judge of `python -m benchmarks soak`, where services make the noise, sees what is wrong."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from overhand.deploy.protocol.wire import Batch, MaskedSum, Release
from overhand.deploy.shuffler.batching import Arrival, OwnNoise
from overhand.deploy.shuffler.store import Outgoing, Store
from support.noise_chains import answers_to
from support.services_noise_plans import served

ROOT = Path(__file__).resolve().parents[2]
ROWS = np.array([1, 0, 1, 1, 1, 0, 1], np.uint8)
BLOCKS = Batch(1, 0), Batch(1, 1)
TRUTH = dict.fromkeys(BLOCKS, 2)
KINDS = ("ballots", "pairs", "pairs in one step")


class Run(SimpleNamespace):
    """What is left of a run in which all went well: seven reports, the last in an open block."""

    @classmethod
    def of(cls, kind: str, folder: Path) -> Run:
        from benchmarks.soak_crowd import _encoded

        document, known = served(kind.split()[0]), dict[str, list[Any]](rows=[ROWS])
        bodies = _encoded(document, ROWS, known)
        np.savez(folder / "known0.npz", **{key: np.concatenate(one) for key, one in known.items()})  # type: ignore[arg-type]
        run = cls(folder=folder, document=document, store="shuffler.db", keys=folder / "keys")
        run.relay = SimpleNamespace(kept={}, digests={}, answers={})
        formats, noise = document.formats, OwnNoise.of(document)
        with closing(Store(folder / "shuffler.db", formats, folder / "keys", noise)) as store:
            store.admit([Arrival.of(formats, body) for body in bodies])
            if kind == "pairs":
                offers = store.offer_all(store.unoffered())
                answers = answers_to(document, offers)
                for offer in offers:
                    run.hand_on("offers", offer.batch, formats.pack(offer))
                    run.relay.answers[run.sent("offers", offer.batch)] = {answers[offer.batch]}
                outgoing = store.answer_all(answers)
            else:
                outgoing = store.freeze_all(store.full())
        assert tuple(one.batch for one in outgoing) == BLOCKS
        for one in outgoing:
            run.end(one)
        sums = {batch: (float(value),) for batch, value in TRUTH.items()}
        run.database, run.sums, run.absent, run.alarms = sums, [dict(sums)], 0, []
        run.mechanism, run.noiseless = kind.split()[0], False
        return run

    @staticmethod
    def sent(kind: str, batch: Batch) -> Any:
        from benchmarks.soak_relay import Sent

        return Sent(kind, *batch)

    def hand_on(self, kind: str, batch: Batch, body: bytes) -> None:
        """What the relay keeps of what goes through it."""
        name = self.sent(kind, batch)
        self.relay.kept[name] = body
        self.relay.digests[name] = {hashlib.sha256(body).digest()}

    def end(self, one: Outgoing) -> None:
        formats = self.document.formats
        if isinstance(one, Release):
            self.hand_on("releases", one.batch, formats.pack(one))
        else:
            self.hand_on("sums", one.batch, formats.pack(one))

    def verdict(self) -> Any:
        from benchmarks.soak_judge import judge

        run: Any = self
        (level,) = self.document.formats.levels
        return judge(run, level)

    def found(self) -> dict[str, int]:
        """What is wrong."""
        found = self.verdict()
        wrong = {name: count for name, count in list(found._asdict().items())[3:] if count}
        assert found.is_wrong == bool(wrong)
        return wrong

    def release(self, batch: Batch) -> Release:
        release: Release = self.document.formats.unpack(
            Release, self.relay.kept[self.sent("releases", batch)]
        )
        return release

    def replace_user(self, new: bytes) -> None:
        """Another ciphertext instead of a user's in the first block, and no trace elsewhere."""
        from benchmarks.soak_crowd import heads_of, known_of

        (level,) = self.document.formats.levels
        release = self.release(BLOCKS[0])
        rows = level.ciphertexts(release.body).copy()
        is_user = np.isin(heads_of(rows.tobytes(), level), known_of(self.folder, level).heads)
        rows[np.flatnonzero(is_user)[0]] = np.frombuffer(new, np.uint8)
        self.end(Release(BLOCKS[0], 0, level.pack(rows.tobytes(), level.clear(release.body))))


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums and alarms of a run are given, instead of a server's database."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import soak_judge

    monkeypatch.setattr(soak_judge, "sums_of", lambda run: run.database)
    monkeypatch.setattr(soak_judge, "absent_of", lambda run: run.absent)
    monkeypatch.setattr(soak_judge, "alarms_of", lambda run: run.alarms)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_without_faults_is_clean(tmp_path: Path, kind: str) -> None:
    run = Run.of(kind, tmp_path)
    assert run.found() == {}
    found = run.verdict()
    assert (found.level, found.batches) == (1, len(BLOCKS))
    assert found.in_one_step == (len(BLOCKS) if kind == "pairs in one step" else 0)


def second_release(run: Run) -> None:
    run.relay.digests[run.sent("releases", BLOCKS[0])].add(bytes(32))


def second_sum(run: Run) -> None:
    run.relay.digests[run.sent("sums", BLOCKS[0])].add(bytes(32))


def second_order(run: Run) -> None:
    run.relay.digests[run.sent("offers", BLOCKS[1])].add(bytes(32))


def second_answer(run: Run) -> None:
    run.relay.answers[run.sent("offers", BLOCKS[1])].add(bytes(32))


def sum_and_release(run: Run) -> None:
    """The server took the first; the other was on its way."""
    run.relay.digests[run.sent("releases", BLOCKS[1])] = {bytes(32)}


def changed_sum(run: Run) -> None:
    run.sums[0][BLOCKS[0]] = (3.0,)


def vanished_sum(run: Run) -> None:
    run.sums[0][Batch(1, 5)] = (3.0,)


def wild_sum(run: Run) -> None:
    """In the database from the first, so that it never changed."""
    run.database[BLOCKS[1]] = run.sums[0][BLOCKS[1]] = (1e6,)


def lost_sum(run: Run) -> None:
    run.database[BLOCKS[1]] = run.sums[0][BLOCKS[1]] = None


def missing_sum(run: Run) -> None:
    del run.database[BLOCKS[1]], run.sums[0][BLOCKS[1]]


def lost_user(run: Run) -> None:
    run.replace_user(secrets.token_bytes(run.document.formats.levels[0].ciphertext_bytes))


def doubled_user(run: Run) -> None:
    """Somebody of the second block is in the first as well."""
    from benchmarks.soak_crowd import heads_of, known_of

    (level,) = run.document.formats.levels
    rows = level.ciphertexts(run.release(BLOCKS[1]).body)
    is_user = np.isin(heads_of(rows.tobytes(), level), known_of(run.folder, level).heads)
    run.replace_user(rows[np.flatnonzero(is_user)[0]].tobytes())


def refused_user(run: Run) -> None:
    run.absent = 1


def wild_clear(run: Run) -> None:
    """By half the modulus, which no noise comes to."""
    (level,) = run.document.formats.levels
    name = run.sent("sums", BLOCKS[0])
    masked = run.document.formats.unpack(MaskedSum, run.relay.kept[name])
    half = np.array([1 << (level.clear_bits - 1)], np.uint64)
    clear = level.add_up(np.array([level.clear(masked.body), half]))
    run.end(type(masked)(BLOCKS[0], 0, masked.answer, level.pack(b"", clear)))


def alarms(run: Run) -> None:
    run.alarms += [
        f"another release of {BLOCKS[0]}",
        f"{BLOCKS[1]} has a sum that is not believed",
        "the state of the server's noise was lost after 1 batches",
    ]


FAULTS: list[tuple[str, Callable[[Run], None], dict[str, int]]] = [
    ("ballots", second_release, {"sent_twice": 1}),
    ("pairs in one step", second_release, {"sent_twice": 1}),
    ("pairs", second_sum, {"sent_twice": 1}),
    ("pairs", second_order, {"sent_twice": 1}),
    ("pairs", second_answer, {"sent_twice": 1}),
    ("pairs", sum_and_release, {"sent_twice": 1}),
    ("ballots", changed_sum, {"changed_sums": 1}),
    ("pairs", vanished_sum, {"changed_sums": 1}),
    ("ballots", wild_sum, {"wrong_sums": 1}),
    ("pairs", wild_sum, {"wrong_sums": 1}),
    ("pairs", lost_sum, {"wrong_sums": 1}),
    ("pairs", missing_sum, {"wrong_sums": 1}),
    ("ballots", lost_user, {"lost": 1, "strange": 1}),
    ("ballots", doubled_user, {"lost": 1, "double": 1}),
    ("pairs", refused_user, {"strange": 1}),
    ("pairs", wild_clear, {"wrong_clear": 1}),
    ("ballots", alarms, {"alarms": 3}),
]


@pytest.mark.parametrize(("kind", "fault", "found"), FAULTS)
def test_the_judge_sees(
    tmp_path: Path, kind: str, fault: Callable[[Run], None], found: dict[str, int]
) -> None:
    run = Run.of(kind, tmp_path)
    fault(run)
    assert run.found() == found


def test_every_part_of_a_verdict_has_a_fault() -> None:
    from benchmarks.soak_judge import Verdict

    assert {name for *_, found in FAULTS for name in found} == set(Verdict._fields[3:])
