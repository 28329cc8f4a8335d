"""`overhand demo`, as whoever tries it first runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from overhand.service.protocol import Document
from support.commands import as_json, overhand


def test_who_makes_the_noise_is_users_or_services() -> None:
    result = overhand("demo", "--noise", "nobody")
    assert (result.returncode, "noise='nobody' must be one of" in result.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "values", "kind"),
    [("users", "bit", "coins"), ("services", "bit", "ballots"), ("services", "vector:3", "pairs")],
)
def test_the_whole_system_counts_a_crowd(
    noise: str, values: str, kind: str, tmp_path: Path
) -> None:
    """The estimate is off by more than six standard deviations once in 500 million runs."""
    how = ("--noise", noise, "--values", values, "--users", "1500", "--epsilon", "4")
    result = as_json("demo", *how, "--directory", str(tmp_path))
    plan = Document.load(tmp_path / "document.json").plan
    assert (plan.noise_by, plan.mechanisms[0].kind) == (noise, kind)
    assert result["users"] > 1400
    assert abs(result["error"]) < 6 * result["std"]
