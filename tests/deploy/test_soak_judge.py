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

from overhand.deploy.protocol.wire import Batch, Release
from overhand.deploy.shuffler.batching import Arrival, dummies_for
from overhand.deploy.shuffler.store import Store
from support.services_noise_plans import served

ROOT = Path(__file__).resolve().parents[2]
ROWS = np.array([1, 0, 1, 1, 1, 0, 1], np.uint8)
NAMES = Batch(1, 0), Batch(1, 1), Batch(2, 0)
TRUTH = dict(zip(NAMES, (2, 2, 4), strict=True))


class Run(SimpleNamespace):
    """What is left of a run in which all went well: seven reports, the last in open batches."""

    @classmethod
    def of(cls, kind: str, folder: Path) -> Run:
        from benchmarks.soak_crowd import _encoded

        document, known = served(kind), dict[str, list[Any]](rows=[ROWS])
        formats, added = document.formats, dummies_for(document)
        bodies = _encoded(document, ROWS, known)
        np.savez(folder / "known0.npz", **{key: np.concatenate(one) for key, one in known.items()})  # type: ignore[arg-type]
        with closing(Store(folder / "shuffler.db", formats, folder / "keys", added)) as store:
            store.admit([Arrival.of(formats, body) for body in bodies])
            releases = store.freeze_all(store.full())
        assert tuple(one.batch for one in releases) == NAMES
        kept = {tuple(one.batch): formats.pack_release(one) for one in releases}
        digests = {name: {hashlib.sha256(body).digest()} for name, body in kept.items()}
        relay = SimpleNamespace(kept=kept, digests=digests)
        sums = {name: (float(value),) for name, value in TRUTH.items()}
        run = cls(folder=folder, document=document, store="shuffler.db", keys=folder / "keys")
        run.relay, run.database, run.sums, run.alarms = relay, sums, [dict(sums)], []
        return run

    def found(self) -> dict[str, int]:
        """What is wrong, added up over the levels."""
        from benchmarks.soak_judge import judge

        verdicts: list[Any] = [judge(self, level) for level in self.document.formats.levels]  # type: ignore[arg-type]
        totals = {name: sum(getattr(one, name) for one in verdicts) for name in verdicts[0]._fields}
        return {name: total for name, total in list(totals.items())[2:] if total}

    def replace_message(self, name: Batch, old: int, new: bytes) -> None:
        """Another ciphertext in a release, and no trace of it elsewhere."""
        formats, level = self.document.formats, self.document.formats.level(name.level)
        release = formats.unpack_release(self.relay.kept[tuple(name)])
        rows = level.ciphertexts(release.body).copy()
        rows[old] = np.frombuffer(new, np.uint8)
        body = level.pack(rows.tobytes(), level.clear(release.body))
        self.relay.kept[tuple(name)] = formats.pack_release(Release(name, 0, body))

    def add_to_clear(self, name: Batch, more: int) -> None:
        formats, level = self.document.formats, self.document.formats.level(name.level)
        release = formats.unpack_release(self.relay.kept[tuple(name)])
        clear = level.add_up(np.array([level.clear(release.body), [more]], np.uint64))
        body = level.pack(level.ciphertexts(release.body).tobytes(), clear)
        self.relay.kept[tuple(name)] = formats.pack_release(Release(name, 0, body))


@pytest.fixture(autouse=True)
def judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sums and alarms of a run are given, instead of a server's database."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks import soak_judge

    monkeypatch.setattr(soak_judge, "sums_of", lambda run: run.database)
    monkeypatch.setattr(soak_judge, "alarms_of", lambda run: run.alarms)


@pytest.mark.parametrize("kind", ["ballots", "pairs"])
def test_a_run_without_faults_is_clean(tmp_path: Path, kind: str) -> None:
    assert Run.of(kind, tmp_path).found() == {}


def second_release(run: Run) -> None:
    run.relay.digests[1, 0].add(bytes(32))


def changed_sum(run: Run) -> None:
    run.sums[0][NAMES[0]] = (3.0,)


def vanished_sum(run: Run) -> None:
    run.sums[0][Batch(1, 5)] = (3.0,)


def wild_sum(run: Run) -> None:
    """In the database from the first, so that it never changed."""
    run.database[NAMES[2]] = run.sums[0][NAMES[2]] = (1e6,)


def missing_sum(run: Run) -> None:
    del run.database[NAMES[1]], run.sums[0][NAMES[1]]


def lost_user(run: Run) -> None:
    from benchmarks.soak_crowd import heads_of, known_of

    level = run.document.formats.levels[0]
    release = run.document.formats.unpack_release(run.relay.kept[1, 0])
    heads = heads_of(level.ciphertexts(release.body).tobytes(), level)
    is_user = np.isin(heads, known_of(run.folder, level).heads)
    place = int(np.flatnonzero(is_user)[0])
    run.replace_message(NAMES[0], place, secrets.token_bytes(level.ciphertext_bytes))


def wild_clear(run: Run) -> None:
    bits = run.document.formats.levels[0].clear_bits
    run.add_to_clear(NAMES[0], 1 << (bits - 1))


def alarms(run: Run) -> None:
    run.alarms += [f"another release of {NAMES[0]}", f"{NAMES[2]} has a sum that is not believed"]


FAULTS: list[tuple[str, Callable[[Run], None], dict[str, int]]] = [
    ("ballots", second_release, {"two_releases": 1}),
    ("pairs", second_release, {"two_releases": 1}),
    ("ballots", changed_sum, {"changed_sums": 1}),
    ("pairs", vanished_sum, {"changed_sums": 1}),
    ("ballots", wild_sum, {"wrong_sums": 1}),
    ("pairs", wild_sum, {"wrong_sums": 1}),
    ("pairs", missing_sum, {"wrong_sums": 1}),
    ("ballots", lost_user, {"lost": 1, "strange": 1}),
    ("pairs", wild_clear, {"wrong_clear": 1}),
    ("ballots", alarms, {"alarms": 2}),
]


@pytest.mark.parametrize(("kind", "fault", "found"), FAULTS)
def test_the_judge_sees(
    tmp_path: Path, kind: str, fault: Callable[[Run], None], found: dict[str, int]
) -> None:
    run = Run.of(kind, tmp_path)
    fault(run)
    assert run.found() == found
