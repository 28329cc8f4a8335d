"""A plan: tree, mechanisms, guarantee and predicted error (`reference.estimate_law`), frozen."""

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
from overhand.accounting import (
    MOST_REPORTS,
    BlocksGuarantee,
    Level,
    leaked_delta,
    spent_delta,
)
from overhand.mechanisms import MECHANISMS, Mechanism, published
from overhand.model import Counts, Floats, Node, NoiseBy, Privacy
from overhand.noise import noise_of
from overhand.planning.batch_sums import DEFAULT_FAILURE_PROBABILITY, Plausibility, chernoff_bound
from overhand.planning.blocks import BlockErrors, best_blocks, blocks_tree
from overhand.planning.blocks import least_cost as least_blocks_cost
from overhand.planning.costs import Costs
from overhand.planning.requirements import (
    DEFAULT_DELTA,
    DEFAULT_SHUFFLERS,
    SQUARED_ERROR,
    Composition,
    Objective,
    Requirements,
    TreeKind,
)
from overhand.planning.search import best_levels, least_epsilon, levels_of
from overhand.planning.search import least_cost as least_tree_cost
from overhand.tree import Combination, RegularTree, binary_degrees, published_degrees
from overhand.values import BITS, Values, values_of

FORMAT = 5
_FLAGS = ("combine", "hold")
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
    horizon: int = 0
    """How many users are expected: as many as the tree has room for, unless services make the
    noise. Then a plan goes on beyond them, with errors that grow."""

    def __post_init__(self) -> None:
        errors.whole("shufflers", self.shufflers, least=1)
        self._check_horizon()
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

    def _check_horizon(self) -> None:
        most = self.tree.horizon
        if not self.horizon:
            object.__setattr__(self, "horizon", most)
        errors.whole("horizon", self.horizon, least=1, most=most)
        if all(mechanism.noise_by == "users" for mechanism in self.mechanisms):
            if self.horizon != most:
                raise errors.InvalidValue(f"horizon={self.horizon} is not that of the tree, {most}")
            return
        if len(self.mechanisms) > 1:
            raise errors.InvalidValue("services make the noise of one level, not of a tree")
        if self.tree != blocks_tree(self.mechanisms[0]):
            raise errors.InvalidValue("the tree is not that of the blocks that are paid for")

    @classmethod
    def best(
        cls,
        horizon: int,
        shufflers: int = DEFAULT_SHUFFLERS,
        privacy: Privacy | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        values: Values | str = BITS,
        tree: TreeKind = "regular",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        mechanism: str | None = None,
        max_messages: int | None = None,
        objective: Objective = SQUARED_ERROR,
    ) -> Plan:
        """The plan with the least error for a guarantee; a process searches for each plan once.

        The guarantee is a `privacy`, or an `epsilon` and a `delta` (1e-6 by default). The error
        that is minimised is `rms_error`, exactly as the plan will have it, unless there is another
        `objective`. `mechanism` is how values are sent. In the paper's trees every user adds noise:
        "coins" by default, "shares", or "best", the one with the least error. "services" needs two
        services that do not collude, each of which adds noise to one level of small blocks: it is
        the cheaper one of "ballots" and "pairs". `honest` is the fraction of the users in any batch
        who are counted on to add their noise, `reports` how many reports one person may send, and
        `max_messages` the most messages per user. `values` is a kind of value, or its name on the
        command line.

        >>> Plan.best(1000, 2, Privacy(1.0, 1e-6), values="histogram:5").values
        Histogram(buckets=5)
        >>> Plan.best(1000, epsilon=1.0) == Plan.best(1000, 5, Privacy(1.0, 1e-6))
        True
        """
        errors.whole("shufflers", shufflers, least=1)  # before a guarantee in its place is missed
        asked = Requirements(
            _guarantee(privacy, epsilon, delta),
            honest,
            reports,
            composition,
            values_of(values),
            objective=objective,
            horizon=horizon,
            shufflers=shufflers,
            tree=tree,
            mechanism=mechanism,
            max_messages=max_messages,
        )
        _warn_of_weak_delta(asked)
        return _find_plan(asked, tuple(MECHANISMS.values()))

    @classmethod
    def for_error(
        cls,
        horizon: int,
        shufflers: int = DEFAULT_SHUFFLERS,
        error: float | None = None,
        delta: float = DEFAULT_DELTA,
        *,
        values: Values | str = BITS,
        tree: TreeKind = "regular",
        honest: float = 1.0,
        reports: int = 1,
        composition: Composition = "exact",
        mechanism: str | None = None,
        max_messages: int | None = None,
    ) -> Plan:
        """The plan with the smallest epsilon whose `rms_error` is at most `error`.

        The other arguments are those of `best`.

        >>> plan = Plan.for_error(1000, 2, error=20.0)
        >>> plan.rms_error <= 20.0, round(plan.privacy.epsilon, 2)
        (True, 0.66)
        """
        error = errors.finite_number("error", error, above=0)
        asked = Requirements(
            Privacy(1.0, delta),
            honest,
            reports,
            composition,
            values_of(values),
            horizon=horizon,
            shufflers=shufflers,
            tree=tree,
            mechanism=mechanism,
            max_messages=max_messages,
        )
        is_of_services = asked.noise_by == "services"
        cost_of = least_blocks_cost if is_of_services else least_tree_cost
        epsilon = least_epsilon(asked, error, cost_of)
        _warn_of_weak_delta(asked)
        for _ in range(_CLOSER):
            closer = replace(asked, privacy=Privacy(epsilon, delta))
            plan = _find_plan(closer, tuple(MECHANISMS.values()))
            if plan.rms_error <= error:
                return plan
            # The search treats rounded values only roughly: errors go about as 1 / epsilon.
            epsilon *= 1.001 * plan.rms_error / error
        raise errors.Infeasible(f"{error=:g} was not reached: {plan.rms_error:g} came closest")

    @classmethod
    def published(
        cls,
        horizon: int,
        shufflers: int | None = DEFAULT_SHUFFLERS,
        privacy: Privacy | None = None,
        *,
        epsilon: float | None = None,
        delta: float | None = None,
        values: Values | str = BITS,
        constant: float | None = None,
    ) -> Plan:
        """The paper's plan exactly (Algorithms 2 and 3), for a guarantee as `best` takes it.

        The degrees of Section 3.2 (or, if `shufflers` is None, the binary tree), the published
        mechanism for the values with its constant, simple composition, batch sums used as they
        are, and the last estimate kept while users are pending.
        """
        horizon = errors.whole("horizon", horizon, least=2)
        if shufflers is None:
            degrees = binary_degrees(horizon)
        else:
            degrees = published_degrees(horizon, errors.whole("shufflers", shufflers, least=1))
        tree, privacy = RegularTree(horizon, degrees), _guarantee(privacy, epsilon, delta)
        share, kind = privacy.share(tree.levels), values_of(values)
        mechanisms = tuple(published(kind, n, share, constant=constant) for n in tree.sizes)
        return cls(tree, mechanisms, privacy, shufflers or tree.levels, combine=False, hold=True)

    @property
    def values(self) -> Values:
        return self.mechanisms[0].values

    @property
    def most_users(self) -> int:
        """How many users there may ever be."""
        return self.tree.horizon

    @property
    def noise_by(self) -> NoiseBy:
        return self.mechanisms[0].noise_by

    @cached_property
    def delta_spent(self) -> float:
        """The certificate: the delta that all batches of one user spend, rounded against us."""
        if self._blocks is not None:
            return self._blocks.spent_delta
        return spent_delta(self._levels, self.privacy)

    @property
    def mu(self) -> float | None:
        """What all that is ever published is as hard to tell apart as: N(mu, 1) and N(0, 1).

        Known if the services make correlated noise; then epsilon and delta follow from it.
        """
        return None if self._blocks is None else self._blocks.mu

    @cached_property
    def outside_epsilon(self) -> float:
        """The epsilon that holds, at the plan's delta, against everybody but the two services.

        They see only what both services have added noise to, if the services make it.
        """
        return self.privacy.epsilon if self._blocks is None else self._blocks.outside_epsilon

    @property
    def delta_leaked(self) -> float:
        """The part of `delta_spent` that covers what batches show beyond sums with ideal noise."""
        if self._blocks is not None:
            return self._blocks.charged_delta(self._blocks.usable.epsilon)
        return leaked_delta(self._levels, self.privacy.epsilon)

    @cached_property
    def _blocks(self) -> BlocksGuarantee | None:
        if self.noise_by == "users":
            return None
        return BlocksGuarantee(self.mechanisms[0], self.reports, self.privacy)

    @cached_property
    def block_errors(self) -> BlockErrors | None:
        """The errors of blocks, if the services make the noise."""
        return BlockErrors(self.mechanisms[0]) if self.noise_by == "services" else None

    @cached_property
    def _levels(self) -> list[Level]:
        asked = Requirements(self.privacy, self.honest, self.reports)
        return levels_of(self.mechanisms, asked)

    def mechanism(self, node: Node) -> Mechanism:
        """The mechanism that a batch runs."""
        if not 1 <= node.level <= self.tree.levels or node.size != self.tree.sizes[node.level - 1]:
            raise errors.InvalidValue(f"no batch of this plan is {node}")
        return self.mechanisms[node.level - 1]

    @property
    def messages_per_user(self) -> int:
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
        return max(m.quantizer.unit for m in self.mechanisms)

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
    def pending_bias_bound(self) -> Any:
        """How far one pending user can be from what is added for it, per coordinate."""
        return self.bias_bound_of(self.imputed)

    def bias_bound_of(self, rate: Any) -> Any:
        """The same for a user who counts as something else, if it is not None."""
        if rate is None:
            return self.pending_bias_bound
        bias_bound = np.maximum(self.values.highs - rate, rate - self.values.lows)
        return float(bias_bound[0]) if self.values.is_scalar else bias_bound

    @cached_property
    def pending_weight(self) -> float:
        """The same for the coordinate where it is largest."""
        return float(np.max(self.pending_bias_bound))

    def noise_variance(self, t: Counts) -> Floats:
        """Variance of a coordinate of the estimates at these times: the sum over V*_t."""
        blocks = np.asarray(t, np.int64) // self.tree.lowest
        if self.block_errors is not None:
            return self.block_errors.noise_variance(blocks)
        return self.tree.cover_weight(blocks, self.combination.variances)

    def squared_error(self, t: Counts) -> Floats:
        """Expected squared error at these times, the pending users all at one end."""
        pending = np.asarray(t, np.int64) % self.tree.lowest
        return self.noise_variance(t) + (self.pending_weight * pending) ** 2

    @cached_property
    def rms_error(self) -> float:
        """Root of the mean of `squared_error` over t = 1 .. horizon."""
        return self.rms_error_over(self.horizon)

    def rms_error_over(self, users: int) -> float:
        """The same over t = 1 .. users, of whom there may be more than expected, if any may come.

        >>> plan = Plan.best(10_000, epsilon=1.0, mechanism="pairs")
        >>> [round(plan.rms_error_over(users), 1) for users in (10_000, 100_000)]
        [18.0, 27.4]
        """
        errors.whole("users", users, least=1, most=self.most_users)
        tree = RegularTree(users, self.tree.degrees) if users != self.most_users else self.tree
        if self.block_errors is None:
            noise = tree.mean_weight(self.combination.variances)
        else:
            noise = self.block_errors.mean_noise_variance(users)
        return math.sqrt(noise + self.pending_weight**2 * tree.mean_pending_square())

    @cached_property
    def worst_std(self) -> float:
        """The largest standard deviation of the noise of any estimate up to the horizon."""
        if self.block_errors is not None:
            return math.sqrt(self.block_errors.noise_variance(self._expected_blocks))
        return math.sqrt(self.tree.heaviest_cover(self.combination.variances))

    @property
    def _expected_blocks(self) -> int:
        return self.horizon // self.tree.lowest

    def error_bound(self, failure_probability: float = DEFAULT_FAILURE_PROBABILITY) -> float:
        """alpha of Definition 2.1: a bound on all errors at once, except with this probability."""
        chance = errors.finite_number("failure_probability", failure_probability, above=0, below=1)
        blocks = self._expected_blocks
        estimates = max(1, blocks * self.values.dimension)

        def growth(s: float) -> float:
            if self.block_errors is not None:
                return self.block_errors.log_mgf_bound(s, blocks)
            # For noise whose even cumulants are positive, and for rounding, growth at w s is at
            # most w^2 times that at s, so that it adds up over combined nodes as variances do.
            of_sums = [m.log_mgf_bound(s) for m in self.mechanisms]
            return self.tree.heaviest_cover(self.combination.over(self.tree, of_sums, power=2))

        noise = chernoff_bound(
            growth,
            variance=self.worst_std**2,
            largest=min(m.noise().mgf_limit / m.quantizer.unit for m in self.mechanisms),
            events=math.log(2 * estimates / chance),
        )
        return noise + self.pending_weight * self.tree.most_pending

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the parameters: two plans are the same if their digests are."""
        canonical = json.dumps(parameters(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    def summary(self) -> dict[str, Any]:
        """What `overhand plan --json` prints, except processor times, which depend on the machine.

        A plan's file contains it, and is checked against it when it is read.
        """
        return {
            "horizon": self.horizon,
            "most_users": self.most_users,
            "shufflers": self.shufflers,
            "epsilon": self.privacy.epsilon,
            "delta": self.privacy.delta,
            "values": self.values.spec,
            "tree": "regular",
            "structure": {"kind": "regular", "degrees": list(self.tree.degrees)},
            "levels": [
                {"level": level, "degree": self.tree.degrees[level - 1], **mechanism.summary()}
                for level, mechanism in enumerate(self.mechanisms, start=1)
            ],
            "noise_by": self.noise_by,
            "messages_per_user": self.messages_per_user,
            "opened_per_user": self.costs.opened,
            "bits_per_user": self.bits_per_user,
            "sealed_bytes_per_user": self.costs.report_bytes,
            "influence": self.influence,
            "rms_error": self.rms_error,
            "worst_std": self.worst_std,
            "error_bound": self.error_bound(),
            "failure_probability": DEFAULT_FAILURE_PROBABILITY,
            "delta_spent": self.delta_spent,
            "delta_leaked": self.delta_leaked,
            "mu": self.mu,
            "honest": self.honest,
            "reports": self.reports,
            "digest": self.digest,
        }

    def to_json(self) -> str:
        """The plan as a file: parameters, digest and, for readers, the summary."""
        saved = {**parameters(self), "digest": self.digest, "summary": self.summary()}
        return json.dumps(saved, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan of a file, or `DamagedPlan` if anything in it was changed."""
        try:
            saved = json.loads(text)
            plan = cls(**fields_of(saved))
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

    @property
    def _structure(self) -> str:
        if self.noise_by == "services":
            return f"two services, blocks of {self.tree.lowest:,}"
        return f"{self.tree.levels} of {self.shufflers} shufflers"

    def __repr__(self) -> str:
        kinds = "+".join(dict.fromkeys(m.kind for m in self.mechanisms))
        return (
            f"Plan({self.horizon} x {self.values}, {self._structure}, {self.privacy}, {kinds}, "
            f"{self.digest[:12]})"
        )

    def __str__(self) -> str:
        if self.noise_by == "services":
            (m,) = self.mechanisms
            messages = "1 message each"
            if m.layout.added_messages:
                messages += f" and {m.layout.added_messages:,} dummies"
            rows = [f"blocks of {m.size:,} users, {messages}, variance {m.variance:.4g}"]
        else:
            rows = [
                f"level {level}: batches of {m.size:,} users, {m.layout.messages_per_user:,} "
                f"messages each, variance {m.variance:.4g}"
                for level, m in enumerate(self.mechanisms, start=1)
            ]
        mu = "" if self.mu is None else f", mu={self.mu:.4g}"
        head = (
            f"{self.horizon:,} users ({self.values}), {self._structure}, "
            f"{self.privacy} (spends delta={self.delta_spent:.3g}{mu})"
        )
        foot = (
            f"{self.messages_per_user} messages per user; rms error {self.rms_error:.4g}, "
            f"worst std {self.worst_std:.4g}, all errors below {self.error_bound():.4g} "
            f"with probability {1 - DEFAULT_FAILURE_PROBABILITY:.0%}"
        )
        if self.most_users > self.horizon:
            many = min(10 * self.horizon, self.most_users)
            foot += (
                f"; goes on for at most {self.most_users:,} users, rms error "
                f"{self.rms_error_over(many):.4g} over {many:,}"
            )
        return "\n".join([head, *rows, foot])


