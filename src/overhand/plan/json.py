"""A plan as it is saved in a file, and as it is shown to readers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from overhand import errors
from overhand.mechanisms import MECHANISMS, Mechanism, noise_of
from overhand.model import Privacy
from overhand.plan.combination import DEFAULT_FAILURE_PROBABILITY
from overhand.trees import RegularTree
from overhand.values import Values, values_of

if TYPE_CHECKING:
    from overhand.plan.plan import Plan

FORMAT = 4
_FLAGS = ("combine", "hold")


def parameters(plan: Plan) -> dict[str, Any]:
    """Everything that defines the plan, which its digest covers.

    >>> from overhand.plan import Plan
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
    overhand.errors.InvalidValue: the format is 1, not 4
    """
    if saved["format"] != FORMAT:
        raise errors.InvalidValue(f"the format is {saved['format']}, not {FORMAT}")
    for name, flag in (("clip", saved["values"]["clip"]), *((n, saved[n]) for n in _FLAGS)):
        if not isinstance(flag, bool):
            raise errors.InvalidValue(f"{name}={flag!r} must be true or false")
    values = values_of(saved["values"]["kind"], clip=saved["values"]["clip"])
    return {
        "tree": RegularTree(saved["horizon"], tuple(saved["degrees"])),
        "mechanisms": tuple(_mechanism_of(entry, values) for entry in saved["mechanisms"]),
        "privacy": Privacy(saved["epsilon"], saved["delta"]),
        **{name: saved[name] for name in ("shufflers", "honest", "reports", *_FLAGS)},
    }


def read(text: str, plan_of: Callable[..., Plan]) -> Plan:
    """The plan of a file, or `DamagedPlan` if anything in it was changed."""
    try:
        saved = json.loads(text)
        plan = plan_of(**fields_of(saved))
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


def _mechanism_of(entry: dict[str, Any], values: Values) -> Mechanism:
    kind = entry["mechanism"]
    if kind not in MECHANISMS:
        raise errors.InvalidValue(f"mechanism {kind!r} is not one of {', '.join(MECHANISMS)}")
    return MECHANISMS[kind].of_entry(entry, noise_of(entry["noise"]), values)


def summary(plan: Plan) -> dict[str, Any]:
    """What `overhand plan --json` prints, except processor times, which depend on the machine.

    A plan's file contains it, and is checked against it when it is read.
    """
    return {
        "horizon": plan.horizon,
        "shufflers": plan.shufflers,
        "epsilon": plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "values": plan.values.spec,
        "tree": "regular",
        "structure": {"kind": "regular", "degrees": list(plan.tree.degrees)},
        "levels": [
            {"level": level, "degree": plan.tree.degrees[level - 1], **mechanism.summary()}
            for level, mechanism in enumerate(plan.mechanisms, start=1)
        ],
        "noise_by": plan.noise_by,
        "messages_per_user": plan.messages_per_user,
        "opened_per_user": plan.costs.opened,
        "bits_per_user": plan.bits_per_user,
        "sealed_bytes_per_user": plan.costs.report_bytes,
        "influence": plan.influence,
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


def text(plan: Plan) -> str:
    """The plan in a few lines."""
    rows = [
        f"level {level}: batches of {m.size:,} users, {m.messages_per_user:,} messages each, "
        f"variance {m.variance:.4g}"
        for level, m in enumerate(plan.mechanisms, start=1)
    ]
    head = (
        f"{plan.horizon:,} users ({plan.values}), "
        f"{plan.tree.levels} of {plan.shufflers} shufflers, "
        f"{plan.privacy} (spends delta={plan.delta_spent:.3g})"
    )
    foot = (
        f"{plan.messages_per_user} messages per user; rms error {plan.rms_error:.4g}, "
        f"worst std {plan.worst_std:.4g}, all errors below {plan.error_bound():.4g} "
        f"with probability {1 - DEFAULT_FAILURE_PROBABILITY:.0%}"
    )
    return "\n".join([head, *rows, foot])
