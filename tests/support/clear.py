"""A mechanism with a part in the clear and one message more in every batch, and a plan of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.model import Messages
from overhand.randomness import Random
from overhand.service.protocol import Formats, Sealer
from overhand.service.shuffler import added_by
from support.sealed import KEY

DUMMY = 99
ADDED = (4000, 3)


@dataclass(frozen=True)
class Halves:
    """Of a value below 50 a user seals the value, and says its square and a large number."""

    noise_by = "users"
    size: int
    messages_per_user: int = 1
    message_bits: int = 7
    clear_numbers: int = 2
    clear_bits: int = 12
    added_messages: int = 1

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        values = rows.reshape(-1, 1).astype(np.uint64)
        return Messages(values, np.hstack([values**2, 4095 - values]))

    def added(self, random: Random, batches: int = 1) -> Messages:
        rows = np.array([[DUMMY]], np.uint64), np.array([ADDED], np.uint64)
        return Messages(*(np.repeat(row, batches, axis=0) for row in rows))


def document_of(*mechanisms: Any, horizon: int = 12) -> Any:
    """What is asked of a document, for mechanisms that no plan has yet."""
    degrees = (mechanisms[0].size, *[2] * (len(mechanisms) - 1))
    plan = SimpleNamespace(
        tree=oh.RegularTree(horizon, degrees),
        horizon=horizon,
        mechanisms=mechanisms,
        messages_per_user=sum(mechanism.messages_per_user for mechanism in mechanisms),
        digest="ab" * 32,
    )
    formats = Formats.of(plan)  # type: ignore[arg-type]
    sealer = Sealer(KEY.public_key, formats.digest)
    return SimpleNamespace(plan=plan, mechanisms=mechanisms, formats=formats, sealer=sealer)


DOCUMENT = document_of(Halves(3), Halves(6))

dummies = added_by(DOCUMENT)
"""What the service adds to a batch."""
