"""The commands that make a deployment's files, and the description of its routes."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

import overhand as oh
from overhand.plan import Plan
from overhand.service.protocol import (
    Document,
    KeyPair,
    hashed,
    load_hashes,
    load_token,
    matches,
)
from overhand.service.server import Book, Publisher, ServerApp
from overhand.service.shuffler import Admission, ShufflerApp
from support.commands import as_json, overhand


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
def test_prepare_says_who_must_know_the_digest(tmp_path: Path, noise: Any) -> None:
    Plan.best(60, 2, oh.Privacy(4.0, 1e-4), noise=noise).save(tmp_path / "plan.json")
    arguments = ("--plan", str(tmp_path / "plan.json"), "--directory", str(tmp_path))
    said = " ".join(overhand("prepare", *arguments).stdout.split())
    digest = hashlib.sha256((tmp_path / "document.json").read_bytes()).hexdigest()
    assert digest in said
    note = "clients must get this digest from you, not from the shuffling service"
    assert (note in said) == (noise == "services")


@pytest.mark.parametrize("name", ["server.key", "document.json", "token", "token.sha256"])
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
    assert load_hashes(hashes) == {hashed(token) for token in made}
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


def document() -> Document:
    return Document(plan(), KeyPair.of_raw(b"1" * 32).public_key)


def shuffler_description(*, has_tokens: bool = False) -> Any:
    tokens = frozenset[bytes]() if has_tokens else None
    return ShufflerApp(document(), cast(Admission, None), tokens=tokens).description


def server_description() -> Any:
    return server_app().description


def server_app() -> ServerApp:
    """One that only says what it would answer."""
    return ServerApp(document(), cast(Book, None), cast(Publisher, None), [])


@pytest.mark.parametrize("describe", [shuffler_description, server_description])
def test_the_descriptions_are_valid(describe: Any) -> None:
    description = json.loads(json.dumps(describe()))
    OpenAPIV31SpecValidator(description).validate()


def described(description: Any) -> dict[str, Any]:
    """All operations of a description, by their names."""
    return {
        operation["operationId"]: operation
        for path in description["paths"].values()
        for operation in path.values()
        if isinstance(operation, dict)
    }


@pytest.mark.parametrize("has_tokens", [False, True])
def test_a_token_is_asked_for_if_there_are_tokens(has_tokens: bool) -> None:
    description = shuffler_description(has_tokens=has_tokens)
    report = described(description)["report"]
    assert ("security" in report) == has_tokens
    assert ("securitySchemes" in description["components"]) == has_tokens
    assert {"401", "403"} & set(report["responses"]) == ({"401", "403"} if has_tokens else set())
    OpenAPIV31SpecValidator(description).validate()


@pytest.mark.parametrize("describe", [shuffler_description, server_description])
def test_what_any_route_may_answer_is_described(describe: Any) -> None:
    description = describe()
    elsewhere = description["components"]["responses"]
    assert set(elsewhere) == {"NotFound", "MethodNotAllowed"}
    assert set(elsewhere["MethodNotAllowed"]["headers"]) == {"Allow"}
    for operation in described(description).values():
        responses = operation["responses"]
        assert {"405", "408", "431", "500", "503"} <= set(responses)
        assert all("Retry-After" in responses[status]["headers"] for status in ("500", "503"))


def test_the_servers_answers_are_described_as_they_are() -> None:
    operations = described(server_description())
    status = operations["status"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert {"type": "null"} in status["properties"]["estimate"]["oneOf"]
    assert "users_before" in status["properties"]["plan"]["properties"]
    assert "release" in operations["release"]["responses"]["409"]["description"]
    assert "coordinate" in operations["history"]["responses"]["400"]["description"]


def test_the_servers_description_has_all_its_routes() -> None:
    routes = {route.path for route in server_app().routes}  # type: ignore[attr-defined]
    pages = {"/", "/static/{name}", "/openapi.json"}
    assert routes - pages == set(server_description()["paths"])


def test_the_report_is_described_by_its_length() -> None:
    operation = shuffler_description()["paths"]["/v1/reports"]["post"]
    schema = operation["requestBody"]["content"]["application/octet-stream"]["schema"]
    assert schema["maxLength"] == schema["minLength"] == document().formats.report_length
