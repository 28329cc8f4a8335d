"""`overhand verify`: a document's guarantee recomputed, and what to pin of it."""

from __future__ import annotations

import hashlib
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.transport import Answer, Unreachable
from support.cli_runner import as_json, overhand
from support.vector_documents import documents, edited, refused


def saved(folder: Path, name: str) -> tuple[str, Document]:
    document = documents()[name][1]
    path = folder / "document.json"
    path.write_text(document.to_json(), encoding="utf-8")
    return str(path), document


def test_the_digest_to_pin_is_that_of_the_file(tmp_path: Path) -> None:
    path, document = saved(tmp_path, "pairs-vector")
    digest = hashlib.sha256(Path(path).read_bytes()).hexdigest()
    assert as_json("verify", path)["digest"] == digest
    assert as_json("verify", path, "--pinned", digest)["digest"] == digest
    assert overhand("verify", path).stdout.split()[-1] == digest
    other = overhand("verify", path, "--pinned", "00" * 32)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert digest in other.stderr


@pytest.mark.parametrize(
    ("name", "noise_by", "draws"),
    [
        ("coins-bit", "users", "coins"),
        ("shares-bit", "users", "noise"),
        ("pairs-vector", "services", "nothing"),
        ("ballots-histogram", "services", "nothing"),
    ],
)
def test_it_says_what_a_client_is_asked_for(
    name: str, noise_by: str, draws: str, tmp_path: Path
) -> None:
    path, document = saved(tmp_path, name)
    told = as_json("verify", path)
    assert (told["noise_by"], told["client_draws"]) == (noise_by, draws)
    assert told["delta_spent"] == document.plan.delta_spent <= told["delta"]
    assert told["values"] == document.plan.values.spec
    assert (told["mu"], told["most_users"]) == (document.plan.mu, document.plan.most_users)
    assert told["messages"] == sum(level["messages"] for level in told["levels"])
    header = 4 + 32 + 16
    assert told["report_bytes"] == header + sum(level["bytes"] for level in told["levels"])
    said = overhand("verify", path).stdout
    assert ("must pin" in said) == (noise_by == "services")
    assert ("from mu=" in said) == (document.plan.mu is not None)
    assert (f"at most {document.plan.most_users:,}" in said) or noise_by == "users"


def test_a_document_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    """The noise is as it was; what it is said to give is not."""
    document = documents()["coins-bit"][1]
    boasting = replace(document.plan, privacy=oh.Privacy(0.5, 1e-6))
    path = tmp_path / "document.json"
    path.write_text(Document(boasting, document.public_key).to_json())
    result = overhand("verify", str(path))
    assert (result.returncode, result.stdout) == (2, "")
    assert "promises epsilon=0.5, delta=1e-06 but spends delta=" in result.stderr


@pytest.mark.parametrize(
    ("name", "field", "to", "words"),
    [
        ("pairs-vector", "plan.mechanisms.0.noise.step", 2**61, "but spends delta=1"),
        ("pairs-vector", "plan.mechanisms.0.noise.step", 2**64, "must be a whole number from"),
        ("pairs-vector", "plan.mechanisms.0.noise.cap", 2**70, "but spends delta="),
        ("pairs-vector", "plan.mechanisms.0.noise.rotations", [[0, 1, 1, 1, 1]], "sine=0"),
        ("published-bit", "plan.epsilon", 1e-5, "is too small for so little noise"),
        (
            "shares-bit",
            "plan.mechanisms.0.noise",
            {"shape": 1, "users": 10, "ratio": "0x0.0000000000001p-1022"},
            "but spends delta=1",
        ),
    ],
)
def test_a_document_with_hardly_any_noise_is_refused(
    name: str, field: str, to: Any, words: str, tmp_path: Path
) -> None:
    """Each of these once ended in a traceback."""
    path = tmp_path / "document.json"
    path.write_text(edited(documents()[name][1].to_json(), field, to))
    result = overhand("verify", str(path))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


