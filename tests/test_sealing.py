"""From a value to a published sum without a network: keys, seals, documents, reports, garbage."""

from __future__ import annotations

import hashlib
import json
import math
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand import errors
from overhand.mechanisms import Coins, SharesSum
from overhand.model import Shuffled
from overhand.plan import MechanismKind
from overhand.randomness import HALF, secure_random, seeded_random
from overhand.service import keys, sealing
from overhand.service.document import DamagedDocument, Document
from overhand.service.keys import KeyPair, UnsafeSecret
from overhand.service.reports import encode_report, messages_of, open_release
from overhand.service.sealing import Opener, OpenerPool, Sealer, WorkersLost
from overhand.service.tolerance import LostBatch, tolerant_sum
from overhand.service.wire import LevelFormat
from overhand.values import Histogram, values_of
from plans import PATH, REGULAR, coin_plan

KEY = KeyPair.of_raw(bytes(range(32)))
DIGEST = hashlib.sha256(b"a plan").digest()

KINDS: list[tuple[str, MechanismKind]] = [
    (spec, mechanism)
    for spec in ("bit", "real:-1:3", "vector:2:1", "histogram:4")
    for mechanism in ("coins", "shares")
]


@lru_cache
def plan_of(spec: str, mechanism: MechanismKind) -> oh.Plan:
    if (spec, mechanism) == ("vector:2:1", "coins"):  # with a useful guarantee, thousands of coins
        privacy, most = oh.Privacy(30.0, 1e-2), 60
    else:
        privacy, most = oh.Privacy(2.0, 1e-3), None
    return oh.Plan.best(
        24,
        2,
        privacy,
        values=values_of(spec),
        tree="regular",
        mechanism=mechanism,
        max_messages=most,
    )


@lru_cache
def document_of(spec: str, mechanism: MechanismKind) -> Document:
    return Document(plan_of(spec, mechanism), KEY.public_key)


@lru_cache
def coin_document() -> Document:
    return Document(coin_plan(REGULAR), KEY.public_key)


def rows_of(plan: oh.Plan) -> Any:
    return plan.values.uniform(seeded_random(5), plan.horizon)


def new_key(path: Path) -> KeyPair:
    pair = KeyPair.generate()
    pair.save(path)
    return pair


def test_a_key_pair_comes_back_from_its_file(tmp_path: Path) -> None:
    made = new_key(tmp_path / "key")
    loaded = KeyPair.load(tmp_path / "key")
    assert (loaded.raw, loaded.public_key) == (made.raw, made.public_key)
    assert len(made.public_key) == 32
    assert made.key_id == hashlib.sha256(made.public_key).digest()[:8]
    assert made.raw.hex() not in repr(made)
    assert made.key_id.hex() in repr(made)


@pytest.mark.parametrize("create", [new_key, keys.create_token], ids=["key", "token"])
def test_secrets_are_for_their_owner_whatever_the_umask(
    create: Callable[[Path], object], tmp_path: Path
) -> None:
    before = os.umask(0)
    try:
        create(tmp_path / "secret")
    finally:
        os.umask(before)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_secret_that_others_may_read_is_refused(mode: int, tmp_path: Path) -> None:
    new_key(tmp_path / "key")
    keys.create_token(tmp_path / "token")
    (tmp_path / "key").chmod(mode)
    (tmp_path / "token").chmod(mode)
    with pytest.raises(UnsafeSecret, match=f"mode {mode:04o}"):
        KeyPair.load(tmp_path / "key")
    with pytest.raises(UnsafeSecret, match="chmod 600"):
        keys.load_token(tmp_path / "token")


def test_a_secret_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    first = new_key(path)
    with pytest.raises(UnsafeSecret, match="never overwritten"):
        new_key(path)
    dangling = tmp_path / "link"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UnsafeSecret, match="never overwritten"):
        keys.create_token(dangling)
    assert KeyPair.load(path).raw == first.raw
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["key", "link"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"-----BEGIN PRIVATE KEY-----\n"])
def test_damaged_secrets_are_refused(content: bytes, tmp_path: Path) -> None:
    keys.write_secret(tmp_path / "secret", content)
    with pytest.raises(UnsafeSecret, match="is not a private key"):
        KeyPair.load(tmp_path / "secret")
    with pytest.raises(UnsafeSecret, match="token"):
        keys.load_token(tmp_path / "secret")


