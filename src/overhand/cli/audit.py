"""`overhand lab audit`: how private are the messages, measured."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated

import typer

from overhand.cli import options, output
from overhand.cli.output import console, format_number
from overhand.errors import InvalidValue, one_of
from overhand.lab.audit import (
    DEFAULT_RUNS,
    EXPECTED_BLOCKS,
    FAILURE_RATE,
    KINDS,
    NOTHING,
    STATISTICS,
    VALUES,
    Finding,
    Scope,
    verdict_on,
)
from overhand.mechanisms import MECHANISMS
from overhand.randomness import seeded_random

DEFAULT_DELTA = 0.01

AUDITED = (*KINDS, "local", "store", "server", "all")
MechanismChoice = Annotated[str, typer.Option(help=f"What to audit: one of {', '.join(AUDITED)}.")]
ValuesChoice = Annotated[
    str, typer.Option("--values", help=f"all ({', '.join(VALUES)}), or a kind as for `plan`.")
]


def audit(
    mechanism: MechanismChoice = "all",
    values: ValuesChoice = "all",
    epsilon: options.Epsilon = 1.0,
    delta: options.Delta = DEFAULT_DELTA,
    size: Annotated[
        int,
        options.Whole(
            help="How many users a lowest batch has; plans of the two services are for "
            f"{EXPECTED_BLOCKS} times as many."
        ),
    ] = 8,
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
    """Attack encoders, shufflers and both services for lower bounds on epsilon and mu.

    Exit code 1 if a claim is refuted, or a planted fault is missed.
    """
    one_of("mechanism", mechanism, AUDITED)
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
    )
    start = time.perf_counter()
    findings = _judge(scope, seed, mutants=mutants, processes=options.processes(jobs))
    seconds = time.perf_counter() - start
    if as_json:
        output.print_json({**_summary(scope, seed, findings), "seconds": seconds})
    else:
        _show(scope, seed, findings, seconds)
    if not all(finding.is_right for finding in findings):
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


def has_service() -> bool:
    """Whether there is anything deployed to audit: it comes with the extra `service`.

    >>> has_service()
    True
    """
    try:
        import_module("overhand.lab.audit.deployed")
    except ModuleNotFoundError:
        return False
    return True


def _judge(scope: Scope, seed: int | None, *, mutants: bool, processes: int) -> list[Finding]:
    """Run the jobs in parallel; with a seed, each job has a generator of its own."""
    from joblib import Parallel, delayed

    with output.show_status("making plans"):
        jobs = [*scope.shipped_jobs(), *(scope.mutants() if mutants else ())]
    if not jobs:
        raise InvalidValue(
            "nothing to audit: ballots are for bits and histograms, store and server are audited "
            "with bits, and the published constants take millions of messages here"
        )
    count = len(jobs)
    randoms = [None] * count if seed is None else seeded_random(seed).spawn(count)
    parallel = Parallel(n_jobs=processes, return_as="generator")
    findings = []
    with output.progress_bar("auditing", count) as advance:
        for finding in parallel(
            delayed(verdict_on)(job, scope.privacy, of=count, random=random)
            for job, random in zip(jobs, randoms, strict=True)
        ):
            findings.append(finding)
            advance(1)
    return findings


def _summary(scope: Scope, seed: int | None, findings: list[Finding]) -> dict[str, object]:
    return {
        "epsilon": scope.privacy.epsilon,
        "delta": scope.privacy.delta,
        "size": scope.size,
        "shufflers": scope.shufflers,
        "runs": scope.runs,
        "seed": seed,
        "confidence": 1 - FAILURE_RATE,
        "statistics": STATISTICS,
        "findings": [finding.summary() for finding in findings],
        "ok": all(finding.is_right for finding in findings),
    }


def _show(scope: Scope, seed: int | None, findings: list[Finding], seconds: float) -> None:
    sizes = ", ".join(str(scope.size * 2**level) for level in range(scope.shufflers))
    chance = "OS randomness" if seed is None else f"seed {seed}, a simulation"
    console.print(
        f"claimed: [bold]{scope.privacy}[/]; batches of {sizes} users, or plans of the two "
        f"services for {EXPECTED_BLOCKS * scope.size:,}; one user's value is changed; up to "
        f"{scope.runs:,} runs on either input; {chance}; {seconds:.0f} s"
    )
    table = output.new_table("", "epsilon", "mu", "most", "sees", "verdict")
    table.padding = (0, 1, 0, 0)
    sections: dict[str, list[Finding]] = {}
    for finding in findings:
        kind, _ = _names(finding)
        heading = f"planted faults: {kind}" if finding.planted else kind
        sections.setdefault(heading, []).append(finding)
    for heading, of_section in sections.items():
        table.add_section()
        table.add_row(f"[bold]{heading}[/]")
        for finding in of_section:
            table.add_row(*_row(finding))
    console.print(table)
    for finding in findings:
        if wrong := finding.wrong_spreads:
            parts = ", ".join(f"{s.statistic} {s.low:.2f} to {s.high:.2f}" for s in wrong)
            console.print(f"{finding.name}: variances, of 1 that is planned: {parts}")
    console.print(
        "epsilon, mu: a lower bound that is certified, and what is claimed. All of these bounds "
        f"hold with probability {1 - FAILURE_RATE:g}. most: the largest epsilon that this many "
        "runs could certify. sees: noise with less than this fraction of the planned variance "
        "would be detected, by its exact distribution."
    )


def _row(finding: Finding) -> list[str]:
    claim = finding.claim
    colour = "green" if finding.is_right else "bold red"
    most = 0.0 if claim.privacy == NOTHING else claim.privacy.epsilon
    return [
        _names(finding)[1],
        f"{finding.epsilon:.3f} / {format_number(most)}",
        "" if claim.mu is None else f"{finding.mu:.3f} / {claim.mu:.3f}",
        f"{finding.largest:.2f}",
        "" if finding.noticed_part is None else f"< {finding.noticed_part:.2f}",
        f"[{colour}]{finding.verdict}[/]",
    ]


def _names(finding: Finding) -> tuple[str, str]:
    """The kind of mechanism, and what was looked at or planted."""
    kind, what = re.split("[,:] ", finding.name, maxsplit=1)
    return kind, what
