"""What `overhand lab reproduce` measures and writes, on a scale that takes seconds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import dask
import joblib
import numpy as np
import pytest
from distributed import Client, LocalCluster

import overhand as oh
from overhand.lab.evidence import (
    FULL,
    QUICK,
    SECTIONS,
    Progress,
    Reproduction,
    Scale,
    coverage,
    html,
    reproduce,
)
from overhand.lab.evidence.accuracy import mean_squares, runs_for
from overhand.lab.evidence.coverage import tally_bands, tally_readings
from overhand.lab.evidence.growth import exponent, exponent_std
from overhand.lab.evidence.sections import Check, Evidence, Task
from overhand.lab.simulation import simulate
from overhand.randomness import SeededRandom
from support.cli_runner import overhand
from support.small_plans import PRIVACY

pytestmark = [
    pytest.mark.slow,
    # Dask says so if a directory takes a second to make: on a machine whose disk is busy it may.
    pytest.mark.filterwarnings("ignore:Creating scratch directories is taking:UserWarning"),
]

TINY = replace(
    QUICK,
    name="tiny",
    horizons=(500, 2000),
    precision=0.1,
    users=1000,
    runs=3,
    coverage_runs=300,
    coverage_users=100,
    reading_runs=100,
    rounds=(300, 900),
    bandit_runs=2,
    shufflers=(1, 2),
    epsilons=(1.0,),
)
EVERYWHERE = ("exponents",)


@pytest.fixture(scope="module")
def found() -> Reproduction:
    return reproduce(TINY, jobs=1)


def test_every_claim_has_evidence_with_numbers(found: Reproduction) -> None:
    assert [one.key for one in found.evidence] == list(SECTIONS)
    for one in found.evidence:
        assert one.claim
        assert one.method
        assert {len(row) for row in one.rows} == {len(one.columns)}
        assert all(len(line.x) == len(line.y) for fig in one.figures for line in fig.lines)


def test_two_services_take_one_message_and_its_numbers_are_counted(found: Reproduction) -> None:
    (sent,) = (evidence for evidence in found.evidence if evidence.key == "messages")
    assert "have one level of blocks" in sent.method
    rows = {(row[0], row[1]): row[2:] for row in sent.rows}
    names = {name for name, _ in rows}
    assert names == {"published", "coins", "shares", "pairs", "ballots"}
    assert {shufflers for name, shufflers in rows if name in ("pairs", "ballots")} == {""}
    messages, size, rms_error = rows["pairs", ""]
    assert messages == 1
    assert 16 < size <= 16 + 6  # a seed and up to 48 bits
    assert rows["ballots", ""][:2] == (1, 1)
    assert rms_error <= rows["ballots", ""][2]


def test_results_are_those_of_the_seed_in_any_number_of_processes(found: Reproduction) -> None:
    by_key = {one.key: one for one in found.evidence}
    two = reproduce(TINY, EVERYWHERE, jobs=2)
    assert two.evidence == tuple(by_key[key] for key in EVERYWHERE)
    other = reproduce(replace(TINY, seed=1), ("regret",), jobs=1)
    assert other.evidence[0].rows != by_key["regret"].rows


@pytest.mark.parametrize(
    ("horizon", "shufflers", "tree"),
    [(2000, 1, "paper"), (5003, 3, "paper"), (4000, 2, "regular"), (3000, 4, "regular")],
)
def test_errors_drawn_side_by_side_are_those_of_the_simulation(
    horizon: int, shufflers: int, tree: oh.planning.TreeKind
) -> None:
    plan = oh.Plan.best(horizon, shufflers, PRIVACY, tree=tree)
    noise = SeededRandom(np.random.default_rng([5, 0])).spawn(2)[1]  # as the simulation's
    (squares,) = mean_squares(plan, 1, noise)
    assert math.sqrt(squares) == pytest.approx(simulate(plan, "ones", seed=5).rms_error, rel=1e-12)


@pytest.mark.parametrize("shufflers", [1, 3])
def test_so_many_runs_have_the_precision_that_was_asked_for(shufflers: int) -> None:
    plan = oh.Plan.best(20_000, shufflers, PRIVACY, tree="paper")
    runs = runs_for(0.05, shufflers)
    squares = mean_squares(plan, 200 * runs, oh.seeded_random(3)).reshape(200, runs)
    errors = np.sqrt(squares.mean(axis=1))
    assert errors.std() / errors.mean() == pytest.approx(0.05, rel=1 / 3)
    assert errors.mean() == pytest.approx(plan.rms_error, rel=0.02)


def test_exponents_and_their_precision() -> None:
    horizons = (10**4, 10**5, 10**7)
    errors = [3 * n**0.2 for n in horizons]
    assert exponent(horizons, errors) == pytest.approx(0.2)
    random = np.random.default_rng(1)
    stds = (0.01, 0.02, 0.03)
    fitted = [exponent(horizons, errors * np.exp(random.normal(0, stds))) for _ in range(3000)]
    assert np.std(fitted) == pytest.approx(exponent_std(horizons, stds), rel=0.1)


def test_bands_that_are_too_narrow_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    scale = replace(TINY, coverage_runs=4000)
    right = oh.Estimate.interval
    assert tally_bands(scale, "bit", 0).coverage.min() > 0.94
    scale = replace(scale, name="narrow")  # the bands of a scale are kept

    def narrow(estimate: oh.Estimate, confidence: float = 0.95) -> tuple[float, float]:
        low, high = right(estimate, confidence)
        return low + 0.3 * estimate.std, high - 0.3 * estimate.std

    monkeypatch.setattr(oh.Estimate, "interval", narrow)
    assert tally_bands(scale, "bit", 0).coverage.max() < 0.95


def least_held(scale: Scale, kind: str) -> int:
    return int(min(times.min() for times in tally_readings(scale, kind, 0).values()))


@pytest.mark.parametrize("kind", ["binned:0:10:10", "grouped:a,b,c:bit", "bit"])
def test_readings_made_for_less_noise_are_seen(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 runs: 95 of 100 are 14 standard errors from the 81 of the mutant."""
    scale = replace(TINY, reading_runs=1000, coverage_users=300)
    assert least_held(scale, kind) / scale.reading_runs > 0.91
    drawn = coverage.draw_estimates

    def with_more_noise(*arguments: Any) -> Iterator[list[oh.Estimate]]:
        for estimates in drawn(*arguments):
            yield [replace(one, std=one.std * 2 / 3) for one in estimates]

    monkeypatch.setattr(coverage, "draw_estimates", with_more_noise)
    assert least_held(scale, kind) / scale.reading_runs < 0.9


