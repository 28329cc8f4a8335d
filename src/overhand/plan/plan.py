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
from overhand.accounting import certified_delta
from overhand.mechanisms import PUBLISHED_CONSTANT, BinarySum
from overhand.model import Node, Privacy
from overhand.plan.accuracy import least_epsilon
from overhand.plan.estimator import Combination, combination, error_bound, mean_square_error
from overhand.plan.files import mechanism_entry, mechanism_of, tree_of
from overhand.plan.levels import Composition, Mechanisms, Terms, calibrated, levels_of
from overhand.plan.search import TreeKind, best_tree
from overhand.trees import RegularTree, Tree, Weights, binary_degrees, published_degrees

FORMAT = 1
DEFAULT_FAILURE_PROBABILITY = 0.05
_SEARCH_MARGIN = 5e-4


@dataclass(frozen=True)
class Plan:
    """What users, shufflers and server agree on: everything here is public.

    The guarantee is not a field that someone wrote down: `delta_spent` is computed from the
    mechanisms by the accountant whenever it is asked for.

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

    @classmethod
    def best(
        cls,
        horizon: int,
        shufflers: int,
        privacy: Privacy | None = None,
        *,
        tree: TreeKind = "best",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        error: float | None = None,
        delta: float | None = None,
    ) -> Plan:
        """The plan of least error for a guarantee; or, for `error` and `delta`, of least epsilon.

        The error that is minimised is `rms_error`, exactly as the plan will have it. `honest` is
        the fraction of the users of any batch whose coins may be counted on, and `reports` how
        many of the users may be one and the same person.
        """
        horizon = errors.whole("horizon", horizon, least=2)
        shufflers = errors.whole("shufflers", shufflers, least=1)
        if error is not None and privacy is None and delta is not None:
            privacy = Privacy(
                least_epsilon(
                    lambda epsilon: _quick_error(
                        tree, horizon, shufflers, Terms(Privacy(epsilon, delta), honest, reports)
                    ),
                    error=errors.number("error", error, above=0),
                ),
                delta,
            )
        elif privacy is None or error is not None or delta is not None:
            raise errors.InvalidValue("give privacy=Privacy(epsilon, delta), or error= and delta=")
        terms = Terms(privacy, honest, reports, composition)
        found = best_tree(tree, horizon, shufflers, Terms(privacy, honest, reports))
        mechanisms = calibrated(found.tree, found.shape, terms)
        return cls(found.tree, mechanisms, privacy, shufflers, honest, reports)

    @classmethod
    def published(
        cls,
        horizon: int,
        shufflers: int | None,
        privacy: Privacy,
        *,
        constant: float = PUBLISHED_CONSTANT,
    ) -> Plan:
        """The paper to the letter (Algorithms 2 and 3).

        The degrees of Section 3.2 (or, without `shufflers`, the binary tree), the 2021
        mechanism with its constant, simple composition, batch sums used as they come, and the
        last estimate held while users are pending.
        """
        horizon = errors.whole("horizon", horizon, least=2)
        if shufflers is None:
            degrees = binary_degrees(horizon)
        else:
            degrees = published_degrees(horizon, errors.whole("shufflers", shufflers, least=1))
        tree = RegularTree(horizon, degrees)
        share = privacy.share(tree.levels)
        mechanisms = tuple(
            (BinarySum.published(tree.sizes(level)[0], share, constant=constant),)
            for level in range(1, tree.levels + 1)
        )
        return cls(tree, mechanisms, privacy, shufflers or tree.levels, combine=False, hold=True)

    @property
    def horizon(self) -> int:
        return self.tree.horizon

    @cached_property
    def delta_spent(self) -> float:
        """The certificate: what all batches of one user cost at this epsilon, pessimistically."""
        terms = Terms(self.privacy, self.honest, self.reports)
        return certified_delta(levels_of(self.mechanisms, terms), self.privacy.epsilon)

    def mechanism(self, node: Node) -> BinarySum:
        """The mechanism that a batch runs."""
        for mechanism in self.mechanisms[node.level - 1]:
            if mechanism.size == node.size:
                return mechanism
        raise errors.InvalidValue(f"no batch of this plan is {node}")

    @property
    def messages_per_user(self) -> int:
        """The most messages that any user sends, all levels together."""
        return sum(max(m.messages_per_user for m in of_level) for of_level in self.mechanisms)

    @cached_property
    def _variances(self) -> Weights:
        """Variance of one batch sum, by level and size."""
        return [[m.variance for m in of_level] for of_level in self.mechanisms]

    @property
    def level_variances(self) -> tuple[float, ...]:
        """The largest variance of a batch sum, lowest level first."""
        return tuple(max(of_level) for of_level in self._variances)

    @cached_property
    def combination(self) -> Combination:
        """How batch sums become node estimates, and what variance these have."""
        return combination(self.tree, self._variances, combine=self.combine)

    @cached_property
    def node_estimates(self) -> dict[tuple[int, int], tuple[float, float]]:
        """By level and size, the weight of a node's own sum and the variance of its estimate."""
        return {
            (level, mechanism.size): (own_weight, variance)
            for level, of_level in enumerate(self.mechanisms, start=1)
            for mechanism, own_weight, variance in zip(
                of_level,
                self.combination.own_weights[level - 1],
                self.combination.variances[level - 1],
                strict=True,
            )
        }

    @property
    def imputed_weight(self) -> float:
        """How much of one pending user's value an estimate adds."""
        return 0.0 if self.hold else 0.5

    @property
    def pending_weight(self) -> float:
        """How much of one pending user's value an estimate can miss."""
        return 1.0 if self.hold else 0.5

    def noise_variance(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Variance of the estimates at these times: the sum over V*_t."""
        blocks = np.asarray(t, np.int64) // self.tree.lowest
        return self.tree.cover_weight(blocks, self.combination.variances)

    def squared_error(self, t: NDArray[np.int64]) -> NDArray[np.float64]:
        """Expected squared error at these times, the pending users all 0 or all 1."""
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
        laws = [[m.noise() for m in of_level] for of_level in self.mechanisms]
        skewed = not all(law.is_symmetric for of_level in laws for law in of_level)
        weights: Weights = self.combination.variances
        if skewed:  # the published mechanism, whose batch sums are used as they come
            weights = [
                [law.variance if law.is_symmetric else law.mean for law in of_level]
                for of_level in laws
            ]
        noise = error_bound(
            self.tree.heaviest_cover(weights),
            skewed=skewed,
            estimates=self.tree.blocks,
            failure_probability=failure_probability,
        )
        return noise + self.pending_weight * self.tree.most_pending

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters: two plans are the same if their digests are."""
        canonical = json.dumps(self._parameters(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """What `overhand plan --json` prints."""
        return {
            "horizon": self.horizon,
            "shufflers": self.shufflers,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "tree": self.tree.description()["kind"],
            "structure": self.tree.description(),
            "levels": [
                self._level_summary(level, mechanism)
                for level, of_level in enumerate(self.mechanisms, start=1)
                for mechanism in of_level
            ],
            "messages_per_user": self.messages_per_user,
            "rms_error": self.rms_error,
            "worst_std": self.worst_std,
            "error_bound": self.error_bound(),
            "failure_probability": DEFAULT_FAILURE_PROBABILITY,
            "delta_spent": self.delta_spent,
            "honest": self.honest,
            "reports": self.reports,
            "digest": self.digest,
        }

    def _level_summary(self, level: int, mechanism: BinarySum) -> dict[str, Any]:
        below = self.tree.degrees[level - 1] if isinstance(self.tree, RegularTree) else None
        return {
            "level": level,
            "batch_size": mechanism.size,
            "degree": below,
            "noise_trials": mechanism.noise_trials,
            "noise_probability": float(mechanism.noise_probability),
            "opposed": mechanism.opposed,
            "noise": [
                {"trials": trials, "probability": float(p)} for trials, p in mechanism.noise().terms
            ],
            "variance": mechanism.variance,
        }

    def to_json(self) -> str:
        """The plan as a file: parameters, digest and, for readers, the summary."""
        saved = {**self._parameters(), "digest": self.digest, "summary": self.summary()}
        return json.dumps(saved, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a file, or `DamagedPlan` if anything in it was changed."""
        try:
            saved = json.loads(text)
            plan = cls._from_parameters(saved)
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

    def _parameters(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "horizon": self.horizon,
            "tree": self.tree.description(),
            "mechanisms": [[mechanism_entry(m) for m in of_level] for of_level in self.mechanisms],
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "shufflers": self.shufflers,
            "honest": self.honest,
            "reports": self.reports,
            "combine": self.combine,
            "hold": self.hold,
        }

    @classmethod
    def _from_parameters(cls, saved: dict[str, Any]) -> Plan:
        if saved["format"] != FORMAT:
            raise errors.InvalidValue(f"format {saved['format']} is not {FORMAT}")
        return cls(
            tree=tree_of(saved["horizon"], dict(saved["tree"])),
            mechanisms=tuple(
                tuple(mechanism_of(m) for m in of_level) for of_level in saved["mechanisms"]
            ),
            privacy=Privacy(saved["epsilon"], saved["delta"]),
            shufflers=saved["shufflers"],
            honest=saved["honest"],
            reports=saved["reports"],
            combine=saved["combine"],
            hold=saved["hold"],
        )

    def __str__(self) -> str:
        rows = [
            f"level {level}: batches of {_span(m.size for m in of_level)} users, "
            f"{_span(m.noise_bits for m in of_level)} coins each, variance {variance:.4g}"
            for level, (of_level, variance) in enumerate(
                zip(self.mechanisms, self.level_variances, strict=True), start=1
            )
        ]
        head = (
            f"{self.horizon:,} users, {self.tree.levels} of {self.shufflers} shufflers, "
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


def _quick_error(tree: TreeKind, horizon: int, shufflers: int, terms: Terms) -> float:
    """The error before calibration, which may end a hair above it."""
    return (1 + _SEARCH_MARGIN) * math.sqrt(best_tree(tree, horizon, shufflers, terms).mean_square)
