"""Options that several commands share."""

from __future__ import annotations

import gc
from collections import ChainMap
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from decimal import Decimal, InvalidOperation
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from overhand.cli import read_docstring
from overhand.cli.output import plural
from overhand.errors import InvalidValue, one_of, whole
from overhand.model import Privacy
from overhand.planning import MECHANISM_KINDS, TREE_KINDS, Composition, Plan, check_epsilon
from overhand.tree import binary_degrees
from overhand.values import RegressionStatistics, Values, values_of

DEFAULT_SHUFFLERS = 5
DEFAULT_EPSILON = 1.0
DEFAULT_DELTA = 1e-6
TWO_SERVICES = "services"
"""How values are sent, unless it is said, by commands that run both services, or stand for them."""

_MOST_DIGITS = 30
_BY_NAME = Parameter.KEYWORD_ONLY
_NAMED = ("tree", "honest", "reports", "composition", "max_messages", "mechanism")


def whole_number(text: Any) -> int:
    """A whole number as people write it.

    >>> [whole_number(text) for text in ("1000000", "1_000_000", "1e6", "1.5e3")]
    [1000000, 1000000, 1000000, 1500]
    """
    try:
        number = Decimal(str(text))
        is_whole = number.is_finite() and number.adjusted() < _MOST_DIGITS and number == int(number)
    except InvalidOperation:
        is_whole = False
    if not is_whole:
        raise typer.BadParameter(
            f"{text!r} is not a whole number below 1e{_MOST_DIGITS}, such as 1000000 or 1e6."
        )
    return int(number)


def Whole(**more: Any) -> Any:
    """An option that is a whole number."""
    return typer.Option(parser=whole_number, metavar="<int>", **more)


