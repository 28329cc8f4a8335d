"""What one report costs: bytes on the wire, exactly, and processor time, as measured.

The seconds are those of one machine; `python -m benchmarks costs` measures them, and prints them in
this form. On another machine only their proportions carry over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overhand.mechanisms import Mechanism, byte_width

MAGIC_BYTES = 4
DIGEST_BYTES = 32
"""The name of a plan or document, a SHA-256 digest."""
ID_BYTES = 16
"""Of what a client draws for a report, by which it is known again."""
SEAL_BYTES = 48
"""What sealing adds to a message: an X25519 key and an AES-GCM tag."""
HEADER_BYTES = MAGIC_BYTES + DIGEST_BYTES + ID_BYTES
"""What a report begins with."""

# Seconds of processor time, measured on AMD EPYC, 2 cores.
REQUEST_SECONDS = 0.00015  # client: send a report and read the answer
LEVEL_SECONDS = 2.2e-05  # client: encode a value for a level
SEAL_SECONDS = 5.4e-05  # client: seal a message
NUMBER_SECONDS = 6e-09  # client: mask a number in the clear
ADMIT_SECONDS = (
    8.6e-05  # shuffling service: take a report, commit it, and send it on in its batches
)
ADMIT_BYTE_SECONDS = 1.5e-08  # shuffling service: a sealed byte of it
ADD_SECONDS = 5.2e-09  # shuffling service: check a number in the clear, and add it up
OPEN_SECONDS = 3.5e-05  # server: open a message
MASK_SECONDS = 2.2e-09  # server: make the mask of a number in the clear
NOISE_SECONDS = 1.3e-07  # each service: draw its noise of a number of a block


def report_bytes(parts: Iterable[int]) -> int:
    """The length of a report whose levels take these numbers of bytes.

    >>> report_bytes([147, 98]) - HEADER_BYTES
    245
    """
    return HEADER_BYTES + sum(parts)


@dataclass(frozen=True)
class Costs:
    """What one report costs to make, pass on and read.

    >>> from overhand.model import Privacy
    >>> from overhand.planning import Plan
    >>> costs = Plan.best(10**4, 1, Privacy(1.0, 1e-6)).costs
    >>> costs.messages, costs.opened, costs.report_bytes - HEADER_BYTES
    (3, 3.0, 147)
    """

    messages: int
    """Messages that a user seals."""
    opened: float
    """Messages that the server opens per user, including those of the shuffling service."""
    bits: int
    """Bits that the user sends, before sealing."""
    report_bytes: int
    """What goes over the wire."""
    client_seconds: float
    shuffler_seconds: float
    server_seconds: float

    @classmethod
    def of(cls, mechanisms: Sequence[Mechanism]) -> Costs:
        layouts = [m.layout for m in mechanisms]
        messages = sum(one.messages_per_user for one in layouts)
        numbers = sum(one.clear_numbers for one in layouts)
        opened = math.fsum(m.layout.messages_per_batch(m.size) / m.size for m in mechanisms)
        sealed = sum(
            one.messages_per_user * (byte_width(one.message_bits) + SEAL_BYTES) for one in layouts
        )
        bits = sum(
            one.messages_per_user * one.message_bits + one.clear_numbers * one.clear_bits
            for one in layouts
        )
        clear = sum(one.clear_numbers * byte_width(one.clear_bits) for one in layouts)
        blocks = (m for m in mechanisms if m.noise_by == "services")
        noise = NOISE_SECONDS * math.fsum(m.values.dimension / m.size for m in blocks)
        return cls(
            messages,
            opened,
            bits,
            report_bytes([sealed, clear]),
            REQUEST_SECONDS
            + len(mechanisms) * LEVEL_SECONDS
            + messages * SEAL_SECONDS
            + numbers * NUMBER_SECONDS,
            ADMIT_SECONDS
            + sealed * ADMIT_BYTE_SECONDS
            + numbers * ADD_SECONDS
            + (opened - messages) * SEAL_SECONDS
            + noise,
            opened * OPEN_SECONDS + numbers * MASK_SECONDS + noise,
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Processor time by role, as JSON output has it."""
        return {
            "client_seconds_per_user": self.client_seconds,
            "shuffler_seconds_per_user": self.shuffler_seconds,
            "server_seconds_per_user": self.server_seconds,
        }