def test_a_key_of_another_kind_is_refused(tmp_path: Path) -> None:
    other = Ed25519PrivateKey.generate()
    pem = other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    keys.write_secret(tmp_path / "key", pem)
    with pytest.raises(UnsafeSecret, match="not an X25519 key"):
        KeyPair.load(tmp_path / "key")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(UnsafeSecret, match="is not a file"):
            KeyPair.load(path)
    with pytest.raises(UnsafeSecret, match="cannot read"):
        KeyPair.load(tmp_path / "missing")
    with pytest.raises(UnsafeSecret, match="cannot write"):
        new_key(tmp_path / "missing" / "key")


def test_tokens_match_themselves_alone(tmp_path: Path) -> None:
    token = keys.create_token(tmp_path / "token")
    assert keys.load_token(tmp_path / "token") == token
    assert keys.matches(token, keys.hashed(token))
    for other in (keys.new_token(), token[:-1], token + " ", "", "\udcff", "é"):
        assert not keys.matches(other, keys.hashed(token))
    assert not keys.matches(token, b"")
    assert len({keys.new_token() for _ in range(100)}) == 100


@given(st.lists(st.binary(max_size=9), max_size=4), st.integers(1, 255))
@settings(max_examples=20)
def test_what_is_sealed_opens(plaintexts: list[bytes], level: int) -> None:
    ciphertexts = Sealer(KEY.public_key, DIGEST).seal(level, plaintexts)
    assert [len(c) - len(p) for c, p in zip(ciphertexts, plaintexts, strict=True)] == [48] * len(
        plaintexts
    )
    assert Opener(KEY, DIGEST).open(level, ciphertexts) == plaintexts


def test_the_same_message_never_looks_the_same() -> None:
    ciphertexts = Sealer(KEY.public_key, DIGEST).seal(1, [b"\1"] * 50)
    assert len({c[:32] for c in ciphertexts}) == len({c[32:] for c in ciphertexts}) == 50


def test_every_flipped_bit_is_garbage() -> None:
    (ciphertext,) = Sealer(KEY.public_key, DIGEST).seal(1, [b"\1"])
    whole = int.from_bytes(ciphertext, "big")
    flipped = [(whole ^ 1 << bit).to_bytes(49, "big") for bit in range(8 * 49)]
    assert set(Opener(KEY, DIGEST).open(1, flipped)) == {None}


def test_messages_open_at_their_plan_level_and_key_only() -> None:
    sealed = Sealer(KEY.public_key, DIGEST).seal(2, [b"\1"])
    another = hashlib.sha256(b"another plan").digest()
    assert Opener(KEY, DIGEST).open(2, sealed) == [b"\1"]
    assert Opener(KEY, DIGEST).open(1, sealed) == [None]
    assert Opener(KEY, another).open(2, sealed) == [None]
    assert Opener(KeyPair.of_raw(bytes(32)), DIGEST).open(2, sealed) == [None]


@given(st.binary(max_size=120))
def test_any_bytes_are_garbage_and_never_an_exception(ciphertext: bytes) -> None:
    assert Opener(KEY, DIGEST).open(1, [ciphertext, bytes(len(ciphertext))]) == [None, None]


def test_truncated_seals_are_garbage() -> None:
    (ciphertext,) = Sealer(KEY.public_key, DIGEST).seal(1, [b"\1\2"])
    cut = [ciphertext[:length] for length in range(len(ciphertext))]
    assert set(Opener(KEY, DIGEST).open(1, [*cut, ciphertext + b"\0"])) == {None}


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"", bytes(31), bytes(33)])
def test_a_public_key_that_hides_nothing_is_refused(key: bytes) -> None:
    with pytest.raises(errors.InvalidValue, match="public key"):
        Sealer(key, DIGEST)


def test_seals_are_bound_to_a_whole_digest_and_a_level() -> None:
    with pytest.raises(errors.InvalidValue, match="32 bytes, not 31"):
        Sealer(KEY.public_key, DIGEST[1:])
    with pytest.raises(errors.InvalidValue, match="level=256"):
        Sealer(KEY.public_key, DIGEST).seal(256, [])


@pytest.fixture(scope="module")
def pool() -> Iterator[OpenerPool]:
    with OpenerPool(KEY, DIGEST, workers=2) as running:
        yield running


@lru_cache
def many_sealed() -> tuple[list[bytes], list[bytes | None]]:
    """Numbered messages with garbage among them, and what they open to."""
    plaintexts: list[bytes | None] = [number.to_bytes(2, "little") for number in range(300)]
    sealed = Sealer(KEY.public_key, DIGEST).seal(1, [p for p in plaintexts if p is not None])
    sealed[7], plaintexts[7] = bytes(50), None
    return sealed * 20, plaintexts * 20


