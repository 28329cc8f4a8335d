"""How a batch is made: which messages carry the values, and which noise hides them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from overhand import errors
from overhand.values import Values

MechanismKind = Literal["coins", "shares", "best"]
"""How values are sent: "best" is the one of least error."""
MECHANISM_KINDS: tuple[MechanismKind, ...] = ("coins", "shares", "best")

SHAPES = (1, 2, 3, 5, 8)
"""Of discrete Laplace noise: 1 is best for few levels, many are close to Gaussian noise."""


@dataclass(frozen=True)
class Recipe:
    """Coins sent as they fall; or shares of a value with coins, or with Laplace noise, in it.

    `shape` is None for coins. Noise in shares costs no messages, so that values may be rounded
    more finely: `rounding` is the share of the noise's variance that rounding may add, and
    `norm` the share of a change in l2.
    """

    shares: bool = False
    shape: int | None = None

    @property
    def rounding(self) -> float:
        return 0.01 if self.shares else 0.05

    @property
    def norm(self) -> float:
        return 0.03 if self.shares else 0.06

    def __str__(self) -> str:
        if not self.shares:
            return "coins"
        noise = "coins" if self.shape is None else "Laplace noise"
        return f"shares, {noise}" if self.shape in (None, 1) else f"shares, {noise} x {self.shape}"


UNARY = Recipe()


def recipes(kind: MechanismKind, values: Values) -> list[Recipe]:
    """The recipes of a kind that can be accounted for: Laplace noise is not bounded in l2."""
    if kind not in MECHANISM_KINDS:
        raise errors.InvalidValue(f"mechanism={kind!r} must be one of {', '.join(MECHANISM_KINDS)}")
    found = [] if kind == "shares" else [UNARY]
    if kind != "coins":
        found.append(Recipe(shares=True))
        if values.moves is not None:
            found.append(Recipe(shares=True, shape=1))
    return found
