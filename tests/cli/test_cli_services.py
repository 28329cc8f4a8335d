"""The commands that make a deployment's files, and the description of its routes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import pytest

import overhand as oh
from overhand.bandits import plan_for_regret
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair, hash_token, load_hashes, load_token, matches
from overhand.planning import Plan
from support.cli_runner import as_json, overhand


@cache
def plan() -> Plan:
    return Plan.best(60, 2, oh.Privacy(4.0, 1e-4), tree="regular")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    plan().save(tmp_path / "plan.json")
    return tmp_path


def prepare(home: Path, *more: str) -> Any:
    plan_file = str(home / "plan.json")
    return as_json("prepare", "--plan", plan_file, "--directory", str(home / "made"), *more)


def test_prepare_makes_what_each_party_needs(home: Path) -> None:
    printed = prepare(home)
    made = home / "made"
    document = Document.load(made / "document.json", printed["digest"])
    content = (made / "document.json").read_bytes()
    assert hashlib.sha256(content).hexdigest() == document.digest
    assert KeyPair.load(made / "server.key").public_key == document.public_key
    (known,) = load_hashes(made / "token.sha256")
    assert matches(load_token(made / "token"), known)
    modes = {path.name: path.stat().st_mode & 0o777 for path in made.iterdir()}
    assert (modes["server.key"], modes["token"]) == (0o600, 0o600)
    assert sorted(modes) == ["document.json", "server.key", "token", "token.sha256"]


@pytest.mark.parametrize("noise", ["users", "services"])
def test_prepare_says_who_must_know_the_digest_and_what_is_made_once(
    tmp_path: Path, noise: str
) -> None:
    mechanism = "services" if noise == "services" else "coins"
    Plan.best(60, epsilon=4.0, delta=1e-4, mechanism=mechanism).save(tmp_path / "plan.json")
    arguments = ("--plan", str(tmp_path / "plan.json"), "--directory", str(tmp_path))
    said = " ".join(overhand("prepare", *arguments).stdout.split())
    digest = hashlib.sha256((tmp_path / "document.json").read_bytes()).hexdigest()
    assert digest in said
    note = "clients must get this digest from you, not from the shuffling service"
    assert (note in said) == (noise == "services")
    keys = tmp_path / "server.db.keys"
    assert keys.exists() == (noise == "services")
    assert ("keys: move this file to the server and keep no copy" in said) == keys.exists()


def test_prepare_makes_a_plan_of_two_services_unless_it_is_given_one(tmp_path: Path) -> None:
    def planned(folder: str, *more: str) -> Plan:
        home = tmp_path / folder
        printed = as_json("prepare", "--horizon", "60", *more, "--directory", str(home))
        return Document.load(home / "document.json", printed["digest"]).plan

    assert planned("bits") == Plan.best(60, epsilon=1.0, mechanism="ballots")
    reals = Plan.best(60, epsilon=4.0, values="real", mechanism="pairs")
    assert planned("reals", "--values", "real", "--epsilon", "4") == reals
    coins = Plan.best(60, 2, epsilon=1.0)
    assert planned("coins", "--mechanism", "coins", "--shufflers", "2") == coins
    learnt = planned("learnt", "--values", "regression:3", "--epsilon", "4", "--recommender")
    assert learnt == plan_for_regret(60, 5, oh.Privacy(4.0, 1e-6), 3)


@pytest.mark.parametrize(
    "name", ["server.key", "server.db.keys", "document.json", "token", "token.sha256"]
)
def test_prepare_overwrites_nothing_and_begins_nothing(home: Path, name: str) -> None:
    (home / "made").mkdir()
    (home / "made" / name).write_text("mine")
    plan_file = str(home / "plan.json")
    result = overhand("prepare", "--plan", plan_file, "--directory", str(home / "made"))
    assert result.returncode == 2
    assert name in result.stderr
    assert [path.name for path in (home / "made").iterdir()] == [name]
    assert (home / "made" / name).read_text() == "mine"


def test_client_tokens_are_made_with_their_hashes(tmp_path: Path) -> None:
    secrets, hashes = tmp_path / "tokens", tmp_path / "hashes"
    arguments = ("--secrets", str(secrets), "--hashes", str(hashes))
    assert as_json("tokens", "--count", "30", *arguments)["count"] == 30
    made = secrets.read_text().split()
    assert len(set(made)) == 30
    assert load_hashes(hashes) == {hash_token(token) for token in made}
    assert secrets.stat().st_mode & 0o777 == 0o600
    lines = hashes.read_text().split()
    assert lines == sorted(lines), "the order of hashes would tell that of tokens"
    before = secrets.read_bytes(), hashes.read_bytes()
    assert overhand("tokens", "--count", "1", *arguments).returncode == 2
    astray = ("--secrets", str(tmp_path / "none"), "--hashes", str(tmp_path / "nowhere" / "hashes"))
    assert "there is no directory" in overhand("tokens", "--count", "1", *astray).stderr
    assert not (tmp_path / "none").exists(), "tokens that no service knows"
    assert (secrets.read_bytes(), hashes.read_bytes()) == before


@pytest.mark.parametrize("content", ["", "zz\n", "abcd\n", "ab" * 32 + "\n" + "ab" * 31 + "\n"])
def test_damaged_hashes_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "hashes").write_text(content)
    with pytest.raises(oh.OverhandError, match="hashes"):
        load_hashes(tmp_path / "hashes")


def test_a_value_that_is_no_number_is_refused() -> None:
    result = overhand("client", "ftp://nowhere", "1")
    assert (result.returncode, "ftp://nowhere" in result.stderr) == (2, True)
    assert overhand("client", "http://nowhere").returncode == 2


def test_a_client_sends_nothing_in_the_clear_unless_it_is_insecure(
    looked_up: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("overhand.deploy.client.client._ATTEMPTS", 1)
    arguments = ("client", "http://shuffle.example", "1", "--token", "t" * 43)
    result = overhand(*arguments)
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "'http://shuffle.example' is another machine" in result.stderr
    assert "--insecure" in result.stderr
    assert looked_up == []
    assert "there is no host shuffle.example" in overhand(*arguments, "--insecure").stderr
    assert looked_up == ["shuffle.example"]


def test_a_shuffling_service_sends_nothing_in_the_clear_unless_it_is_insecure(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused at the start, before there is a store: not when the first batch is full."""

    def begun(*_: object) -> NoReturn:
        raise oh.OverhandError("it would begin")

    monkeypatch.setattr("overhand.deploy.shuffler.running.sealer_of", begun)
    monkeypatch.setattr("overhand.deploy.http.telemetry.start_logging", lambda _: None)
    prepare(home)
    monkeypatch.chdir(home / "made")
    result = overhand("shuffler", "--server", "http://sums.example")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "'http://sums.example' is another machine" in result.stderr
    assert "--insecure" in result.stderr
    for taken in (["http://sums.example", "--insecure"], ["https://sums.example"]):
        assert "it would begin" in overhand("shuffler", "--server", *taken).stderr
    assert "it would begin" in overhand("shuffler", "--server", "http://127.0.0.1:8001").stderr