Shufflers = Annotated[int, Whole(help="How many shufflers may work at the same time.")]
Epsilon = Annotated[float, typer.Option(help="The guarantee's epsilon.")]
Delta = Annotated[float, typer.Option(help="The guarantee's delta.")]
Clip = Annotated[
    bool, typer.Option("--clip", help="Move values outside the range to its nearer end.")
]
_MECHANISM_HELP = (
    f"One of {', '.join(MECHANISM_KINDS)}. The paper's, to which every user adds noise, in a "
    "tree: coins (one-bit messages), shares (numbers that mean nothing alone), best (of these, the "
    "one with less error). With noise of two services that do not collude, one message: pairs "
    "(secure aggregation), ballots (bits and buckets, among dummies), services (the cheaper one of "
    "these)."
)
MechanismOption = Annotated[str | None, typer.Option(help=_MECHANISM_HELP, show_default="coins")]
ServicesMechanism = Annotated[str, typer.Option("--mechanism", help=_MECHANISM_HELP)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Runs = Annotated[int, Whole(help="How many independent runs to make.")]
Seed = Annotated[int, Whole(help="The same seed gives the same numbers.")]
OptionalSeed = Annotated[
    int | None, Whole(help="Makes the run repeatable.", show_default="OS randomness")
]
PendingOption = Annotated[
    Literal["middle", "rate"],
    typer.Option(
        "--pending",
        help="How users whose lowest batch is not full count: at the middle of what they may hold, "
        "or at the rate of the last batches. Predicted errors are those for the middle.",
    ),
]
Jobs = Annotated[int | None, Whole(help="How many processes to use.", show_default="one per core")]
Figure = Annotated[Path | None, typer.Option("--plot", help="Write a figure (.png, .svg or .pdf).")]
Input = Annotated[
    str,
    typer.Option(
        "--input", help="zeros, ones, bernoulli:P, uniform, hard, or a .csv file of values."
    ),
]


def processes(jobs: int | None) -> int:
    """The number of processes asked for, or of cores that affinity and container allow."""
    if jobs is not None:
        return whole("jobs", jobs, least=1)
    from joblib import cpu_count

    return int(cpu_count())


def guarantee(epsilon: float, delta: float) -> Privacy:
    """An epsilon and a delta small enough to hide something."""
    privacy = Privacy(epsilon, delta)
    check_epsilon(privacy)
    return privacy


def features_of(values: Values) -> int:
    """How many features an arm has, if these are the values of a recommender."""
    if not isinstance(values, RegressionStatistics):
        raise InvalidValue(f"a recommender learns from --values regression:D, not {values.spec}")
    return values.features


def describe_trust(plan: Plan) -> str:
    """In a line, whose noise it is, and what else there is."""
    kinds = "+".join(dict.fromkeys(m.kind for m in plan.mechanisms))
    if plan.noise_by == "services":
        return (
            f"{kinds}: one message each, through two services that must not collude; each adds "
            "noise (--mechanism coins has the paper's, of which every user adds a part)"
        )
    return (
        f"{kinds}: {plural(plan.messages_per_user, 'message')} each; every user adds a part of the "
        "noise, as in the paper (--mechanism services has that of two services instead)"
    )


@dataclass(frozen=True)
class PlanOptions:
    """What the plan options of a command line ask for: each field is an option.

    Args:
        horizon: How many users the plan serves.
        shufflers: How many shufflers may work at the same time.
        epsilon: The guarantee's epsilon.
        spec: What a user holds: bit, real, real:LOW:HIGH, vector:D (norm at most 1), vector:D:NORM,
            histogram:B, histogram:LABELS (separated by commas), binned:LOW:HIGH:B,
            grouped:LABELS:bit, grouped:LABELS:real:LOW:HIGH, matrix:D, regression:D.
        tree: Of the paper's mechanisms. regular: the best degrees; paper: those of Section 3.2;
            binary: log n - 1 levels of degree 2.
        honest: The fraction of users who are assumed to add their noise, if users add any.
        reports: How many reports one person may send, up to 1,000.
        composition: How the levels of one user are accounted for.
        error: Find the smallest epsilon that reaches this rms error.
        max_messages: At most this many messages per user.
    """

    horizon: Annotated[int | None, Whole(show_default=False)] = None
    shufflers: Annotated[int | None, Whole(show_default=str(DEFAULT_SHUFFLERS))] = None
    epsilon: Annotated[float | None, typer.Option(show_default=str(DEFAULT_EPSILON))] = None
    delta: Delta = DEFAULT_DELTA
    spec: Annotated[str, typer.Option("--values")] = "bit"
    clip: Clip = False
    mechanism: MechanismOption = None
    tree: str = "regular"
    honest: float = 1.0
    reports: Annotated[int, Whole()] = 1
    composition: Composition = "exact"
    error: Annotated[float | None, typer.Option(show_default=False)] = None
    max_messages: Annotated[int | None, Whole(show_default=False)] = None

    def __post_init__(self) -> None:
        one_of("tree", self.tree, TREE_KINDS)

    def check_unused(self, why: str, *names: str) -> None:
        """Refuse options, by the names of their fields, that would have no effect."""
        unused = [
            f"--{name.replace('_', '-')} {getattr(self, name)}"
            for name in names
            if getattr(self, name) != getattr(type(self), name)
        ]
        if unused:
            raise InvalidValue(f"{why}: leave out {', '.join(unused)}")

    @property
    def values(self) -> Values:
        return values_of(self.spec, clip=self.clip)

    @property
    def users(self) -> int:
        if self.horizon is None:
            raise InvalidValue("--horizon is missing: how many users will there be?")
        return self.horizon

    @property
    def privacy(self) -> Privacy:
        return guarantee(DEFAULT_EPSILON if self.epsilon is None else self.epsilon, self.delta)

    @property
    def most_shufflers(self) -> int:
        if self.shufflers is not None:
            return self.shufflers
        if self.tree == "binary" and self.users >= 2:
            return len(binary_degrees(self.users))
        return DEFAULT_SHUFFLERS

    @property
    def named(self) -> dict[str, Any]:
        """What has the same name as an option of `Plan.best`."""
        return {name: getattr(self, name) for name in _NAMED}

    def plan(self) -> Plan:
        """The best plan for these options."""
        _load_accounting()
        if self.error is not None and self.epsilon is not None:
            raise InvalidValue("give --epsilon or --error, not both")
        asked, named = (self.users, self.most_shufflers), {**self.named, "values": self.values}
        if self.error is None:
            return Plan.best(*asked, self.privacy, **named)
        return Plan.for_error(*asked, self.error, self.delta, **named)

    def plan_for_regret(self) -> Plan:
        """The best plan for a recommender: by two services, unless something else is asked for."""
        from overhand.bandits import plan_for_regret

        if self.error is not None or self.clip:
            raise InvalidValue(
                "--recommender plans for regret: --error and --clip do not go with it"
            )
        named = {**self.named, "mechanism": self.mechanism or TWO_SERVICES}
        asked = self.users, self.most_shufflers, self.privacy, features_of(self.values)
        return plan_for_regret(*asked, **named)


@dataclass(frozen=True)
class ServicesPlanOptions(PlanOptions):
    """The same for commands that run both services, or stand for them."""

    mechanism: ServicesMechanism = TWO_SERVICES


def takes(kind: Any, *, without: Collection[str] = ()) -> Callable[[Callable[..., None]], Any]:
    """Give a command the options that a dataclass has as fields, except some.

    It gets them as its argument `asked`. The docstrings of the dataclass and of its bases describe
    them.
    """
    chosen = [field for field in fields(kind) if field.name not in without]
    hints = get_type_hints(kind, include_extras=True)
    texts = ChainMap(*(read_docstring(base.__doc__ or "")[1] for base in kind.__mro__))
    described = {field.name: texts[field.name] for field in chosen if field.name in texts}

    def decorate(command: Callable[..., None]) -> Any:
        @wraps(command)
        def run(**given: Any) -> None:
            asked = {field.name: given.pop(field.name, field.default) for field in chosen}
            command(asked=kind(**asked), **given)

        own = signature(command, eval_str=True)
        taken = [
            Parameter(field.name, _BY_NAME, default=field.default, annotation=hints[field.name])
            for field in chosen
        ]
        parameters = [
            each
            for one in own.parameters.values()
            for each in (taken if one.name == "asked" else [one.replace(kind=_BY_NAME)])
        ]
        run.__dict__["__signature__"] = own.replace(parameters=parameters)
        run.__dict__["described"] = described
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def _load_accounting() -> None:
    """Load what certifies every plan, without looking for garbage among it: that takes 0.2 s."""
    gc.disable()
    try:
        import dp_accounting  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()
