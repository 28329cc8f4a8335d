"""`overhand audit`: how private are the messages, measured."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from overhand.audit import (
    DEFAULT_RUNS,
    FAILURE_RATE,
    KINDS,
    STATISTICS,
    VALUES,
    Scope,
    Verdict,
    verdict_on,
)
from overhand.cli import options
from overhand.cli.output import console, new_table, number, print_json, progress_bar, working
from overhand.errors import InvalidValue
from overhand.model import Privacy
from overhand.randomness import Random, secure_random, seeded_random

DEFAULT_DELTA = 0.01

MechanismChoice = Annotated[
    Literal["coins", "shares", "published", "all"],
    typer.Option(help="Whose encoders are audited."),
]
ValuesChoice = Annotated[
    str, typer.Option("--values", help=f"all ({', '.join(VALUES)}), or a kind as for `plan`.")
]


def audit(
    mechanism: MechanismChoice = "all",
    values: ValuesChoice = "all",
    epsilon: Annotated[float, typer.Option(help="The guarantee's epsilon.")] = 1.0,
    delta: options.Delta = DEFAULT_DELTA,
    size: Annotated[int, typer.Option(help="The users of a lowest batch.")] = 8,
    shufflers: Annotated[int, typer.Option(help="The levels of a whole transcript.")] = 3,
    runs: Annotated[
        int, typer.Option(help="Runs on each input; fewer where messages are very many.")
    ] = DEFAULT_RUNS,
    seed: Annotated[
        int | None, typer.Option(help="For a run that can be repeated.", show_default="none")
    ] = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also plant faults, which must all be caught.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Bound epsilon from below by what encoders and shufflers really do; 1 if a claim is broken."""
    scope = Scope(
        Privacy(epsilon, delta),
        size,
        shufflers,
        KINDS if mechanism == "all" else (mechanism,),
        VALUES if values == "all" else (values,),
        runs,
    )
    random = secure_random() if seed is None else seeded_random(seed).spawn(1)[0]
    verdicts = _verdicts(scope, random, mutants=mutants)
    if as_json:
        print_json(_summary(scope, seed, verdicts))
    else:
        _show(scope, seed, verdicts)
    if not all(verdict.is_right for verdict in verdicts):
        raise typer.Exit(1)


def _verdicts(scope: Scope, random: Random, *, mutants: bool) -> list[Verdict]:
    with working("making plans"):
        jobs = [*scope.shipped(), *(scope.mutants() if mutants else ())]
    if not jobs:
        raise InvalidValue("nothing to audit: published mechanisms are audited for bits only")
    verdicts = []
    with progress_bar("auditing", 2 * sum(job.runs for job in jobs)) as advance:
        for job in jobs:
            verdicts.append(
                verdict_on(job, scope.privacy, of=len(jobs), random=random, progress=advance)
            )
    return verdicts


def _summary(scope: Scope, seed: int | None, verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "epsilon": scope.privacy.epsilon,
        "delta": scope.privacy.delta,
        "size": scope.size,
        "shufflers": scope.levels,
        "runs": scope.runs,
        "seed": seed,
        "confidence": 1 - FAILURE_RATE,
        "statistics": STATISTICS,
        "findings": [
            {
                **verdict.finding.summary(),
                "planted": verdict.planted,
                "noticed_part": verdict.noticed_part,
                "verdict": str(verdict),
            }
            for verdict in verdicts
        ],
        "ok": all(verdict.is_right for verdict in verdicts),
    }


def _show(scope: Scope, seed: int | None, verdicts: list[Verdict]) -> None:
    sizes = ", ".join(str(scope.size * 2**level) for level in range(scope.levels))
    chance = "the system's randomness" if seed is None else f"seed {seed}, a simulation"
    seconds = sum(v.finding.seconds for v in verdicts)
    console.print(
        f"claimed: [bold]{scope.privacy}[/]; batches of {sizes} users; one user's value is "
        f"changed; up to {scope.runs:,} runs on either input; {chance}; {seconds:.0f} s"
    )
    table = new_table("", "claimed", "certified", "most", "sees", "verdict")
    planted = False
    for verdict in verdicts:
        if verdict.planted and not planted:
            table.add_section()
            table.add_row("[bold]planted faults[/]")
            planted = True
        table.add_row(*_cells(verdict))
    console.print(table)
    console.print(
        f"certified: epsilon is at least this, in all rows with probability {1 - FAILURE_RATE:g}. "
        "most: what so many runs can certify at most. sees: noise of less than this part of the "
        "planned variance would be noticed, by its exact law."
    )


def _cells(verdict: Verdict) -> list[str]:
    finding = verdict.finding
    colour = "green" if verdict.is_right else "bold red"
    return [
        finding.name,
        number(finding.claimed.epsilon),
        f"{finding.epsilon:.3f}",
        f"{finding.largest:.2f}",
        "" if verdict.noticed_part is None else f"< {verdict.noticed_part:.2f}",
        f"[{colour}]{verdict}[/]",
    ]
