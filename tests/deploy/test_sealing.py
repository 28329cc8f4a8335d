"""Keys, tokens and seals: what is sealed opens for its key, plan and level only."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from overhand import errors
from overhand.deploy.protocol import keys, sealing
from overhand.deploy.protocol.keys import KeyPair, UnsafeSecret
from overhand.deploy.protocol.sealing import Opener, OpenerPool, Sealer, WorkersLost
from support.small_document import KEY, workers_of

DIGEST = hashlib.sha256(b"a plan").digest()


def new_key(path: Path) -> KeyPair:
    pair = KeyPair.generate()
    pair.save(path)
    return pair


def test_a_key_pair_comes_back_from_its_file(tmp_path: Path) -> None:
    made = new_key(tmp_path / "key")
    loaded = KeyPair.load(tmp_path / "key")
    assert (loaded.raw, loaded.public_key) == (made.raw, made.public_key)
    assert len(made.public_key) == 32
    assert keys.key_id(made.public_key) == hashlib.sha256(made.public_key).digest()[:8]
    assert made.raw.hex() not in repr(made)


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
    assert keys.matches(token, keys.hash_token(token))
    for other in (keys.new_token(), token[:-1], token + " ", "", "\udcff", "é"):
        assert not keys.matches(other, keys.hash_token(token))
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
    assert taken <= sealing.CHUNK * (sealing.CHUNKS_AHEAD * 2 + 1)
    assert isinstance(opened, Iterator)
    del opened


def test_a_killed_worker_costs_nothing_but_time(pool: OpenerPool) -> None:
    sealed, plaintexts = many_sealed()
    opened = pool.open(1, sealed)
    found = [next(opened)]
    workers_of(pool)[0].kill()
    found.extend(opened)
    assert found == plaintexts
    for worker in workers_of(pool):  # also while nothing is asked of them
        worker.kill()
        worker.join()
    assert list(pool.open(1, sealed[:5])) == plaintexts[:5]


def test_a_pool_whose_workers_always_die_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def doomed(pool: OpenerPool) -> ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(1, context, initializer=os._exit, initargs=(1,))

    monkeypatch.setattr(OpenerPool, "_start", doomed)
    with OpenerPool(KEY, DIGEST, workers=1) as broken, pytest.raises(WorkersLost):
        list(broken.open(1, [b"x"]))


def test_a_closed_pool_leaves_no_process_behind() -> None:
    running = OpenerPool(KEY, DIGEST, workers=1)
    assert not workers_of(running)
    running.warm_up()
    (worker,) = workers_of(running)
    assert list(running.open(1, many_sealed()[0][:1])) == [b"\0\0"]
    assert workers_of(running) == [worker]
    running.close()
    running.close()
    assert not worker.is_alive()
    assert worker not in multiprocessing.active_children()
    with pytest.raises(WorkersLost, match="closed"):
        list(running.open(1, [b"x"]))


ORPHANS = """
import multiprocessing, time
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import OpenerPool
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
