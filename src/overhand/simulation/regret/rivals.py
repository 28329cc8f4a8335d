"""The rivals: whom users must trust, and which sums a learner gets for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from overhand import errors
from overhand.bandits import Constants, ConstantsName, LinUCB, Practical, Theory, plan_for_regret
from overhand.baselines import GaussianResponse, GaussianTree, GrowingBatches, local_counter
from overhand.baselines.local import LocalSum
from overhand.model import Privacy
from overhand.plan import Plan
from overhand.plan.levels import calibrated
from overhand.plan.recipe import Recipe
from overhand.plan.terms import Terms
from overhand.simulation.regret.sums import (
    ExactSums,
    GrowingSums,
    LocalSums,
    PlanSums,
    Sums,
    TrustedSums,
)
from overhand.trees import RegularTree, binary_degrees
from overhand.values import Moments

SHARES = Recipe(shares=True)

BATCH_POWERS = (0.5, 0.6)
"""Batches of one shuffler, as powers of the horizon: 3/5 is Chowdhury and Zhou's."""


@dataclass(frozen=True)
class Rival:
    """A learner: the sums that it is given, and how it learns from them."""

    name: str
    label: str
    trusted: str
    sums: Sums
    learner: LinUCB
    plan: Plan | None = None

    @property
    def theory(self) -> Theory | None:
        """The theorem's constants, if it uses them."""
        constants = self.learner.constants
        return constants if isinstance(constants, Theory) else None


@dataclass(frozen=True)
class Field:
    """What all rivals have in common."""

    horizon: int
    shufflers: int
    privacy: Privacy
    dimension: int
    constants: ConstantsName = "practical"

    @property
    def moments(self) -> Moments:
        return Moments(self.dimension)

    def learner(self, entry_error: Callable[[float], float]) -> LinUCB:
        """With the constants asked for; the theorem's need a bound on the error of all entries."""
        constants: Constants = Practical(self.dimension)
        if self.constants == "theory":
            bound = entry_error(1 / (2 * self.horizon))
            constants = Theory(self.dimension, self.horizon, max(bound, 1.0))
        return LinUCB(self.dimension, constants)

    def plan(self, degrees: tuple[int, ...]) -> Plan:
        """A plan over a given tree, all levels with the same noise, sent as shares."""
        tree = RegularTree(self.horizon, degrees)
        terms = Terms(self.privacy, values=self.moments, recipe=SHARES)
        mechanisms = calibrated(tree, [1.0] * len(degrees), terms)
        return Plan(tree, mechanisms, self.privacy, len(degrees))


def _of_plan(
    field: Field, name: str, label: str, plan: Plan, *, trusted: str, gaussian: bool = False
) -> Rival:
    learner = field.learner(plan.error_bound)
    return Rival(name, label, trusted, PlanSums(plan, gaussian), learner, plan)


def _not_private(field: Field) -> Rival:
    learner = field.learner(lambda failure: 1.0)
    return Rival("not-private", "not private", "everybody", ExactSums(), learner)


def _trusted(field: Field) -> Rival:
    tree = GaussianTree(field.horizon, field.privacy, field.moments)
    learner = field.learner(tree.error_bound)
    return Rival("trusted", "trusted: binary tree", "the server", TrustedSums(tree), learner)


def _local(field: Field) -> Rival:
    counter = GaussianResponse(field.horizon, field.moments, field.privacy)
    return _of_local(field, "local", "local", counter)


def _local_best(field: Field) -> Rival:
    counter = local_counter(field.horizon, field.privacy, field.moments)
    assert isinstance(counter, LocalSum)  # moments are not bits
    return _of_local(field, "local-best", "local, best known", counter)


def _of_local(field: Field, name: str, label: str, counter: LocalSum) -> Rival:
    return Rival(name, label, "nobody", LocalSums(counter), field.learner(counter.error_bound))


def _one_shuffler(field: Field, power: float) -> Rival:
    size = max(1, round(field.horizon**power))
    label = f"one shuffler, n^{power:g}"
    name = f"one-shuffler-{power:g}"
    return _of_plan(field, name, label, field.plan((size,)), trusted="one shuffler")


def _growing(field: Field) -> Rival:
    batches = GrowingBatches.best(field.horizon, field.privacy, field.moments, recipe=SHARES)
    learner = field.learner(batches.error_bound)
    label = "one shuffler, growing"
    return Rival("one-shuffler-growing", label, "one shuffler", GrowingSums(batches), learner)


def _concurrent(field: Field, *, gaussian: bool = False) -> Rival:
    plan = plan_for_regret(field.horizon, field.shufflers, field.privacy, field.dimension)
    name, label = ("stand-in", "ours, normal noise") if gaussian else ("concurrent", "ours")
    label = f"{plan.tree.levels} shufflers, {label}"
    trusted = f"{plan.tree.levels} shufflers"
    return _of_plan(field, name, label, plan, trusted=trusted, gaussian=gaussian)


def _binary(field: Field) -> Rival:
    degrees = binary_degrees(field.horizon)
    label = f"{len(degrees)} shufflers, binary"
    plan = field.plan(degrees)
    return _of_plan(field, "binary", label, plan, trusted=f"{len(degrees)} shufflers")


_MAKERS: dict[str, Callable[[Field], Rival]] = {
    "not-private": _not_private,
    "trusted": _trusted,
    "local": _local,
    "local-best": _local_best,
    **{
        f"one-shuffler-{power:g}": lambda field, power=power: _one_shuffler(field, power)  # type: ignore[misc]
        for power in BATCH_POWERS
    },
    "one-shuffler-growing": _growing,
    "concurrent": _concurrent,
    "stand-in": lambda field: _concurrent(field, gaussian=True),
    "binary": _binary,
}
RIVALS = tuple(_MAKERS)
USUAL = tuple(name for name in RIVALS if name != "stand-in")


def rival(name: str, field: Field) -> Rival:
    """One of the rivals, calibrated for the guarantee."""
    if name not in _MAKERS:
        raise errors.InvalidValue(f"rival {name!r} must be one of {', '.join(RIVALS)}")
    return _MAKERS[name](field)