def parameters(plan: Plan) -> dict[str, Any]:
    """Everything that defines the plan, which its digest covers.

    >>> plan = Plan.published(1000, 2, Privacy(1.0, 1e-6))
    >>> parameters(plan)["degrees"], Plan(**fields_of(parameters(plan))) == plan
    ([4, 16], True)
    """
    return {
        "format": FORMAT,
        "horizon": plan.horizon,
        "values": {"kind": plan.values.spec, "clip": getattr(plan.values, "clip", False)},
        "degrees": list(plan.tree.degrees),
        "mechanisms": [mechanism.entry() for mechanism in plan.mechanisms],
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "shufflers": plan.shufflers,
        "honest": plan.honest,
        "reports": plan.reports,
        "combine": plan.combine,
        "hold": plan.hold,
    }


def fields_of(saved: dict[str, Any]) -> dict[str, Any]:
    """The fields of the plan with these parameters, or an error if there is no such plan.

    >>> fields_of({"format": 1})
    Traceback (most recent call last):
    overhand.errors.InvalidValue: the format is 1, not 5
    """
    if saved["format"] != FORMAT:
        raise errors.InvalidValue(f"the format is {saved['format']}, not {FORMAT}")
    for name, flag in (("clip", saved["values"]["clip"]), *((n, saved[n]) for n in _FLAGS)):
        if not isinstance(flag, bool):
            raise errors.InvalidValue(f"{name}={flag!r} must be true or false")
    values = values_of(saved["values"]["kind"], clip=saved["values"]["clip"])
    mechanisms = tuple(_mechanism_of(entry, values) for entry in saved["mechanisms"])
    degrees = tuple(saved["degrees"])
    tree = RegularTree(saved["horizon"], degrees)
    if len(mechanisms) == 1 and mechanisms[0].noise_by == "services":
        tree = blocks_tree(mechanisms[0])
        if tree.degrees != degrees:
            raise errors.InvalidValue(f"degrees={degrees} are not those of blocks, {tree.degrees}")
    return {
        "tree": tree,
        "mechanisms": mechanisms,
        "horizon": saved["horizon"],
        "privacy": Privacy(saved["epsilon"], saved["delta"]),
        **{name: saved[name] for name in ("shufflers", "honest", "reports", *_FLAGS)},
    }