def test_progress_goes_from_nothing_to_all_and_names_what_was_done() -> None:
    seen: list[Progress] = []
    reproduce(TINY, ("composition",), jobs=1, progress=seen.append)
    tasks = SECTIONS["composition"](TINY).tasks
    assert [one.tasks_done for one in seen] == list(range(len(tasks) + 1))
    assert seen[0].work_done == 0
    assert seen[-1].work_done == pytest.approx(1)
    assert {one.task for one in seen[1:]} == {task.name for task in tasks}


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=lambda scale: scale.name)
def test_no_task_keeps_the_others_waiting(scale: oh.evidence.Scale) -> None:
    tasks: list[Task] = [task for make in SECTIONS.values() for task in make(scale).tasks]
    assert max(task.cost for task in tasks) < 0.25 * sum(task.cost for task in tasks) / 2


class Counted:
    """What a scheduler finished."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._scheduler = cluster.scheduler

    @property
    def tasks(self) -> int:
        return sum(finish == "memory" for _, _, finish, *_ in self._scheduler.transition_log)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        yield cluster


def test_a_dask_cluster_finds_the_same(found: Reproduction, cluster: LocalCluster) -> None:
    by_key = {one.key: one for one in found.evidence}
    counted = Counted(cluster)
    seen: list[Progress] = []
    with Client(cluster), joblib.parallel_config(backend="dask"):
        there = reproduce(TINY, EVERYWHERE, progress=seen.append)
    assert there.evidence == tuple(by_key[key] for key in EVERYWHERE)
    tasks = sum(len(SECTIONS[key](TINY).tasks) for key in EVERYWHERE)
    assert counted.tasks >= tasks
    assert [one.tasks_done for one in seen] == list(range(tasks + 1))


def test_the_command_runs_on_a_dask_cluster(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.lab.evidence.QUICK", TINY)
    counted = Counted(cluster)
    before = counted.tasks
    report = tmp_path / "report.html"
    address = cluster.scheduler_address
    arguments = ("--sections", "composition", "--dask", address, "--output", str(report))
    result = overhand("lab", "reproduce", *arguments)
    assert result.returncode == 0, result.stderr
    assert counted.tasks >= before + len(SECTIONS["composition"](TINY).tasks)


def test_a_backend_that_gives_results_at_the_end_will_do(found: Reproduction) -> None:
    with joblib.parallel_config(backend="multiprocessing"):  # as Ray's, which is one
        there = reproduce(TINY, ("composition",), jobs=2)
    assert there.evidence[0] in found.evidence


def test_the_report_holds_everything_and_asks_nobody(found: Reproduction) -> None:
    page = html(found)
    assert page.count("<svg") == sum(len(one.figures) for one in found.evidence)
    assert 'name="viewport"' in page
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", ""))
    for one in found.evidence:
        assert f'id="{one.key}"' in page


def test_the_numbers_are_written_for_programs(found: Reproduction) -> None:
    saved = json.loads(found.to_json(), parse_constant=pytest.fail)  # no Infinity, no NaN
    assert saved["scale"]["name"] == "tiny"
    assert [one["key"] for one in saved["findings"]] == list(SECTIONS)


def test_a_missed_check_is_missed() -> None:
    met, missed = Check("a", 1.0, 0.5, 1.5), Check("b", 2.0, 0.5, 1.5)
    assert met.is_met
    assert not missed.is_met
    evidence = Evidence("k", "t", "c", "m", ("x",), ((1,),), checks=(met, missed))
    result = Reproduction(TINY, (evidence,), 1.0)
    assert not result.is_met
    assert "missed" in html(result)


def test_unknown_sections_are_refused() -> None:
    with pytest.raises(oh.InvalidValue, match="nonsense"):
        reproduce(TINY, ("nonsense",))


def test_the_command_writes_both_files_and_fails_if_a_check_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.lab.evidence.QUICK", TINY)
    report = tmp_path / "report.html"
    arguments = ("--output", str(report), "--jobs", "1")
    result = overhand("lab", "reproduce", "--sections", "composition", *arguments)
    assert result.returncode == 0, result.stderr
    assert "100 % done, last " in result.stderr
    assert "<svg" in report.read_text()
    assert json.loads(report.with_suffix(".json").read_text())["is_met"]
    monkeypatch.setattr(Check, "is_met", False)
    assert overhand("lab", "reproduce", "--sections", "composition", *arguments).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--output report.txt", "report.txt"),
        ("--output nowhere/report.html", "nowhere"),
        ("--sections nonsense", "nonsense"),
        ("--jobs 0", "jobs=0"),
        ("--seed -1", "seed=-1"),
    ],
)
def test_what_cannot_be_reproduced_is_one_line(arguments: str, words: str) -> None:
    result = overhand("lab", "reproduce", *arguments.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        result = overhand("lab", "reproduce", "--dask", "tcp://127.0.0.1:9")
    assert result.returncode == 2
    assert "no Dask scheduler at tcp://127.0.0.1:9" in result.stderr


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_the_report(
    found: Reproduction, tmp_path: Path, scheme: Literal["light", "dark"]
) -> None:
    from playwright.sync_api import sync_playwright

    from support.browser_fixtures import ARGUMENTS, CHROMIUM

    report = tmp_path / "report.html"
    report.write_text(html(found), encoding="utf-8")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme)
        page.goto(report.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        letters = page.evaluate(
            """[...document.querySelectorAll("svg text")].map((text) => {
                const shown = text.getScreenCTM();
                return parseFloat(getComputedStyle(text).fontSize) * Math.hypot(shown.a, shown.b);
            })"""
        )
        browser.close()
    assert len(letters) > 50
    assert min(letters) >= 9
