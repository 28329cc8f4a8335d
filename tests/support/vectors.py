"""The test vectors of the protocol, in tests/vectors.

`PYTHONPATH=src:tests python -m support.vectors` writes them. All that is chance is fixed and
written down, so that another implementation reproduces every byte. A vector that changes is
another version of the protocol.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import hash_lines, hash_token
from overhand.deploy.protocol.sealing import info
from overhand.deploy.protocol.wire import (
    ID_BYTES,
    Batch,
    Formats,
    LevelFormat,
    MaskedSum,
    Offer,
    Release,
    Report,
)
from overhand.mechanisms import CoinSum, Mechanism, PairsSum, SharesSum
from overhand.model import Floats, Messages, Rows
from overhand.randomness import BinaryFraction, Random
from support.hpke import AEAD_ID, KDF_ID, KEM_ID, seal
from support.vector_answers import answers
from support.vector_documents import KEY, documents, refused
from support.vector_recommender import recommender

FOLDER = Path(__file__).parent.parent / "vectors"
_LONGEST = 1200  # bytes of a report that is written out whole


def material(label: str, length: int) -> bytes:
    """Bytes that stand in for chance: SHAKE256 of a label."""
    return hashlib.shake_256(b"overhand test vectors: " + label.encode()).digest(length)


class Fixed(Random):
    """A stream of fixed bytes, which remembers what it gave for rounding, and what it gave last."""

    def __init__(self, label: str) -> None:
        self._bytes = material(label, 1 << 16)
        self._used = 0
        self.rounding: list[int] = []
        self.last: NDArray[Any] = np.empty(0)

    def words(self, count: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
        little = np.dtype(dtype).newbyteorder("<")
        start, self._used = self._used, self._used + count * little.itemsize
        assert self._used <= len(self._bytes), "a vector that takes more bytes than there are"
        self.last = np.frombuffer(self._bytes, little, count, start).astype(dtype)
        return self.last.copy()

    def uniforms(self, count: int) -> Floats:
        drawn = super().uniforms(count)
        self.rounding += [int(one * 2**53) for one in drawn]
        return drawn

    @property
    def state(self) -> dict[str, Any]:
        raise NotImplementedError

    def spawn(self, count: int) -> list[Random]:
        raise NotImplementedError


def _document_vectors() -> dict[str, Any]:
    return {
        "documents": [
            {
                "name": name,
                "text": document.to_json(),
                "digest": document.digest,
                "public_key": document.public_key.hex(),
                "private_key": KEY.raw.hex(),
                "key_id": document.key_id.hex(),
                "noise_by": document.plan.noise_by,
                "dimension": document.plan.values.dimension,
                "report_length": document.formats.report_length,
                "levels": [
                    _format_vector(level, mechanism)
                    for level, mechanism in zip(
                        document.formats.levels, document.plan.mechanisms, strict=True
                    )
                ],
            }
            for name, (_, document) in documents().items()
        ],
        "refused": refused(),
    }


def _format_vector(level: LevelFormat, mechanism: Mechanism) -> dict[str, Any]:
    return {
        "level": level.level,
        "messages": level.messages,
        "message_bits": level.message_bits,
        "plaintext_bytes": level.plaintext_bytes,
        "ciphertext_bytes": level.ciphertext_bytes,
        "clear_numbers": level.clear_numbers,
        "clear_bits": level.clear_bits,
        "clear_bytes": level.clear_bytes,
        "part_bytes": level.part_bytes,
        "unit": mechanism.quantizer.unit,
        "coordinate_steps": mechanism.quantizer.coordinate_steps.tolist(),
    }


def _report_vectors() -> list[dict[str, Any]]:
    return [
        _report_vector(document, name, value)
        for name, (kind, document) in documents().items()
        for value in kind.values
    ]


def _report_vector(document: Document, name: str, value: Any) -> dict[str, Any]:
    rows = document.plan.values.rows([value])
    return {"document": name, "value": value, **_encoded(document, rows, f"{name}, {value}")}


def _encoded(document: Document, rows: Rows, label: str) -> dict[str, Any]:
    """The report of a value that was checked, with all that it was made of."""
    made = [_level_vector(document, level, rows, label) for level in document.formats.levels]
    levels, parts = zip(*made, strict=True)
    report = Report(material(f"{label}, id", ID_BYTES), parts)
    body = document.formats.pack_report(report)
    return {
        "coordinates": document.plan.values.coordinates(rows).reshape(-1).tolist(),
        "levels": list(levels),
        "id": report.id.hex(),
        "report": body.hex() if len(body) <= _LONGEST else None,
        "report_sha256": hashlib.sha256(body).hexdigest(),
    }


def _level_vector(
    document: Document, level: LevelFormat, rows: Rows, label: str
) -> tuple[dict[str, Any], bytes]:
    """What one user sends at one level, with all that it was made of; and its part of a report."""
    here = f"{label}, level {level.level}"
    mechanism, random = document.mechanisms[level.level - 1], Fixed(here)
    messages = mechanism.encode_rows(rows, random)
    steps = mechanism.quantizer.to_steps(rows, Fixed(here)).reshape(-1).astype(np.int64)
    plaintexts = level.messages_to_bytes(messages.sealed)
    ephemeral = material(f"{here}, ephemeral keys", 32)
    bound = info(document.formats.digest, level.level)
    sealed = [
        seal(document.public_key, bound, plaintext, ephemeral_material(ephemeral, place)).whole
        for place, plaintext in enumerate(plaintexts)
    ]
    vector = {
        "level": level.level,
        "rounding": [str(uniform) for uniform in random.rounding],
        "steps": steps.tolist(),
        **_drawn(mechanism, messages, steps, random),
        "messages": [plaintext.hex() for plaintext in plaintexts],
        "clear": [str(number) for number in messages.clear[0]],
        "ephemeral": ephemeral.hex(),
    }
    return vector, level.pack(b"".join(sealed), messages.clear[0])


def ephemeral_material(ephemeral: bytes, place: int) -> bytes:
    """The ikmE of a message by its place in its level."""
    return hashlib.sha256(ephemeral + place.to_bytes(4, "big")).digest()


def _drawn(
    mechanism: Mechanism, messages: Messages, steps: NDArray[np.int64], random: Fixed
) -> dict[str, Any]:
    """What a user drew, beside uniforms for rounding."""
    drawn: dict[str, Any] = {}
    if isinstance(mechanism, CoinSum):
        ends = np.cumsum(mechanism._messages_by_coordinate)
        starts = ends - mechanism.noise_share.bits
        shown = messages.sealed[0] & 1
        drawn["coins"] = [shown[i:j].tolist() for i, j in zip(starts, ends, strict=True)]
    if isinstance(mechanism, SharesSum):
        drawn["noise"] = (mechanism.own_steps(messages)[0] - steps).tolist()
        free = random.last.reshape(mechanism.values.dimension, -1) % np.uint64(mechanism.modulus)
        drawn["free_shares"] = [[str(share) for share in row] for row in free]
    if isinstance(mechanism, PairsSum):
        drawn["seed"] = random.last.tobytes().hex()
        drawn["masks"] = [str(mask) for mask in mechanism._masks(messages.sealed)[0]]
    return drawn


def _seal_vectors() -> dict[str, Any]:
    """The seals of a few plaintexts, step by step."""
    digest = material("digest", 32)
    cases = [(1, b""), (1, b"\x01"), (2, b"\x00"), (255, material("seed", 16))]
    return {
        "mode": 0,
        "kem_id": KEM_ID,
        "kdf_id": KDF_ID,
        "aead_id": AEAD_ID,
        "skRm": KEY.raw.hex(),
        "pkRm": KEY.public_key.hex(),
        "digest": digest.hex(),
        "seals": [_seal_vector(digest, level, plaintext) for level, plaintext in cases],
    }


def _seal_vector(digest: bytes, level: int, plaintext: bytes) -> dict[str, Any]:
    bound = info(digest, level)
    sealed = seal(KEY.public_key, bound, plaintext, material(f"seal {level} {plaintext!r}", 32))
    return {
        "level": level,
        "info": bound.hex(),
        "aad": "",
        "pt": plaintext.hex(),
        "ikmE": sealed.ikm_e.hex(),
        "skEm": sealed.sk_em.hex(),
        "enc": sealed.enc.hex(),
        "shared_secret": sealed.shared_secret.hex(),
        "key": sealed.key.hex(),
        "base_nonce": sealed.base_nonce.hex(),
        "ct": sealed.ciphertext.hex(),
        "sealed": sealed.whole.hex(),
    }


def _coin_vectors() -> list[dict[str, Any]]:
    """Coins from random words: 1 if a word is below the fraction, both of as many bits."""
    vectors = []
    for numerator, bits in [(1, 1), (1639, 12), (19661, 16), (21961357, 32), (5, 64)]:
        probability = BinaryFraction(numerator, bits)
        width = next(width for width in (16, 32, 64) if bits <= width)
        limit = numerator << (width - bits)
        edge = [0, limit - 1, limit, (1 << width) - 1]
        some = material(f"coins {numerator} {bits}", 4 * width // 8)
        words = edge + [int(word) for word in np.frombuffer(some, f"<u{width // 8}")]
        vectors.append(
            {
                "probability": [probability.numerator, probability.bits],
                "word_bits": width,
                "words": [str(word) for word in words],
                "coins": [int(word < limit) for word in words],
            }
        )
    return vectors


def _release_vectors() -> list[dict[str, Any]]:
    """Batches as the shuffling service releases them to the server, with room left but for one."""
    return [_release_vector(name) for name in ("ballots-bit", "pairs-vector")]


def _release_vector(name: str) -> dict[str, Any]:
    formats = documents()[name][1].formats
    level = formats.levels[0]
    own = level.size - 1
    sealed = material(f"release, {name}", level.batch_messages(own) * level.ciphertext_bytes)
    clear = np.arange(level.clear_numbers, dtype=np.uint64)
    release = Release(Batch(1, 3), own, level.pack(sealed, clear))
    return {
        "document": name,
        "level": 1,
        "batch": 3,
        "own": own,
        "clear": [str(number) for number in clear],
        "body_sha256": release.digest.hex(),
        "release": formats.pack(release).hex(),
    }


_OFFERED: list[tuple[list[int | None], list[int]]] = [([0, 1, 2], []), ([None, 1, 1], [0, 2])]
"""Whose seeds a block has, or None for one that does not open; and which of them do not count."""


def _offer_vectors() -> list[dict[str, Any]]:
    """Blocks of pairs in two steps: three places are taken, and the others stayed empty."""
    return [
        _offer_vector(name, Batch(1, number), *offered)
        for name in ("pairs-bit", "pairs-vector")
        for number, offered in enumerate(_OFFERED, start=3)
    ]


def _offer_vector(
    name: str, batch: Batch, users: list[int | None], refused: list[int]
) -> dict[str, Any]:
    kind, document = documents()[name]
    formats, (level,), (mechanism,) = document.formats, document.formats.levels, document.mechanisms
    rows = document.plan.values.rows([kind.values[place % 2] for place in range(len(users))])
    messages = mechanism.encode_rows(rows, Fixed(f"offer, {name}, {batch}"))
    seeds = [None if user is None else messages.sealed[user].tobytes() for user in users]
    offer = Offer(batch, level.size - len(seeds), b"".join(_sealed(formats, s) for s in seeds))
    sent = formats.pack(offer)
    answer = formats.pack_answer(sent, refused)
    noise = np.arange(level.clear_numbers) - 1
    counted = messages.clear[[place for place in range(len(users)) if place not in refused]]
    total = level.add_up(np.vstack([counted, noise.astype(np.uint64)]))
    digest = hashlib.sha256(answer).digest()
    masked = MaskedSum(batch, offer.own, digest, level.pack(b"", total))
    return {
        "document": name,
        "level": batch.level,
        "batch": batch.number,
        "own": offer.own,
        "seeds": [seed and seed.hex() for seed in seeds],
        "masked": [[str(number) for number in row] for row in messages.clear],
        "noise": noise.tolist(),
        "offer": sent.hex(),
        "refused": refused,
        "answer": answer.hex(),
        "clear": [str(number) for number in total],
        "sum": formats.pack(masked).hex(),
    }


def _sealed(formats: Formats, seed: bytes | None) -> bytes:
    """A seed as a client seals it, or garbage of the same length."""
    (level,) = formats.levels
    if seed is None:
        return material("garbage", level.ciphertext_bytes)
    bound = info(formats.digest, level.level)
    return seal(KEY.public_key, bound, seed, material(f"seed {seed.hex()}", 32)).whole


def _token_vectors() -> dict[str, Any]:
    tokens = ["A" * 43, "-_" + "z9" * 20 + "0"]
    return {
        "tokens": [
            {
                "token": token,
                "authorization": f"Bearer {token}",
                "sha256": hash_token(token).hex(),
            }
            for token in tokens
        ],
        "hashes_file": hash_lines([hash_token(token) for token in tokens]).decode(),
    }


@lru_cache
def made() -> dict[str, str]:
    """The text of every file of vectors, by its name."""
    contents: dict[str, Any] = {
        "documents": _document_vectors(),
        "reports": _report_vectors(),
        "seals": _seal_vectors(),
        "coins": _coin_vectors(),
        "releases": _release_vectors(),
        "offers": _offer_vectors(),
        "tokens": _token_vectors(),
        "answers": answers(),
        "recommender": recommender(_encoded),
    }
    return {f"{name}.json": _text(content) + "\n" for name, content in contents.items()}


def _text(content: Any, margin: str = "\n") -> str:
    """JSON with one entry a line, but short ones on one."""
    line = json.dumps(content)
    if not isinstance(content, dict | list) or len(margin) + len(line) <= 100:
        return line
    inner = margin + " "
    if isinstance(content, dict):
        entries = [f"{json.dumps(key)}: {_text(one, inner)}" for key, one in content.items()]
    elif not any(isinstance(one, dict | list) for one in content):
        return line
    else:
        entries = [_text(one, inner) for one in content]
    opening, closing = "{}" if isinstance(content, dict) else "[]"
    return opening + inner + f",{inner}".join(entries) + margin + closing


if __name__ == "__main__":
    for name, text in made().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
