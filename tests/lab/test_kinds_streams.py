"""Streams and files of every kind of value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.lab.lower_bound import HardInput
from overhand.lab.simulation import read_rows, simulate, stream_for
from overhand.values import Histogram, Reals, SymmetricMatrices, Values, Vectors, values_of
from support.cli_runner import as_json, overhand
from support.kind_plans import KINDS, kind_plan, shrunk
from support.sampling import assert_probability, assert_uniform_over
from support.small_plans import REGULAR

# Streams.


def test_streams_are_spread_as_they_are_called() -> None:
    users = 60_000

    def drawn(form: str, values: Values, seed: int) -> Any:
        return stream_for(form, users, values=values).parts(oh.seeded_random(seed))(0, users)

    highs = int((drawn("bernoulli:0.3", Reals(2.0, 5.0), 1) == 5.0).sum())
    assert_probability(highs, users, 0.3, discrepancy=0.03)
    tenths = np.floor(drawn("uniform", Reals(2.0, 5.0), 2) * 10 / 3 - 20 / 3).astype(int)
    assert_uniform_over(tenths.tolist(), range(10), discrepancy=0.02)
    assert_uniform_over(drawn("uniform", Histogram(7), 3).tolist(), range(7), discrepancy=0.02)
    for values in (Vectors(3, norm=2.0), SymmetricMatrices(2, norm=2.0)):
        rows = drawn("uniform", values, 4)
        ranks = np.floor(10 * (np.linalg.norm(rows, axis=1) / 2) ** 3).astype(int)
        assert_uniform_over(ranks.tolist(), range(10), discrepancy=0.02)
        octants = (rows > 0) @ np.array([1, 2, 4])
        assert_uniform_over(octants.tolist(), range(8), discrepancy=0.02)
    hard = drawn("hard", Vectors(2), 5)[:, 0]
    bits = HardInput.against(users, 1, 1.0).draw(oh.seeded_random(5))
    assert hard.tolist() == (2.0 * bits - 1).tolist()


@pytest.mark.parametrize(("values", "choices"), KINDS)
def test_a_file_is_read_as_the_values_it_holds(
    values: Values, choices: list[Any], tmp_path: Path
) -> None:
    raw, file = shrunk(values, choices, 53), tmp_path / "values.csv"
    table = [np.ravel(np.array(value, object)) for value in raw]
    file.write_text("".join(",".join(map(str, line)) + "\n" for line in table))
    assert np.array_equal(read_rows(file, values), values.rows(raw))
    plan = kind_plan(REGULAR, values)
    alike = [simulate(plan, form, seed=3).rms_error for form in (str(file), raw)]
    assert alike[0] == alike[1]
    with pytest.raises(oh.InvalidValue, match="53 values, but the plan's horizon is 50"):
        stream_for(str(file), 50, values=values)


# The command line.


@pytest.mark.parametrize(
    ("spec", "dimension"),
    [("real", 1), ("real:0:50", 1), ("vector:3", 3), ("histogram:7", 7), ("matrix:2", 3),
     ("regression:2", 5)],
)  # fmt: skip
def test_plans_are_made_for_every_kind(spec: str, dimension: int, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    options = ("--horizon", "100", "--shufflers", "2", "--tree", "regular")
    printed = as_json("plan", *options, "--values", spec, "--save", str(file))
    plan = oh.Plan.load(file)
    assert values_of(printed["values"]) == plan.values == values_of(spec)
    assert plan.values.dimension == dimension
    assert printed["rms_error"] == plan.rms_error < printed["published"]["rms_error"]
    assert printed["delta_spent"] <= 1e-6
    assert {"steps", "unit", "rounding_variance"} <= set(printed["levels"][0])
    shown = overhand("plan", *options, "--values", spec).stdout
    assert f"100 users ({plan.values})" in shown
    assert ("rms error per coordinate" in shown) == (dimension > 1)
    result = as_json("lab", "simulate", "--plan", str(file), "--input", "uniform", "--runs", "2")
    assert result["users"] == 100
    assert result["digest"] == plan.digest
