"""The rivals: whom users must trust, and which sums a learner gets for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from overhand import errors
from overhand.bandits import Constants, ConstantsName, LinUCB, Practical, Theory, plan_for_regret
from overhand.baselines import GaussianResponse, GaussianTree, GrowingBatches, local_counter
from overhand.mechanisms import MECHANISMS, Recipe
from overhand.model import Privacy
from overhand.plan import Plan, Terms, calibrated, kinds_of
from overhand.simulation.regret.environments import Environment
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

_ONE_SHUFFLER = "one shuffler"

BATCH_POWERS = (0.5, 0.6)
"""Batches of one shuffler, as powers of the horizon: 3/5 is Chowdhury and Zhou's."""


@dataclass(frozen=True)
class Rival:
    """A learner: the sums that it is given, and how it learns from them.

    `theory` are the constants and the bound of the paper's theorem for these sums, whether it
    learns with them or not.

    >>> trusted = rival("trusted", Field(1000, 2, Privacy(1.0, 1e-6), dimension=5))
    >>> trusted.label, trusted.trusted, trusted.sums.delta_spent < 1.01e-6
    ('trusted binary tree', 'the server', True)
    """

    name: str
    label: str
    trusted: str
    sums: Sums
    learner: LinUCB
    theory: Theory

    @property
    def plan(self) -> Plan | None:
        return self.sums.plan if isinstance(self.sums, PlanSums) else None

    @property
    def is_one_shuffler(self) -> bool:
        """Whether it is one of those with batches of the same size."""
        return self.name.startswith("one-shuffler") and self.plan is not None


@dataclass(frozen=True)
class Field:
    """What all rivals have in common.

    >>> from dataclasses import replace
    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=5)
    >>> plan = field.plan(degrees=(50,))
    >>> plan.values, plan.tree.blocks, plan.delta_spent <= 1e-6
    (Moments(features=5, clip=False), 20, True)
    >>> plan.messages_per_user, replace(field, mechanism="pairs").plan((50,)).messages_per_user
    (300, 1)
    """

    horizon: int
    shufflers: int
    privacy: Privacy
    dimension: int
    constants: ConstantsName = "practical"
    constant: float | None = Environment.constant
    """The first feature of all arms."""
    mechanism: str = "shares"
    """How values are sent, by all who have shufflers."""

    def __post_init__(self) -> None:
        errors.one_of("mechanism", self.mechanism, kinds_of(self.moments, "users"))
        errors.whole("horizon", self.horizon, least=4)
        errors.whole("shufflers", self.shufflers, least=1)

    @property
    def moments(self) -> Moments:
        return Moments(self.dimension)

    @property
    def recipe(self) -> Recipe:
        """That of noise for values that are bounded in l2."""
        return MECHANISMS[self.mechanism].recipes(self.moments)[0]

    def rival(
        self, name: str, label: str, trusted: str, sums: Sums, entry_error: Callable[[float], float]
    ) -> Rival:
        """One who is given these sums, of which `entry_error` bounds all entries at all times."""
        # Every entry is wrong by one user at least: those who are pending.
        bound = max(1.0, entry_error(1 / (2 * self.horizon)))
        theory = Theory(self.dimension, self.horizon, bound)
        constants: Constants = theory
        if self.constants == "practical":
            constants = Practical(self.dimension, self.constant)
        return Rival(name, label, trusted, sums, LinUCB(constants), theory)

    def of_plan(
        self, name: str, label: str, trusted: str, plan: Plan, *, gaussian: bool = False
    ) -> Rival:
        return self.rival(name, label, trusted, PlanSums(plan, gaussian), plan.error_bound)

    def plan(self, degrees: tuple[int, ...]) -> Plan:
        """A plan over a given tree, all levels with the same noise."""
        tree = RegularTree(self.horizon, degrees)
        terms = Terms(self.privacy, values=self.moments, recipe=self.recipe)
        mechanisms = calibrated(tree.sizes, [1.0] * len(degrees), terms)
        return Plan(tree, mechanisms, self.privacy, len(degrees))


def _not_private(field: Field) -> Rival:
    return field.rival("not-private", "not private", "everybody", ExactSums(), lambda failure: 1.0)


def _trusted(field: Field) -> Rival:
    tree = GaussianTree(field.horizon, field.privacy, field.moments)
    sums = TrustedSums(tree)
    return field.rival("trusted", "trusted binary tree", "the server", sums, tree.error_bound)


def _local(field: Field) -> Rival:
    counter = GaussianResponse(field.horizon, field.moments, field.privacy)
    return field.rival("local", "local", "nobody", LocalSums(counter), counter.error_bound)


def _local_best(field: Field) -> Rival:
    counter = local_counter(field.horizon, field.privacy, field.moments)
    label = "local, best known"
    return field.rival("local-best", label, "nobody", LocalSums(counter), counter.error_bound)


def _one_shuffler(field: Field, power: float) -> Rival:
    plan = field.plan((max(2, round(field.horizon**power)),))
    label = f"one, batches n^{power:g}"
    return field.of_plan(f"one-shuffler-{power:g}", label, _ONE_SHUFFLER, plan)


def _growing(field: Field) -> Rival:
    batches = GrowingBatches.best(field.horizon, field.privacy, field.moments, recipe=field.recipe)
    sums, label = GrowingSums(batches), "one, growing batches"
    return field.rival("one-shuffler-growing", label, _ONE_SHUFFLER, sums, batches.error_bound)


def _concurrent(field: Field, *, gaussian: bool = False) -> Rival:
    asked = field.horizon, field.shufflers, field.privacy, field.dimension
    plan = plan_for_regret(*asked, mechanism=field.mechanism)
    many = f"{plan.tree.levels} shufflers" if plan.tree.levels > 1 else _ONE_SHUFFLER
    if gaussian:
        return field.of_plan("stand-in", "ours, normal noise", many, plan, gaussian=True)
    return field.of_plan("concurrent", f"{many}, ours", many, plan)


def _binary(field: Field) -> Rival:
    degrees = binary_degrees(field.horizon)
    many = f"{len(degrees)} shufflers"
    return field.of_plan("binary", f"{many}, binary", many, field.plan(degrees))


_MAKERS: dict[str, Callable[[Field], Rival]] = {
    "not-private": _not_private,
    "trusted": _trusted,
    "local": _local,
    "local-best": _local_best,
    **{f"one-shuffler-{power:g}": partial(_one_shuffler, power=power) for power in BATCH_POWERS},
    "one-shuffler-growing": _growing,
    "concurrent": _concurrent,
    "stand-in": partial(_concurrent, gaussian=True),
    "binary": _binary,
}
RIVALS = tuple(_MAKERS)
"""The names that `rival` knows."""
USUAL = tuple(name for name in RIVALS if name != "stand-in")
"""All but ours under normal noise, which is there to check that its law does not matter."""


def rival(name: str, field: Field) -> Rival:
    """One of the rivals, calibrated for the guarantee.

    >>> field = Field(horizon=1000, shufflers=2, privacy=Privacy(1.0, 1e-6), dimension=5)
    >>> [rival(name, field).label for name in ("not-private", "local", "one-shuffler-0.5")]
    ['not private', 'local', 'one, batches n^0.5']
    """
    errors.one_of("rival", name, RIVALS)
    return _MAKERS[name](field)
