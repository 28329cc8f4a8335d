"""The command line of recommenders: a plan of least regret, a document that says how it learns."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

import overhand as oh
from overhand.bandits import Practical, Theory, plan_for_regret
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import PolicyKey
from support.cli_runner import as_json, overhand

PAGE = Path(__file__).parents[2] / "docs" / "bandits.md"
ASKED = ("--horizon", "400", "--shufflers", "2", "--epsilon", "15", "--delta", "1e-4")
NAMES = ("--features", "always,side,[red]other")


@cache
def plan() -> oh.Plan:
    return plan_for_regret(400, 2, oh.Privacy(15.0, 1e-4), dimension=3)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    plan().save(tmp_path / "plan.json")
    (tmp_path / "arms.json").write_text('{"left": [0.6, 0.8, 0], "right": [0.6, -0.8, 0]}')
    return tmp_path


def prepare(*more: str) -> Document:
    printed = as_json("prepare", "--plan", "plan.json", "--directory", "made", *more)
    return Document.load("made/document.json", printed["digest"])


def refused(*line: str) -> str:
    result = overhand(*line)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert not list(Path("made").glob("*"))
    return result.stderr


# --- plans ----------------------------------------------------------------------------------------


def test_a_plan_for_a_recommender_is_that_of_least_regret(home: Path) -> None:
    line = ("plan", *ASKED, "--values", "regression:3", "--recommender", "--save", "saved.json")
    shown = as_json(*line)
    assert shown["digest"] == plan().digest == oh.Plan.load("saved.json").digest
    assert {level["mechanism"] for level in shown["levels"]} == {"pairs"}
    shares = as_json(*line[:-2], "--mechanism", "shares")
    assert (shown["noise_by"], shares["noise_by"]) == ("services", "users")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--values", "bit"], "a recommender learns from --values regression:D, not bit"),
        (["--values", "regression:3", "--error", "5"], "--error and --clip do not go with it"),
        (["--values", "regression:3", "--clip"], "--error and --clip do not go with it"),
        (["--values", "regression:3", "--published"], "does not go with --published"),
    ],
)
def test_what_goes_with_no_recommender_is_refused_by_plan(more: list[str], why: str) -> None:
    assert why in refused("plan", "--horizon", "400", "--recommender", *more)


# --- documents ------------------------------------------------------------------------------------


def test_prepare_makes_a_document_that_says_how_it_learns(home: Path) -> None:
    document = prepare("--recommender", "--constant", "0.6", *NAMES, "--arms", "arms.json")
    learning = document.learning
    assert learning is not None
    assert learning.constants == Practical(3, constant=0.6)
    assert learning.features == ("always", "side", "[red]other")
    assert learning.arms == {"left": (0.6, 0.8, 0.0), "right": (0.6, -0.8, 0.0)}
    key = Path("made/policy.key")
    assert PolicyKey.load(key).public_key == learning.policy_key != document.public_key
    assert key.stat().st_mode & 0o777 == 0o600


def test_the_papers_constants_are_those_of_the_plan(home: Path) -> None:
    document = prepare("--recommender", "--policy", "theory")
    assert document.learning is not None
    bound = plan().error_bound(1 / 800)
    assert document.learning.constants == Theory(3, 400, bound)


def test_moments_that_nobody_learns_from_are_only_added_up(home: Path) -> None:
    assert prepare().learning is None
    assert not Path("made/policy.key").exists()


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--constant", "0.6"], "--constant is for recommenders: give --recommender, too"),
        (["--policy", "practical"], "--policy is for recommenders"),
        (["--features", "a,b,c"], "--features is for recommenders"),
        (["--arms", "arms.json"], "--arms is for recommenders"),
        (["--recommender", "--constant", "1.5"], "constant=1.5"),
        (["--recommender", "--constant", "nan"], "constant=nan"),
        (["--recommender", "--constant", "0.6", "--policy", "theory"], "does not use --constant"),
        (["--recommender", "--features", "a,b"], "2 names for 3 features"),
        (["--recommender", "--features", "a,b,a"], "names of features must differ"),
        (["--recommender", "--constant", "0.5", "--arms", "arms.json"], "not the constant 0.5"),
        (["--recommender", "--arms", "list.json"], "must be a JSON object such as"),
        (["--recommender", "--arms", "words.json"], "must be a JSON object such as"),
        (["--recommender", "--arms", "digits.json"], "must be a JSON object such as"),
        (["--recommender", "--arms", "twice.json"], "a name occurs twice"),
        (["--recommender", "--arms", "long.json"], "norm at most 1"),
        (["--recommender", "--arms", "missing.json"], "missing.json"),
    ],
)
def test_what_no_document_can_say_is_refused_and_nothing_made(
    home: Path, more: list[str], why: str
) -> None:
    Path("list.json").write_text("[[0.6, 0.8, 0]]")
    Path("words.json").write_text('{"left": ["far"]}')
    Path("digits.json").write_text('{"left": "100"}')
    Path("twice.json").write_text('{"left": [1, 0, 0], "left": [0, 1, 0]}')
    Path("long.json").write_text('{"left": [1, 1, 1]}')
    line = ("prepare", "--plan", "plan.json", "--directory", "made", *more)
    assert why in refused(*line)


def test_a_plan_of_other_values_serves_no_recommender(home: Path) -> None:
    oh.Plan.best(60, 2, oh.Privacy(4.0, 1e-4)).save("bits.json")
    line = ("prepare", "--plan", "bits.json", "--directory", "made", "--recommender")
    assert "regression:D, not bit" in refused(*line)


def test_verify_says_that_it_is_a_recommender_and_how_it_learns(home: Path) -> None:
    document = prepare("--recommender", "--constant", "0.6", *NAMES, "--arms", "arms.json")
    assert document.learning is not None
    told = as_json("verify", "made/document.json")
    assert told["learning"] == json.loads(json.dumps(document.learning.entry()))
    said = overhand("verify", "made/document.json").stdout
    assert "always, side, [red]other, the first of them always 0.6; 2 arms are named" in said
    assert "the arm itself is not protected" in said
    assert document.learning.policy_key.hex() in said


def test_verify_of_a_sum_tells_nothing_of_learning(home: Path) -> None:
    prepare()
    assert as_json("verify", "made/document.json")["learning"] is None
    assert "recommender" not in overhand("verify", "made/document.json").stdout


@pytest.mark.slow
def test_the_commands_of_the_page_make_a_deployment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, section = PAGE.read_text(encoding="utf-8").split("\n## Deploying it\n")
    commands = re.findall(r"^    overhand ((?:prepare|verify) .*)", section, re.MULTILINE)
    assert [command.split()[0] for command in commands] == ["prepare", "verify"]
    for command in commands:
        result = overhand(*shlex.split(command))
        assert result.returncode == 0, result.stderr
    learning = Document.load("document.json").learning
    assert learning is not None
    assert learning.names == ("always", "jazz", "rock", "folk")


# --- the server -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prepared", "given", "why"),
    [
        (["--recommender"], [], "cannot read"),
        (["--recommender"], ["--policy-key", "other.key"], "not the one that the document names"),
        ([], ["--policy-key", "other.key"], "it needs no policy key"),
    ],
)
def test_a_server_without_the_key_of_its_policies_does_not_start(
    home: Path, monkeypatch: pytest.MonkeyPatch, prepared: list[str], given: list[str], why: str
) -> None:
    monkeypatch.setattr("overhand.deploy.http.telemetry.start_logging", lambda name: None)
    prepare(*prepared)
    monkeypatch.chdir("made")
    Path("policy.key").unlink(missing_ok=True)
    PolicyKey.generate().save("other.key")
    result = overhand("server", "--workers", "1", *given)
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert why in result.stderr


# --- the demonstration ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (["--rate", "5"], "--rate and --max-messages do not go with --recommender"),
        (["--max-messages", "9"], "--rate and --max-messages do not go with --recommender"),
        (["--values", "bit"], "a recommender learns from --values regression:D, not bit"),
        (["--values", "regression:2"], "dimension=2 must be a whole number of at least 3"),
        (["--users", "10"], "users=10 must be a whole number of at least 100"),
    ],
)
def test_what_no_demonstration_of_a_recommender_does_is_refused(more: list[str], why: str) -> None:
    assert why in refused("demo", "--recommender", *more)


@pytest.mark.slow
@pytest.mark.usefixtures("credulous_services")
@pytest.mark.parametrize("mechanism", ["shares", "services"])
def test_the_demonstration_learns(
    tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At an epsilon at which few people are enough.

    The last quarter chooses by what was learnt from 800 people and more: 99 % of the advantage over
    a random arm, on an idle and on a busy machine. People who did not wait for new policies had as
    little as 36 %.
    """
    monkeypatch.setattr("overhand.cli.demo._SEEDS", 1)  # always the same people
    how = ("--users", "1500", "--epsilon", "8", "--mechanism", mechanism)
    result = as_json("demo", "--recommender", *how, "--directory", str(tmp_path))
    document = Document.load(tmp_path / "document.json")
    assert document.learning is not None
    assert document.plan.noise_by == ("users" if mechanism == "shares" else "services")
    assert result["users"] >= 1500
    full = [result["users"] // size for size in document.plan.tree.sizes]
    # Each estimate has a policy: fewer than lowest batches if some overtake others on their way,
    # more if a higher batch comes after the lowest ones that it covers. However slow the services
    # are, people wait for six: a policy serves them until they are a third more, or three batches.
    assert 6 <= result["policies"] <= sum(full)
    low, high = result["last_quarter_random_reward"], result["last_quarter_best_reward"]
    assert result["last_quarter_reward"] > (low + high) / 2
    assert result["random_reward"] < result["mean_reward"] < result["best_reward"]
    simulated = [result[f"{name}_reward"] for name in ("local", "simulated", "not_private")]
    assert simulated == sorted(simulated)
