"""A plan as it stands in its file, and as it is told to readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overhand import errors
from overhand.mechanisms import CoinSum
from overhand.model import Privacy
from overhand.plan.estimator import DEFAULT_FAILURE_PROBABILITY
from overhand.randomness import BinaryFraction
from overhand.trees import PathTree, RegularTree, Tree
from overhand.values import Values, values_of

if TYPE_CHECKING:
    from overhand.plan.plan import Plan

FORMAT = 2


def parameters(plan: Plan) -> dict[str, Any]:
    """All that the plan is: what its digest is of."""
    return {
        "format": FORMAT,
        "horizon": plan.horizon,
        "values": {"kind": plan.values.spec, "clip": getattr(plan.values, "clip", False)},
        "tree": plan.tree.description(),
        "mechanisms": [[_entry(m) for m in of_level] for of_level in plan.mechanisms],
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "shufflers": plan.shufflers,
        "honest": plan.honest,
        "reports": plan.reports,
        "combine": plan.combine,
        "hold": plan.hold,
    }


def fields_of(saved: dict[str, Any]) -> dict[str, Any]:
    """The fields of the plan with these parameters."""
    if saved["format"] != FORMAT:
        raise errors.InvalidValue(f"format {saved['format']} is not {FORMAT}")
    values = values_of(saved["values"]["kind"], clip=saved["values"]["clip"])
    return {
        "tree": _tree_of(saved["horizon"], dict(saved["tree"])),
        "mechanisms": tuple(
            tuple(_mechanism_of(m, values) for m in of_level) for of_level in saved["mechanisms"]
        ),
        "privacy": Privacy(saved["epsilon"], saved["delta"]),
        **{name: saved[name] for name in ("shufflers", "honest", "reports", "combine", "hold")},
    }


def summary(plan: Plan) -> dict[str, Any]:
    """What `overhand plan --json` prints."""
    description = plan.tree.description()
    return {
        "horizon": plan.horizon,
        "shufflers": plan.shufflers,
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "values": plan.values.spec,
        "tree": description["kind"],
        "structure": description,
        "levels": [
            _level_summary(plan.tree, level, mechanism)
            for level, of_level in enumerate(plan.mechanisms, start=1)
            for mechanism in of_level
        ],
        "messages_per_user": plan.messages_per_user,
        "rms_error": plan.rms_error,
        "worst_std": plan.worst_std,
        "error_bound": plan.error_bound(),
        "failure_probability": DEFAULT_FAILURE_PROBABILITY,
        "delta_spent": plan.delta_spent,
        "honest": plan.honest,
        "reports": plan.reports,
        "digest": plan.digest,
    }


def _level_summary(tree: Tree, level: int, mechanism: CoinSum) -> dict[str, Any]:
    return {
        "level": level,
        "batch_size": mechanism.size,
        "degree": tree.degrees[level - 1] if isinstance(tree, RegularTree) else None,
        "noise_trials": mechanism.noise_trials,
        "noise_probability": float(mechanism.noise_probability),
        "opposed": mechanism.opposed,
        "noise": [
            {"trials": trials, "probability": float(p)} for trials, p in mechanism.noise().terms
        ],
        "steps": mechanism.steps,
        "unit": mechanism.unit,
        "noise_variance": mechanism.noise_variance,
        "rounding_variance": mechanism.rounding_variance,
        "variance": mechanism.variance,
        "messages": mechanism.messages_per_user,
    }


def _entry(mechanism: CoinSum) -> dict[str, Any]:
    """A mechanism as JSON keeps it: its probability as two whole numbers."""
    p = mechanism.noise_probability
    return {
        "size": mechanism.size,
        "noise_bits": mechanism.noise_bits,
        "noise_probability": [p.numerator, p.bits],
        "opposed": mechanism.opposed,
        "steps": mechanism.steps,
    }


def _mechanism_of(saved: dict[str, Any], values: Values) -> CoinSum:
    numerator, bits = saved["noise_probability"]
    return CoinSum(
        saved["size"],
        saved["noise_bits"],
        BinaryFraction(numerator, bits),
        bool(saved["opposed"]),
        values,
        saved["steps"],
    )


def _tree_of(horizon: int, description: dict[str, Any]) -> Tree:
    kind = description.pop("kind")
    if kind == "regular":
        return RegularTree(horizon, tuple(description["degrees"]))
    if kind == "path":
        return PathTree(horizon, **description)
    raise errors.InvalidValue(f"tree {kind!r} is unknown")
