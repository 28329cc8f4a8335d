"""The documents of the test vectors: every mechanism with every kind of value that it can send.

Their plans are written out, not searched for: another search finds other plans, and the protocol
is the same.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.mechanisms import MECHANISMS
from overhand.noise import Coins, noise_of
from overhand.randomness import HALF
from overhand.values import values_of

SIZES = (10, 40)
TREE = oh.RegularTree(400, (10, 4))
KEY = KeyPair.of_raw(bytes(range(1, 33)))
"""Of no deployment: the private key is in the vectors, so that they can be opened."""


class Kind(NamedTuple):
    """A kind of value, what users may hold of it, how finely it is sent, and coins at what price.

    Their plans are not good ones: short reports matter more here than a small epsilon.
    """

    spec: str
    values: list[Any]
    steps: tuple[int, int] = (1, 1)
    coins: tuple[int, int] = (16, 4)
    epsilon: float = 4.0
    clip: bool = False


KINDS = {
    "bit": Kind("bit", [0, 1]),
    "real": Kind("real:-2.0:5.0", [-2.0, 0.1, 5.0], (5, 12), (24, 24), 16.0),
    "clipped": Kind("real", [-0.5, 0.3, 7.0], (5, 12), (24, 24), 16.0, clip=True),
    "histogram": Kind("histogram:3", [0, 2], coins=(8, 4), epsilon=8.0),
    "vector": Kind("vector:3", [[0.6, 0.0, -0.8], [0.1, 0.2, 0.3]], (3, 6), (16, 8), 24.0),
    "clipped-vector": Kind(
        "vector:2:2.5", [[3.0, -4.0], [0.7, 0.1]], (3, 6), (16, 8), 24.0, clip=True
    ),
    "matrix": Kind(
        "matrix:2:2.0", [[[1.0, -0.5], [-0.5, 0.25]], [[0.0, 1.4], [1.4, 0.0]]],
        (3, 6), (16, 8), 24.0,
    ),
    "regression": Kind("regression:2", [[0.6, 0.8, 1.0], [-0.3, 0.4, -0.7]], (3, 6), (16, 8), 30.0),
    "labels": Kind(
        "histogram:like,love,wow:any other", ["love", "sad"], coins=(8, 4), epsilon=8.0
    ),
    "binned": Kind("binned:0.0:10.0:4", [0.0, 2.5, 10.0], coins=(8, 4), epsilon=8.0),
    "grouped": Kind(
        "grouped:DE,FR:real:0.0:10.0", [["DE", 2.5], ["FR", 10.0]], (3, 6), (24, 24), 16.0
    ),
    "grouped-bit": Kind(
        "grouped:DE,FR:bit", [["DE", 1], ["FR", 0]], coins=(8, 4), epsilon=8.0
    ),
}  # fmt: skip


def _toss(coins: int) -> dict[str, Any]:
    """Coins whose fraction has another number of bits than a machine word."""
    return {"bits": coins, "probability": [1639, 12], "opposed": True}


def _laplace(users: int, ratio: float = 0.25) -> dict[str, Any]:
    return {"shape": 1, "users": users, "ratio": ratio.hex()}


def _noise(kind: Kind, level: int, size: int, *, by_services: bool) -> dict[str, Any]:
    """Laplace noise where one coordinate moves, or two; else coins, far more than are sent."""
    if values_of(kind.spec).sensitivity.l2 is not None:
        part = _toss((1024 if by_services else 128) * kind.steps[level])
    else:
        ratio = 0.25 if kind.steps == (1, 1) else 0.75
        part = _laplace(1 if by_services else size, ratio)
    return {"each_service": part, "bound": None} if by_services else part


def _coins(kind: Kind, level: int, size: int) -> dict[str, Any]:
    return {"noise": _toss(kind.coins[level])}


def _shares(kind: Kind, level: int, size: int) -> dict[str, Any]:
    noise = _noise(kind, level, size, by_services=False)
    return {"noise": noise, "modulus_bits": 20, "shares": (22, 15)[level], "honest": size}


def _pairs(kind: Kind, level: int, size: int) -> dict[str, Any]:
    """A modulus that is whole bytes, and one that is not."""
    noise = _noise(kind, level, size, by_services=False)
    return {"noise": noise, "modulus_bits": (16, 21)[level]}


def _pairs_services(kind: Kind, level: int, size: int) -> dict[str, Any]:
    noise = _noise(kind, level, size, by_services=True)
    return {"noise": noise, "modulus_bits": (16, 21)[level]}


def _ballots(kind: Kind, level: int, size: int) -> dict[str, Any]:
    buckets = values_of(kind.spec).dimension
    return {"noise": {"each_service": _laplace(1), "bound": 12}, "dummies": 24 * buckets}


_MAKERS = {
    "coins": ("coins", _coins),
    "shares": ("shares", _shares),
    "pairs": ("pairs", _pairs),
    "pairs-services": ("pairs", _pairs_services),
    "ballots": ("ballots", _ballots),
}


@lru_cache
def documents() -> dict[str, tuple[Kind, Document]]:
    """All of them by name: the mechanism and the kind of value; and one of the paper's own."""
    made = {
        f"{how}-{name}": (kind, _document(kind, how))
        for how, (mechanism, _) in _MAKERS.items()
        for name, kind in KINDS.items()
        if MECHANISMS[mechanism].noise_choices(values_of(kind.spec))
    }
    bits = KINDS["bit"]
    return {**made, "published-bit": (bits, Document(_published(), KEY.public_key))}


