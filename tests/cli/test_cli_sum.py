"""`overhand sum`: tables in, private estimates out, and what is wrong with a table in one line."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overhand as oh
from overhand.cli import tables
from overhand.cli.tables import Columns, Role, open_table
from support.cli_runner import as_json, overhand

USERS = 400
RANDOM = np.random.default_rng(5)
BITS = RANDOM.integers(0, 2, USERS)
PRICES = RANDOM.uniform(0.0, 50.0, USERS).round(2)
TIMES = np.datetime64("2026-11-01T00:00:00") + np.arange(USERS).astype("timedelta64[h]")
SMALL = ("--shufflers", "2", "--epsilon", "4", "--delta", "1e-4", "--seed", "3")

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def _tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    from pyarrow import parquet

    lines = [("id", "clicked", "price", "when")]
    lines += zip(range(USERS), BITS, PRICES, TIMES, strict=True)  # type: ignore[arg-type]
    with Path("own.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    Path("own.csv.gz").write_bytes(gzip.compress(Path("own.csv").read_bytes()))
    own: dict[str, Any] = {
        "clicked": BITS.astype(bool),
        "price": PRICES,
        "when": TIMES,
        "whole": BITS * 7,
    }
    own |= {"lists": [[1, 2]] * USERS, "nothing": [None] * USERS}
    parquet.write_table(pyarrow.table(own), "own.parquet")


@pytest.fixture(params=["arrow", "plain"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "plain":
        monkeypatch.setattr(tables, "find_spec", lambda name: None)


@pytest.mark.usefixtures("_reader")
@pytest.mark.parametrize("file", ["own.csv", "own.csv.gz", "own.parquet"])
def test_every_form_of_table_gives_what_the_library_computes(file: str) -> None:
    """To the last digit, however many rows were read at once, and stopping at places or not."""
    printed = as_json("sum", file, "--column", "clicked", *SMALL)
    plan = oh.Plan.best(USERS, 2, oh.Privacy(4.0, 1e-4), mechanism="services")
    total = oh.ContinualSum(plan, oh.seeded_random(3), archive=False)
    total.update_many(BITS)
    low, high = total.estimate.interval()
    assert printed["last"] == {"estimate": total.estimate.value, "low": low, "high": high}
    assert (printed["users"], printed["horizon"], printed["digest"]) == (USERS, USERS, plan.digest)


def test_pending_users_count_at_the_rate_if_it_is_asked_for() -> None:
    """The last rows are in no block; between ends of blocks nothing else is different."""
    coins = ("--mechanism", "coins")
    line = ("sum", "own.csv", "--column", "clicked", *SMALL, *coins, "--output", "out.json")
    middle, rate = (
        (as_json(*line, "--pending", one), json.loads(Path("out.json").read_text())["estimates"])
        for one in ("middle", "rate")
    )
    total = oh.ContinualSum(
        oh.Plan.best(USERS, 2, oh.Privacy(4.0, 1e-4)), oh.seeded_random(3), pending="rate"
    )
    total.update_many(BITS)
    low, high = total.estimate.interval()
    assert rate[0]["last"] == {"estimate": total.estimate.value, "low": low, "high": high}
    assert rate[0]["last"] != middle[0]["last"]
    assert (rate[0]["pending"], rate[1][:-1]) == ("rate", middle[1][:-1])


def test_standard_input_is_a_table_with_a_horizon(monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(*more: str) -> Any:
        raw = io.BytesIO(Path("own.csv").read_bytes())
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(raw)))
        return overhand("sum", "-", "--column", "clicked", *SMALL, *more)

    assert "--horizon is missing" in typed().stderr
    piped = json.loads(typed("--horizon", "4e2", "--json").stdout)
    assert piped["last"] == as_json("sum", "own.csv", "--column", "clicked", *SMALL)["last"]


def test_estimates_are_written_with_their_bands_and_drawn() -> None:
    files = ("--output", "out.csv", "--plot", "out.png")
    shown = overhand("sum", "own.csv", "--column", "clicked", "--at", "when", *SMALL, *files)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "wrote out.csv" in shown.stdout
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(Path("out.csv").read_text().splitlines()))
    users = [int(row["users"]) for row in rows]
    assert users == sorted(set(users))
    assert users[-1] == USERS
    assert all(float(row["low"]) < float(row["estimate"]) < float(row["high"]) for row in rows)
    assert rows[-1]["time"] == str(TIMES[-1])
    inside = [float(r["low"]) <= BITS[: int(r["users"])].sum() <= float(r["high"]) for r in rows]
    assert np.mean(inside) > 0.8


def test_more_rows_than_were_expected_are_added_up_all_the_same() -> None:
    """At as many places as before: the horizon is what two services expect, and no more."""
    line = ("sum", "own.csv", "--column", "clicked", *SMALL, "--horizon", "100", "--points", "3")
    printed = as_json(*line, "--output", "more.json")
    users = [one["users"] for one in json.loads(Path("more.json").read_text())["estimates"]]
    assert (printed["horizon"], printed["users"], users[-1]) == (100, USERS, USERS)
    gaps = np.diff([0, *users[:-1]])
    assert gaps.max() <= 2 * gaps.min()


def test_it_says_who_makes_the_noise() -> None:
    line = ("sum", "own.csv", "--column", "clicked", *SMALL)
    assert "two services that must not collude" in overhand(*line).stdout
    assert "every user adds a part" in overhand(*line, "--mechanism", "coins").stdout


def test_points_thin_the_estimates_out() -> None:
    as_json("sum", "own.csv", "--column", "clicked", *SMALL, "--points", "3", "--output", "a.json")
    found = json.loads(Path("a.json").read_text())
    assert found["points"] == len(found["estimates"]) <= 4
    assert found["estimates"][-1]["users"] == USERS


def test_a_vector_is_several_columns() -> None:
    columns = ("--column", "clicked", "--column", "price", "--values", "vector:2:60")
    printed = as_json("sum", "own.csv", *columns, *SMALL, "--output", "out.csv")
    assert [one["of"] for one in printed["last"]] == ["clicked", "price"]
    assert Path("out.csv").read_text().startswith("users,of,estimate,low,high\n")


@pytest.mark.usefixtures("_reader")
def test_bounds_come_from_the_data_only_if_it_is_trusted() -> None:
    line = ("sum", "own.csv", "--column", "price", *SMALL, "--json")
    refused = overhand(*line)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "is not a bit" in refused.stderr
    trusted = overhand(*line, "--trust-data")
    assert "the bounds" in trusted.stderr
    assert "released without privacy" in trusted.stderr
    assert json.loads(trusted.stdout)["values"] == f"real:{PRICES.min()}:{PRICES.max()}"
    given = overhand(*line, "--trust-data", "--values", "real:0:50")
    assert (given.stderr, json.loads(given.stdout)["values"]) == ("", "real:0.0:50.0")


def test_bounds_of_whole_numbers_in_parquet() -> None:
    whole = ("sum", "own.parquet", "--column", "whole", "--trust-data", *SMALL)
    assert as_json(*whole)["values"] == "real:0.0:7.0"


def test_kinds_that_are_guessed() -> None:
    Path("words.csv").write_text("a,b,c,d\nx,1,1,2\ny,1,1,7\nx,0,1,0.5\n")

    def guessed(column: str, group: str | None = None) -> tuple[str, str]:
        columns = Columns("words.csv", open_table("words.csv"), [column], group)
        kind, read = columns.kind(None, clip=False, trust_data=True)
        return kind.spec, read.partition(" (")[0]

    assert guessed("b") == guessed("c") == ("bit", "the kind")
    assert guessed("a") == ("histogram:x,y", "the labels")
    assert guessed("d", group="a") == ("grouped:x,y:real:0.5:7.0", "the labels and bounds")


@pytest.mark.usefixtures("_reader")
def test_rows_without_a_value_are_refused_with_their_number_or_left_out() -> None:
    Path("holes.csv").write_text("v,w\n" + "1,a\n,b\n0,c\nNA,d\n" * 20)
    line = ("sum", "holes.csv", "--column", "v", *SMALL)
    refused = overhand(*line)
    assert (
        "40 rows without a value (first: row 2) among rows 1 to 80; --missing skip"
        in refused.stderr
    )
    assert as_json(*line, "--missing", "skip")["users"] == 40


@pytest.mark.usefixtures("_reader")
def test_a_bad_cell_is_named_by_line_and_column() -> None:
    Path("bad.csv").write_text("u,v\n" + "9,1\n" * 70 + "9,one\n9,0\n")
    result = overhand("sum", "bad.csv", "--column", "v", *SMALL)
    assert result.stderr.startswith("error: bad.csv: line 72, column 'v': 'one' is not a number; ")
    Path("ragged.csv").write_text("u,v\n9,1\n9\n")
    assert "ragged.csv: " in overhand("sum", "ragged.csv", "--column", "v").stderr


@pytest.mark.usefixtures("_reader")
def test_true_and_false_are_bits() -> None:
    Path("truth.csv").write_text("v\n" + "true\nfalse\n" * 30)
    assert as_json("sum", "truth.csv", "--column", "v", *SMALL)["users"] == 60


BAD = [
    ("own.csv --column nope", "has no column 'nope'; its columns are id, clicked, price, when"),
    ("nowhere.csv --column v", "nowhere.csv does not exist"),
    (". --column v", ". is a directory"),
    ("pipe --column v", "pipe is not a file that can be read twice"),
    ("empty.csv --column v", "error: empty.csv is empty"),
    ("header.csv --column v", "header.csv has 0 rows"),
    ("single.csv --column v", "single.csv has 1 row:"),
    ("not.parquet --column v", "not.parquet is not a Parquet file"),
    ("not.csv.gz --column v", "not.csv.gz: Not a gzipped file"),
    ("binary.csv --column v", "binary.csv is not a CSV file"),
    ("semicolons.csv --column v", "are u;v: columns must be separated by commas"),
    ("twice.csv --column v", "has 2 columns named 'v'"),
    ("own.csv --column clicked --column id", "takes 1 column, not 2"),
    ("own.csv --column id --column id --values vector:2:600", "'id' was given twice"),
    ("own.csv --column id --at id --values real:0:400", "'id' was given twice"),
    ("own.csv --column price", "for other numbers, give --values"),
    ("own.parquet --column lists", "'lists' holds list<"),
    ("own.parquet --column lists --values histogram:a,b", "own.parquet: Unsupported cast"),
    (
        "own.parquet --column nothing --trust-data",
        "400 rows without a value (first: row 1) among rows 1 to 400",
    ),
    ("own.parquet --column nothing --missing skip", "own.parquet has no rows"),
    ("own.parquet --column nothing --values real --trust-data", "'nothing' has no values"),
    ("- --column v --trust-data", "standard input can be read once"),
    ("own.csv --column clicked --horizon 20 --mechanism coins", "go beyond the horizon 20"),
    ("own.csv --column clicked --horizon 3", "go beyond"),
    ("own.csv --column clicked --honest 0.5", "honest=0.5 has no meaning"),
    ("own.csv --column clicked --pending half", "Invalid value for '--pending'"),
    (
        "own.csv --column price --group clicked --values grouped:0,1:real:0:50 --pending rate",
        "--pending rate: groups allow for pending users anywhere",
    ),
    ("own.csv --column clicked --output out.txt", "must end in .csv or .json"),
    ("own.csv --column clicked --output no/out.csv", "there is no directory no"),
    ("own.csv --column clicked --plot out.txt", "--plot out.txt must end in .png or .svg or .pdf"),
    ("own.csv --column clicked --plot taken.png", "--plot taken.png is a directory"),
    ("own.csv --column clicked --windows 7d", "name their column with --at"),
    ("own.csv --column clicked --points 0", "points=0"),
    ("own.csv --column price --values real:0:1", "price with --values real: value"),
    ("own.csv --column when", "'2026-11-01T00:00:00' is not a number"),
    ("own.csv", "Missing option"),
]


@pytest.mark.parametrize(("line", "words"), BAD, ids=[line for line, _ in BAD])
def test_what_is_wrong_is_one_clear_line(
    line: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"v\n1\n"))))
    os.mkfifo("pipe")
    Path("taken.png").mkdir()
    Path("empty.csv").touch()
    Path("header.csv").write_text("v\n")
    Path("single.csv").write_text("v\n1\n")
    Path("semicolons.csv").write_text("u;v\n1;1\n")
    Path("twice.csv").write_text("v,v\n1,1\n1,1\n")
    for name in ("not.parquet", "not.csv.gz"):
        Path(name).write_text("v\n1\n")
    Path("binary.csv").write_bytes(b"\xff\xfe\x00v\n\x00")
    result = overhand("sum", *line.split(), *SMALL)
    assert (result.returncode, result.stdout) == (2, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_without_pyarrow_parquet_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    result = overhand("sum", "own.parquet", "--column", "clicked")
    assert result.stderr.startswith("error: own.parquet: Parquet needs pyarrow")
    assert "pip install 'overhand[parquet]'" in result.stderr


def test_a_table_is_read_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded by a portion, not by the file."""
    roles: dict[str, Role] = {"clicked": "number"}
    monkeypatch.setattr(tables, "_AT_ONCE", 64)
    sizes = [len(cells) for (cells,) in open_table("own.parquet").chunks(roles)]
    assert (max(sizes), sum(sizes)) == (64, USERS)
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 2048)
    sizes = [len(cells) for (cells,) in open_table("own.csv").chunks(roles)]
    assert max(sizes) < 100
    assert sum(sizes) == USERS
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    monkeypatch.setattr(tables, "_PARSED_AT_ONCE", 50)
    assert {len(cells) for (cells,) in open_table("own.csv").chunks(roles)} == {50}


def test_windows_by_time() -> None:
    line = ("own.csv", "--column", "clicked", "--at", "when", "--windows", "7d", *SMALL)
    weeks = as_json("sum", *line, "--output", "weeks.json")["windows"]
    assert weeks == json.loads(Path("weeks.json").read_text())["windows"]
    assert [week["start"][:10] for week in weeks] == ["2026-11-01", "2026-11-08", "2026-11-15"]
    assert sum(week["users"] for week in weeks) == USERS
    shown = overhand("sum", *line[: -len(SMALL) - 1], "6h", *SMALL).stdout
    assert "and 7 more: --output writes all of them" in shown
