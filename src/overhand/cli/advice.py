"""What another mechanism would reach on a plan's tree, where that is worth mentioning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from overhand.cli.output import format_number, plural
from overhand.errors import Infeasible
from overhand.mechanisms import MECHANISMS
from overhand.planning import (
    Composition,
    Plan,
    Requirements,
    calibrate,
    kinds_of,
    with_best_laplace,
)

_FEWER = 2
"""How many times fewer messages are worth mentioning."""
_LESS = 0.9
"""The fraction of the error that is worth mentioning."""
_QUICK_EPSILON, _QUICK_REPORTS, _QUICK_DIMENSION = 0.01, 2, 64
"""Where noise is calibrated within a second; elsewhere messages are only counted."""


@dataclass(frozen=True)
class Advice:
    """Another mechanism, and in which respect it is better."""

    mechanism: str
    messages: float
    other: Plan | None
    """The plan with it, if that could be made quickly; otherwise messages were only counted."""
    is_less: bool
    is_fewer: bool

    def row(self, plan: Plan) -> tuple[str, str]:
        """A row that compares it with a plan."""
        better = [*["less error"] * self.is_less, *["fewer messages"] * self.is_fewer]
        label = f"{', '.join(better)} with {self.mechanism}"
        if self.other is None:
            return label, f"on this tree, about {self.messages:,.0f}"
        ratio, length = self.other.rms_error / plan.rms_error, self.other.costs.report_bytes
        return label, (
            f"on this tree, {plural(self.messages, 'message')}, {length:,} bytes, rms error "
            f"{format_number(self.other.rms_error)} ({format_number(ratio)} x), one client can add "
            f"at most {format_number(self.other.influence)}"
        )


def advise(plan: Plan, composition: Composition, most: float = math.inf) -> Iterator[Advice]:
    """Name the mechanisms that beat a plan's own, on the same tree, with at most `most` messages.

    Those of the paper's family, to which a tree belongs.
    """
    if plan.noise_by == "services":
        return
    own = {mechanism.kind for mechanism in plan.mechanisms}
    terms = Requirements(plan.privacy, plan.honest, plan.reports, composition, plan.values)
    for kind in [kind for kind in kinds_of(plan.values, "users") if kind not in own]:
        choices = [
            replace(terms, noise_choice=one) for one in MECHANISMS[kind].noise_choices(plan.values)
        ]
        found = _compare(plan, kind, choices)
        if found and found.messages <= most and (found.is_less or found.is_fewer):
            yield found


def _compare(plan: Plan, kind: str, choices: list[Requirements]) -> Advice | None:
    """What a mechanism costs and reaches with the best of its kinds of noise, if it is feasible."""
    sent, values = plan.messages_per_user, plan.values
    split = tuple(m.noise_variance / values.width**2 for m in plan.mechanisms)
    is_small = values.is_whole or values.dimension <= _QUICK_DIMENSION
    is_usual = plan.privacy.epsilon >= _QUICK_EPSILON and plan.reports <= _QUICK_REPORTS
    if not (is_small and is_usual):
        sizes = np.array(plan.tree.sizes, np.float64)
        counts = (terms.fewest_messages(sizes, np.array(split)).sum() for terms in choices)
        messages = float(min(counts))
        return Advice(kind, messages, None, False, _FEWER * messages <= sent)
    others = []
    for terms in choices:  # its own noise at every level, in proportion
        at = with_best_laplace(terms, plan.tree.levels)
        with suppress(Infeasible):
            others.append(replace(plan, mechanisms=calibrate(plan.tree.sizes, split, at)))
    if not others:
        return None
    other = min(others, key=lambda found: found.rms_error)
    messages, is_less = other.messages_per_user, other.rms_error <= _LESS * plan.rms_error
    return Advice(kind, messages, other, is_less, _FEWER * messages <= sent)
