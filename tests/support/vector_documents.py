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
HORIZON = 400
TREE = oh.RegularTree(HORIZON, (10, 4))
KEY = KeyPair.of_raw(bytes(range(1, 33)))
"""Of no deployment: the private key is in the vectors, so that they can be opened."""


class Kind(NamedTuple):
    """A kind of value, what users may hold of it, how finely it is sent, and coins at what price.

    By level; blocks are the first of them.

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


_SHEARS = [(126, 10, 125, 9), (100, 9, 96, 8), (80, 8, 73, 7), (68, 7, 105, 7)]
_GAINS = [-5062268539102, 14285815949224, -22919527988795, 30602569985356]
_STEP = 49758216191607  # for draws of a standard deviation of 32 steps
_BLOCKS = 100
"""How many there may be: then clipped ones are rare."""


def _correlated(deviation: int) -> dict[str, Any]:
    """Of draws of this standard deviation, which must divide 32; a filter of four rotations."""
    finer = 32 // deviation
    rotations = [[*s, g * finer] for s, g in zip(_SHEARS, _GAINS, strict=True)]
    return {"step": _STEP * finer, "rotations": rotations, "cap": _BLOCKS}


def _independent() -> dict[str, Any]:
    return {"each_service": _laplace(1), "cap": _BLOCKS}


def _coins(kind: Kind, level: int, size: int) -> dict[str, Any]:
    return {"noise": _toss(kind.coins[level])}


def _shares(kind: Kind, level: int, size: int) -> dict[str, Any]:
    """Laplace noise where one coordinate moves, or two; else coins, far more than are sent."""
    if values_of(kind.spec).sensitivity.l2 is not None:
        noise = _toss(128 * kind.steps[level])
    else:
        noise = _laplace(size, 0.25 if kind.steps == (1, 1) else 0.75)
    return {"noise": noise, "modulus_bits": 20, "shares": (22, 15)[level], "honest": size}


def _pairs(kind: Kind, level: int, size: int) -> dict[str, Any]:
    """A modulus that is whole bytes, and one that is not."""
    if kind.spec == "bit":
        return {"noise": _independent(), "modulus_bits": 16}
    is_whole = values_of(kind.spec).is_whole
    return {"noise": _correlated(4 if is_whole else 32), "modulus_bits": 21}


def _ballots(kind: Kind, level: int, size: int) -> dict[str, Any]:
    if kind.spec == "bit":
        return {"noise": _independent(), "dummies": 40, "bound": 20}
    dimension = values_of(kind.spec).dimension
    return {"noise": _correlated(4), "dummies": 60 * dimension, "bound": 40}


_MAKERS = {"coins": _coins, "shares": _shares, "pairs": _pairs, "ballots": _ballots}


@lru_cache
def documents() -> dict[str, tuple[Kind, Document]]:
    """All of them by name: the mechanism and the kind of value; and one of the paper's own."""
    made = {
        f"{how}-{name}": (kind, _document(kind, how))
        for how in _MAKERS
        for name, kind in KINDS.items()
        if MECHANISMS[how].noise_choices(values_of(kind.spec))
    }
    bits = KINDS["bit"]
    return {**made, "published-bit": (bits, Document(_published(), KEY.public_key))}


def _document(kind: Kind, how: str) -> Document:
    return Document(plan_of(kind, how), KEY.public_key)


def plan_of(kind: Kind, how: str) -> oh.Plan:
    values, mechanism = values_of(kind.spec, clip=kind.clip), MECHANISMS[how]
    of_services, mechanisms = mechanism.noise_by == "services", []
    for level, size in enumerate(SIZES[:1] if of_services else SIZES):
        entry = {"size": size, "steps": kind.steps[level], **_MAKERS[how](kind, level, size)}
        mechanisms.append(mechanism.of_entry(entry, noise_of(entry["noise"]), values))
    tree = oh.RegularTree(_BLOCKS * SIZES[0], SIZES[:1]) if of_services else TREE
    epsilon = kind.epsilon if how == "coins" else min(kind.epsilon, 8.0)
    shufflers, privacy = 1 if of_services else 2, oh.Privacy(epsilon, 1e-3)
    return oh.Plan(tree, tuple(mechanisms), privacy, shufflers, horizon=HORIZON)