def workers() -> list[Any]:
    """The workers of pools: other tests may have left children of other kinds."""
    children = multiprocessing.active_children()
    return [p for p in children if p.name.startswith("SpawnProcess") and p.is_alive()]


def test_the_pool_opens_in_order(pool: OpenerPool) -> None:
    sealed, plaintexts = many_sealed()
    assert list(pool.open(1, iter(sealed))) == plaintexts
    assert list(pool.open(2, sealed[:3])) == [None] * 3
    assert list(pool.open(1, [])) == []


def test_the_pool_reads_ahead_a_few_chunks_only(pool: OpenerPool) -> None:
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        while True:
            taken += 1
            yield b"garbage"

    opened = pool.open(1, endless())
    assert next(opened) is None
    assert taken <= sealing.CHUNK * (sealing._CHUNKS_AHEAD * 2 + 1)
    assert isinstance(opened, Iterator)
    del opened


def test_a_killed_worker_costs_nothing_but_time(pool: OpenerPool) -> None:
    sealed, plaintexts = many_sealed()
    opened = pool.open(1, sealed)
    found = [next(opened)]
    workers()[0].kill()
    found.extend(opened)
    assert found == plaintexts
    for worker in workers():  # also while nothing is asked of them
        worker.kill()
        worker.join()
    assert list(pool.open(1, sealed[:5])) == plaintexts[:5]


def test_a_pool_whose_workers_always_die_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def doomed(pool: OpenerPool) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, initializer=os._exit, initargs=(1,))

    monkeypatch.setattr(OpenerPool, "_started", doomed)
    with OpenerPool(KEY, DIGEST, workers=1) as broken, pytest.raises(WorkersLost):
        list(broken.open(1, [b"x"]))


def test_a_closed_pool_leaves_no_process_behind() -> None:
    before = {worker.pid for worker in workers()}
    running = OpenerPool(KEY, DIGEST, workers=1)
    assert list(running.open(1, many_sealed()[0][:1])) == [b"\0\0"]
    assert {worker.pid for worker in workers()} > before
    running.close()
    running.close()
    assert {worker.pid for worker in workers()} == before
    with pytest.raises(WorkersLost, match="closed"):
        list(running.open(1, [b"x"]))


ORPHANS = """
import multiprocessing, time
from overhand.service.keys import KeyPair
from overhand.service.sealing import OpenerPool
if __name__ == "__main__":
    pool = OpenerPool(KeyPair.of_raw(bytes(range(32))), bytes(32), workers=1)
    assert list(pool.open(1, [b"x"])) == [None]
    print(*[p.pid for p in multiprocessing.active_children()], flush=True)
    time.sleep(60)
"""


def is_running(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads the state of processes")
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(ORPHANS)
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        orphans = [int(word) for word in run.stdout.readline().split()]
        assert len(orphans) == 1
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 20
    while any(map(is_running, orphans)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(map(is_running, orphans))


@pytest.mark.parametrize(("spec", "mechanism"), KINDS)
def test_a_document_round_trips(spec: str, mechanism: MechanismKind) -> None:
    document = document_of(spec, mechanism)
    text = document.to_json()
    assert Document.from_json(text) == document
    assert document.digest == hashlib.sha256(text.encode()).hexdigest()
    document.check_guarantee()


def test_another_key_is_another_document() -> None:
    document = coin_document()
    other = replace(document, public_key=KeyPair.of_raw(bytes(32)).public_key)
    assert other.digest != document.digest
    assert other.formats.levels == document.formats.levels
    assert other.formats.digest != document.formats.digest  # so that stale reports are told apart


def edits() -> dict[str, Callable[[dict[str, Any]], object]]:
    other_key = KeyPair.of_raw(bytes(32)).public_key
    return {
        "version": lambda saved: saved.update(version=2),
        "true is no version": lambda saved: saved.update(version=True),
        "key": lambda saved: saved.update(public_key=other_key.hex()),
        "short key": lambda saved: saved.update(public_key="00" * 31),
        "zero key": lambda saved: saved.update(public_key="00" * 32),
        "capital key": lambda saved: saved.update(public_key=saved["public_key"].upper()),
        "key id": lambda saved: saved.update(key_id="00" * 8),
        "plan digest": lambda saved: saved.update(plan_digest="00" * 32),
        "horizon": lambda saved: saved["plan"].update(horizon=54),
        "noise": lambda saved: saved["plan"]["mechanisms"][0][0]["noise"].clear(),
        "epsilon": lambda saved: saved["plan"].update(epsilon=0.5),
        "unknown field": lambda saved: saved.update(mark="client 7"),
        "unknown field of the plan": lambda saved: saved["plan"].update(mark="client 7"),
        "missing field": lambda saved: saved.pop("key_id"),
        "missing plan": lambda saved: saved.pop("plan"),
    }


@pytest.mark.parametrize("edit", edits())
def test_an_edited_document_is_refused(edit: str) -> None:
    saved = json.loads(coin_document().to_json())
    edits()[edit](saved)
    with pytest.raises(DamagedDocument):
        Document.from_json(json.dumps(saved, indent=2) + "\n")


@given(st.data())
@settings(max_examples=60)
def test_every_other_text_is_refused(data: st.DataObject) -> None:
    text = coin_document().to_json()
    place = data.draw(st.integers(0, len(text)))
    dropped = data.draw(st.integers(0, 3))
    changed = text[:place] + data.draw(st.text(max_size=3)) + text[place + dropped :]
    if changed == text:
        assert Document.from_json(changed) == coin_document()
    else:
        with pytest.raises(DamagedDocument):
            Document.from_json(changed)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "7", '{"version": 1}', "[" * 100_000, "1" * 5000, "\udcff"]
)
def test_what_is_no_document_is_refused(text: str) -> None:
    with pytest.raises(DamagedDocument):
        Document.from_json(text)


