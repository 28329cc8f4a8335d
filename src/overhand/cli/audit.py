"""`overhand lab audit`: how private are the messages, measured."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from overhand.cli import options, output
from overhand.cli.output import console, format_number
from overhand.errors import InvalidValue, one_of
from overhand.lab.audit import (
    BY_SERVICES,
    DEFAULT_RUNS,
    FAILURE_RATE,
    KINDS,
    NOTHING,
    STATISTICS,
    VALUES,
    Scope,
    Verdict,
    has_service,
    verdict_on,
)
from overhand.mechanisms import MECHANISMS
from overhand.planning import NOISE_CONTRIBUTORS
from overhand.randomness import seeded_random

DEFAULT_DELTA = 0.01

AUDITED = (*KINDS, "local", "store", "server", "all")
MechanismChoice = Annotated[str, typer.Option(help=f"What to audit: one of {', '.join(AUDITED)}.")]
NoiseChoice = Annotated[
    str, typer.Option(help=f"Who makes the noise: {', '.join(NOISE_CONTRIBUTORS)} or both.")
]
ValuesChoice = Annotated[
    str, typer.Option("--values", help=f"all ({', '.join(VALUES)}), or a kind as for `plan`.")
]


def audit(
    mechanism: MechanismChoice = "all",
    values: ValuesChoice = "all",
    noise: NoiseChoice = "both",
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = DEFAULT_DELTA,
    size: Annotated[int, options.Whole(help="How many users a lowest batch has.")] = 8,
    shufflers: Annotated[int, options.Whole(help="How many levels a whole transcript has.")] = 3,
    runs: Annotated[
        int,
        options.Whole(help="How many runs on each input; fewer if there are very many messages."),
    ] = DEFAULT_RUNS,
    seed: options.OptionalSeed = None,
    mutants: Annotated[
        bool, typer.Option("--mutants", help="Also plant faults, all of which must be caught.")
    ] = False,
    jobs: options.Jobs = None,
    as_json: options.Json = False,
) -> None:
    """Attack encoders and shufflers for a lower bound on epsilon.

    Exit code 1 if a claim is refuted.
    """
    one_of("mechanism", mechanism, AUDITED)
    one_of("noise", noise, (*NOISE_CONTRIBUTORS, "both"))
    scope = Scope(
        options.guarantee(epsilon, delta),
        size,
        shufflers,
        tuple(kind for kind in KINDS if mechanism in (kind, "all")),
        VALUES if values == "all" else (values,),
        runs,
        local=mechanism in ("local", "all"),
        store=_kinds_through("store", mechanism),
        server=_kinds_through("server", mechanism),
        noise=[by for by in NOISE_CONTRIBUTORS if noise in (by, "both")],
    )
    start = time.perf_counter()
    verdicts = _judge(scope, seed, mutants=mutants, processes=options.processes(jobs))
    seconds = time.perf_counter() - start
    if as_json:
        output.print_json({**_summary(scope, seed, verdicts), "seconds": seconds})
    else:
        _show(scope, seed, verdicts, seconds)
    if not all(verdict.is_right for verdict in verdicts):
        raise typer.Exit(1)


def _kinds_through(service: str, mechanism: str) -> Sequence[str]:
    """The kinds of mechanisms that are audited with a real service, if it is installed."""
    if mechanism not in (service, "all"):
        return ()
    if has_service():
        return tuple(MECHANISMS)
    missing = f"the {service} needs the extra `service`, which is not installed"
    if mechanism == service:
        raise InvalidValue(missing)
    output.messages.print(f"not audited: {missing}")
    return ()


def _judge(scope: Scope, seed: int | None, *, mutants: bool, processes: int) -> list[Verdict]:
    """Run the jobs in parallel; with a seed, each job has a generator of its own."""
    from joblib import Parallel, delayed

    with output.show_status("making plans"):
        jobs = [*scope.shipped_jobs(), *(scope.mutants() if mutants else ())]
    if not jobs:
        raise InvalidValue(
            "nothing to audit: the published constants take millions of messages here; store and "
            "server are audited with bits; the noise of ballots is made by services, and that of "
            "coins, shares, local and published mechanisms by users"
        )
    count = len(jobs)
    randoms = [None] * count if seed is None else seeded_random(seed).spawn(count)
    parallel = Parallel(n_jobs=processes, return_as="generator")
    verdicts = []
    with output.progress_bar("auditing", count) as advance:
        for verdict in parallel(
            delayed(verdict_on)(job, scope.privacy, of=count, random=random)
            for job, random in zip(jobs, randoms, strict=True)
        ):
            verdicts.append(verdict)
            advance(1)
    return verdicts


def _summary(scope: Scope, seed: int | None, verdicts: list[Verdict]) -> dict[str, object]:
    return {
        "epsilon": scope.privacy.epsilon,
        "delta": scope.privacy.delta,
        "size": scope.size,
        "shufflers": scope.shufflers,
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


def _show(scope: Scope, seed: int | None, verdicts: list[Verdict], seconds: float) -> None:
    sizes = ", ".join(str(scope.size * 2**level) for level in range(scope.shufflers))
    chance = "OS randomness" if seed is None else f"seed {seed}, a simulation"
    console.print(
        f"claimed: [bold]{scope.privacy}[/]; batches of {sizes} users; one user's value is "
        f"changed; up to {scope.runs:,} runs on either input; {chance}; {seconds:.0f} s"
    )
    table = output.new_table("", "claimed", "certified", "most", "sees", "verdict")
    section = ""
    for verdict in verdicts:
        finding, is_services = verdict.finding, verdict.finding.name.endswith(BY_SERVICES)
        heading = "services' noise" if is_services else ""
        if verdict.planted:
            heading = "planted faults of the services" if is_services else "planted faults"
        if heading != section:
            section = heading
            table.add_section()
            table.add_row(f"[bold]{section}[/]")
        colour = "green" if verdict.is_right else "bold red"
        table.add_row(
            finding.name.removesuffix(BY_SERVICES),
            "nothing" if finding.claimed == NOTHING else format_number(finding.claimed.epsilon),
            f"{finding.epsilon:.3f}",
            f"{finding.largest:.2f}",
            "" if verdict.noticed_part is None else f"< {verdict.noticed_part:.2f}",
            f"[{colour}]{verdict}[/]",
        )
    console.print(table)
    console.print(
        "certified: a lower bound on epsilon that holds in all rows with probability "
        f"{1 - FAILURE_RATE:g}. most: the largest bound that this many runs could certify. sees: "
        "noise with less than this fraction of the planned variance would be detected, by its "
        "exact distribution."
    )