def _document(kind: Kind, how: str) -> Document:
    return Document(plan_of(kind, how), KEY.public_key)


def plan_of(kind: Kind, how: str) -> oh.Plan:
    values = values_of(kind.spec, clip=kind.clip)
    mechanism, parameters = _MAKERS[how]
    mechanisms = []
    for level, size in enumerate(SIZES):
        entry = {"size": size, "steps": kind.steps[level], **parameters(kind, level, size)}
        made = MECHANISMS[mechanism].of_entry(entry, noise_of(entry["noise"]), values)
        mechanisms.append(made)
    epsilon = kind.epsilon if how == "coins" else min(kind.epsilon, 8.0)
    return oh.Plan(TREE, tuple(mechanisms), oh.Privacy(epsilon, 1e-3), 2)


def _published() -> oh.Plan:
    """Coins that are not opposed, and estimates that hold: the paper to the letter."""
    coins = Coins(3, HALF, opposed=False)
    mechanisms = tuple(oh.CoinSum(size, coins) for size in SIZES)
    return oh.Plan(TREE, mechanisms, oh.Privacy(8.0, 1e-3), 2, combine=False, hold=True)


def refused() -> list[dict[str, Any]]:
    """Texts that are no documents, and why.

    Those of the wrong `form` say what a document may say, but not as it is written.
    """
    text = documents()["pairs-services-bit"][1].to_json()
    contents = [(why, "content", edited(text, path, to)) for why, path, to in _WRONG]
    forms = [(why, "form", edit(text)) for why, edit in _MISWRITTEN.items()]
    return [{"why": why, "wrong": wrong, "text": made} for why, wrong, made in contents + forms]


