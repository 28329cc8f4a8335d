"""The test vectors are what the code makes, and the code can read what is in them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from overhand.deploy.protocol.document import DamagedDocument, Document
from overhand.deploy.protocol.learning import SignedPolicy
from overhand.deploy.protocol.sealing import Opener
from overhand.deploy.protocol.wire import MaskedSum, Offer
from overhand.errors import ProtocolViolation
from overhand.mechanisms import Mechanism, PairsSum
from overhand.model import Messages
from support.hpke import seal
from support.vector_documents import KEY, documents
from support.vector_recommender import recommenders
from support.vectors import FOLDER, made

FILES = [
    "answers", "coins", "documents", "offers", "recommender", "releases", "reports", "seals",
    "tokens",
]  # fmt: skip


def read(name: str) -> Any:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FILES)
def test_a_vector_is_what_the_code_makes(name: str) -> None:
    """If not, the protocol has changed: it needs another version, and then other vectors."""
    assert (FOLDER / f"{name}.json").read_text(encoding="utf-8") == made()[f"{name}.json"]


def test_no_file_of_vectors_is_left_over() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*made(), "README.md"}
    assert {f"{name}.json" for name in FILES} == {*made()}


def test_every_field_of_a_vector_is_explained() -> None:
    explained = (FOLDER / "README.md").read_text(encoding="utf-8")
    known = {"name", "level", "levels"}
    recommended = read("recommender")
    listed = [part for part in recommended.values() if isinstance(part, list)]
    entries = [*read("documents")["documents"], *read("reports"), *read("offers")]
    for one in [*entries, *(x for y in listed for x in y)]:
        fields = {*one, *(field for level in one.get("levels", []) for field in level)}
        assert not {f for f in fields - known if f"`{f}`" not in explained}
    assert not {f for f in recommended if f"`{f}`" not in explained}


RECOMMENDER = read("recommender")
DOCUMENTS = read("documents")["documents"] + RECOMMENDER["documents"]
REFUSED = read("documents")["refused"] + RECOMMENDER["refused"]


@pytest.mark.parametrize("entry", DOCUMENTS, ids=lambda one: str(one["name"]))
def test_a_document_reads_and_keeps_what_it_promises(entry: dict[str, Any]) -> None:
    document = Document.from_bytes(entry["text"].encode(), entry["digest"])
    document.check_guarantee()


@pytest.mark.parametrize("entry", REFUSED, ids=lambda one: str(one["why"]))
def test_what_is_no_document_is_refused(entry: dict[str, Any]) -> None:
    with pytest.raises(DamagedDocument):
        Document.from_json(entry["text"])


def signed_of(name: str, text: str) -> SignedPolicy:
    document = recommenders()[name]
    assert document.learning is not None
    dimension = document.learning.constants.dimension
    return SignedPolicy.from_json(
        text, document.learning.policy_key, document.formats.digest, dimension
    )


def test_policies_are_read_and_choose_as_they_should() -> None:
    policies = [signed_of(one["document"], one["text"]) for one in RECOMMENDER["policies"]]
    for signed, one in zip(policies, RECOMMENDER["policies"], strict=True):
        assert (str(signed.number), str(signed.policy.t)) == (one["number"], one["users"])
        assert signed.to_json() == one["text"]
    for one in RECOMMENDER["choices"]:
        contexts, policy = np.array(one["contexts"]), policies[one["policy"]].policy
        assert policy.choose(contexts) == one["arm"] == np.argmax(one["scores"])
        assert policy.scores(contexts) == pytest.approx(one["scores"], rel=1e-12)


@pytest.mark.parametrize("entry", RECOMMENDER["refused_policies"], ids=lambda one: str(one["why"]))
def test_what_is_no_policy_is_refused(entry: dict[str, Any]) -> None:
    if entry["after"] is None:
        with pytest.raises(ProtocolViolation):
            signed_of(entry["document"], entry["text"])
        return
    after, signed = (signed_of(entry["document"], entry[which]) for which in ("after", "text"))
    assert (signed.number, signed.policy.t) < (after.number, after.policy.t)


def test_reports_open_to_their_messages_and_say_their_values() -> None:
    """By the library's HPKE, which had no part in sealing them."""
    known = {name: document for name, (_, document) in documents().items()}
    both = [(known, one) for one in read("reports")]
    both += [(recommenders(), one) for one in RECOMMENDER["reports"]]
    for where, one in both:
        if one["report"] is None:
            continue
        document = where[one["document"]]
        report = document.formats.unpack_report(bytes.fromhex(one["report"]))
        opener = Opener(KEY, document.formats.digest)
        for level, part, said in zip(
            document.formats.levels, report.parts, one["levels"], strict=True
        ):
            ciphertexts = [row.tobytes() for row in level.ciphertexts(part)]
            opened = opener.open(level.level, ciphertexts)
            assert [plaintext and plaintext.hex() for plaintext in opened] == said["messages"]
            assert [str(number) for number in level.clear(part)] == said["clear"]
            own = document.mechanisms[level.level - 1].own_steps(
                Messages(
                    level.bytes_to_messages([p for p in opened if p is not None])[np.newaxis],
                    level.clear(part)[np.newaxis],
                )
            )[0]
            noise = said.get("noise", [0] * len(own))
            assert (own - noise).tolist() == said["steps"]


