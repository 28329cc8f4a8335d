"""A plan: tree, mechanisms, guarantee and predicted error, frozen and public."""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from overhand import errors
from overhand.accounting import MOST_REPORTS, Level, leaked_delta, spent_delta, spent_epsilon
from overhand.mechanisms import SERVICES, Mechanism, published
from overhand.model import Counts, Floats, Node, NoiseBy, Privacy
from overhand.plan import json as files
from overhand.plan.calibration import levels_of
from overhand.plan.combination import DEFAULT_FAILURE_PROBABILITY, Combination, chernoff_bound
from overhand.plan.costs import Costs
from overhand.plan.objective import SQUARED_ERROR, Objective
from overhand.plan.plausibility import Plausibility
from overhand.plan.request import Composition, Request, Terms, TreeKind
from overhand.plan.search import best_levels, least_epsilon
from overhand.trees import RegularTree, binary_degrees, published_degrees
from overhand.values import BITS, Values, values_of

_CLOSER = 20


@dataclass(frozen=True, repr=False)
class Plan:
    """What users, shufflers and server agree on: everything here is public.

    The guarantee is not a field that someone filled in: the accountant computes `delta_spent` from
    the mechanisms whenever it is asked for. All errors are per coordinate.

    >>> plan = Plan.best(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6))
    >>> plan.delta_spent <= 1e-6, plan == Plan.from_json(plan.to_json())
    (True, True)
    """

    tree: RegularTree
    mechanisms: tuple[Mechanism, ...]
    """One per level, lowest first."""
    privacy: Privacy
    shufflers: int
    honest: float = 1.0
    reports: int = 1
    combine: bool = True
    hold: bool = False

    def __post_init__(self) -> None:
        errors.whole("shufflers", self.shufflers, least=1)
        object.__setattr__(self, "honest", errors.fraction("honest", self.honest))
        errors.whole("reports", self.reports, least=1, most=MOST_REPORTS)
        have, need = [mechanism.size for mechanism in self.mechanisms], self.tree.sizes
        if len(have) != len(need):
            raise errors.InvalidValue(f"{len(have)} mechanisms for {len(need)} levels")
        for level, (users, size) in enumerate(zip(have, need, strict=True), start=1):
            if users != size:
                raise errors.InvalidValue(
                    f"the mechanism of level {level} is for batches of {users} users, not of {size}"
                )
        if len({mechanism.values for mechanism in self.mechanisms}) > 1:
            raise errors.InvalidValue("all levels of a plan must have the same values")
        if len({mechanism.noise_by for mechanism in self.mechanisms}) > 1:
            raise errors.InvalidValue("either users or services must make the noise, at all levels")

    @classmethod
    def best(
        cls,
        horizon: int,
        shufflers: int,
        privacy: Privacy,
        *,
        values: Values | str = BITS,
        tree: TreeKind = "regular",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        mechanism: str | None = None,
        max_messages: int | None = None,
        noise: NoiseBy = "users",
        objective: Objective = SQUARED_ERROR,
    ) -> Plan:
        """The plan with the least error for a guarantee; a process searches for each plan once.

        The error that is minimised is `rms_error`, exactly as the plan will have it, unless there
        is another `objective`. `noise` says who makes the noise: users, as in the paper, or each
        of the two services. `honest` is the fraction of the users in any batch who are counted on
        to add their noise, `reports` how many reports one person may send, and `max_messages` the
        most messages per user. `mechanism` is how values are sent: "coins" by default, or "best",
        the one with the least error; if the services make the noise, the cheaper one of "ballots"
        and "pairs". `values` is a kind of value, or its name on the command line.

        >>> Plan.best(1000, 2, Privacy(1.0, 1e-6), values="histogram:5").values
        Histogram(buckets=5)
        """
        kind = values_of(values)
        terms = Terms(
            privacy, honest, reports, composition, kind, objective=objective, noise_by=noise
        )
        return _made(Request(horizon, shufflers, terms, tree, mechanism, max_messages))

    @classmethod
    def for_error(
        cls,
        horizon: int,
        shufflers: int,
        error: float,
        delta: float,
        *,
        values: Values | str = BITS,
        tree: TreeKind = "regular",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        mechanism: str | None = None,
        max_messages: int | None = None,
        noise: NoiseBy = "users",
    ) -> Plan:
        """The plan with the smallest epsilon whose `rms_error` is at most `error`.

        The other arguments are those of `best`.

        >>> plan = Plan.for_error(1000, 2, error=20.0, delta=1e-6)
        >>> plan.rms_error <= 20.0, round(plan.privacy.epsilon, 2)
        (True, 0.66)
        """
        error = errors.number("error", error, above=0)
        kind = values_of(values)
        terms = Terms(Privacy(1.0, delta), honest, reports, composition, kind, noise_by=noise)
        request = Request(horizon, shufflers, terms, tree, mechanism, max_messages)
        epsilon = least_epsilon(request, error)
        for _ in range(_CLOSER):
            at = replace(terms, privacy=Privacy(epsilon, delta))
            plan = _made(replace(request, terms=at))
            if plan.rms_error <= error:
                return plan
            # The search treats rounded values only roughly: errors go about as 1 / epsilon.
            epsilon *= 1.001 * plan.rms_error / error
        raise errors.Infeasible(f"{error=:g} was not reached: {plan.rms_error:g} came closest")

    @classmethod
    def published(
        cls,
        horizon: int,
        shufflers: int | None,
        privacy: Privacy,
        *,
        values: Values | str = BITS,
        constant: float | None = None,
    ) -> Plan:
        """The paper's plan exactly (Algorithms 2 and 3).

        The degrees of Section 3.2 (or, without `shufflers`, the binary tree), the published
        mechanism for the values with its constant, simple composition, batch sums used as they
        are, and the last estimate kept while users are pending.
        """
        horizon = errors.whole("horizon", horizon, least=2)
        if shufflers is None:
            degrees = binary_degrees(horizon)
        else:
            degrees = published_degrees(horizon, errors.whole("shufflers", shufflers, least=1))
        tree = RegularTree(horizon, degrees)
        share, kind = privacy.share(tree.levels), values_of(values)
        mechanisms = tuple(published(kind, n, share, constant=constant) for n in tree.sizes)
        return cls(tree, mechanisms, privacy, shufflers or tree.levels, combine=False, hold=True)

    @property
    def values(self) -> Values:
        """What users hold."""
        return self.mechanisms[0].values

    @property
    def horizon(self) -> int:
        return self.tree.horizon

    @property
    def noise_by(self) -> NoiseBy:
        """Who makes the noise."""
        return self.mechanisms[0].noise_by

    @cached_property
    def delta_spent(self) -> float:
        """The certificate: the delta that all batches of one user spend, rounded against us."""
        return spent_delta(self._levels, self.privacy)

    @cached_property
    def outside_epsilon(self) -> float:
        """The epsilon that holds, at the plan's delta, against everybody but the two services.

        They see only what both services have added noise to, if the services make it.
        """
        if self.noise_by == "users":
            return self.privacy.epsilon
        both = [
            replace(level, law=mechanism.noise(), leak=SERVICES * level.leak)
            for level, mechanism in zip(self._levels, self.mechanisms, strict=True)
        ]
        return spent_epsilon(both, self.privacy)

    @property
    def delta_leaked(self) -> float:
        """The part of `delta_spent` that covers shares revealing more than their sum."""
        return leaked_delta(self._levels, self.privacy.epsilon)

    @cached_property
    def _levels(self) -> list[Level]:
        terms = Terms(self.privacy, self.honest, self.reports, noise_by=self.noise_by)
        return levels_of(self.mechanisms, terms)

    def mechanism(self, node: Node) -> Mechanism:
        """The mechanism that a batch runs."""
        if not 1 <= node.level <= self.tree.levels or node.size != self.tree.sizes[node.level - 1]:
            raise errors.InvalidValue(f"no batch of this plan is {node}")
        return self.mechanisms[node.level - 1]

    @property
    def messages_per_user(self) -> int:
        """The messages per user, all levels together."""
        return self.costs.messages

    @property
    def bits_per_user(self) -> int:
        """The bits per user, before messages are sealed."""
        return self.costs.bits

    @cached_property
    def costs(self) -> Costs:
        """What one report costs: messages, bytes, processor time."""
        return Costs.of(self.mechanisms)

    @cached_property
    def plausibility(self) -> Plausibility:
        """Bounds of honest batch sums: others are not believed."""
        return Plausibility.of(self.tree, self.mechanisms)

    @cached_property
    def influence(self) -> float:
        """The most that one client, whatever it sends, can add to a coordinate of an estimate.

        What its messages can do, or what a server that checks sums lets pass, if that is less.
        """
        sent = max(m.influence for m in self.mechanisms)
        if not self.combine:
            return sent  # sums are not compared with those below them
        return min(sent, self.plausibility.influence(self.tree.lowest, self.combination))

    @cached_property
    def level_variances(self) -> tuple[float, ...]:
        """The variance of a coordinate of a batch sum, lowest level first."""
        return tuple(m.variance for m in self.mechanisms)

    @cached_property
    def unit(self) -> float:
        """The largest step size of the noise of a batch sum."""
        return max(m.unit for m in self.mechanisms)

    @cached_property
    def combination(self) -> Combination:
        """How batch sums become node estimates, and the variances of these."""
        return Combination.of(self.tree, self.level_variances, combine=self.combine)

    @cached_property
    def imputed(self) -> Any:
        """What an estimate adds for one pending user: the middle of its interval, or nothing."""
        lows, highs = self.values.lows, self.values.highs
        middle = np.clip(0.0, lows, highs) if self.hold else (lows + highs) / 2
        return float(middle[0]) if self.values.is_scalar else middle

    @cached_property
    def pending_slack(self) -> Any:
        """How far one pending user can be from what is added for it, per coordinate."""
        return self.slack_of(self.imputed)

    def slack_of(self, rate: Any) -> Any:
        """The same for a user who counts as something else, if it is not None."""
        if rate is None:
            return self.pending_slack
        slack = np.maximum(self.values.highs - rate, rate - self.values.lows)
        return float(slack[0]) if self.values.is_scalar else slack

    @cached_property
    def pending_weight(self) -> float:
        """The same for the coordinate where it is largest."""
        return float(np.max(self.pending_slack))

    def noise_variance(self, t: Counts) -> Floats:
        """Variance of a coordinate of the estimates at these times: the sum over V*_t."""
        blocks = np.asarray(t, np.int64) // self.tree.lowest
        return self.tree.cover_weight(blocks, self.combination.variances)

    def squared_error(self, t: Counts) -> Floats:
        """Expected squared error at these times, the pending users all at one end."""
        pending = np.asarray(t, np.int64) % self.tree.lowest
        return self.noise_variance(t) + (self.pending_weight * pending) ** 2

    @cached_property
    def rms_error(self) -> float:
        """Root of the mean of `squared_error` over t = 1 .. horizon."""
        pending = self.pending_weight**2 * self.tree.mean_pending_square()
        return math.sqrt(self.tree.mean_weight(self.combination.variances) + pending)

    @cached_property
    def worst_std(self) -> float:
        """The largest standard deviation of any estimate's noise."""
        return math.sqrt(self.tree.heaviest_cover(self.combination.variances))

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """alpha of Definition 2.1: a bound on all errors at once, except with this probability."""
        chance = errors.number("failure_probability", failure_probability, above=0, below=1)
        estimates = max(1, self.tree.blocks * self.values.dimension)

        def growth(s: float) -> float:
            # For noise whose even cumulants are positive, and for rounding, growth at w s is at
            # most w^2 times that at s, so that it adds up over combined nodes as variances do.
            of_sums = [m.growth(s) for m in self.mechanisms]
            return self.tree.heaviest_cover(self.combination.over(self.tree, of_sums, power=2))

        noise = chernoff_bound(
            growth,
            variance=self.worst_std**2,
            largest=min(m.noise().most_growth / m.unit for m in self.mechanisms),
            events=math.log(2 * estimates / chance),
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
        return files.read(text, cls)

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

    def __repr__(self) -> str:
        kinds = "+".join(dict.fromkeys(m.kind for m in self.mechanisms))
        return (
            f"Plan({self.horizon} x {self.values}, {self.tree.levels} of {self.shufflers} "
            f"shufflers, {self.privacy}, {kinds}, {self.digest[:12]})"
        )

    def __str__(self) -> str:
        return files.text(self)


@lru_cache(maxsize=256)
def _made(request: Request) -> Plan:
    """A search takes half a second or more, so a repeated request is searched for once."""
    terms, horizon = request.terms, request.horizon
    if terms.privacy.delta * horizon > 1:
        # Such a delta would allow a mechanism that publishes some user's value every time.
        warnings.warn(
            f"delta={terms.privacy.delta:g} is above 1/horizon={1 / horizon:g}: it allows that "
            f"about {terms.privacy.delta * horizon:.3g} of {horizon} users are not protected at "
            "all",
            errors.WeakDelta,
            stacklevel=3,
        )
    tree, mechanisms = best_levels(request)
    return Plan(tree, mechanisms, terms.privacy, request.shufflers, terms.honest, terms.reports)