def test_a_plan_that_cannot_be_deployed_has_no_document() -> None:
    with pytest.raises(errors.InvalidValue, match="regular"):
        Document(coin_plan(PATH), KEY.public_key)


def test_a_promise_that_the_noise_does_not_keep_is_found() -> None:
    with pytest.raises(errors.Infeasible, match="promises"):
        coin_document().check_guarantee()


@pytest.mark.parametrize(("spec", "mechanism"), KINDS)
def test_reports_become_sums(spec: str, mechanism: MechanismKind) -> None:
    """Every user's report, batch by batch in random order: opened, it is what was encoded."""
    document = document_of(spec, mechanism)
    plan, formats = document.plan, document.formats
    rows, random, again = rows_of(plan), seeded_random(3), seeded_random(3)
    reports = [formats.unpack_report(encode_report(document, v, random)) for v in rows]
    sent = [
        [m.encode_rows(rows[t : t + 1], again)[0] for (m,) in plan.mechanisms]
        for t in range(plan.horizon)
    ]
    for level, (used,) in zip(formats.levels, plan.mechanisms, strict=True):
        place = level.level - 1
        for number in range(level.batches):
            users = slice(number * level.size, (number + 1) * level.size)
            joined = b"".join(parts[place] for parts in reports[users])
            ciphertexts = np.frombuffer(joined, f"V{level.ciphertext_bytes}")
            body = secure_random().permute(ciphertexts).tobytes()
            packed = formats.pack_release(level.level, number, 0, body)
            release = formats.unpack_release(packed)
            opened = open_release(formats, release, Opener(KEY, formats.digest))
            expected = np.concatenate([messages[place] for messages in sent[users]])
            assert opened.garbage == 0
            assert np.array_equal(np.sort(opened.messages), np.sort(expected))
            summed = tolerant_sum(used, *opened)
            assert summed.missing == 0
            assert np.array_equal(summed.total, used.analyze(Shuffled(expected)))
            error = np.abs(summed.total - plan.values.total(rows[users]))
            assert np.all(error <= 6 * math.sqrt(used.variance))


def test_a_report_has_one_ciphertext_a_message_and_nothing_in_common() -> None:
    document = coin_document()
    body = encode_report(document, 1, secure_random())
    assert len(body) == document.formats.report_length
    parts = document.formats.unpack_report(body)
    sealed = [part[i : i + 49] for part in parts for i in range(0, len(part), 49)]
    assert len(sealed) == document.plan.messages_per_user
    assert len({c[:32] for c in sealed}) == len(sealed)
    assert not set(sealed) & set(_pieces(encode_report(document, 1, secure_random())[36:]))


def _pieces(sealed: bytes) -> list[bytes]:
    return [sealed[i : i + 49] for i in range(0, len(sealed), 49)]


@pytest.mark.parametrize("value", [2, -1, 0.5, "1", None, [1]])
def test_a_value_out_of_range_is_not_sent(value: object) -> None:
    with pytest.raises(errors.InvalidValue):
        encode_report(coin_document(), value, secure_random())


def test_garbage_is_counted_by_what_is_wrong_with_it() -> None:
    level = LevelFormat(1, 2, 1, 4, 3)
    opened = messages_of([b"\0", b"\7", None, b"", b"\1\0", b"\x08", b"\xff", b"\3"], level)
    assert opened.messages.tolist() == [0, 7, 3]
    assert opened.garbage == 5
    assert messages_of([], level).garbage == 0


