"""`overhand lab bandit`: the reward users lose while a recommender learns, by whom they trust."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from overhand.bandits import ConstantsName, regret_exponent
from overhand.cli import options, output
from overhand.cli.options import DEFAULT_DELTA, DEFAULT_EPSILON
from overhand.cli.output import console, format_number, plural
from overhand.errors import InvalidValue
from overhand.lab import regret
from overhand.lab.plots import Band, regret_figure
from overhand.lab.regret import RIVALS, USUAL, Environment, Field, Regret, measure, rival
from overhand.planning import kinds_of
from overhand.values import RegressionStatistics

EnvironmentName = Literal["diverse", "fixed", "segments", "films", "films-by-cohort"]
ENVIRONMENTS: dict[str, tuple[type[Environment], int, int]] = {
    "diverse": (regret.Diverse, 5, 10),
    "fixed": (regret.Fixed, 5, 100),
    "segments": (regret.Segments, 9, 10),
    "films": (regret.Films, 6, 20),
    "films-by-cohort": (regret.FilmsByCohort, 6, 20),
}
"""By name: what it is, and its usual dimension and number of arms."""

_OURS = "services"
_KINDS = kinds_of(RegressionStatistics(1), "users")


def bandit(
    environment: EnvironmentName = "segments",
    horizon: Annotated[int, options.Whole()] = 100_000,
    shufflers: options.Shufflers = 4,
    epsilon: options.Epsilon = DEFAULT_EPSILON,
    delta: options.Delta = DEFAULT_DELTA,
    dimension: Annotated[int | None, options.Whole(show_default=False)] = None,
    arms: Annotated[int | None, options.Whole(show_default=False)] = None,
    constants: ConstantsName = "practical",
    mechanism: Annotated[
        str,
        typer.Option(
            help=f"How users send their reports to the paper's shufflers: one of "
            f"{', '.join(_KINDS)}. Two services get pairs, one message each."
        ),
    ] = "shares",
    rivals: Annotated[
        str, typer.Option(help=f"What to compare, separated by commas: any of {', '.join(RIVALS)}.")
    ] = ",".join(USUAL),
    runs: options.Runs = 20,
    seed: options.Seed = 0,
    jobs: options.Jobs = None,
    plot: options.Figure = None,
    as_json: options.Json = False,
) -> None:
    """Measure regret, the reward that users lose while a recommender learns.

    The recommenders are not private, trusted, local, or learn through one or several shufflers, or
    through two services that do not collude.

    All use the same LinUCB, on the same users, at the same epsilon and delta; only the sums
    they learn from differ.

    Args:
        environment: diverse: new arms for every user; fixed: the same arms for all users; segments:
            a new audience every quarter; films: MovieLens, in random order or by cohort.
        horizon: How many users there are.
        dimension: How many features an arm has.
        arms: How many arms a user is offered.
        constants: practical: shift and bonus from the distribution of the noise; theory: those of
            the paper's theorem, which are too large to learn much from.
    """
    output.check_figure(plot)
    kind, usual_dimension, usual_arms = ENVIRONMENTS[environment]
    place = kind(
        usual_dimension if dimension is None else dimension, usual_arms if arms is None else arms
    )
    field = Field(
        horizon,
        shufflers,
        options.guarantee(epsilon, delta),
        place.dimension,
        constants,
        mechanism=mechanism,
    )
    names = [name.strip() for name in rivals.split(",") if name.strip()]
    if not names or set(names) - set(RIVALS):
        raise InvalidValue(f"--rivals {rivals!r} must be some of {', '.join(RIVALS)}")
    with output.steps_bar("planning", names, str) as steps:
        taking_part = [rival(name, field) for name in steps]
    rounds = runs * horizon * len(taking_part)
    with output.progress_bar(f"{plural(runs, 'run')} of {horizon:,} users", rounds) as advance:
        outcomes = measure(
            place,
            horizon,
            taking_part,
            runs=runs,
            seed=seed,
            jobs=options.processes(jobs),
            progress=advance,
        )
    if plot is not None:
        _plot(outcomes, plot, f"{environment}: {horizon:,} users, {field.privacy}")
    if as_json:
        output.print_json(_as_json(environment, place, field, outcomes, seed))
        return
    _show(environment, place, field, outcomes)
    output.tell_written(plot)


def _as_json(
    environment: str, place: Environment, field: Field, outcomes: list[Regret], seed: int
) -> dict[str, Any]:
    rows = [_row(outcome) for outcome in outcomes]
    of_one = [outcome for outcome in outcomes if outcome.rival.is_one_shuffler]
    if of_one:  # the better of the two batch sizes
        best = min(of_one, key=lambda outcome: outcome.mean)
        rows.append({**_row(best), "name": "one-shuffler", "is": best.rival.name})
    return {
        "environment": environment,
        "horizon": field.horizon,
        "shufflers": field.shufflers,
        "epsilon": field.privacy.epsilon,
        "delta": field.privacy.delta,
        "dimension": place.dimension,
        "arms": place.arms,
        "constants": field.constants,
        "mechanism": field.mechanism,
        "seed": seed,
        "variants": rows,
    }


def _row(outcome: Regret) -> dict[str, Any]:
    rival, plan, theory = outcome.rival, outcome.rival.plan, outcome.rival.theory
    row = {
        "name": rival.name,
        "trusted": rival.trusted,
        "mean_regret": outcome.mean,
        "std_regret": outcome.std,
        "standard_error": outcome.standard_error,
        "runs": outcome.runs,
        "delta_spent": rival.sums.delta_spent,
        "last_std": rival.sums.std(outcome.t[-1].item()),
        "theory": {
            "lambda": theory.shift(0, 0.0),
            "beta": theory.radius(theory.horizon),
            "regret_bound": theory.regret,
        },
    }
    if plan is not None:
        row["lowest_batch"] = plan.tree.lowest
        row["levels"] = plan.tree.levels
        row["messages_per_user"] = plan.messages_per_user
        row["digest"] = plan.digest
    return row


def _show(environment: str, place: Environment, field: Field, outcomes: list[Regret]) -> None:
    console.print(
        f"[bold]{environment}[/], {field.horizon:,} users, {place.dimension} features, "
        f"{place.arms} arms\n"
        f"{field.privacy}; {plural(outcomes[0].runs, 'run')}, {field.constants} constants"
    )
    ours = next((o for o in outcomes if o.rival.name == _OURS), None)
    table = output.new_table("", "regret", "+- 95 %", "vs ours", "batch", "messages", "bound")
    for outcome in outcomes:
        plan = outcome.rival.plan
        low, high = outcome.band()
        table.add_row(
            outcome.rival.label,
            format_number(outcome.mean),
            "" if outcome.runs == 1 else format_number((high[-1] - low[-1]) / 2),
            "" if ours is None else f"{outcome.mean / ours.mean:.2f} x",
            "" if plan is None else format_number(plan.tree.lowest),
            "" if plan is None else format_number(plan.messages_per_user),
            format_number(outcome.rival.theory.regret),
            style="bold" if outcome is ours else "",
        )
    console.print(table)
    if ours is None:
        return
    theory, k = ours.rival.theory, field.shufflers
    console.print(
        "bound: Theorem 5.1, which holds except with probability 1/n. Ours has lambda "
        f"{format_number(theory.shift(0, 0.0))}, beta_n "
        f"{format_number(theory.radius(theory.horizon))}. With the paper's degrees the bound grows "
        f"as n^{regret_exponent(k):.3f}; the theorem says (k+1)/(2k+1) = "
        f"{(k + 1) / (2 * k + 1):.3f}.",
        style="dim",
    )


def _plot(outcomes: list[Regret], path: Path, title: str) -> None:
    bands = [
        Band(
            outcome.rival.label,
            outcome.t,
            outcome.curves.mean(axis=0),
            *outcome.band(),
            "--" if outcome.rival.trusted in ("the server", "everybody") else "-",
            outcome.rival.name == _OURS,
        )
        for outcome in outcomes
    ]
    regret_figure(bands, path, title=title)
