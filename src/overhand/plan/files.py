"""A plan as it stands in its file, and as it is told to readers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overhand import errors
from overhand.mechanisms import Coins, CoinSum, SharesSum
from overhand.mechanisms.user_noise import noise_of
from overhand.model import Privacy
from overhand.plan.estimator import DEFAULT_FAILURE_PROBABILITY
from overhand.plan.levels import AnyMechanism
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
        "bits_per_user": plan.bits_per_user,
        "rms_error": plan.rms_error,
        "worst_std": plan.worst_std,
        "error_bound": plan.error_bound(),
        "failure_probability": DEFAULT_FAILURE_PROBABILITY,
        "delta_spent": plan.delta_spent,
        "delta_leaked": plan.delta_leaked,
        "honest": plan.honest,
        "reports": plan.reports,
        "digest": plan.digest,
    }


def _level_summary(tree: Tree, level: int, mechanism: AnyMechanism) -> dict[str, Any]:
    return {
        "level": level,
        "batch_size": mechanism.size,
        "degree": tree.degrees[level - 1] if isinstance(tree, RegularTree) else None,
        **_noise_summary(mechanism),
        "steps": mechanism.steps,
        "unit": mechanism.unit,
        "noise_variance": mechanism.noise_variance,
        "rounding_variance": mechanism.rounding_variance,
        "variance": mechanism.variance,
        "messages": mechanism.messages_per_user,
        "message_bits": mechanism.message_bits,
    }


def _noise_summary(mechanism: AnyMechanism) -> dict[str, Any]:
    """The law of the noise; of shares, also what they leak."""
    noise, summary = mechanism.user_noise, {}
    if isinstance(noise, Coins):
        summary = {
            "noise_trials": mechanism.size * noise.bits,
            "noise_probability": float(noise.probability),
            "opposed": noise.opposed,
            "noise": [
                {"trials": trials, "probability": float(p)}
                for trials, p in noise.law(mechanism.size).terms
            ],
        }
    else:
        law = noise.law(mechanism.size)
        summary = {
            "noise_trials": None,
            "noise_probability": None,
            "noise": {"law": "laplace", "shape": float(law.shape), "ratio": law.ratio},
        }
    if isinstance(mechanism, SharesSum):
        summary |= {
            "shares": mechanism.shares,
            "modulus_bits": mechanism.modulus_bits,
            "view_distance": mechanism.view_distance,
            "sampling_distance": mechanism.sampling_distance,
            "wrap_probability": mechanism.wrap_probability,
        }
    return summary


def _entry(mechanism: AnyMechanism) -> dict[str, Any]:
    """A mechanism as JSON keeps it, without a rounded number."""
    entry: dict[str, Any] = {
        "size": mechanism.size,
        "noise": mechanism.user_noise.entry,
        "steps": mechanism.steps,
    }
    if isinstance(mechanism, SharesSum):
        entry |= {
            "shares": mechanism.shares,
            "modulus_bits": mechanism.modulus_bits,
            "honest": mechanism.honest,
        }
    return entry


def _mechanism_of(saved: dict[str, Any], values: Values) -> AnyMechanism:
    size, noise, steps = saved["size"], noise_of(saved["noise"]), saved["steps"]
    if "shares" in saved:
        honest, shares, bits = saved["honest"], saved["shares"], saved["modulus_bits"]
        return SharesSum(size, noise, shares, bits, honest, values, steps)
    if not isinstance(noise, Coins):
        raise errors.InvalidValue("only shares carry noise other than coins")
    return CoinSum.of(size, noise, values, steps)


def _tree_of(horizon: int, description: dict[str, Any]) -> Tree:
    kind = description.pop("kind")
    if kind == "regular":
        return RegularTree(horizon, tuple(description["degrees"]))
    if kind == "path":
        return PathTree(horizon, **description)
    raise errors.InvalidValue(f"tree {kind!r} is unknown")
