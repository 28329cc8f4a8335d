"""Documents of plans: edits are refused, and reports that follow one become its sums."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand import errors
from overhand.deploy.protocol.document import (
    DamagedDocument,
    Document,
    encode_reports,
)
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.sealing import Opener, info, open_release
from overhand.deploy.protocol.wire import Batch, Release
from overhand.mechanisms import SharesSum
from overhand.model import Shuffled
from overhand.noise import Coins
from overhand.noise.shares import NoiseShare, Polya
from overhand.planning import fields_of
from overhand.randomness import HALF, secure_random, seeded_random
from overhand.shuffle import shuffle
from overhand.values import values_of
from support.kind_plans import kind_plan
from support.small_document import KEY, coin_document, encode_report
from support.small_plans import coin_plan

KINDS: list[tuple[str, str]] = [
    (spec, mechanism)
    for spec in ("bit", "real:-1:3", "vector:2:1", "histogram:4", "grouped:DE,FR:real:-1:3")
    for mechanism in ("coins", "shares")
]


@lru_cache
def plan_of(spec: str, mechanism: str) -> oh.Plan:
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
def document_of(spec: str, mechanism: str) -> Document:
    return Document(plan_of(spec, mechanism), KEY.public_key)


def rows_of(plan: oh.Plan) -> Any:
    return plan.values.uniform(seeded_random(5), plan.horizon)


@pytest.mark.parametrize(("spec", "mechanism"), KINDS)
def test_a_document_round_trips(spec: str, mechanism: str) -> None:
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
        "version": lambda saved: saved.update(version=1),
        "true is no version": lambda saved: saved.update(version=True),
        "key": lambda saved: saved.update(public_key=other_key.hex()),
        "short key": lambda saved: saved.update(public_key="00" * 31),
        "zero key": lambda saved: saved.update(public_key="00" * 32),
        "capital key": lambda saved: saved.update(public_key=saved["public_key"].upper()),
        "key id": lambda saved: saved.update(key_id="00" * 8),
        "plan digest": lambda saved: saved.update(plan_digest="00" * 32),
        "horizon": lambda saved: saved["plan"].update(horizon=54),
        "noise": lambda saved: saved["plan"]["mechanisms"][0]["noise"].clear(),
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


def test_a_file_is_read_if_it_is_what_was_agreed_upon(tmp_path: Path) -> None:
    document, path = coin_document(), tmp_path / "document.json"
    path.write_bytes(document.to_json().encode())
    assert Document.load(path) == Document.load(path, document.digest) == document
    with pytest.raises(errors.InvalidValue, match="not 000000000000"):
        Document.load(path, "0" * 64)
    with pytest.raises(DamagedDocument, match="missing"):
        Document.load(tmp_path / "missing")


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b'{"version": 1}'])
def test_what_nobody_agreed_upon_is_not_even_read(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    with pytest.raises(DamagedDocument, match="is not"):
        Document.load(path, digest)
    with pytest.raises(errors.InvalidValue, match=f"has the digest {digest}, not 000000000000"):
        Document.load(path, "0" * 64)


def test_every_byte_of_a_file_counts(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    path.write_bytes(coin_document().to_json().replace("\n", "\r\n").encode())
    with pytest.raises(DamagedDocument, match="edited"):
        Document.load(path)


def test_a_document_cannot_ask_for_reports_of_any_length() -> None:
    saved = json.loads(coin_document().to_json())
    saved["plan"]["mechanisms"][0]["noise"]["bits"] = 10**12
    plan = oh.Plan(**fields_of(saved["plan"]))
    saved["plan_digest"] = plan.digest
    with pytest.raises(DamagedDocument, match=f"49000000000591 bytes: at most {1 << 24}"):
        Document.from_json(json.dumps(saved, indent=2) + "\n")


@pytest.mark.parametrize("noise", [Coins(10**13, HALF), Polya(1, 8, 1 - 1e-12)])
def test_a_short_report_cannot_ask_for_noise_of_any_width(noise: NoiseShare) -> None:
    shares = SharesSum(8, noise, shares=4, modulus_bits=48, honest=8)
    plan = oh.Plan(oh.RegularTree(8, (8,)), (shares,), oh.Privacy(1.0, 1e-6), 1)
    with pytest.raises(errors.InvalidValue, match=r"level 1 has a standard deviation of \S+e\+"):
        Document(plan, KEY.public_key)


def test_the_longest_document_can_be_read_and_a_longer_text_is_not() -> None:
    tree = oh.RegularTree(1 << 31, (1,) + (2,) * 31)  # batches of up to 2^31 users
    document = Document(coin_plan(tree), KEY.public_key)
    assert Document.from_json(document.to_json()) == document
    with pytest.raises(DamagedDocument, match=f"{1 << 24} characters"):
        Document.from_json("[" * (1 << 24))


def test_a_promise_that_the_noise_does_not_keep_is_found() -> None:
    with pytest.raises(errors.Infeasible, match="promises"):
        coin_document().check_guarantee()


@pytest.mark.parametrize(("spec", "mechanism"), KINDS)
def test_reports_become_sums(spec: str, mechanism: str) -> None:
    """Every user's report, batch by batch in random order: opened, it is what was encoded."""
    document = document_of(spec, mechanism)
    plan, formats = document.plan, document.formats
    rows, random, again = rows_of(plan), seeded_random(3), seeded_random(3)
    bodies = [encode_reports(document, rows[t : t + 1], random)[0] for t in range(plan.horizon)]
    reports = [formats.unpack_report(body).parts for body in bodies]
    sent = [
        [m.encode_rows(rows[t : t + 1], again).sealed[0] for m in plan.mechanisms]
        for t in range(plan.horizon)
    ]
    for level, used in zip(formats.levels, plan.mechanisms, strict=True):
        place = level.level - 1
        for number in range(level.batches):
            users = slice(number * level.size, (number + 1) * level.size)
            joined = b"".join(parts[place] for parts in reports[users])
            ciphertexts = np.frombuffer(joined, f"V{level.ciphertext_bytes}")
            body = secure_random().permute(ciphertexts).tobytes()
            packed = formats.pack(Release(Batch(level.level, number), 0, body))
            release = formats.unpack(Release, packed)
            shuffled, garbage = open_release(formats, release, Opener(KEY, formats.digest))
            expected = np.concatenate([messages[place] for messages in sent[users]])[np.newaxis]
            assert garbage == 0
            assert np.array_equal(np.sort(shuffled.sealed), np.sort(expected))
            as_sent = used.sum_of(Shuffled(expected, shuffled.clear))
            assert np.array_equal(used.sum_of(shuffled), as_sent)


