"""How a deployed recommender learns, and the policies that its server signs.

A policy is made from released sums alone: anybody may see it. It is signed, because a client gets
it from the shuffling service and then takes an arm that others may see, which tells something about
its context to the policy's author: a policy forged for a single victim could ask it any question.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from overhand import errors
from overhand.bandits import LinUCB, Policy, Practical, Theory, check_contexts
from overhand.deploy.protocol.keys import KEY_BYTES, PolicyKey
from overhand.errors import InvalidValue, ProtocolViolation
from overhand.model import Floats

_PURPOSE = b"overhand policy 1\0"
_FLOAT = np.dtype("<f8")
_MOST_NAME = 100
_MOST_ARMS = 1000
_MOST_CHARACTERS = 1 << 20
_KINDS: dict[str, type[Practical] | type[Theory]] = {"practical": Practical, "theory": Theory}


@dataclass(frozen=True)
class Learning:
    """What the document of a recommender says besides its plan and key.

    `constants` turn sums into policies, `policy_key` verifies them. `features` are names, `arms`
    the features of arms that are the same for all, by their names: both are public and optional.

    >>> key = PolicyKey.generate()
    >>> learning = Learning(Practical(2, constant=0.5), key.public_key, ("always", "jazz"))
    >>> Learning.of_entry(learning.entry()) == learning
    True
    """

    constants: Practical | Theory
    policy_key: bytes
    features: tuple[str, ...] = ()
    arms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        dimension = self.constants.dimension
        if len(self.policy_key) != KEY_BYTES:
            raise InvalidValue(f"policy_key has {len(self.policy_key)} bytes, not {KEY_BYTES}")
        if self.features and len(self.features) != dimension:
            raise InvalidValue(f"{len(self.features)} names for {dimension} features")
        for name in (*self.features, *self.arms):
            is_name = isinstance(name, str) and 0 < len(name) <= _MOST_NAME and name.isprintable()
            if not is_name:
                words = f"{name!r} is not a name of 1 to {_MOST_NAME} printable characters"
                raise InvalidValue(words)
        if len(set(self.features)) != len(self.features):
            raise InvalidValue(f"names of features must differ: {', '.join(self.features)}")
        if len(self.arms) > _MOST_ARMS:
            raise InvalidValue(f"{len(self.arms)} arms are more than {_MOST_ARMS}")
        if self.arms:
            contexts = check_contexts(list(self.arms.values()), dimension)
            names = list(self.arms)
            self.learner.check_constant(contexts[:, 0], lambda arm: f"the arm {names[arm]}")

    @cached_property
    def learner(self) -> LinUCB:
        return LinUCB(self.constants)

    @property
    def names(self) -> tuple[str, ...]:
        """Of features: as they were given, or by number."""
        return self.features or tuple(f"feature {i + 1}" for i in range(self.constants.dimension))

    def entry(self) -> dict[str, Any]:
        """As it is written into a document."""
        kinds = (name for name, kind in _KINDS.items() if isinstance(self.constants, kind))
        names = self.constants.__dataclass_fields__
        return {
            "policy": next(kinds),
            **{name: getattr(self.constants, name) for name in names},
            "features": list(self.features),
            "arms": {name: list(arm) for name, arm in self.arms.items()},
            "policy_key": self.policy_key.hex(),
        }

    @classmethod
    def of_entry(cls, entry: dict[str, Any]) -> Learning:
        """What `entry` wrote; any other fault shows when the document is written again."""
        kind = _KINDS[entry["policy"]]
        constants = kind(**{name: entry[name] for name in kind.__dataclass_fields__})
        arms = {name: tuple(arm) for name, arm in entry["arms"].items()}
        key = bytes.fromhex(entry["policy_key"])
        return cls(constants, key, tuple(entry["features"]), arms)


@dataclass(frozen=True)
class SignedPolicy:
    """A policy as it is published: the `number`-th of the document with this digest, signed.

    >>> key = PolicyKey.generate()
    >>> policy = Policy(t=10, theta=np.array([1.0, 0.5]), width=np.eye(2))
    >>> signed = SignedPolicy.sign(key, digest=bytes(32), number=1, policy=policy)
    >>> SignedPolicy.from_json(signed.to_json(), key.public_key, bytes(32), dimension=2) == signed
    True
    """

    digest: bytes
    number: int
    policy: Policy = field(compare=False)
    signature: bytes

    @classmethod
    def sign(cls, key: PolicyKey, digest: bytes, number: int, policy: Policy) -> SignedPolicy:
        return cls(digest, number, policy, key.sign(_signed_bytes(digest, number, policy)))

    def to_json(self) -> str:
        """Its text: floats are written so that they are read back exactly."""
        return json.dumps(
            {
                "document": self.digest.hex(),
                "number": self.number,
                "users": self.policy.t,
                "theta": self.policy.theta.tolist(),
                "width": self.policy.width.tolist(),
                "signature": self.signature.hex(),
            }
        )

    @classmethod
    def from_json(
        cls, text: str | bytes, policy_key: bytes, digest: bytes, dimension: int
    ) -> SignedPolicy:
        """The policy of a text; `ProtocolViolation` unless it is this document's, and signed."""
        try:
            signed = _parse(text, dimension)
        except (errors.OverhandError, ValueError, TypeError, LookupError, RecursionError) as error:
            raise ProtocolViolation(f"this is not a policy: {error}") from error
        if signed.digest != digest:
            raise ProtocolViolation(
                f"a policy of the document {signed.digest.hex()[:12]}, not of {digest.hex()[:12]}"
            )
        try:
            content = _signed_bytes(signed.digest, signed.number, signed.policy)
            Ed25519PublicKey.from_public_bytes(policy_key).verify(signed.signature, content)
        except InvalidSignature:
            raise ProtocolViolation(f"policy {signed.number} is not signed by the server") from None
        return signed


def _parse(text: str | bytes, dimension: int) -> SignedPolicy:
    if len(text) > _MOST_CHARACTERS:
        raise InvalidValue(f"{len(text)} characters are more than {_MOST_CHARACTERS}")
    saved = json.loads(text)
    number = errors.whole("number", saved["number"], least=1, most=1 << 62)
    users = errors.whole("users", saved["users"], least=1, most=1 << 62)
    theta = _numbers(saved["theta"], (dimension,))
    width = _numbers(saved["width"], (dimension, dimension))
    digest, signature = (bytes.fromhex(saved[name]) for name in ("document", "signature"))
    return SignedPolicy(digest, number, Policy(users, theta, width), signature)


def _numbers(listed: Any, shape: tuple[int, ...]) -> Floats:
    array = np.array(listed, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise InvalidValue(f"numbers of shape {array.shape} instead of finite ones of {shape}")
    return array


def _signed_bytes(digest: bytes, number: int, policy: Policy) -> bytes:
    """What is signed: the numbers themselves, not the way in which they are written."""
    dimension = len(policy.theta)
    assert policy.width.shape == (dimension, dimension)
    head = struct.pack("<QQI", number, policy.t, dimension)
    numbers = np.concatenate([policy.theta, policy.width.ravel()]).astype(_FLOAT)
    return _PURPOSE + digest + head + numbers.tobytes()
