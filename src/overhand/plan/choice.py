"""The choice that `Plan.best` makes: a tree, and the mechanisms of its batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from overhand import errors
from overhand.plan.accuracy import least_epsilon
from overhand.plan.levels import Mechanisms, Terms, calibrated
from overhand.plan.search import NO_LIMIT, Candidate, Limit, TreeKind, best_tree
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

    def made(self, terms: Terms) -> tuple[Tree, Mechanisms]:
        """The tree of least error and its calibrated mechanisms."""
        if self.most_messages is None:
            found = self._tree(terms, NO_LIMIT)
            return found.tree, calibrated(found.tree, found.shape, terms)
        for margin in _MARGINS:
            found, at = self._limited(terms, Limit(self.most_messages, margin))
            mechanisms = calibrated(found.tree, found.shape, at)
            if most_messages(mechanisms) <= self.most_messages:
                return found.tree, mechanisms
        raise errors.Infeasible(f"no tree keeps to max_messages={self.most_messages}")

    def _limited(self, terms: Terms, limit: Limit) -> tuple[Candidate, Terms]:
        """The best candidate over how coarsely values may be rounded."""
        factors = (1.0,) if terms.values.is_whole else COARSENESSES
        found: list[tuple[Candidate, Terms]] = []
        for factor in factors:
            coarse = replace(terms, coarseness=factor * terms.coarseness)
            try:
                found.append((self._tree(coarse, limit), coarse))
            except errors.Infeasible:
                continue
        if not found:
            raise errors.Infeasible(
                f"no plan keeps to max_messages={self.most_messages} for {terms.values}"
            )
        return min(found, key=lambda pair: pair[0].mean_square)

    def _tree(self, terms: Terms, limit: Limit) -> Candidate:
        # Trees are ranked under exact composition, whatever is asked for.
        exact = replace(terms, composition="exact")
        return best_tree(self.kind, self.horizon, self.shufflers, exact, limit)

    def quick_error(self, terms: Terms) -> float:
        """The error before calibration, which may end a hair above it."""
        if self.most_messages is None:
            found = self._tree(terms, NO_LIMIT)
        else:
            found, _ = self._limited(terms, Limit(self.most_messages))
        return (1 + _SEARCH_MARGIN) * terms.values.width * math.sqrt(found.mean_square)

    def least_epsilon(self, terms: Terms, error: float) -> float:
        """The smallest epsilon at which `quick_error` is at most this."""

        def error_at(epsilon: float) -> float:
            return self.quick_error(replace(terms, privacy=replace(terms.privacy, epsilon=epsilon)))

        return least_epsilon(error_at, error=error)


def most_messages(mechanisms: Mechanisms) -> int:
    """The most messages that any user sends, all levels together."""
    return sum(max(m.messages_per_user for m in of_level) for of_level in mechanisms)