def test_offers_answers_and_sums_are_read_and_mean_what_they_say() -> None:
    """The server's half: what opens counts, and the masks of those are added to the sum."""
    for one in read("offers"):
        document = documents()[one["document"]][1]
        formats, (level,), (mechanism,) = (
            document.formats, document.formats.levels, document.mechanisms
        )  # fmt: skip
        sent, answer = bytes.fromhex(one["offer"]), bytes.fromhex(one["answer"])
        offer = formats.unpack(Offer, sent)
        masked = formats.unpack(MaskedSum, bytes.fromhex(one["sum"]))
        assert offer[:2] == (masked.batch, masked.own) == ((1, one["batch"]), one["own"])
        assert masked.answer == hashlib.sha256(answer).digest()
        refused = set(formats.unpack_answer(sent, answer).tolist())
        ciphertexts = [row.tobytes() for row in level.ciphertexts(offer.body + masked.body)]
        opened = Opener(KEY, document.formats.digest).open(1, ciphertexts)
        assert [seed and seed.hex() for seed in opened] == one["seeds"]
        first = {ciphertext: place for place, ciphertext in reversed([*enumerate(ciphertexts)])}
        assert refused == {
            place
            for place, ciphertext in enumerate(ciphertexts)
            if opened[place] is None or first[ciphertext] != place
        }
        check_total(mechanism, one, level.clear(masked.body), refused)


def check_total(
    mechanism: Mechanism, one: dict[str, Any], clear: NDArray[np.uint64], refused: set[int]
) -> None:
    """Without the service's noise it is the sum of the values that count, but for rounding."""
    held = documents()[one["document"]][0].values
    values = [held[place % 2] for place in range(len(one["seeds"])) if place not in refused]
    seeds = [bytes.fromhex(s) for place, s in enumerate(one["seeds"]) if place not in refused]
    users = mechanism.with_users(len(values))
    assert isinstance(users, PairsSum)
    masks = users.mask_sums(np.frombuffer(b"".join(seeds), np.uint8).reshape(1, -1, 16))[0]
    total = users.unmask(clear, masks, -np.array([one["noise"]]))
    rounded = 0.0 if mechanism.values.is_whole else len(values) * mechanism.quantizer.unit
    assert np.all(np.abs(total - np.sum(values, axis=0)) <= rounded)


def test_hpke_from_primitives_is_that_of_the_rfc() -> None:
    """RFC 9180, A.1.1.1, sequence number 0."""
    sealed = seal(
        bytes.fromhex("3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"),
        b"Ode on a Grecian Urn",
        b"Beauty is truth, truth beauty",
        bytes.fromhex("7268600d403fce431561aef583ee1613527cff655c1343f29812e66706df3234"),
        aad=b"Count-0",
    )
    assert sealed.enc.hex() == "37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"
    assert sealed.key.hex() == "4531685d41d65f03dc48f6b8302c05b0"
    assert sealed.base_nonce.hex() == "56d890e5accaaf011cff4b7d"
    assert sealed.ciphertext.hex().startswith("f938558b5d72f1a23810b4be2ab4f84331acc02f")