def _published() -> oh.Plan:
    """Coins that are not opposed, and estimates that hold: the paper to the letter."""
    coins = Coins(3, HALF, opposed=False)
    mechanisms = tuple(oh.CoinSum(size, coins) for size in SIZES)
    return oh.Plan(TREE, mechanisms, oh.Privacy(8.0, 1e-3), 2, combine=False, hold=True)


def refused() -> list[dict[str, Any]]:
    """Texts that are no documents, and why.

    Those of the wrong `form` say what a document may say, but not as it is written.
    """
    contents = [
        (why, "content", edited(documents()[name][1].to_json(), path, to))
        for name, faults in _WRONG.items()
        for why, path, to in faults
    ]
    text = documents()["pairs-bit"][1].to_json()
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
        place[int(last) if isinstance(place, list) else last] = to
    if path.startswith("plan."):
        canonical = json.dumps(saved["plan"], sort_keys=True, separators=(",", ":"))
        saved["plan_digest"] = hashlib.sha256(canonical.encode()).hexdigest()
    if path == "public_key":
        saved["key_id"] = hashlib.sha256(bytes.fromhex(to)).hexdigest()[:16]
    return json.dumps(saved, indent=2) + "\n"


_MISSING = object()


def _services_at(sizes: tuple[int, ...], mechanism: str, **more: Any) -> list[dict[str, Any]]:
    """Mechanisms with services' noise, where there can be none of it."""
    same = {"noise": _independent(), "steps": 1, **more}
    return [{"mechanism": mechanism, "size": size, **same} for size in sizes]


