"""The choice that `Plan.best` makes: a tree, and the mechanisms of its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from overhand import errors
from overhand.plan.accuracy import least_epsilon
from overhand.plan.levels import Mechanisms, calibrated
from overhand.plan.recipe import MechanismKind, recipes
from overhand.plan.search import NO_LIMIT, Candidate, Limit, TreeKind, best_tree
from overhand.plan.terms import Terms
from overhand.trees import Tree

COARSENESSES = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0)
"""How much rounding may add, in multiples of the usual, where messages are limited."""

_SEARCH_MARGIN = 5e-4
_MARGINS = (1.002, 1.01, 1.03, 1.1, 1.3, 2.0)


@dataclass(frozen=True)
class Choice:
    """What is to be planned: for so many users and shufflers, and with so many messages."""

    kind: TreeKind
    horizon: int
    shufflers: int
    most_messages: int | None = None
    mechanism: MechanismKind = "coins"

    def made(self, terms: Terms) -> tuple[Tree, Mechanisms]:
        """The tree of least cost and its calibrated mechanisms."""
        if self.most_messages is None:
            found = self.found(terms)
            return found.tree, self._calibrated(found, terms)
        for margin in _MARGINS:
            found = self.found(terms, margin)
            mechanisms = self._calibrated(found, terms)
            if most_messages(mechanisms) <= self.most_messages:
                return found.tree, mechanisms
        raise errors.Infeasible(f"no tree keeps to max_messages={self.most_messages}")

    def _calibrated(self, found: Candidate, terms: Terms) -> Mechanisms:
        return calibrated(
            found.tree, found.shape, replace(found.terms, composition=terms.composition)
        )

    def found(self, terms: Terms, margin: float = 1.0) -> Candidate:
        """The best candidate over recipes and over how coarsely values may be rounded."""
        limit, candidates = NO_LIMIT, []
        factors: tuple[float, ...] = (1.0,)
        if self.most_messages is not None:
            limit = Limit(self.most_messages, margin)
            factors = (1.0,) if terms.values.is_whole else COARSENESSES
        failure: errors.Infeasible | None = None
        for recipe in recipes(self.mechanism, terms.values):
            for factor in factors if not recipe.shares else (1.0,):
                at = replace(terms, recipe=recipe, coarseness=factor, composition="exact")
                try:
                    candidates.append(best_tree(self.kind, self.horizon, self.shufflers, at, limit))
                except errors.Infeasible as error:
                    failure = error
        if not candidates:
            assert failure is not None
            raise failure
        return min(candidates, key=lambda candidate: candidate.cost)

    def quick_error(self, terms: Terms) -> float:
        """The error before calibration, which may end a hair above it."""
        found = self.found(terms)
        return (1 + _SEARCH_MARGIN) * terms.values.width * math.sqrt(found.cost)

    def least_epsilon(self, terms: Terms, error: float) -> float:
        """The smallest epsilon at which `quick_error` is at most this."""

        def error_at(epsilon: float) -> float:
            return self.quick_error(replace(terms, privacy=replace(terms.privacy, epsilon=epsilon)))

        return least_epsilon(error_at, error=error)


def most_messages(mechanisms: Mechanisms) -> int:
    """The most messages that any user sends, all levels together."""
    return sum(max(m.messages_per_user for m in of_level) for of_level in mechanisms)
