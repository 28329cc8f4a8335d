"""What is shipped, as plans small enough to be audited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from overhand import errors
from overhand.audit.deployment import LEAST_RUNS, Deployment
from overhand.mechanisms import published
from overhand.model import Privacy
from overhand.plan import Plan
from overhand.plan.levels import Mechanisms, calibrated, with_best_shape
from overhand.plan.recipe import UNARY, Recipe
from overhand.plan.terms import Terms
from overhand.trees import RegularTree
from overhand.values import Values, values_of

Kind = Literal["coins", "shares", "published"]
"""How values are sent: by ours, or with the constants of the papers."""
KINDS: tuple[Kind, ...] = ("coins", "shares", "published")
"""All of them."""

VALUES = ("bit", "real", "histogram:3", "vector:2")
"""The kinds of values that a full audit goes through."""

_DEGREE = 2
_COARSE = 64.0
"""Vectors sent by coins are rounded as plans with few messages round them: in few steps."""
_DEAR_MESSAGES = 1000  # from so many messages a run on, fewer runs are affordable
_MOST_MESSAGES = 50_000  # of a run


@dataclass(frozen=True)
class Case:
    """A plan for a guarantee: batches of `size` users on the lowest of so many levels.

    >>> from overhand.values import BITS
    >>> case = Case("shares", BITS, levels=2, size=8, privacy=Privacy(1.0, 0.01))
    >>> plan = case.plan()
    >>> case.name, plan.horizon, plan.delta_spent <= 0.01
    ('shares, bit, 2 levels', 16, True)
    """

    kind: Kind
    values: Values
    levels: int
    size: int
    privacy: Privacy

    @property
    def name(self) -> str:
        return f"{self.kind}, {self.values}" + (
            f", {self.levels} levels" if self.levels > 1 else ""
        )

    def plan(self) -> Plan:
        """Calibrated and certified as every plan is; every level has the same noise."""
        tree = RegularTree(self._users, (self.size, *[_DEGREE] * (self.levels - 1)))
        return Plan(tree, self._mechanisms(tree), self.privacy, self.levels)

    @property
    def is_affordable(self) -> bool:
        """Whether the published constants leave a number of messages that can be sent at all."""
        share = self.privacy.share(self.levels)
        mechanism = published(self.values, self.size, share)
        return mechanism.messages_per_user * self._users <= _MOST_MESSAGES

    @property
    def _users(self) -> int:
        return self.size * int(_DEGREE ** (self.levels - 1))

    def _mechanisms(self, tree: RegularTree) -> Mechanisms:
        if self.kind == "published":
            share = self.privacy.share(self.levels)
            sizes = [tree.sizes(level)[0] for level in range(1, self.levels + 1)]
            return tuple((published(self.values, size, share),) for size in sizes)
        dear = self.kind == "coins" and self.values.moves is None
        coarseness = _COARSE if dear else 1.0
        terms = Terms(self.privacy, values=self.values, recipe=self._recipe, coarseness=coarseness)
        return calibrated(tree, [1.0] * self.levels, with_best_shape(terms, self.levels))

    @property
    def _recipe(self) -> Recipe:
        if self.kind == "coins":
            return UNARY
        return Recipe(shares=True, shape=None if self.values.moves is None else 1)

    def deployment(self) -> Deployment:
        """What is to be audited, if the accountant has certified it."""
        plan = self.plan()
        if plan.delta_spent > self.privacy.delta:
            raise errors.Infeasible(f"{self.name}: no certificate for {self.privacy}")
        return Deployment(tuple(m for (m,) in plan.mechanisms))

    def unsplit(self) -> Deployment:
        """Every level with the whole budget."""
        alone = [
            Case(self.kind, self.values, 1, m.size, self.privacy)
            for m in self.deployment().mechanisms
        ]
        return Deployment(tuple(case.deployment().mechanisms[0] for case in alone))


def cases(
    kinds: Sequence[Kind], specs: Sequence[str], *, levels: int, size: int, privacy: Privacy
) -> Iterator[Case]:
    """Every kind and value, as a single mechanism and as a user's whole transcript."""
    for kind in kinds:
        for spec in specs:
            values = values_of(spec)
            for count in sorted({1, levels}):
                case = Case(kind, values, count, size, privacy)
                if kind != "published" or case.is_affordable:
                    yield case


def affordable(runs: int, messages: int) -> int:
    """Fewer runs where each has very many messages."""
    most = runs * _DEAR_MESSAGES // messages
    return max(min(runs, LEAST_RUNS), min(runs, most))
