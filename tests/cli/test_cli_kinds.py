"""What the command line says of every kind of value."""

from __future__ import annotations

from pathlib import Path

import pytest

import overhand as oh
from overhand.cli.client import _parse
from overhand.errors import InvalidValue
from overhand.lab.simulation import read_rows
from overhand.lab.simulation.run import ENGINES
from overhand.values import Reals, values_of
from support.cli_runner import as_json, overhand


def test_a_limit_on_messages_is_kept_and_its_cost_is_told() -> None:
    options = ("--horizon", "100", "--shufflers", "2", "--values", "vector:3")
    printed = as_json("plan", *options, "--max-messages", "4000")
    unlimited = as_json("plan", *options)
    assert "unlimited" not in unlimited
    for name in ("rms_error", "messages_per_user"):
        assert printed["unlimited"][name] == unlimited[name]
    assert printed["messages_per_user"] <= 4000 < unlimited["messages_per_user"]
    assert printed["rms_error"] > unlimited["rms_error"]
    shown = overhand("plan", *options, "--max-messages", "4000").stdout
    assert "without the limit" in shown
    result = overhand("plan", *options, "--max-messages", "3")
    assert (result.returncode, result.stdout) == (2, "")
    assert "messages" in result.stderr


FILES = [
    ("real:0:50", "value\n" + "12.5\n0\n50\n" * 20),
    ("vector:3", "x,y,z\n" + "0.1,-0.2,0.3\n0,0,1\n" * 20),
    ("histogram:7", "6\n0\n3\n" * 20),
    ("histogram:like,love:any other", "value\n" + "love\nwow\nlike\n" * 20),
    ("grouped:DE,FR:real:0:50", "group,spent\n" + "DE,12.5\nFR,50\n" * 20),
    ("matrix:2", "0.5,0.1,0.1,-0.5\n" * 30),
    ("regression:2", "a,b,response\n" + "0.6,0.8,-1\n0.1,0,0.5\n" * 20),
]


@pytest.mark.parametrize(("spec", "text"), FILES, ids=[spec for spec, _ in FILES])
def test_simulate_takes_files_of_every_kind(spec: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "values.csv"
    file.write_text(text)
    arguments = ("lab", "simulate", "--input", str(file), "--values", spec, "--shufflers", "1")
    for engine in ENGINES if spec in ("real:0:50", "histogram:7") else ENGINES[:1]:
        printed = as_json(*arguments, "--runs", "3", "--engine", engine)
        assert printed["users"] == len(read_rows(file, values_of(spec)))
        assert 0 < printed["rms_error"] < 3 * printed["predicted_rms_error"]
        assert printed["engine"] == engine


def test_values_out_of_range_are_refused_or_clipped(tmp_path: Path) -> None:
    file = tmp_path / "values.csv"
    file.write_text("10\n60\n" * 20)
    arguments = (
        "lab",
        "simulate",
        "--input",
        str(file),
        "--values",
        "real:0:50",
        "--shufflers",
        "1",
    )
    refused = overhand(*arguments)
    assert refused.returncode == 2
    assert "value 60 of user 2 is not between 0 and 50" in refused.stderr
    assert as_json(*arguments, "--runs", "1", "--clip")["users"] == 40
    plan = tmp_path / "plan.json"
    made = ("plan", "--horizon", "40", "--shufflers", "1", "--values", "real:0:50", "--clip")
    assert overhand(*made, "--save", str(plan)).returncode == 0
    assert oh.Plan.load(plan).values == Reals(0.0, 50.0, clip=True)
    saved = ("lab", "simulate", "--plan", str(plan), "--input", str(file), "--runs", "1")
    assert as_json(*saved)["users"] == 40


@pytest.mark.parametrize(
    "spec",
    ["", "reals", "Real", "real:1", "real:1:0", "real:0:1:2", "real:a:b", "real:nan:1",
     "real:0:inf", "real:", "vector", "vector:0", "vector:2.5", "vector:-1", "vector:3:0",
     "vector:3:-1", "vector:3:nan", "vector:1e9", "histogram", "histogram:1", "histogram:x",
     "histogram:1e400", "histogram:5:2", "matrix:0", "matrix:2:2:2", "regression", "regression:0",
     "regression:2:1", "bit:1", "bits"],
)  # fmt: skip
@pytest.mark.parametrize("command", ["plan", "lab simulate"])
def test_a_bad_kind_is_one_line_and_exit_code_2(command: str, spec: str) -> None:
    result = overhand(*command.split(), "--horizon", "100", "--values", spec)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("plan --horizon 100 --values bit --clip", "no range to clip"),
        ("plan --horizon 100 --values histogram:3 --clip", "no range to clip"),
        ("plan --horizon 100 --values real --max-messages 0", "max_messages=0"),
        ("plan --horizon 100 --values real --max-messages 5 --published", "--max-messages"),
        ("lab simulate --horizon 100 --values vector:2 --input missing.csv", "missing.csv"),
        ("lab simulate --values vector:2 --input missing.csv", "missing.csv"),
        ("lab simulate --values vector:2", "horizon"),
    ],
)
def test_options_that_do_not_go_together_are_refused(line: str, words: str) -> None:
    result = overhand(*line.split())
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_words_of_a_value_are_as_many_as_it_has() -> None:
    assert _parse(["love"], values_of("histogram:like,love")) == ["love"]
    assert _parse(["DE", "2.5"], values_of("grouped:DE,FR:real:0:9")) == (["DE"], [2.5])
    assert _parse(["0.6", "0.8"], values_of("vector:2")).tolist() == [[0.6, 0.8]]
    for words, spec, said in (
        (["very", "nice"], "histogram:like,love", "takes 1 arguments, not 2"),
        (["DE"], "grouped:DE,FR:bit", "takes 2 arguments, not 1"),
        (["DE", "x"], "grouped:DE,FR:bit", "consist of numbers"),
    ):
        with pytest.raises(InvalidValue, match=said):
            _parse(words, values_of(spec))


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "command",
    [
        ("plan",),
        pytest.param(("lab", "frontier"), marks=SLOW),
        pytest.param(("lab", "compare", "--runs", "1"), marks=SLOW),
    ],
)
def test_labels_are_printed_as_they_are(command: tuple[str, ...]) -> None:
    options = ("--values", "histogram:[/x],[red]b", "--horizon", "60", "--shufflers", "1")
    printed = overhand(*command, *options)
    assert printed.returncode == 0
    assert "60 users (histogram:[/x],[red]b)" in printed.stdout
