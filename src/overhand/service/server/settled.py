"""What an earlier plan ended with: a running sum goes on although plan and key are new."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from overhand.errors import InvalidValue, number, whole
from overhand.model import Estimate
from overhand.service.server.pages import by_coordinate, sum_of
from overhand.values import Values

_NUMBERS = ("std", "slack", "kurtosis", "unit")


@dataclass(frozen=True)
class Settled:
    """The last estimate of a plan for these values; as public as everything that was published."""

    values: str
    t: int
    value: tuple[float, ...]
    std: float
    slack: float
    kurtosis: float
    unit: float

    @classmethod
    def of(cls, values: Values, estimate: Estimate) -> Settled:
        rest = {name: float(getattr(estimate, name)) for name in _NUMBERS}
        return cls(values.spec, estimate.t, by_coordinate(estimate.value), **rest)

    def estimate(self, values: Values) -> Estimate:
        """The same as a sum of these values, if it is one."""
        if values.spec != self.values or len(self.value) != values.dimension:
            raise InvalidValue(f"a sum of {self.values} does not go on as one of {values.spec}")
        value = sum_of(values, self.value)
        return Estimate(self.t, value, self.std, self.slack, kurtosis=self.kurtosis, unit=self.unit)

    def to_json(self) -> str:
        return json.dumps(asdict(self)) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Settled:
        """What `to_json` wrote, or `InvalidValue`."""
        try:
            saved = json.loads(text)
            return cls(
                str(saved["values"]),
                whole("t", saved["t"], least=0),
                tuple(number("value", one, above=-math.inf) for one in saved["value"]),
                **{name: number(name, saved[name], above=-math.ulp(0.0)) for name in _NUMBERS},
            )
        except (ValueError, TypeError, LookupError) as error:
            raise InvalidValue(f"this is not what a plan ended with: {error}") from error

    @classmethod
    def load(cls, path: str | Path) -> Settled:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidValue(f"cannot read {path}: {error}") from error
        return cls.from_json(text)