def edited(text: str, path: str, to: Any) -> str:
    """With another content at this path, and all else as it follows from it."""
    saved = json.loads(text)
    place = saved
    *before, last = path.split(".")
    for name in before:
        place = place[int(name) if name.isdigit() else name]
    if to is _MISSING:
        del place[last]
    else:
        place[last] = to
    if path.startswith("plan."):
        canonical = json.dumps(saved["plan"], sort_keys=True, separators=(",", ":"))
        saved["plan_digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    if path == "public_key":
        saved["key_id"] = hashlib.sha256(bytes.fromhex(to)).hexdigest()[:16]
    return json.dumps(saved, indent=2) + "\n"


_MISSING = object()
_WRONG: list[tuple[str, str, Any]] = [
    ("an older version", "version", 1),
    ("a later version", "version", 3),
    ("no plan", "plan", _MISSING),
    ("another format of plans", "plan.format", 3),
    ("a kind of value that nobody knows", "plan.values.kind", "colour:3"),
    ("bits, which cannot be clipped", "plan.values.clip", True),
    ("a level without a mechanism", "plan.degrees", [10, 4, 2]),
    ("batches of another size than the degrees say", "plan.mechanisms.1.size", 50),
    ("a mechanism that nobody knows", "plan.mechanisms.0.mechanism", "stones"),
    ("a modulus of no bits", "plan.mechanisms.0.modulus_bits", 0),
    ("a modulus of too many bits", "plan.mechanisms.0.modulus_bits", 49),
    ("bits in two steps", "plan.mechanisms.0.steps", 2),
    ("a ratio that is none", "plan.mechanisms.0.noise.each_service.ratio", "0x1.0p+0"),
    ("users' noise at one level, services' at the other", "plan.mechanisms.0.noise", _laplace(10)),
    ("a plan that is not the digest's", "plan_digest", "00" * 32),
    ("a key that is too short", "public_key", "07a3"),
    ("a key that hides nothing", "public_key", "00" * 32),
    ("another key's name", "key_id", "0011223344556677"),
    ("a version that is a text", "version", "2"),
    ("a version that is no whole number", "version", 1.5),
    ("no shufflers", "plan.shufflers", 0),
    ("more honest users than there are", "plan.honest", 1.5),
    ("no reports of a person", "plan.reports", 0),
    ("more reports of a person than are accounted for", "plan.reports", 1001),
    ("a flag that is a number", "plan.combine", 1),
    ("clipping that is a text", "plan.values.clip", "no"),
    ("steps that no noise hides", "plan.mechanisms.0.steps", 2**64),
    (
        "a ratio below all numbers",
        "plan.mechanisms.0.noise.each_service.ratio",
        "0x1.0000000000000p-1080",
    ),
    (
        "shares with noise that nobody would add",
        "plan.mechanisms",
        [
            {
                "mechanism": "shares",
                "size": size,
                "noise": {"each_service": _laplace(1), "bound": None},
                "steps": 1,
                "modulus_bits": 20,
                "shares": 22,
                "honest": size,
            }
            for size in SIZES
        ],
    ),
    (
        "coins whose mean is no whole number, in pairs",
        "plan.mechanisms.0.noise.each_service",
        {"bits": 3, "probability": [1, 1], "opposed": False},
    ),
    (
        "bounded noise of half a shape",
        "plan.mechanisms",
        [
            {
                "mechanism": "ballots",
                "size": size,
                "noise": {"each_service": _laplace(2), "bound": 12},
                "steps": 1,
                "dummies": 24,
            }
            for size in SIZES
        ],
    ),
    ("a label that nobody can see", "plan.values.kind", "histogram:like,lo\u200bve"),
    ("a label that is half a character", "plan.values.kind", "histogram:like,\ud83d"),
    ("a single label that is a number", "plan.values.kind", "histogram:1.5:love"),
]
_MISWRITTEN: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: "",
    "cut short": lambda text: text[:-20],
    "not an object": lambda text: "[]\n",
    "no line's end": lambda text: text[:-1],
    "another space": lambda text: text.replace('"version": 2', '"version":  2'),
    "a field that nobody knows": lambda text: text.replace("{", '{\n  "mark": 7,', 1),
    "a field twice": lambda text: text.replace("{", '{\n  "version": 2,', 1),
    "digits in capitals": lambda text: text.replace('"aaa8fff7', '"AAA8FFF7'),
    "a number written otherwise": lambda text: text.replace('"epsilon": 4.0', '"epsilon": 4'),
}
