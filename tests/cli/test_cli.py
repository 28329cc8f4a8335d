"""What the commands print and write, and how they refuse what cannot be done."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

import overhand as oh
from overhand.cli import COMMANDS
from overhand.cli.output import console
from overhand.lab.simulation import Simulation, simulate
from support.cli_runner import as_json, overhand

PLAN_KEYS = {
    *("horizon", "shufflers", "epsilon", "delta", "tree", "levels", "messages_per_user"),
    *("noise_by", "opened_per_user", "bits_per_user", "sealed_bytes_per_user", "influence"),
    *("rms_error", "worst_std", "error_bound", "failure_probability", "delta_spent", "digest"),
}
PANELS = ("Use", "Plan", "Deploy", "Laboratory")
LEVEL_KEYS = {
    *("level", "batch_size", "degree", "noise_trials", "noise_probability", "variance"),
}


def test_plan_prints_what_the_library_computes(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    printed = as_json("plan", "--horizon", "3000", "--shufflers", "2", "--save", str(file))
    plan = oh.Plan.load(file)
    beside, services = printed.pop("published"), printed.pop("services")
    assert printed.pop("outside_epsilon") == 1.0
    assert printed == json.loads(json.dumps({**plan.summary(), **plan.costs.seconds}))
    assert beside["rms_error"] > 5 * printed["rms_error"]
    assert services["messages_per_user"] == 1 < printed["messages_per_user"]
    assert set(printed) >= PLAN_KEYS
    assert all(set(level) >= LEVEL_KEYS for level in printed["levels"])
    assert plan == oh.Plan.best(3000, 2, oh.Privacy(1.0, 1e-6), tree="regular")


def test_plan_shows_a_table() -> None:
    result = overhand("plan", "--horizon", "3000")
    assert result.returncode == 0
    for words in ("3,000 users", "users per batch", "rms error", "certified", "messages per user"):
        assert words in result.stdout
    plan = oh.Plan.best(3000, 5, oh.Privacy(1.0, 1e-6))
    assert f"{plan.messages_per_user}, sealed in {plan.costs.report_bytes:,} bytes" in result.stdout
    assert f"client {1000 * plan.costs.client_seconds:.3g} ms" in result.stdout
    assert f"{plan.influence:g}; its value alone: 1" in result.stdout


@pytest.mark.parametrize("mechanism", ["pairs", "ballots"])
def test_plan_shows_blocks_of_two_services_and_how_long_they_go_on(mechanism: str) -> None:
    asked = ("plan", "--horizon", "1e5", "--mechanism", mechanism)
    plan = oh.Plan.best(10**5, epsilon=1.0, mechanism=mechanism)
    shown = " ".join(overhand(*asked).stdout.split())
    assert "level" not in shown
    assert plan.mu is not None
    for words in (
        "100,000 users, using two services",
        "users per block",
        f"{plan.rms_error_over(10**6):.4g} over 1,000,000 users",
        f"at most {plan.most_users:,} may come",
        f"mu {plan.mu:.4f}",
        f"certified {plan.delta_spent:.4g} of 1e-06",
        "against a lying shuffling service",
    ):
        assert words in shown, words
    printed = as_json(*asked)
    assert (printed["mu"], printed["most_users"]) == (plan.mu, plan.most_users)
    assert printed["outside_epsilon"] == plan.outside_epsilon < 0.7
    assert printed["rms_error_beyond"] == plan.rms_error_over(10**6)


def test_plan_reaches_a_wanted_error() -> None:
    printed = as_json("plan", "--horizon", "3000", "--shufflers", "2", "--error", "30")
    assert printed["rms_error"] <= 30
    assert printed["epsilon"] < 1.0


def test_plan_can_be_the_papers() -> None:
    printed = as_json("plan", "--horizon", "3000", "--shufflers", "2", "--published")
    published = oh.Plan.published(3000, 2, oh.Privacy(1.0, 1e-6))
    assert printed["rms_error"] == published.rms_error
    binary = as_json("plan", "--horizon", "3000", "--tree", "binary", "--published")
    assert len(binary["levels"]) == 11


def test_plan_compares_with_a_published_plan_of_the_same_guarantee() -> None:
    """Three reports at (e, d) each are (3 e, d (1 + exp(e) + exp(2 e))) together."""
    asked = ("plan", "--horizon", "3000", "--shufflers", "2", "--reports", "3")
    once = oh.Privacy(1 / 3, 1e-6 / sum(math.exp(i / 3) for i in range(3)))
    published = oh.Plan.published(3000, 2, once)
    assert as_json(*asked)["published"]["rms_error"] == pytest.approx(published.rms_error)
    shown = " ".join(overhand(*asked, "--honest", "0.5").stdout.split())
    assert "50 % of users add their noise, at most 3 reports per person" in shown
    assert "messages, if all users are honest; more reports by group privacy" in shown


def test_a_plan_never_takes_the_place_of_a_pipe_or_a_device(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    result = overhand("plan", "--horizon", "100", "--save", str(pipe))
    assert result.stderr == f"error: --save {pipe} is not a regular file\n"
    assert pipe.is_fifo()


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("overhand.cli.output.print_json", full)
    result = overhand("plan", "--horizon", "100", "--published", "--json")
    assert result.stderr == "error: standard output: No space left on device\n"


def test_prepare_makes_nothing_unless_it_can_make_everything(tmp_path: Path) -> None:
    plan, place = tmp_path / "plan.json", tmp_path / "place"
    oh.Plan.best(500, 2, oh.Privacy(1.0, 1e-6)).save(plan)
    result = overhand("prepare", "--plan", "nowhere.json", "--directory", str(place))
    assert (result.returncode, place.exists()) == (2, False)
    result = overhand("prepare", "--plan", str(plan), "--directory", "/proc/x")
    assert result.stderr == "error: /proc/x: No such file or directory\n"


def test_simulate_measures_what_it_predicts(tmp_path: Path) -> None:
    figure, table = tmp_path / "error.png", tmp_path / "error.csv"
    printed = as_json(
        "lab", "simulate", "--horizon", "2000", "--shufflers", "3", "--runs", "50", "--seed", "4",
        "--plot", str(figure), "--save", str(table),
    )  # fmt: skip
    assert printed["rms_error"] == pytest.approx(printed["predicted_rms_error"], rel=0.3)
    assert set(Simulation.__dataclass_fields__) - {"curve"} <= set(printed)
    assert figure.read_bytes().startswith(b"\x89PNG")
    rows = table.read_text().splitlines()
    assert rows[0] == "t,rms_error,predicted_rms_error"
    assert rows[-1].startswith("2000,")


def test_results_are_shown_as_tables(tmp_path: Path) -> None:
    shown = overhand(
        "lab", "simulate", "--horizon", "300", "--shufflers", "2", "--runs", "2"
    ).stdout
    for words in ("2 runs of 300 users", "measured", "predicted", "users per second"):
        assert words in shown
    table = tmp_path / "table.csv"
    shown = overhand(
        "lab",
        "compare",
        "--horizon",
        "300",
        "--shufflers",
        "2",
        "--runs",
        "1",
        "--save",
        str(table),
    ).stdout
    assert f"wrote {table}" in shown.replace("\n", "")
    assert table.read_text().startswith("name,trusted,rms_error")
    file = tmp_path / "plan.json"
    shown = overhand(
        "plan", "--horizon", "300", "--honest", "0.9", "--reports", "2", "--save", str(file)
    ).stdout
    assert "90 % of users add their noise, at most 2 reports per person" in " ".join(shown.split())
    assert file.exists()


def test_simulate_takes_a_saved_plan_and_a_file_of_bits(tmp_path: Path) -> None:
    plan, bits = tmp_path / "plan.json", tmp_path / "bits.csv"
    oh.Plan.best(500, 2, oh.Privacy(1.0, 1e-6)).save(plan)
    bits.write_text("1\n0\n" * 200)
    arguments = ("lab", "simulate", "--plan", str(plan), "--input", str(bits), "--runs", "2")
    for engine in ("counts", "messages"):
        assert as_json(*arguments, "--engine", engine)["users"] == 400
    alone = as_json("lab", "simulate", "--input", str(bits), "--shufflers", "2", "--runs", "2")
    assert alone["users"] == 400


def test_compare_puts_all_models_side_by_side(tmp_path: Path) -> None:
    figure, table = tmp_path / "compare.svg", tmp_path / "compare.md"
    printed = as_json(
        "lab", "compare", "--horizon", "5000", "--shufflers", "3", "--runs", "3",
        "--plot", str(figure), "--save", str(table),
    )  # fmt: skip
    names = [model["name"] for model in printed["models"]]
    assert names == [
        "local", "published", "one-shuffler", "concurrent", "pairs", "ballots",
        "trusted-tree", "trusted-tree-combined", "trusted-square-root",
    ]  # fmt: skip
    for model in printed["models"]:
        assert model["max_error"] >= model["rms_error"] > 0
        assert model["delta_spent"] <= 1e-6 * (1 + 1e-9)
    by_name = {model["name"]: model["predicted_rms_error"] for model in printed["models"]}
    assert by_name["published"] > 8 * by_name["concurrent"]
    assert "</svg>" in figure.read_text()
    assert table.read_text().count("\n") == 11
    assert "vs ours" in overhand("lab", "compare", "--horizon", "500", "--runs", "1").stdout


def test_pending_users_count_at_a_rate_in_our_plans_alone() -> None:
    small = ("--horizon", "500", "--shufflers", "2", "--runs", "2", "--input", "zeros")
    printed = as_json("lab", "simulate", *small, "--pending", "rate")
    plan = oh.Plan.best(500, 2, oh.Privacy(1.0, 1e-6))
    assert printed["pending"] == "rate"
    assert printed["rms_error"] == simulate(plan, "zeros", runs=2, pending="rate").rms_error
    shown = overhand("lab", "simulate", *small, "--pending", "rate").stdout
    assert "predicted, pending at the middle" in shown
    refused = overhand("lab", "simulate", *small, "--pending", "rate", "--engine", "messages")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "pending='rate' needs engine='counts'" in refused.stderr
    middle, rate = (
        as_json("lab", "compare", *small, "--pending", one) for one in ("middle", "rate")
    )
    assert rate["pending"] == "rate"
    both = zip(middle["models"], rate["models"], strict=True)
    changed = {one["name"] for one, other in both if one["rms_error"] != other["rms_error"]}
    assert changed == {"one-shuffler", "concurrent", "pairs", "ballots"}


def test_compare_says_of_two_services_that_they_are_not_of_the_shuffle_model() -> None:
    small = ("lab", "compare", "--horizon", "500", "--shufflers", "2", "--runs", "1")
    printed = as_json(*small, "--mechanism", "pairs")
    assert printed["mechanism"] == "pairs"
    messages = {model["name"]: model["messages_per_user"] for model in printed["models"]}
    assert messages["pairs"] == 1 < messages["concurrent"]
    shown = " ".join(overhand(*small).stdout.split())
    assert "Two services that do not collude are outside of it" in shown


BAD = [
    ("plan", "horizon"),
    ("plan --horizon 0", "horizon=0"),
    ("plan --horizon 1", "horizon=1"),
    ("plan --horizon 100 --shufflers 0", "shufflers=0"),
    ("plan --horizon 100 --epsilon 0", "epsilon=0"),
    ("plan --horizon 100 --epsilon nan", "epsilon=nan"),
    ("plan --horizon 100 --delta 1", "delta=1"),
    ("plan --horizon 100 --delta 0", "delta=0"),
    ("plan --horizon 100 --delta 1e-13", "1e-13"),
    ("plan --horizon 100 --honest 0", "honest=0"),
    ("plan --horizon 100 --reports 1001", "reports=1001"),
    ("plan --horizon 100 --epsilon 1 --error 3", "--epsilon or --error"),
    ("plan --horizon 100 --error -1", "error=-1"),
    ("plan --horizon ten", "'ten' is not a whole number"),
    ("plan --horizon 1.5", "'1.5' is not a whole number"),
    ("plan --horizon 1e400", "'1e400' is not a whole number"),
    ("plan --horizon 100 --epsilon inf", "epsilon=inf must be a finite number above 0"),
    ("plan --horizon 100 --epsilon 500", "epsilon=500 is above 100: it would hide nothing"),
    ("plan --horizon 100 --epsilon 1e-9", "epsilon=1e-09 is below 1e-05: nothing could be"),
    ("plan --horizon 100 --epsilon 1e9", "epsilon=1e+09 is above 100"),
    ("plan --horizon 100 --save /", "--save / is a directory"),
    ("lab simulate --horizon 100 --save nowhere/x.csv", "there is no directory nowhere"),
    ("lab compare --horizon 100 --save nowhere/x.csv", "there is no directory nowhere"),
    ("lab reproduce --output nowhere/x.html", "there is no directory nowhere"),
    ("lab simulate --input pyproject.toml", "must end in .csv; `overhand sum` reads other tables"),
    ("lab simulate --plan :key:-1[bold].json", "cannot read the plan :key:-1[bold].json"),
    ("plan --horizon 100 --tree oak", "tree='oak' must be one of regular, paper, binary"),
    ("plan --horizon 100 --tree path", "tree='path' must be one of"),
    ("lab compare --horizon 100 --tree path", "tree='path' must be one of"),
    ("lab simulate --horizon 100 --tree best", "must be one of regular, paper, binary"),
    ("plan --horizon 100 --save nowhere/plan.json", "nowhere"),
    ("plan --horizon 100 --published --error 3", "leave out --error 3.0"),
    ("plan --horizon 100 --published --honest 0.5 --reports 2", "--honest 0.5, --reports 2"),
    ("plan --horizon 100 --published --mechanism services", "leave out --mechanism services"),
    ("plan --horizon 100 --mechanism pairs --honest 0.5", "the guarantee depends on no other"),
    ("plan --horizon 100 --mechanism pairs --tree paper", "one level of blocks"),
    ("prepare --plan nowhere.json --horizon 100", "--plan is a plan: leave out the options"),
    ("prepare", "--horizon is missing"),
    ("plan --horizon 100 --published --mechanism pairs", "leave out --mechanism pairs"),
    ("lab frontier --horizon 100 --mechanism pairs", "leave out --mechanism pairs"),
    ("lab simulate --horizon 100 --input noise", "noise"),
    ("lab simulate --horizon 100 --input missing.csv", "missing.csv"),
    ("lab simulate --horizon 100 --runs 0", "runs=0"),
    ("lab simulate --horizon 100 --plot figure.txt", "figure.txt"),
    ("lab simulate --plan nowhere.json", "nowhere.json"),
    ("lab simulate --plan nowhere.json --horizon 5", "not both"),
    ("lab simulate --plan nowhere.json --honest 0.5", "not both"),
    ("lab compare --horizon 100 --save table.doc", "table.doc"),
    ("lab compare", "horizon"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_bad_input_is_one_clear_error_and_exit_code_2(line: str, words: str) -> None:
    result = overhand(*line.split())
    assert result.returncode == 2
    assert words in result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr


def test_an_edited_plan_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    oh.Plan.best(500, 2, oh.Privacy(1.0, 1e-6)).save(file)
    file.write_text(file.read_text().replace('"delta": 1e-06', '"delta": 1e-07'))
    result = overhand("lab", "simulate", "--plan", str(file))
    assert result.returncode == 2
    assert "edited" in result.stderr


def test_whole_numbers_may_be_written_as_people_write_them() -> None:
    for text in ("3e3", "3_000", "3000", "3.0e3"):
        printed = as_json("plan", "--horizon", text, "--shufflers", "2")
        assert printed["horizon"] == 3000


def test_what_is_said_of_a_path_is_said_to_the_letter(tmp_path: Path) -> None:
    """Nothing of it is taken for an emoji or a style."""
    file = tmp_path / ":key:-1[bold].json"
    shown = overhand("plan", "--horizon", "300", "--shufflers", "2", "--save", str(file))
    assert f"saved to {file}" in shown.stdout
    assert (shown.stderr, file.exists()) == ("", True)


@pytest.mark.parametrize("columns", [60, 80])
def test_tables_are_not_cut(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "width", columns)
    small = ("--horizon", "3000", "--shufflers", "2")
    for line in (
        ("plan", *small),
        ("lab", "compare", *small, "--runs", "1"),
        ("lab", "simulate", *small),
    ):
        shown = overhand(*line).stdout
        assert "\N{HORIZONTAL ELLIPSIS}" not in shown
        assert max(map(len, shown.splitlines())) <= columns


def test_a_library_that_is_missing_is_named_with_its_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in [name for name in sys.modules if name.startswith("overhand.deploy.client")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    monkeypatch.delitem(sys.modules, "overhand.deploy.transport", raising=False)
    result = overhand("client", "http://127.0.0.1:1", "1")
    assert result.returncode == 2
    assert result.stderr == "error: aiohttp is not installed: pip install 'overhand[client]'\n"


def test_the_laboratory_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it begins anything: minutes of work would be lost."""
    monkeypatch.setattr("overhand.cli.find_spec", lambda name: name == "joblib" or None)
    for command in [name for name in COMMANDS if name.startswith("lab ")]:
        result = overhand(*command.split(), "--horizon", "100")
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == "error: matplotlib is not installed: pip install 'overhand[lab]'\n"