_ROTATIONS = "plan.mechanisms.0.noise.rotations"
_WRONG: dict[str, list[tuple[str, str, Any]]] = {
    "pairs-bit": [
        ("an older version", "version", 2),
        ("a later version", "version", 4),
        ("no plan", "plan", _MISSING),
        ("another format of plans", "plan.format", 4),
        ("a kind of value that nobody knows", "plan.values.kind", "colour:3"),
        ("bits, which cannot be clipped", "plan.values.clip", True),
        ("a mechanism that nobody knows", "plan.mechanisms.0.mechanism", "stones"),
        ("blocks of another size than the degrees say", "plan.mechanisms.0.size", 11),
        ("a modulus of no bits", "plan.mechanisms.0.modulus_bits", 0),
        ("a modulus of too many bits", "plan.mechanisms.0.modulus_bits", 49),
        ("bits in two steps", "plan.mechanisms.0.steps", 2),
        ("steps that no noise hides", "plan.mechanisms.0.steps", 2**64),
        ("noise of users in pairs", "plan.mechanisms.0.noise", _laplace(10)),
        (
            "noise of services that is made of coins",
            "plan.mechanisms.0.noise.each_service",
            _toss(4),
        ),
        ("a ratio that is none", "plan.mechanisms.0.noise.each_service.ratio", "0x1.0p+0"),
        (
            "a ratio below all numbers",
            "plan.mechanisms.0.noise.each_service.ratio",
            "0x1.0000000000000p-1080",
        ),
        ("no blocks", "plan.mechanisms.0.noise.cap", 0),
        ("more users expected than there may be", "plan.horizon", 1001),
        ("a plan that is not the digest's", "plan_digest", "00" * 32),
        ("a key that is too short", "public_key", "07a3"),
        ("a key that hides nothing", "public_key", "00" * 32),
        ("another key's name", "key_id", "0011223344556677"),
        ("a version that is a text", "version", "3"),
        ("a version that is no whole number", "version", 1.5),
        ("no shufflers", "plan.shufflers", 0),
        ("more honest users than there are", "plan.honest", 1.5),
        ("no reports of a person", "plan.reports", 0),
        ("more reports of a person than are accounted for", "plan.reports", 1001),
        ("a flag that is a number", "plan.combine", 1),
        ("clipping that is a text", "plan.values.clip", "no"),
        ("a label that nobody can see", "plan.values.kind", "histogram:like,lo\u200bve"),
        ("a label that is half a character", "plan.values.kind", "histogram:like,\ud83d"),
        ("a single label that is a number", "plan.values.kind", "histogram:1.5:love"),
    ],
    "pairs-vector": [
        ("a step of too few units", "plan.mechanisms.0.noise.step", (1 << 16) - 1),
        ("a step of too many units", "plan.mechanisms.0.noise.step", (1 << 62) + 1),
        ("no rotations", _ROTATIONS, []),
        ("too many rotations", _ROTATIONS, [[1, 10 + i, 1, 9, 0] for i in range(17)]),
        ("a rotation of four numbers", f"{_ROTATIONS}.0", [126, 10, 125, 9]),
        ("a rotation by nothing", f"{_ROTATIONS}.0.0", 0),
        ("a rotation by too fine an angle", f"{_ROTATIONS}.0.2", 129),
        ("a shift that is too long", f"{_ROTATIONS}.0.3", 41),
        ("a shift that is none", f"{_ROTATIONS}.0.1", -1),
        ("a gain that is too large", f"{_ROTATIONS}.0.4", -16 * _STEP - 1),
        ("a gain that is no whole number", f"{_ROTATIONS}.0.4", 1.5),
        ("a pole outside of (0, 1)", f"{_ROTATIONS}.0", [128, 7, 128, 7, 0]),
        ("a register that weighs too much", f"{_ROTATIONS}.0", [126, 10, 125, 10, 0]),
        ("a register that weighs too little", f"{_ROTATIONS}.0", [126, 10, 125, 7, 0]),
        ("two rotations with one pole", f"{_ROTATIONS}.0", [100, 9, 96, 8, 0]),
    ],
    "ballots-bit": [
        ("too few dummies", "plan.mechanisms.0.dummies", 19),
        ("noise that is clipped to nothing", "plan.mechanisms.0.bound", 0),
        ("ballots of numbers", "plan.values.kind", "real"),
    ],
    "coins-bit": [
        ("a level without a mechanism", "plan.degrees", [10, 4, 2]),
        ("batches of another size than the degrees say", "plan.mechanisms.1.size", 50),
        ("coins of services", "plan.mechanisms", _services_at(SIZES, "coins")),
        (
            "services' noise in a tree",
            "plan.mechanisms",
            _services_at(SIZES, "pairs", modulus_bits=16),
        ),
        (
            "services' noise at one level, users' at the other",
            "plan.mechanisms.1",
            _services_at(SIZES[1:], "pairs", modulus_bits=16)[0],
        ),
    ],
    "shares-bit": [
        ("shares with noise of services", "plan.mechanisms.0.noise", _independent()),
        (
            "coins whose mean is no whole number, in shares",
            "plan.mechanisms.0.noise",
            {"bits": 3, "probability": [1, 1], "opposed": False},
        ),
    ],
}
_MISWRITTEN: dict[str, Callable[[str], str]] = {
    "nothing": lambda text: "",
    "cut short": lambda text: text[:-20],
    "not an object": lambda text: "[]\n",
    "no line's end": lambda text: text[:-1],
    "another space": lambda text: text.replace('"version": 3', '"version":  3'),
    "a field that nobody knows": lambda text: text.replace("{", '{\n  "mark": 7,', 1),
    "a field twice": lambda text: text.replace("{", '{\n  "version": 3,', 1),
    "digits in capitals": lambda text: text.replace('"aaa8fff7', '"AAA8FFF7'),
    "a number written otherwise": lambda text: text.replace('"epsilon": 4.0', '"epsilon": 4'),
}