def test_copied_and_foreign_ciphertexts_of_a_release_are_garbage() -> None:
    document = coin_document()
    formats, level = document.formats, document.formats.level(1)
    reports = [encode_report(document, 1, secure_random()) for _ in range(3)]
    first, _, third = (formats.unpack_report(report) for report in reports)
    body = first[0] + first[0] + third[1]
    release = formats.unpack_release(formats.pack_release(1, 0, 0, body))
    opened = open_release(formats, release, Opener(KEY, formats.digest))
    assert (len(opened.messages), opened.garbage) == (level.messages, 2 * level.messages)


COIN_SUMS = [
    oh.CoinSum(4, 2, HALF),
    oh.CoinSum(4, 2, HALF, values=values_of("real:-1:3"), steps=3),
    oh.CoinSum(3, 2, HALF, values=Histogram(3)),
    oh.CoinSum(3, 2, HALF, values=values_of("moments:2"), steps=4),
]


def batch_of(mechanism: oh.CoinSum) -> Any:
    values = mechanism.values.uniform(seeded_random(1), mechanism.size)
    return mechanism.encode_rows(values, seeded_random(2)).reshape(-1).astype(np.uint64)


@pytest.mark.parametrize("mechanism", COIN_SUMS, ids=lambda m: m.values.spec)
@given(data=st.data())
@settings(max_examples=40)
def test_changed_messages_move_a_sum_of_coins_by_their_number(
    mechanism: oh.CoinSum, data: st.DataObject
) -> None:
    """b changed messages: b steps a coordinate, 2 b in all, and no one of others is lost."""
    whole = batch_of(mechanism)
    changed = data.draw(st.lists(st.integers(0, len(whole) - 1), unique=True))
    kinds = st.integers(0, (1 << mechanism.message_bits) - 1)
    lies = data.draw(st.lists(st.none() | kinds, min_size=len(changed), max_size=len(changed)))
    others = np.delete(whole, changed)
    readable = [lie for lie in lies if lie is not None]
    tampered = np.concatenate([others, np.array(readable, np.uint64)])
    result = tolerant_sum(mechanism, tampered, len(whole) - len(tampered))
    without = tolerant_sum(mechanism, others, len(changed))
    moved = (result.total - tolerant_sum(mechanism, whole, 0).total) / mechanism.unit
    assert np.all(np.abs(moved) <= len(changed) + 1e-9)
    assert np.sum(np.abs(moved)) <= 2 * len(changed) + 1e-9
    assert np.all(result.total >= without.total - 1e-9)
    assert len(whole) - len(tampered) <= result.missing <= len(changed)
    assert without.missing == len(changed)


@pytest.mark.parametrize("mechanism", COIN_SUMS, ids=lambda m: m.values.spec)
def test_a_batch_without_garbage_is_analyzed_as_ever(mechanism: oh.CoinSum) -> None:
    batch = batch_of(mechanism)
    expected = mechanism.analyze(Shuffled(batch.astype(np.int64)))
    assert np.array_equal(tolerant_sum(mechanism, batch, 0).total, expected)


def test_a_batch_of_nothing_but_garbage_is_a_batch_of_zeros() -> None:
    mechanism = COIN_SUMS[0]
    summed = tolerant_sum(mechanism, np.empty(0, np.uint64), 12)
    assert summed == (0 - mechanism.noise().mean, 12)


@pytest.mark.parametrize("garbage", [1, -1, 12])
def test_messages_and_garbage_must_make_a_batch(garbage: int) -> None:
    with pytest.raises(errors.InvalidValue, match="garbage"):
        tolerant_sum(COIN_SUMS[0], batch_of(COIN_SUMS[0]), garbage)


def test_a_batch_of_shares_is_lost_with_any_of_them() -> None:
    mechanism = SharesSum(3, Coins(2, HALF, True), 4, 8, 3, Histogram(3))
    rows = mechanism.values.uniform(seeded_random(1), 3)
    batch = mechanism.encode_rows(rows, seeded_random(2)).reshape(-1)
    assert np.array_equal(
        tolerant_sum(mechanism, batch, 0).total, mechanism.analyze(Shuffled(batch))
    )
    with pytest.raises(LostBatch, match="1 shares"):
        tolerant_sum(mechanism, batch[1:], 1)
    for label in (0, 2, 3):  # of another coordinate, or of none
        relabelled = batch.copy()
        relabelled[4] = (relabelled[4] & np.uint64(255)) | np.uint64(label << 8)
        with pytest.raises(LostBatch, match="do not fit together"):
            tolerant_sum(mechanism, relabelled, 0)