def test_help_lists_commands_in_groups() -> None:
    shown = overhand("--help").stdout
    places = [shown.index(f" {panel} \N{BOX DRAWINGS LIGHT HORIZONTAL}") for panel in PANELS]
    assert places == sorted(places)
    experiments = overhand("lab", "--help").stdout
    for command in COMMANDS:
        *group, name = command.split()
        assert f" {name} " in (experiments if group else shown)
        assert "--help" in overhand(*group, name, "--help").stdout


def test_a_shell_completes_commands_and_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def completed(line: str) -> set[str]:
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        monkeypatch.setenv("_OVERHAND_COMPLETE", "complete_bash")
        return set(overhand().stdout.split())

    assert completed("overhand s") >= {"sum", "server", "shuffler", "settle"}
    assert completed("overhand lab s") == {"simulate"}
    for command in ("plan", "lab simulate"):
        assert "--horizon" in completed(f"overhand {command} --ho")


def test_the_command_line_answers_without_loading_what_it_does_not_need() -> None:
    code = (
        "import sys; sys.argv = ['overhand', '--help']\n"
        "from overhand.__main__ import main\n"
        "try: main()\n"
        "finally: print([m for m in ('numpy', 'scipy', 'mpmath') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("[]\n")


def test_the_library_loads_scipy_when_it_is_needed() -> None:
    code = (
        "import sys; from overhand import *\n"
        "print([m for m in ('scipy', 'mpmath', 'dp_accounting') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_version_and_help() -> None:
    assert overhand("--version").stdout.strip() == f"overhand {oh.__version__}"
    for command in ("plan", "lab simulate", "lab compare"):
        assert "--json" in overhand(*command.split(), "--help").stdout


def test_the_command_runs_in_a_process_of_its_own() -> None:
    command = [sys.executable, "-m", "overhand", "plan", "--horizon", "0"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert result.stderr.strip() == "error: horizon=0 must be a whole number of at least 2"
    assert result.stdout == ""
