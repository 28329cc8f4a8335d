"""What `overhand reproduce` measures and writes, on a scale that takes seconds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import overhand as oh
from overhand.evidence import QUICK, Check, Finding, Reproduction, reproduce
from overhand.evidence.report import html
from overhand.evidence.reproduction import SECTIONS
from test_cli import overhand

TINY = replace(
    QUICK,
    name="tiny",
    horizons=(500, 2000),
    steps=10**5,
    users=2000,
    runs=3,
    coverage_runs=300,
    coverage_users=200,
    rounds=500,
    bandit_runs=2,
)


@pytest.fixture(scope="module")
def found() -> Reproduction:
    return reproduce(TINY, jobs=1)


def test_every_claim_has_a_finding_with_numbers(found: Reproduction) -> None:
    assert [finding.key for finding in found.findings] == list(SECTIONS)
    for finding in found.findings:
        assert finding.claim
        assert finding.method
        assert {len(row) for row in finding.rows} == {len(finding.columns)}
        assert all(len(one.x) == len(one.y) for fig in finding.figures for one in fig.series)


def test_the_same_seed_gives_the_same_numbers_in_any_number_of_processes() -> None:
    sections = ("composition", "coverage")
    one, two = (reproduce(TINY, sections, jobs=jobs) for jobs in (1, 2))
    assert one.findings == two.findings
    other = reproduce(replace(TINY, seed=1), ("coverage",), jobs=1)
    assert other.findings[0].rows != one.findings[1].rows


def test_the_report_holds_everything_and_asks_nobody(found: Reproduction) -> None:
    page = html(found)
    assert page.count("<svg") == sum(len(finding.figures) for finding in found.findings)
    assert 'name="viewport"' in page
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", ""))
    for finding in found.findings:
        assert f'id="{finding.key}"' in page


def test_the_numbers_are_written_for_programs(found: Reproduction) -> None:
    saved = json.loads(found.to_json())
    assert saved["scale"]["name"] == "tiny"
    assert [finding["key"] for finding in saved["findings"]] == list(SECTIONS)


def test_a_missed_check_is_missed() -> None:
    met, missed = Check("a", 1.0, 0.5, 1.5), Check("b", 2.0, 0.5, 1.5)
    assert met.is_met
    assert not missed.is_met
    finding = Finding("k", "t", "c", "m", ("x",), ((1,),), checks=(met, missed))
    result = Reproduction(TINY, (finding,), 1.0)
    assert not result.is_met
    assert "missed" in html(result)


def test_unknown_sections_are_refused() -> None:
    with pytest.raises(oh.InvalidValue, match="nonsense"):
        reproduce(TINY, ("nonsense",))


def test_the_command_writes_both_files_and_fails_if_a_check_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.evidence.QUICK", TINY)
    report = tmp_path / "report.html"
    arguments = ("--output", str(report), "--jobs", "1")
    result = overhand("reproduce", "--sections", "composition", *arguments)
    assert result.returncode == 0, result.stderr
    assert "<svg" in report.read_text()
    assert json.loads(report.with_suffix(".json").read_text())["is_met"]
    monkeypatch.setattr(Check, "is_met", False)
    assert overhand("reproduce", "--sections", "composition", *arguments).returncode == 1
    assert overhand("reproduce", "--output", str(tmp_path / "report.txt")).returncode == 2
