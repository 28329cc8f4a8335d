"""What the command line says of sums by shares."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.cli.output import console
from overhand.values import Vectors
from support.cli_runner import as_json, overhand
from support.share_plans import leaked
from support.small_plans import PRIVACY

KINDS = ("coins", "shares", "pairs", "ballots")
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
SMALL_PLAN = ("plan", "--horizon", "2000", "--shufflers", "2")


@pytest.mark.parametrize("values", ["bit", "real", "histogram:3", "vector:2"])
def test_plan_prints_shares(values: str) -> None:
    printed = as_json(*SMALL_PLAN, "--values", values, "--mechanism", "shares")
    names = {"shares", "modulus_bits", "view_distance", "sampling_distance", "wrap_probability"}
    assert all(names <= set(row) for row in printed["levels"])
    assert printed["delta_leaked"] <= printed["delta_spent"] <= 1e-6
    assert printed["delta_leaked"] == pytest.approx(leaked(printed), rel=1e-9)
    assert printed["bits_per_user"] >= printed["messages_per_user"]
    assert overhand(*SMALL_PLAN, "--values", values, "--mechanism", "shares").returncode == 0


def test_the_best_mechanism_is_no_worse_than_any() -> None:
    error = {
        name: as_json(*SMALL_PLAN, "--mechanism", name)["rms_error"]
        for name in ("coins", "shares", "best")
    }
    assert error["best"] <= 1.001 * min(error.values())


def is_pure(row: dict[str, Any]) -> bool:
    return bool(row["noise_by"] == "users")


def test_the_frontier_shows_every_trade(tmp_path: Path) -> None:
    asked = ("lab", "frontier", "--horizon", "5000", "--shufflers", "2")
    figure = tmp_path / "frontier.svg"
    rows = as_json(*asked, "--plot", str(figure))["frontier"]
    assert figure.stat().st_size > 0
    fields = {
        "mechanism",
        "noise_by",
        "tree",
        "shufflers",
        "rms_error",
        "messages_per_user",
        "bits_per_user",
        "sealed_bytes_per_user",
        "client_seconds_per_user",
        "shuffler_seconds_per_user",
        "server_seconds_per_user",
        "influence",
        "is_best",
    }
    assert all(set(row) == fields for row in rows)
    assert {row["mechanism"] for row in rows} == set(KINDS)
    assert {row["tree"] for row in rows} == {"regular"}
    assert {row["shufflers"] for row in rows} <= {1, 2}
    for row in rows:
        better = [
            other
            for other in rows
            if (not is_pure(row) or is_pure(other))  # another model
            and other["rms_error"] <= row["rms_error"]
            and other["messages_per_user"] <= row["messages_per_user"]
            and (other["rms_error"], other["messages_per_user"])
            != (row["rms_error"], row["messages_per_user"])
        ]
        assert row["is_best"] == (not better)
    shown = overhand(*asked)
    assert shown.returncode == 0
    assert "nothing else in the shuffle model has both" in shown.stdout


@pytest.mark.parametrize("values", ["bit", "histogram:1000000"])
def test_the_frontier_fits_a_terminal_with_all_its_numbers(
    values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "width", 80)
    asked = ("lab", "frontier", "--horizon", "1000000", "--shufflers", "2", "--values", values)
    rows = as_json(*asked)["frontier"]
    lines = [line for line in overhand(*asked).stdout.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80
    assert "…" not in "".join(lines)
    words = [line.replace(" *", "").split() for line in lines]
    shown = [line for line in words if line[0] in KINDS]
    assert len(shown) == len(rows) == 6
    for row, line in zip(rows, shown, strict=True):
        services = row["shuffler_seconds_per_user"] + row["server_seconds_per_user"]
        assert line[0] == row["mechanism"]
        assert line[1:-7] == ([str(row["shufflers"])] if row["noise_by"] == "users" else [])
        assert as_number(line[-6]) == row["messages_per_user"]
        assert as_number(line[-5]) * UNITS[line[-4]] == pytest.approx(
            row["sealed_bytes_per_user"], rel=0.006
        )
        for word, value in zip(
            line[-3:],
            (1000 * row["client_seconds_per_user"], 1000 * services, row["influence"]),
            strict=True,
        ):
            assert as_number(word) == pytest.approx(value, rel=0.006)


def as_number(word: str) -> float:
    return float(word.replace(",", ""))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --horizon 100 --plot figure.svg", "--plot"),
        ("lab frontier --horizon 100 --error 5", "--error"),
        ("lab frontier --horizon 100 --max-messages 5", "--max-messages"),
        ("lab frontier --horizon 100 --tree paper", "--tree paper"),
        ("lab frontier --horizon 100 --plot missing/figure.svg", "missing"),
        ("plan --horizon 100 --mechanism oak", "oak"),
    ],
)
def test_what_does_not_go_together_is_refused(line: str, words: str) -> None:
    result = overhand(*line.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr


def test_shares_are_trusted_to_no_more_honest_users_than_the_plan_says() -> None:
    plan = oh.Plan.best(400, 2, PRIVACY, values=Vectors(2), mechanism="shares", tree="regular")
    fewer = replace(plan, honest=0.1)
    assert fewer.delta_leaked > 100 * plan.delta_leaked
    assert fewer.delta_spent > plan.privacy.delta
