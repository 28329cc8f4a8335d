"""What `overhand plan`, `prepare` and `verify` know of recommenders."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from overhand.bandits import ConstantsName, Practical, Theory, plan_for_regret
from overhand.cli.options import PlanOptions
from overhand.errors import InvalidValue
from overhand.plan import Plan
from overhand.values import Moments, Values

if TYPE_CHECKING:
    from overhand.service.protocol import Document, Learning

MECHANISM = "pairs"
"""How rewards and features are sent if it is not said: one message per level."""

PlanForRegret = Annotated[
    bool,
    typer.Option(
        "--recommender",
        help="The plan of least regret for a recommender, instead of least error: with --values "
        "moments:D, D features per arm. Sends pairs unless --mechanism says otherwise.",
    ),
]
IsRecommender = Annotated[
    bool,
    typer.Option("--recommender", help="For a recommender that learns from the plan's moments."),
]


def features_of(values: Values) -> int:
    """How many features an arm has, if these are the values of a recommender."""
    if not isinstance(values, Moments):
        raise InvalidValue(f"a recommender learns from --values moments:D, not {values.spec}")
    return values.features


def least_regret(asked: PlanOptions) -> Plan:
    """The plan of least regret for these options."""
    if asked.error is not None or asked.clip:
        raise InvalidValue("--recommender plans for regret: --error and --clip do not go with it")
    size, named = (asked.users, asked.most_shufflers), asked.named
    named["mechanism"] = asked.mechanism or MECHANISM
    return plan_for_regret(*size, asked.privacy, features_of(asked.values), **named)


@dataclass(frozen=True)
class LearningOptions:
    """How a recommender is asked to learn: each field is an option."""

    constant: Annotated[
        float | None, typer.Option(help="The first feature of every arm, if all have the same.")
    ] = None
    rule: Annotated[
        ConstantsName | None,
        typer.Option(
            help="practical: constants that follow from the law of the noise; theory: the paper's, "
            "which learn very slowly.",
            show_default="practical",
        ),
    ] = None
    features: Annotated[
        str | None, typer.Option(help="The names of the features, separated by commas.")
    ] = None
    arms: Annotated[
        Path | None,
        typer.Option(
            help="Arms that are the same for everybody: a JSON object of names and features."
        ),
    ] = None

    def check_none(self) -> None:
        """Refuse what is said of a recommender where there is none."""
        for field in fields(self):
            if getattr(self, field.name) is not None:
                raise InvalidValue(f"--{field.name} is of a recommender: give --recommender, too")

    def learning(self, plan: Plan, rule_key: bytes) -> Learning:
        """What a document for this plan says of it."""
        from overhand.service.protocol import Learning

        names = () if self.features is None else tuple(self.features.split(","))
        arms = {} if self.arms is None else _arms_of(self.arms)
        return Learning(self._constants(plan), rule_key, names, arms)

    def _constants(self, plan: Plan) -> Practical | Theory:
        dimension = features_of(plan.values)
        if self.rule != "theory":
            return Practical(dimension, self.constant)
        if self.constant is not None:
            raise InvalidValue("--rule theory makes no use of a --constant")
        return Theory(dimension, plan.horizon, max(1.0, plan.error_bound(1 / (2 * plan.horizon))))


def _arms_of(path: Path) -> dict[str, tuple[float, ...]]:
    try:
        written = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_named_once)
        # Not float(x), which takes digits in quotes for a number.
        return {name: tuple(0.0 + x for x in arm) for name, arm in written.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidValue(
            f'{path} must be a JSON object such as {{"jazz": [0.6, 0.8]}}: {error}'
        ) from None


def _named_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    named = dict(pairs)
    if len(named) < len(pairs):
        raise ValueError("a name is there twice")
    return named


def learning_lines(document: Document) -> dict[str, str]:
    """For `verify`: how a recommender learns, in words."""
    learning = document.learning
    if learning is None:
        return {}
    constant = learning.constants.constant
    rule = learning.entry()["rule"]
    first = "" if constant is None else f", the first of them always {constant:.6g}"
    arms = f"; {len(learning.arms):,} arms are named" if learning.arms else ""
    return {
        "recommender": f"devices choose by its rules and report features of the arm they took, and "
        f"the reward; the arm itself is not protected where others see it ({rule} rules)",
        "features": f"{escape(', '.join(learning.names))}{first}{arms}",
        "key of rules": learning.rule_key.hex(),
    }
