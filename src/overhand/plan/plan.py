"""A plan: tree, mechanisms, guarantee and predicted error, frozen and public."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.accounting import Level, spent_delta
from overhand.accounting.guarantee import leaked_delta
from overhand.mechanisms import published
from overhand.model import Node, Privacy
from overhand.plan import files
from overhand.plan.choice import Choice, most_messages
from overhand.plan.estimator import (
    DEFAULT_FAILURE_PROBABILITY,
    Combination,
    NodeEstimate,
    combination,
    error_bound,
    mean_square_error,
)
from overhand.plan.levels import AnyMechanism, Mechanisms, levels_of
from overhand.plan.objective import SQUARED_ERROR, Objective
from overhand.plan.recipe import MechanismKind
from overhand.plan.search import TreeKind
from overhand.plan.terms import Composition, Terms
from overhand.trees import RegularTree, Tree, Weights, binary_degrees, published_degrees
from overhand.values import BITS, Values

_CLOSER = 20


@dataclass(frozen=True)
class Plan:
    """What users, shufflers and server agree on: everything here is public.

    The guarantee is not a field that someone wrote down: `delta_spent` is computed from the
    mechanisms by the accountant whenever it is asked for. All errors are those of one coordinate.

    >>> plan = Plan.best(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6))
    >>> plan.delta_spent <= 1e-6, plan == Plan.from_json(plan.to_json())
    (True, True)
    """

    tree: Tree
    mechanisms: Mechanisms
    privacy: Privacy
    shufflers: int
    honest: float = 1.0
    reports: int = 1
    combine: bool = True
    hold: bool = False

    def __post_init__(self) -> None:
        for of_level in self.mechanisms:
            if len({(m.values, m.steps) for m in of_level}) != 1:
                # The accountant looks at one change a level.
                raise errors.InvalidValue(
                    "batches of one level must have the same values and steps"
                )

    @classmethod
    def best(
        cls,
        horizon: int,
        shufflers: int,
        privacy: Privacy | None = None,
        *,
        values: Values = BITS,
        tree: TreeKind = "best",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        mechanism: MechanismKind = "coins",
        max_messages: int | None = None,
        objective: Objective = SQUARED_ERROR,
        error: float | None = None,
        delta: float | None = None,
    ) -> Plan:
        """The plan of least error for a guarantee; or, for `error` and `delta`, of least epsilon.

        The error that is minimised is `rms_error`, exactly as the plan will have it, unless there
        is another `objective`. `honest` is the fraction of the users of any batch whose coins may
        be counted on, `reports` how many of the users may be one and the same person, `mechanism`
        how values are sent ("best" is the one of least error), and `max_messages` the most that a
        user may send.

        >>> from overhand.values import Histogram
        >>> Plan.best(1000, 2, Privacy(1.0, 1e-6), values=Histogram(5)).values
        Histogram(buckets=5)
        """
        horizon = errors.whole("horizon", horizon, least=2)
        shufflers = errors.whole("shufflers", shufflers, least=1)
        if max_messages is not None:
            max_messages = errors.whole("max_messages", max_messages, least=1)
        choice = Choice(tree, horizon, shufflers, max_messages, mechanism)

        def made(privacy: Privacy) -> Plan:
            terms = Terms(privacy, honest, reports, composition, values, objective=objective)
            tree, mechanisms = choice.made(terms)
            return cls(tree, mechanisms, privacy, shufflers, honest, reports)

        if privacy is not None and error is None and delta is None:
            return made(privacy)
        if privacy is not None or error is None or delta is None:
            raise errors.InvalidValue("give privacy=Privacy(epsilon, delta), or error= and delta=")
        if objective != SQUARED_ERROR:
            raise errors.InvalidValue(f"error={error!r} is not what {objective} is about")
        error = errors.number("error", error, above=0)
        terms = Terms(Privacy(1.0, delta), honest, reports, composition, values)
        epsilon = choice.least_epsilon(terms, error)
        for _ in range(_CLOSER):
            plan = made(Privacy(epsilon, delta))
            if plan.rms_error <= error:
                return plan
            # The search's idea of rounded values is not exact: errors go about as 1 / epsilon.
            epsilon *= 1.001 * plan.rms_error / error
        raise errors.Infeasible(f"{error=:g} was missed: {plan.rms_error:g} came closest")

    @classmethod
    def published(
        cls,
        horizon: int,
        shufflers: int | None,
        privacy: Privacy,
        *,
        values: Values = BITS,
        constant: float | None = None,
    ) -> Plan:
        """The paper to the letter (Algorithms 2 and 3).

        The degrees of Section 3.2 (or, without `shufflers`, the binary tree), the published
        mechanism for the values with its constant, simple composition, batch sums used as they
        come, and the last estimate held while users are pending.
        """
        horizon = errors.whole("horizon", horizon, least=2)
        if shufflers is None:
            degrees = binary_degrees(horizon)
        else:
            degrees = published_degrees(horizon, errors.whole("shufflers", shufflers, least=1))
        tree = RegularTree(horizon, degrees)
        share = privacy.share(tree.levels)
        mechanisms = tuple(
            (published(values, tree.sizes(level)[0], share, constant=constant),)
            for level in range(1, tree.levels + 1)
        )
        return cls(tree, mechanisms, privacy, shufflers or tree.levels, combine=False, hold=True)

    @property
    def values(self) -> Values:
        """What users hold."""
        return self.mechanisms[0][0].values

    @property
    def horizon(self) -> int:
        return self.tree.horizon

    @cached_property
    def delta_spent(self) -> float:
        """The certificate: what all batches of one user cost at this epsilon, pessimistically."""
        return spent_delta(self._levels, self.privacy)

    @property
    def delta_leaked(self) -> float:
        """The part of `delta_spent` that is for shares showing more than their sum."""
        return leaked_delta(self._levels, self.privacy.epsilon)

    @cached_property
    def _levels(self) -> list[Level]:
        return levels_of(self.mechanisms, Terms(self.privacy, self.honest, self.reports))

    def mechanism(self, node: Node) -> AnyMechanism:
        """The mechanism that a batch runs."""
        for mechanism in self.mechanisms[node.level - 1]:
            if mechanism.size == node.size:
                return mechanism
        raise errors.InvalidValue(f"no batch of this plan is {node}")

    @property
    def messages_per_user(self) -> int:
        """The most messages that any user sends, all levels together."""
        return most_messages(self.mechanisms)

    @property
    def bits_per_user(self) -> int:
        """The most bits that any user's messages have, before they are sealed for sending."""
        return sum(
            max(m.messages_per_user * m.message_bits for m in of_level)
            for of_level in self.mechanisms
        )

    @cached_property
    def _variances(self) -> Weights:
        """Variance of a coordinate of one batch sum, by level and size."""
        return [[m.variance for m in of_level] for of_level in self.mechanisms]

    @property
    def level_variances(self) -> tuple[float, ...]:
        """The largest variance of a batch sum, lowest level first."""
        return tuple(max(of_level) for of_level in self._variances)

    @cached_property
    def unit(self) -> float:
        """The largest step that the noise of a batch sum comes in."""
        return max(m.unit for of_level in self.mechanisms for m in of_level)

    @cached_property
    def combination(self) -> Combination:
        """How batch sums become node estimates, and what variance these have."""
        return combination(self.tree, self._variances, combine=self.combine)

    @cached_property
    def node_estimates(self) -> dict[tuple[int, int], NodeEstimate]:
        """By level and size, how a node's estimate is made and what its noise is."""
        fourths = self.combination.fourth_cumulants(
            self.tree, [[m.fourth_cumulant for m in of_level] for of_level in self.mechanisms]
        )
        return {
            (level, mechanism.size): NodeEstimate(*parts)
            for level, of_level in enumerate(self.mechanisms, start=1)
            for mechanism, *parts in zip(
                of_level,
                self.combination.own_weights[level - 1],
                self.combination.variances[level - 1],
                fourths[level - 1],
                strict=True,
            )
        }

    @cached_property
    def imputed(self) -> Any:
        """What an estimate adds for one pending user: the middle of its interval, or nothing."""
        lows, highs = self.values.lows, self.values.highs
        middle = np.clip(0.0, lows, highs) if self.hold else (lows + highs) / 2
        return float(middle[0]) if self.values.is_scalar else middle

    @cached_property
    def pending_slack(self) -> Any:
        """How far one pending user can be from what is added for it, by coordinate."""
        lows, highs = self.values.lows, self.values.highs
        slack = np.maximum(highs - self.imputed, self.imputed - lows)
        return float(slack[0]) if self.values.is_scalar else slack

    @cached_property
    def pending_weight(self) -> float:
        """The same for the coordinate where it is most."""
        return float(np.max(self.pending_slack))

    def noise_variance(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Variance of a coordinate of the estimates at these times: the sum over V*_t."""
        blocks = np.asarray(t, np.int64) // self.tree.lowest
        return self.tree.cover_weight(blocks, self.combination.variances)

    def squared_error(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Expected squared error at these times, the pending users all at one end."""
        pending = np.asarray(t, np.int64) % self.tree.lowest
        return self.noise_variance(t) + (self.pending_weight * pending) ** 2

    @cached_property
    def rms_error(self) -> float:
        """Root of the mean of `squared_error` over t = 1 .. horizon."""
        return math.sqrt(
            mean_square_error(
                self.tree,
                self._variances,
                combine=self.combine,
                pending_weight=self.pending_weight,
            )
        )

    @cached_property
    def worst_std(self) -> float:
        """The largest standard deviation of any estimate's noise."""
        return math.sqrt(self.tree.heaviest_cover(self.combination.variances))

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """alpha of Definition 2.1: a bound on all errors at once, but for this probability."""
        failure_probability = errors.number(
            "failure_probability", failure_probability, above=0, below=1
        )
        everything = [m for of_level in self.mechanisms for m in of_level]
        estimates = max(1, self.tree.blocks * self.values.dimension)
        noise = error_bound(
            self.tree,
            lambda s: [[m.growth(s) for m in of_level] for of_level in self.mechanisms],
            self.combination.own_weights,
            variance=self.worst_std**2,
            largest=min(m.noise().most_growth / m.unit for m in everything),
            events=math.log(2 * estimates / failure_probability),
        )
        return noise + self.pending_weight * self.tree.most_pending

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters: two plans are the same if their digests are."""
        canonical = json.dumps(files.parameters(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """What `overhand plan --json` prints."""
        return files.summary(self)

    def to_json(self) -> str:
        """The plan as a file: parameters, digest and, for readers, the summary."""
        saved = {**files.parameters(self), "digest": self.digest, "summary": self.summary()}
        return json.dumps(saved, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a file, or `DamagedPlan` if anything in it was changed."""
        try:
            saved = json.loads(text)
            plan = cls(**files.fields_of(saved))
            written, claimed = saved["digest"], saved["summary"]
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise errors.DamagedPlan(f"this is not a plan: {error}") from error
        if plan.digest != written:
            raise errors.DamagedPlan(
                f"the plan was edited: its digest is {plan.digest[:12]}, not {str(written)[:12]}"
            )
        if claimed != plan.summary():
            raise errors.DamagedPlan("the summary does not follow from the plan's parameters")
        return plan

    def save(self, path: str | Path) -> None:
        """Write the plan to a file, whole or not at all."""
        target = Path(path)
        partial = target.with_name(target.name + ".partial")
        partial.write_text(self.to_json(), encoding="utf-8")
        partial.replace(target)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan from a file and check that it is what was saved."""
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise errors.DamagedPlan(f"cannot read the plan {path}: {error}") from error
        return cls.from_json(text)

    def __str__(self) -> str:
        rows = [
            f"level {level}: batches of {_span(m.size for m in of_level)} users, "
            f"{_span(m.messages_per_user for m in of_level)} messages each, "
            f"variance {variance:.4g}"
            for level, (of_level, variance) in enumerate(
                zip(self.mechanisms, self.level_variances, strict=True), start=1
            )
        ]
        head = (
            f"{self.horizon:,} users ({self.values}), "
            f"{self.tree.levels} of {self.shufflers} shufflers, "
            f"{self.privacy} (spends delta={self.delta_spent:.3g})"
        )
        foot = (
            f"{self.messages_per_user} messages a user; rms error {self.rms_error:.4g}, "
            f"worst std {self.worst_std:.4g}, all errors below {self.error_bound():.4g} "
            f"with probability {1 - DEFAULT_FAILURE_PROBABILITY:.0%}"
        )
        return "\n".join([head, *rows, foot])


def _span(values: Iterable[int]) -> str:
    numbers = sorted(set(values))
    return f"{numbers[0]:,}" if len(numbers) == 1 else f"{numbers[0]:,} to {numbers[-1]:,}"
