"""The vectors of recommenders: documents that say how one learns, policies, choices and reports."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from overhand.bandits import Policy, Practical, Theory
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import PolicyKey
from overhand.deploy.protocol.learning import Learning, SignedPolicy
from overhand.model import Rows
from support.vector_documents import KEY, Kind, plan_of

_RAW = bytes(range(33, 65))
POLICY_KEY = PolicyKey.of_raw(_RAW)
"""Of no deployment: the private key is in the vectors, so that policies can be made."""

Encoded = Callable[[Document, Rows, str], dict[str, Any]]

_FEATURES = ("always", "jazz", "Übermut")
_ARMS = {"a walk": (0.9, 0.1, -0.3), "1984": (0.9, 0.4, 0.0), "42": (0.9, 0.0, 0.4)}
"""Names that are numbers keep their places, too."""


@lru_cache
def recommenders() -> dict[str, Document]:
    """By name: with and without a constant feature, names and arms; by three mechanisms."""
    key = POLICY_KEY.public_key
    wide = Kind("regression:3", [], (3, 6), epsilon=8.0)
    narrow = Kind("regression:2", [], (3, 6), (16, 8), 30.0)
    theory = Theory(2, horizon=400, entry_error=20.0)
    made = {
        "pairs": (wide, Learning(Practical(3, 0.9, 0.25), key, _FEATURES, _ARMS)),
        "coins": (narrow, Learning(Practical(2), key)),
        "shares": (narrow, Learning(theory, key, ("dark", "loud"), {"a club": (0.6, 0.8)})),
    }
    return {
        how: Document(plan_of(kind, how), KEY.public_key, learning)
        for how, (kind, learning) in made.items()
    }


def recommender(encoded: Encoded) -> dict[str, Any]:
    """All of them; `encoded` makes the report of a row that was checked."""
    return {
        "policy_private_key": _RAW.hex(),
        "documents": [
            {"name": name, "text": document.to_json(), "digest": document.digest}
            for name, document in recommenders().items()
        ],
        "refused": [
            {"why": why, "text": _edited(change)} for why, change in _WRONG_LEARNING.items()
        ],
        "policies": [_policy_vector(*one) for one in _policies()],
        "refused_policies": _refused_policies(),
        "choices": [_choice_vector(*one) for one in _CHOICES],
        "reports": [_report_vector(encoded, *one) for one in _REPORTS],
    }


# --- documents ------------------------------------------------------------------------------------

_WRONG_LEARNING: dict[str, dict[str, Any]] = {
    "policies by nobody knows what": {"policy": "guesses"},
    "another dimension than the plan's": {"dimension": 2, "features": [], "arms": {}},
    "a constant of 1": {"constant": 1.0},
    "no exploration": {"exploration": 0.0},
    "too few names": {"features": ["always", "jazz"]},
    "a name twice": {"features": ["always", "jazz", "jazz"]},
    "a name that cannot be printed": {"features": ["always", "jazz", "\x1b[31m"]},
    "an arm of too few features": {"arms": {"a walk": [0.9, 0.1]}},
    "an arm that is too long": {"arms": {"a walk": [0.9, 0.8, 0.0]}},
    "an arm without the constant": {"arms": {"a walk": [0.8, 0.1, 0.0]}},
    "a key that is too short": {"policy_key": "07a3"},
    "a field that nobody knows": {"mark": 7},
}


def _edited(change: dict[str, Any]) -> str:
    saved = json.loads(recommenders()["pairs"].to_json())
    saved["learning"] |= change
    return json.dumps(saved, indent=2) + "\n"


# --- policies -------------------------------------------------------------------------------------


@lru_cache
def _policies() -> list[tuple[str, int, Policy]]:
    """The document's name, the number of the policy, and what it says."""
    wide = np.array([[0.05, -0.02, 0.0], [0.01, 0.3, 1e-17], [-0.0, 0.1, 0.7]])
    flat = np.zeros((2, 2))
    return [
        ("pairs", 1, Policy(10, np.array([0.1, -0.25, 1 / 3]), wide)),
        ("pairs", (1 << 53) + 1, Policy(1 << 62, np.array([0.1, 0.9, -0.2]), wide / 7)),
        ("coins", 3, Policy(30, np.array([0.5, 0.25]), flat)),
        ("shares", 40, Policy(400, np.array([-1e-300, 2e16]), np.eye(2))),
    ]


def _signed(name: str, number: int, policy: Policy, key: PolicyKey = POLICY_KEY) -> SignedPolicy:
    return SignedPolicy.sign(key, recommenders()[name].formats.digest, number, policy)


