"""The tree with the least cost, over levels, degrees, block sizes and budget splits.

Trees of every number of levels are ranked roughly, all at once; the promising ones are drafted,
with noise and messages as they will be except for the certificate; the best of these is improved
degree by degree. A tree that turns out to be infeasible gives way to the next best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from overhand import errors
from overhand.mechanisms import Mechanism
from overhand.plan.calibration import Draft, calibrated, with_best_laplace
from overhand.plan.combination import Combination
from overhand.plan.ranking import Family, best_split, closed_form_split, neighbours, promising
from overhand.plan.request import Request, Terms
from overhand.trees import RegularTree, binary_degrees, published_degrees

LARGEST_EPSILON = 16.0
SMALLEST_EPSILON = 1e-3
_EPSILON_PRECISION = 1e-3
_SEARCH_MARGIN = 5e-4

_COARSENESSES = tuple(2.0**power for power in range(14))
"""How much rounding may add, in multiples of the usual, where messages are limited."""
_TRIES = 24  # candidates that are calibrated, if one after the other turns out to be infeasible
_SPARE = (1.002, 1.02, 1.2)  # times the noise that a draft has may be needed in the end
_HOPELESS = 1.15  # times the least cost found: trees that look worse are not drafted
_NEARLY = 1.01  # rough costs may be so much above drafts
_REFINED = 4  # drafts of every number of levels are drafted with another split, too
_PER_LEVEL = 1.002  # a level more must pay: so much that no certificate can undo it
_PAYS = 1 - 1e-4  # of the cost is what a change must bring it down to


@dataclass(frozen=True)
class Candidate:
    """A tree, the proportions of its levels' variances, its cost and its messages.

    The cost is that of the objective: for sums, the mean squared error, in units of the squared
    width of a coordinate. `terms` are those asked for, with the shape of the noise that is best
    for this many levels.
    """

    tree: RegularTree
    split: tuple[float, ...]
    cost: float
    draft: Draft
    refined: bool = False

    @property
    def terms(self) -> Terms:
        return self.draft.terms

    @property
    def rank(self) -> float:
        """Candidates are compared by this."""
        return self.cost * _PER_LEVEL**self.tree.levels


def best_levels(request: Request) -> tuple[RegularTree, tuple[Mechanism, ...]]:
    """The tree of least cost and its calibrated mechanisms.

    A candidate that turns out to be infeasible gives way to the next. A certificate may take a
    little more noise, and with it more messages than there may be: then more is left to spare.
    """
    failure = errors.Infeasible(f"no tree stays within max_messages={request.max_messages}")
    for spare in _SPARE if request.max_messages is not None else (1.0,):
        for found in candidates(request, spare)[:_TRIES]:
            terms = replace(found.terms, composition=request.terms.composition)
            try:
                mechanisms = calibrated(found.tree.sizes, found.split, terms)
            except errors.Infeasible as error:
                failure = error
                continue
            messages = sum(m.messages_per_user for m in mechanisms)
            if request.max_messages is None or messages <= request.max_messages:
                return found.tree, mechanisms
    raise failure


def best_candidate(request: Request) -> Candidate:
    """The first of the candidates."""
    return candidates(request, _SPARE[0])[0]


def candidates(request: Request, spare: float) -> list[Candidate]:
    """Trees that stay within the limit even with this much more noise, best first.

    What is best without a limit stays the best if it keeps to it, so that a larger limit is
    never worse.
    """
    found = _over_recipes(request, Limit())
    if request.max_messages is None:
        return found
    limit = Limit(request.max_messages, spare)
    for candidate in found:
        with suppress(errors.Infeasible):
            keeps = candidate.draft.messages(spare) <= limit.messages
            return found if keeps else _over_recipes(request, limit)
    raise errors.Infeasible(_why_nothing(request, limit))


@dataclass(frozen=True)
class Limit:
    """The most messages per user, if noise were `spare` times as large as it looks."""

    messages: float = math.inf
    spare: float = 1.0

    def allows(self, found: Candidate) -> bool:
        """Whether a user stays within the limit."""
        if self.messages == math.inf:
            return True
        with suppress(errors.Infeasible):
            return found.draft.messages(self.spare) <= self.messages
        return False


def _over_recipes(request: Request, limit: Limit) -> list[Candidate]:
    """Search every recipe and number of levels alike, whatever others there are.

    So one more shuffler never takes away what was found with fewer. What looks hopeless is left
    out.
    """
    searches = [_Search(request, terms, limit) for terms in _all_terms(request, limit)]
    families = [(search, family) for search in searches for family in search.families()]
    least = math.inf
    for search, family in sorted(families, key=lambda pair: float(pair[1].rough[0])):
        if family.rough[0] < _HOPELESS * least:
            least = min(least, search.best_cost(family))
    found = [candidate for search in searches for candidate in search.allowed()]
    if not found:
        failures = [failure for search in searches for failure in search.failures]
        raise failures[0] if failures else errors.Infeasible(_why_nothing(request, limit))
    return sorted(found, key=lambda candidate: candidate.rank)


def _all_terms(request: Request, limit: Limit) -> Iterator[Terms]:
    """The recipes, and how coarse values may be where messages are limited."""
    for recipe in request.recipes:
        # Coins are as many as steps are: coarser values have fewer messages.
        is_coarser = limit.messages < math.inf and not recipe.mechanism.leaks
        coarser = _COARSENESSES if is_coarser and not request.terms.values.is_whole else (1.0,)
        for factor in coarser:
            yield replace(request.terms, recipe=recipe, coarseness=factor, composition="exact")


def _why_nothing(request: Request, limit: Limit) -> str:
    if limit.messages < math.inf:
        return f"no tree stays within max_messages={limit.messages:g}"
    return f"no batch of any tree has enough honest users if honest={request.terms.honest:g}"


def least_epsilon(request: Request, error: float) -> float:
    """The smallest epsilon at which the error before calibration is at most this.

    To about a thousandth: calibration may end a hair above it. Errors fall about as a power of
    epsilon, so the search goes in logarithms, from epsilon 1.
    """
    terms = request.terms
    seen: dict[float, float] = {}

    def excess(log_epsilon: float) -> float:
        if log_epsilon not in seen:
            privacy = replace(terms.privacy, epsilon=math.exp(log_epsilon))
            found = best_candidate(replace(request, terms=replace(terms, privacy=privacy)))
            reached = (1 + _SEARCH_MARGIN) * terms.values.width * math.sqrt(found.cost)
            seen[log_epsilon] = math.log(reached / error)
        return seen[log_epsilon]

    _bracketed_root(excess, error)
    return math.exp(min(log for log, beyond in seen.items() if beyond <= 0))


def _bracketed_root(excess: Callable[[float], float], error: float) -> None:
    """Look for the root, or for the smallest epsilon that is looked at if even that will do."""
    from scipy.optimize import brentq

    low, high = math.log(SMALLEST_EPSILON), math.log(LARGEST_EPSILON)
    at = min(high, max(low, excess(0.0)))  # errors go about as 1 / epsilon
    step = math.log(1.5)
    while excess(at) > 0:
        if at >= high:
            raise errors.Infeasible(
                f"error={error:g} is not reached even at epsilon={LARGEST_EPSILON:g}, where it is "
                f"{error * math.exp(excess(at)):.4g}"
            )
        at = min(high, at + step)
    while at > low and excess(max(low, at - step)) <= 0:
        at = max(low, at - step)
    if at > low:
        brentq(excess, max(low, at - step), at, xtol=_EPSILON_PRECISION)


@dataclass(frozen=True)
class _Search:
    """A search over the trees of a request, for one recipe and one limit on messages."""

    request: Request
    terms: Terms
    limit: Limit
    drafts: dict[tuple[RegularTree, bool], Candidate | None] = field(default_factory=dict)
    failures: list[errors.Infeasible] = field(default_factory=list)

    def families(self) -> list[Family]:
        """The trees that may be chosen from, by their number of levels."""
        horizon, shufflers = self.request.horizon, self.request.shufflers
        if self.request.tree == "paper":
            tree = RegularTree(horizon, published_degrees(horizon, shufflers))
            return [Family([tree], np.zeros(1))]
        if self.request.tree == "binary":
            degrees = binary_degrees(horizon)
            if len(degrees) > shufflers:
                raise errors.Infeasible(
                    f"the binary tree over {horizon} users needs {len(degrees)} shufflers, "
                    f"not {shufflers}"
                )
            return [Family([RegularTree(horizon, degrees)], np.zeros(1))]
        found = []
        for count in range(1, shufflers + 1):
            try:
                found.append(promising(horizon, count, self.terms, self.limit.messages))
            except errors.Infeasible as error:  # of this recipe, not of the others
                self.failures.append(error)
        return [family for family in found if family.trees]

    def best_cost(self, family: Family) -> float:
        """Draft what looks better than the best draft, then improve on that."""
        best: Candidate | None = None
        for tree, rough in zip(family.trees, family.rough, strict=True):
            if best is not None and rough > _NEARLY * best.cost:
                break
            best = self._better(best, self._draft(tree)) or best
        if best is None:
            return math.inf
        near = [c for c in self.allowed() if c.tree.levels == best.tree.levels]
        for candidate in sorted(near, key=lambda candidate: candidate.cost)[:_REFINED]:
            best = self._better(best, self._draft(candidate.tree, refined=True)) or best
        return best.cost if self.request.tree != "regular" else self._improved(best).cost

    def _improved(self, best: Candidate) -> Candidate:
        """Change one degree after the other as long as it pays."""
        while True:
            for tree in neighbours(best.tree, self.terms):
                better = self._better(best, self._draft(tree, refined=best.refined))
                if better is not None and better.cost < _PAYS * best.cost:
                    best = better
                    break
            else:
                return best

    def _better(self, best: Candidate | None, found: Candidate | None) -> Candidate | None:
        """What was found, if it is better than the best and stays within the limit."""
        if found is None or (best is not None and found.cost >= best.cost):
            return None
        return found if self.limit.allows(found) else None

    def allowed(self) -> list[Candidate]:
        """Everything drafted that stays within the limit."""
        drafts = [found for found in self.drafts.values() if found is not None]
        return [found for found in drafts if self.limit.allows(found)]

    def _draft(self, tree: RegularTree, *, refined: bool = False) -> Candidate | None:
        """The candidate as it will be except for the certificate, or None if there is none."""
        key = tree, refined
        if key not in self.drafts:
            try:
                self.drafts[key] = candidate_of(tree, self.terms, refined=refined)
            except errors.Infeasible as error:
                self.failures.append(error)
                self.drafts[key] = None
        return self.drafts[key]


def candidate_of(tree: RegularTree, terms: Terms, *, refined: bool = False) -> Candidate:
    """What a tree costs, as it will be except for the certificate."""
    terms = with_best_laplace(terms, tree.levels)
    split = tuple(best_split(tree) if refined else closed_form_split(tree))
    found = Draft.of(tree.sizes, split, terms)
    noise = tree.mean_weight(Combination.of(tree, found.variances, combine=True).variances)
    pending = math.sqrt(tree.mean_pending_square())
    cost = float(terms.objective.cost(np.asarray(noise), np.asarray(pending)))
    return Candidate(tree, split, cost, found, refined)