HELD: dict[str, list[Any]] = {
    "bit": [1, 0, 1],
    "real:-1:3": [3.0, -1.0, 3.0],
    "vector:2:1": [[0.5, -0.5], [0.2, 0.7], [-0.6, 0.1]],
    "histogram:4": [3, 0, 3],
    "grouped:DE,FR:real:-1:3": [("FR", 3.0), ("DE", -1.0), ("FR", -1.0)],
}
"""Values in whole steps, however many steps there are; but for vectors."""


@pytest.mark.usefixtures("mean_noise")
@pytest.mark.parametrize(("spec", "mechanism"), KINDS)
def test_sums_are_those_of_the_values(spec: str, mechanism: str) -> None:
    """Exactly, where all noise is its mean: that is not in them."""
    plan, random = plan_of(spec, mechanism), seeded_random(3)
    for used in plan.mechanisms:
        held, unit = HELD[spec], used.quantizer.unit
        if spec == "vector:2:1":
            held = (np.round(np.add(held, 1) / unit) * unit - 1).tolist()
        rows = plan.values.rows([held[user % 3] for user in range(used.size)])
        shuffled = shuffle(used.encode_rows(rows, random).gather(used.size), random)
        total = used.sum_of(shuffled)
        assert total == pytest.approx(plan.values.total(rows), abs=1e-6)


def test_a_report_has_one_ciphertext_a_message_and_nothing_in_common() -> None:
    document = coin_document()
    body = encode_report(document, 1, secure_random())
    assert len(body) == document.formats.report_length
    parts = document.formats.unpack_report(body).parts
    sealed = [part[i : i + 49] for part in parts for i in range(0, len(part), 49)]
    assert len(sealed) == document.plan.messages_per_user
    assert len({c[:32] for c in sealed}) == len(sealed)
    assert not set(sealed) & set(_pieces(encode_report(document, 1, secure_random())[52:]))


def _pieces(sealed: bytes) -> list[bytes]:
    return [sealed[i : i + 49] for i in range(0, len(sealed), 49)]


@pytest.mark.parametrize("value", [2, -1, 0.5, "1", None, [1]])
def test_a_value_out_of_range_is_not_sent(value: object) -> None:
    with pytest.raises(errors.InvalidValue):
        encode_report(coin_document(), value, secure_random())


def test_a_device_reports_a_label() -> None:
    plan = kind_plan(oh.RegularTree(2, (2,)), oh.Histogram(["like", "love"]))
    document = Document(plan, KEY.public_key)
    assert len(encode_report(document, "love", seeded_random(1))) == document.formats.report_length
    with pytest.raises(oh.InvalidValue, match="the nearest is 'love'"):
        encode_report(document, "lvoe", seeded_random(1))


def test_a_seed_means_another_mask_under_another_document_or_level() -> None:
    plan = oh.Plan.best(1000, 2, oh.Privacy(1.0, 1e-6), mechanism="pairs")
    documents = [Document(plan, KEY.public_key), Document(plan, bytes.fromhex("09" + 31 * "00"))]
    seeds = np.zeros((1, 1, 16), np.uint8)
    bound = [document.mechanisms[0] for document in documents]
    mechanisms = [*bound, bound[0].bind_to(info(documents[0].formats.digest, 2))]
    masks = {replace(m, modulus_bits=48)._masks(seeds).tobytes() for m in mechanisms}  # type: ignore
    assert len(masks) == 3
    assert plan.mechanisms[0].bind_to(b"x") != plan.mechanisms[0]
    coins = oh.CoinSum(3, Coins(2, HALF))
    assert coins.bind_to(b"x") == coins