def _mechanism_of(entry: dict[str, Any], values: Values) -> Mechanism:
    kind = entry["mechanism"]
    if kind not in MECHANISMS:
        raise errors.InvalidValue(f"mechanism {kind!r} is not one of {', '.join(MECHANISMS)}")
    return MECHANISMS[kind].of_entry(entry, noise_of(entry["noise"]), values)


def _guarantee(privacy: Privacy | None, epsilon: float | None, delta: float | None) -> Privacy:
    """The guarantee that was asked for in one of two ways."""
    if privacy is None:
        if epsilon is None:
            raise errors.InvalidValue(
                "epsilon is missing: give epsilon=1.0, for example, or privacy=Privacy(1.0, 1e-6)"
            )
        return Privacy(epsilon, DEFAULT_DELTA if delta is None else delta)
    if not isinstance(privacy, Privacy):
        raise errors.InvalidValue(
            f"privacy={privacy!r} must be a Privacy, such as Privacy(1.0, 1e-6), or be left out "
            "in favour of epsilon and delta"
        )
    if epsilon is not None or delta is not None:
        name, given = ("epsilon", epsilon) if epsilon is not None else ("delta", delta)
        raise errors.InvalidValue(f"{name}={given!r} must be left out if there is a privacy")
    return privacy


@lru_cache(maxsize=256)
def _find_plan(asked: Requirements, _registered: tuple[type[Mechanism], ...]) -> Plan:
    """A search takes a moment, so a request is searched for once, as long as mechanisms stay."""
    if asked.noise_by == "services":
        blocks, mechanism = best_blocks(asked)
        return Plan(
            blocks, (mechanism,), asked.privacy, 1, reports=asked.reports, horizon=asked.horizon
        )
    tree, mechanisms = best_levels(asked)
    return Plan(tree, mechanisms, asked.privacy, asked.shufflers, asked.honest, asked.reports)


def _warn_of_weak_delta(asked: Requirements) -> None:
    delta, horizon = asked.privacy.delta, asked.horizon
    if delta * horizon > 1:
        # Such a delta would allow a mechanism that publishes some user's value every time.
        warnings.warn(
            f"delta={delta:g} is above 1/horizon={1 / horizon:g}: it allows that about "
            f"{delta * horizon:.3g} of {horizon} users are not protected at all",
            errors.WeakDelta,
            stacklevel=3,
        )
