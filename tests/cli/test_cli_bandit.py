"""`overhand lab bandit`: what it prints, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from overhand.bandits import Theory
from overhand.lab.regret import Field, rival
from overhand.lab.regret.rivals import GrowingBatches
from overhand.model import Privacy
from support.cli_runner import as_json, overhand

SMALL = ("lab", "bandit", "--horizon", "600", "--runs", "3", "--jobs", "1")
NAMES = {"not-private", "trusted", "local", "one-shuffler", "concurrent", "binary", "services"}


def test_json_has_all_variants_and_how_they_were_measured() -> None:
    printed = as_json(*SMALL, "--environment", "diverse", "--seed", "3")
    assert (printed["horizon"], printed["dimension"], printed["arms"]) == (600, 5, 10)
    assert (printed["epsilon"], printed["delta"], printed["seed"]) == (1.0, 1e-6, 3)
    variants = {variant["name"]: variant for variant in printed["variants"]}
    assert set(variants) >= NAMES
    for name, variant in variants.items():
        assert variant["runs"] == 3
        assert 0 < variant["mean_regret"] < 600
        assert variant["standard_error"] == pytest.approx(variant["std_regret"] / 3**0.5)
        assert variant["delta_spent"] <= 1.000001e-6 or name == "not-private"
        assert variant["theory"]["regret_bound"] > variant["mean_regret"]


def test_one_shuffler_is_the_better_of_its_batches() -> None:
    printed = as_json(*SMALL, "--rivals", "one-shuffler-0.5,one-shuffler-0.6")
    regret = {variant["name"]: variant["mean_regret"] for variant in printed["variants"]}
    sizes = {variant["name"]: variant["lowest_batch"] for variant in printed["variants"]}
    assert (sizes["one-shuffler-0.5"], sizes["one-shuffler-0.6"]) == (24, 46)
    assert regret["one-shuffler"] == min(regret["one-shuffler-0.5"], regret["one-shuffler-0.6"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_numbers_on_any_number_of_processes() -> None:
    command = (
        "lab",
        "bandit",
        "--horizon",
        "400",
        "--runs",
        "6",
        "--rivals",
        "not-private,concurrent",
    )
    one, two = (as_json(*command, "--jobs", jobs) for jobs in ("1", "2"))
    assert one == two
    assert as_json(*command, "--jobs", "1", "--seed", "1")["variants"] != one["variants"]


def test_the_table_names_the_constants_and_the_bound(tmp_path: Path) -> None:
    figure = tmp_path / "regret.png"
    rivals = ("--rivals", "local,services", "--constants", "theory")
    result = overhand(*SMALL, *rivals, "--plot", str(figure))
    assert result.returncode == 0, result.stderr
    assert "theory constants" in result.stdout
    assert "bound" in result.stdout
    assert "(k+1)/(2k+1)" in result.stdout
    assert figure.stat().st_size > 10_000


def test_theory_in_the_json_is_the_theorems() -> None:
    (variant,) = as_json(*SMALL, "--rivals", "concurrent", "--constants", "theory")["variants"]
    shift = variant["theory"]["lambda"]
    theorem = Theory(dimension=9, horizon=600, entry_error=shift / 18)
    assert variant["theory"]["beta"] == pytest.approx(theorem.radius(600))
    assert variant["theory"]["regret_bound"] == pytest.approx(theorem.regret)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--horizon", "3"), "horizon=3"),
        (("--runs", "0"), "runs=0"),
        (("--seed", "-1"), "seed=-1"),
        (("--jobs", "0"), "jobs=0"),
        (("--epsilon", "0"), "epsilon=0"),
        (("--epsilon", "nan"), "epsilon=nan"),
        (("--delta", "1"), "delta=1"),
        (("--shufflers", "0"), "shufflers=0"),
        (("--dimension", "8"), "dimension=8"),
        (("--dimension", "0"), "dimension=0"),
        (("--arms", "1"), "arms=1"),
        (("--rivals", "nobody"), "nobody"),
        (("--rivals", ","), "rivals"),
        (("--environment", "films", "--arms", "201"), "arms=201"),
        (("--plot", "regret.txt"), "regret.txt"),
        (("--plot", "nowhere/regret.png"), "nowhere"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_run_is_refused_in_one_line(arguments: tuple[str, ...], words: str) -> None:
    result = overhand(*SMALL, "--rivals", "local", *arguments)
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize("choice", ["--environment", "--constants"])
def test_other_names_are_refused(choice: str) -> None:
    assert overhand(*SMALL, choice, "other").returncode == 2


ONE = ("--environment", "diverse", "--dimension", "3", "--rivals", "one-shuffler-0.5")


def test_two_services_take_one_message_and_are_compared_with() -> None:
    printed = as_json(*SMALL, "--rivals", "concurrent,services")
    by_name = {variant["name"]: variant for variant in printed["variants"]}
    assert by_name["services"]["messages_per_user"] == by_name["services"]["levels"] == 1
    assert by_name["concurrent"]["messages_per_user"] > 1
    shown = overhand(*SMALL, "--rivals", "concurrent,services").stdout
    (ours,) = [line for line in shown.splitlines() if "two services, ours" in line]
    assert "1.00 x" in ours


def test_all_who_have_shufflers_send_as_is_asked() -> None:
    field = Field(200, 2, Privacy(4.0, 1e-6), dimension=2, mechanism="coins")
    for name in ("one-shuffler-0.6", "concurrent", "binary"):
        plan = rival(name, field).plan
        assert plan is not None
        assert {mechanism.kind for mechanism in plan.mechanisms} == {"coins"}
    growing = rival("one-shuffler-growing", field).sums
    assert isinstance(growing, GrowingBatches)
    assert {mechanism.kind for mechanism in growing.mechanisms} == {"coins"}
    assert as_json(*SMALL, *ONE) == as_json(*SMALL, *ONE, "--mechanism", "shares")


@pytest.mark.parametrize("mechanism", ["dice", "pairs"])
def test_a_mechanism_that_is_not_the_papers_is_refused(mechanism: str) -> None:
    refused = overhand(*SMALL, "--mechanism", mechanism)
    assert refused.returncode == 2
    words = f"mechanism='{mechanism}' must be one of coins, shares"
    assert words in " ".join(refused.stderr.split())