def test_what_is_no_document_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "document.json"
    for text in (refused()[0]["text"], "", "\0", "[" * 5000, "x" * (1 << 19)):
        path.write_text(text)
        result = overhand("verify", str(path), "--json")
        assert (result.returncode, result.stdout) == (2, ""), text[:20]
        assert (result.stderr[:7], result.stderr.count("\n")) == ("error: ", 1)
    path.write_bytes(b"\xff\xfe")
    assert "not text" in overhand("verify", str(path)).stderr
    assert "cannot read" in overhand("verify", str(tmp_path / "nowhere")).stderr
    assert "cannot read" in overhand("verify", str(tmp_path)).stderr


@pytest.mark.parametrize(
    ("name", "shape", "users", "words"),
    [
        ("ballots-bit", 2**32, 1, "shape=4294967296 must be a whole number from 1 to 1024"),
        ("shares-real", 1000, 10, "the law of shape 100, ratio 0.75 is too wide for a table"),
        ("shares-real", 1000, 1, "the law of shape 1000, ratio 0.75 is too wide for a table"),
        ("shares-real", 60, 1, "the law of shape 600, ratio 0.75 is too wide for a table"),
    ],
)
def test_noise_that_takes_endless_work_is_refused_at_once(
    name: str, shape: int, users: int, words: str, tmp_path: Path
) -> None:
    """Such noise once kept a client busy for days, or ended in a traceback."""
    text = documents()[name][1].to_json()
    mechanisms = json.loads(text)["plan"]["mechanisms"]
    for mechanism in mechanisms:
        noise = mechanism["noise"]
        noise.get("each_service", noise).update(shape=shape, users=users)
    path = tmp_path / "document.json"
    path.write_text(edited(text, "plan.mechanisms", mechanisms))
    result = overhand("verify", str(path))
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert words in result.stderr


class Elsewhere:
    """A service at the other end, as `HttpTransport` would ask it."""

    answer: Answer | Exception
    asked: list[str]

    def __init__(
        self, url: str, *, authorities: Path | None = None, insecure: bool = False
    ) -> None:
        self._url = url

    async def request(self, method: str, path: str, body: bytes | None = None) -> Answer:
        self.asked.append(f"{method} {self._url} {path}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def close(self) -> None: ...


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> type[Elsewhere]:
    monkeypatch.setattr("overhand.deploy.transport.HttpTransport", Elsewhere)
    Elsewhere.asked = []
    return Elsewhere


def test_the_document_may_be_at_a_service_or_anywhere(elsewhere: type[Elsewhere]) -> None:
    document = documents()["ballots-bit"][1]
    elsewhere.answer = Answer(200, document.to_json().encode())
    for url in (
        "https://shuffle.example/behind",
        "https://shuffle.example/v1/document",
        "https://files.example/a/document.json",
    ):
        assert as_json("verify", url)["digest"] == document.digest
    assert elsewhere.asked == [
        "GET https://shuffle.example/behind /v1/document",
        "GET https://shuffle.example /v1/document",
        "GET https://files.example /a/document.json",
    ]


def test_a_service_that_has_no_document_is_one_line(elsewhere: type[Elsewhere]) -> None:
    for answer in (Answer(404, b"{}"), Answer(200, b"<html>"), Unreachable("no host")):
        elsewhere.answer = answer
        result = overhand("verify", "https://shuffle.example")
        assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    for address in (
        "https://shuffle.example/?a=b",
        "https://[",
        "https://",
        "https:///v1/document",
        "https://shuffle.example:port",
        "https://shuffle.example:99999",
    ):
        assert "not the address" in overhand("verify", address).stderr


def test_a_document_is_not_fetched_in_the_clear_unless_it_is_insecure(
    looked_up: list[str],
) -> None:
    for url in ("http://shuffle.example", "http://shuffle.example/a/document.json"):
        assert "is another machine" in overhand("verify", url).stderr
        assert looked_up == []
        assert "there is no host" in overhand("verify", url, "--insecure").stderr
        assert looked_up.pop() == "shuffle.example"


def test_a_service_that_does_not_answer_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens there
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        result = overhand("verify", url)
    assert result.stderr == f"error: no answer from {url} (ClientConnectorError)\n"
