"""What one report costs: bytes on the wire, exactly, and processor time, as measured.

The seconds are those of one machine; `python -m benchmarks costs` measures them, and prints them in
this form. On another machine only their proportions carry over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from overhand.mechanisms import Mechanism
from overhand.model import byte_width

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
REQUEST_SECONDS = 0.00026
"""Client: send a report and read the answer."""
LEVEL_SECONDS = 2.6e-05
"""Client: encode a value for a level."""
SEAL_SECONDS = 7.9e-05
"""Client: seal a message."""
NUMBER_SECONDS = 4.1e-08
"""Client: draw the noise of a number in the clear, and mask it."""
ADMIT_SECONDS = 8.9e-05
"""Shuffling service: take a report, commit it, and send it on in its batches."""
ADMIT_BYTE_SECONDS = 1.6e-08
"""Shuffling service: a sealed byte of it."""
ADD_SECONDS = 1.2e-08
"""Shuffling service: check a number in the clear, and add it up."""
OPEN_SECONDS = 4.7e-05
"""Server: open a message."""
MASK_SECONDS = 5.9e-09
"""Server: make the mask of a number in the clear."""


def clear_bytes(numbers: int, bits: int) -> int:
    """The length of this many numbers in the clear, each in whole bytes.

    >>> clear_bytes(numbers=20, bits=17)
    60
    """
    return numbers * byte_width(bits)


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
    >>> from overhand.plan import Plan
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
        """Those of a plan with these levels."""
        messages = sum(m.messages_per_user for m in mechanisms)
        numbers = sum(m.clear_numbers for m in mechanisms)
        opened = math.fsum(m.messages_per_batch / m.size for m in mechanisms)
        sealed = sum(
            m.messages_per_user * (byte_width(m.message_bits) + SEAL_BYTES) for m in mechanisms
        )
        clear = sum(clear_bytes(m.clear_numbers, m.clear_bits) for m in mechanisms)
        return cls(
            messages,
            opened,
            sum(_bits(m) for m in mechanisms),
            report_bytes([sealed, clear]),
            REQUEST_SECONDS
            + len(mechanisms) * LEVEL_SECONDS
            + messages * SEAL_SECONDS
            + numbers * NUMBER_SECONDS,
            ADMIT_SECONDS
            + sealed * ADMIT_BYTE_SECONDS
            + numbers * ADD_SECONDS
            + (opened - messages) * SEAL_SECONDS,
            opened * OPEN_SECONDS + numbers * MASK_SECONDS,
        )

    @property
    def seconds(self) -> dict[str, float]:
        """Processor time by role, as JSON output has it."""
        return {
            "client_seconds_per_user": self.client_seconds,
            "shuffler_seconds_per_user": self.shuffler_seconds,
            "server_seconds_per_user": self.server_seconds,
        }


def _bits(mechanism: Mechanism) -> int:
    sealed = mechanism.messages_per_user * mechanism.message_bits
    return sealed + mechanism.clear_numbers * mechanism.clear_bits
