"""A mechanism with a part in the clear and one message more in every batch, and a plan of it."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

import overhand as oh
from overhand.deploy.protocol.sealing import Sealer
from overhand.deploy.protocol.wire import Formats
from overhand.deploy.shuffler.batching import dummies_for
from overhand.mechanisms import MessageLayout
from overhand.model import Messages
from overhand.randomness import Random
from support.small_document import KEY

DUMMY = 99
ADDED = (4000, 3)


@dataclass(frozen=True)
class Halves:
    """Of a value below 50 a user seals the value, and says its square and a large number."""

    noise_by = "users"
    size: int
    clear_bits: int = 12

    @property
    def layout(self) -> MessageLayout:
        return MessageLayout(1, 7, clear_numbers=2, clear_bits=self.clear_bits, added_messages=1)

    def encode_rows(self, rows: NDArray[Any], random: Random) -> Messages:
        values = rows.reshape(-1, 1).astype(np.uint64)
        return Messages(values, np.hstack([values**2, 4095 - values]))

    def draw_added(self, random: Random, batches: int = 1) -> Messages:
        rows = np.array([[DUMMY]], np.uint64), np.array([ADDED], np.uint64)
        return Messages(*(np.repeat(row, batches, axis=0) for row in rows))


def document_of(*mechanisms: Any, horizon: int = 12) -> Any:
    """What is asked of a document, for mechanisms that no plan has yet."""
    degrees = (mechanisms[0].size, *[2] * (len(mechanisms) - 1))
    plan = SimpleNamespace(
        tree=oh.RegularTree(horizon, degrees),
        horizon=horizon,
        mechanisms=mechanisms,
        messages_per_user=sum(mechanism.layout.messages_per_user for mechanism in mechanisms),
        digest="ab" * 32,
    )
    formats = Formats.of(plan)  # type: ignore[arg-type]
    sealer = Sealer(KEY.public_key, formats.digest)
    return SimpleNamespace(plan=plan, mechanisms=mechanisms, formats=formats, sealer=sealer)


DOCUMENT = document_of(Halves(3), Halves(6))

dummies = dummies_for(DOCUMENT)
"""What the service adds to a batch."""
