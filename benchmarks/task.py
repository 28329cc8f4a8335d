"""What every contestant is asked to do, and what it hands back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:  # the process that starts the others stays small: see `measure`
    from benchmarks.arrays import Bits, Floats


@dataclass(frozen=True)
class Asked:
    """What one process asks of another, as text."""

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields: dict[str, Any] = json.loads(text)
        return cls(**fields)


@dataclass(frozen=True)
class Task(Asked):
    """Release all prefix sums of one stream of bits under one guarantee."""

    horizon: int
    large_horizon: int
    repeats: int
    epsilon: float = 1.0
    delta: float = 1e-6
    shufflers: int = 5
    seed: int = 1
    unit_sigma: float = 0.0
    """The Gaussian noise that hides a shift of 1, by the analytic Gaussian mechanism."""


@dataclass(frozen=True)
class Ready:
    """A contestant with its calibration behind it."""

    run: Callable[[Bits], Floats | Iterator[Floats]]
    """From the values to the estimates at t = 1 .. horizon, with fresh noise at every call.

    All at once or, by those that can do with less memory, in parts.
    """
    expected_rms: Callable[[], float] | None = None
    """The exact error, where there is a formula: one run is a sample of correlated errors."""