def _policy_vector(name: str, number: int, policy: Policy) -> dict[str, Any]:
    """What is signed is written out here once more, not taken from the code."""
    floats = [*policy.theta, *policy.width.ravel()]
    head = struct.pack("<QQI", number, policy.t, len(policy.theta))
    content = (
        b"overhand policy 1\0"
        + bytes.fromhex(recommenders()[name].digest)
        + head
        + struct.pack(f"<{len(floats)}d", *floats)
    )
    assert POLICY_KEY.sign(content) == _signed(name, number, policy).signature
    return {
        "document": name,
        "number": str(number),
        "users": str(policy.t),
        "signed": content.hex(),
        "text": _signed(name, number, policy).to_json(),
    }


def _refused_policies() -> list[dict[str, Any]]:
    """Texts that a client refuses, if it has seen the policy `after` before, or none."""
    name, number, policy = _policies()[1]
    good = _signed(name, number, policy).to_json()
    other = PolicyKey.of_raw(bytes(32))
    saved = json.loads(good)
    turned = {**saved, "theta": [-x for x in saved["theta"]]}
    short = Policy(10, np.zeros(2), np.eye(2))
    cases = {
        "another key": _signed(name, number, policy, other).to_json(),
        "another document": _signed("coins", 1, policy).to_json(),
        "another theta": json.dumps(turned),
        "another number": json.dumps({**saved, "number": number + 1}),
        "other users": json.dumps({**saved, "users": 7}),
        "another dimension": _signed(name, 1, short).to_json(),
        "a width that is no square": json.dumps({**saved, "width": saved["width"][:2]}),
        "a number that is none": good.replace("0.9", "NaN", 1),
        "a number that is too large": good.replace("0.9", "1e999", 1),
        "number 0": _signed(name, 0, policy).to_json(),
        "a number that is not whole": json.dumps({**saved, "number": 1.5}),
        "a signature that is cut short": json.dumps({**saved, "signature": "00" * 63}),
        "no signature": json.dumps({k: v for k, v in saved.items() if k != "signature"}),
        "nothing": "",
        "no object": "[]",
        "cut short": good[:-9],
    }
    made = [{"why": why, "document": name, "after": None, "text": it} for why, it in cases.items()]
    first = _signed(*_policies()[0]).to_json()
    return [*made, {"why": "older than the last", "document": name, "after": good, "text": first}]


# --- choices and reports --------------------------------------------------------------------------

_PERSON = [[0.9, 0.1, -0.3], [0.9, 0.4, 0.0], [0.9, 0.0, 0.4], [0.9, -0.2, -0.2]]
_CHOICES: list[tuple[int, list[list[float]]]] = [
    (0, _PERSON),
    (1, _PERSON),
    (0, [[0.9, 0.0, 0.0]]),
    (0, [[0.9, -0.3, -0.3], [0.9, 0.0, 0.43]]),
    (2, [[0.0, 0.25], [0.25, 0.5], [0.5, 0.0], [0.0, 1.0]]),  # three are alike
    (3, [[0.6, 0.8], [1.0, 0.0]]),
]
"""Which policy, by its place, and the contexts."""


def _choice_vector(place: int, contexts: list[list[float]]) -> dict[str, Any]:
    """In the plainest way: sums one after the other."""
    name, _, policy = _policies()[place]
    scores = []
    for x in contexts:
        side = range(len(x))
        along = [sum(float(policy.width[i, k]) * x[i] for i in side) for k in side]
        mean = sum(float(policy.theta[i]) * x[i] for i in side)
        scores.append(mean + sum(one * one for one in along) ** 0.5)
    arm = int(policy.choose(np.array(contexts)))
    assert np.allclose(policy.scores(np.array(contexts)), scores, rtol=1e-12, atol=0)
    return {"document": name, "policy": place, "contexts": contexts, "scores": scores, "arm": arm}


_REPORTS: list[tuple[str, list[float], float]] = [
    ("pairs", [0.9, 0.1, -0.3], 1.0),
    ("pairs", [0.9, 0.4, 0.0], 0.0),
    ("pairs", [0.9, 0.0, 0.4358898943540674], 0.3),  # of norm 1
    ("coins", [0.6, -0.8], 0.7),
    ("coins", [0.0, 0.25], 0.0),
    ("shares", [0.6, 0.8], 0.9),
]
"""The document, the features of the arm that was chosen, and what came of it."""


def _report_vector(
    encoded: Encoded, name: str, features: list[float], reward: float
) -> dict[str, Any]:
    document = recommenders()[name]
    assert document.learning is not None
    rows = document.learning.learner.rows([features], [reward])
    said = {"document": name, "features": features, "reward": reward}
    label = f"recommender {name}, {features}, {reward}"
    return {**said, **encoded(document, rows, label)}
