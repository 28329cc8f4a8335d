"""The README's session runs, its commands print what it says, and every example works."""

from __future__ import annotations

import doctest
import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import overhand as oh
from overhand.accounting import Level, gaussian_variance, least_scale
from overhand.cli import app
from overhand.mechanisms import CoinNoise
from overhand.randomness import HALF, BinaryFraction

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
sys.path.insert(0, str(ROOT / "docs"))

from refresh import BLOCK, output_of  # noqa: E402

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_the_readme_starts_with_the_two_commands() -> None:
    assert re.findall(r"^    (make \w+)", README, re.MULTILINE) == ["make demo", "make test"]


def test_the_readmes_session_runs() -> None:
    results = doctest.testfile(str(ROOT / "README.md"), module_relative=False)
    assert results.attempted >= 8
    assert results.failed == 0


def test_the_readmes_plans_are_what_the_command_prints() -> None:
    plans = [m for m in BLOCK.finditer(README) if m["command"].startswith("overhand plan")]
    assert plans
    for block in plans:
        printed, shown = output_of(block["command"]).split(), block["output"].split()
        assert len(printed) == len(shown)
        for now, then in zip(printed[:-1], shown[:-1], strict=True):  # the last is the digest
            assert now == then or as_number(now) == pytest.approx(as_number(then), rel=2e-3)


def as_number(text: str) -> float:
    return float(text.replace(",", ""))


def test_every_command_is_in_the_readme() -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        assert f"overhand {command.callback.__name__}" in README


def test_every_test_of_a_statement_is_in_the_index_and_exists() -> None:
    index = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
    statements = (ROOT / "tests" / "test_paper.py").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", index))
    written = set(re.findall(r"^def (test_\w+)", statements, re.MULTILINE))
    assert named == written


def test_pages_name_only_files_that_exist() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert len(pages) >= 4
    for page in pages:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`((?:tests|examples|docs)/[\w./]*)`|\]\((docs/[^)]+)\)", text)
        for path in (path for pair in named for path in pair if path):
            assert (ROOT / path).exists(), f"{page.name}: {path}"


def test_the_table_of_variances_is_computed() -> None:
    """docs/accounting.md, section 2: in a batch of a million users."""
    size, privacy = 10**6, oh.Privacy(1.0, 1e-6)
    laws: list[Callable[[float], CoinNoise]] = [
        lambda v: CoinNoise(((size, BinaryFraction.near(v / size)),)),
        lambda v: CoinNoise(((round(4 * v), HALF),)),
        lambda v: oh.CoinSum.with_variance(size, v).noise(),
    ]
    page = (ROOT / "docs" / "accounting.md").read_text(encoding="utf-8")
    rows = [
        [float(cell) for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\| \d.*\|$", page, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [1, 3, 5]
    for levels, *variances in rows:
        limit = gaussian_variance(privacy, int(levels))
        computed = [least_variance(law, int(levels), privacy) for law in laws]
        assert variances == pytest.approx([*computed, limit], abs=0.06)


def least_variance(law: Callable[[float], CoinNoise], levels: int, privacy: oh.Privacy) -> float:
    limit = gaussian_variance(privacy, levels)
    return least_scale(lambda v: [Level((law(v),))] * levels, privacy, start=limit)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(example.read_text(encoding="utf-8").splitlines()) <= 80
    runpy.run_path(str(example), run_name="__main__")
    assert capsys.readouterr().out.count("\n") >= 2


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
