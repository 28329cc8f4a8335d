"""`overhand client` when something is in the way: what was begun is never begun again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from overhand.deploy.client import ReportJournal
from overhand.deploy.protocol.keys import hash_token, new_token
from support.deployments import HORIZON, Deployment
from support.killed_processes import Setting

CLIENT = "overhand.deploy.client.client"
IMPATIENT = (Setting(f"{CLIENT}:_FIRST_WAIT", 0.0), Setting(f"{CLIENT}:_LONGEST_WAIT", 0.0))


def values_file(folder: Path, count: int) -> str:
    (folder / "values.csv").write_text("1\n" * count)
    return "values.csv"


def undelivered(folder: Path) -> Path:
    (path,) = folder.glob("undelivered-*.reports")
    return path


def test_what_was_not_delivered_is_kept_and_sent_again(deployed: Deployment) -> None:
    shuffler = deployed.shuffler("--tick", "60")
    some = values_file(deployed.folder, HORIZON + 3)
    code, said = deployed.command("client", shuffler.url, "--file", some, "--at-once", "1")
    assert (code, "410" in said) == (2, True)
    path = undelivered(deployed.folder)
    length = deployed.document.formats.report_length
    left = path.stat().st_size // length
    assert path.stat().st_mode & 0o777 == 0o600
    assert f"{left} not delivered: try again with --resend {path.name}" in said
    assert f"the first {HORIZON + left} values are already reported" in said
    code, said = deployed.command("client", shuffler.url, "--resend", path.name)
    assert (code, "410" in said) == (2, True)
    assert undelivered(deployed.folder) == path


@pytest.mark.slow
def test_reports_are_resent_as_they_were(deployed: Deployment) -> None:
    body = deployed.report()
    some = deployed.folder / "some.reports"
    ReportJournal.create(some, [body, deployed.report()])
    shuffler = deployed.shuffler("--tick", "60")
    for counted in (2, 0):  # what was delivered is not sent again
        code, said = deployed.command("client", shuffler.url, "--resend", "some.reports", "--json")
        assert (code, json.loads(said)) == (0, {"counted": counted})
    some.write_bytes(some.read_bytes()[:-1])
    code, said = deployed.command("client", shuffler.url, "--resend", "some.reports")
    assert (code, "does not hold reports, or is damaged" in said) == (2, True)
    ReportJournal.create(deployed.folder / "other.reports", [body[:4] + bytes(32) + body[36:]])
    for path in ("other.reports", "missing.reports"):
        code, said = deployed.command("client", shuffler.url, "--resend", path)
        assert (code, f"{path} holds no reports for the plan" in said) == (2, True)


def test_a_failure_is_told_in_json_too(deployed: Deployment) -> None:
    shuffler = deployed.shuffler("--tick", "60")
    deployed.reports.send_until_counted(shuffler.url)
    code, said = deployed.command("client", shuffler.url, "1", "--json")
    told = json.loads(said[: said.index("error")])
    assert (code, told["counted"], told["begun"]) == (2, 0, 1)
    assert told["undelivered"] == undelivered(deployed.folder).name


@pytest.mark.slow
def test_one_token_is_not_for_many_values(deployed: Deployment) -> None:
    token = new_token()
    (deployed.folder / "hashes").write_text(hash_token(token).hex() + "\n")
    shuffler = deployed.shuffler("--tokens", "hashes", "--tick", "60")
    some = values_file(deployed.folder, 3)
    code, said = deployed.command("client", shuffler.url, "--file", some, "--token", token)
    assert (code, "a token admits one report, and values.csv has 3 values" in said) == (2, True)
    code, said = deployed.command("client", shuffler.url, "1", "--token", token)
    assert (code, said.strip()) == (0, "1 counted")


@pytest.mark.slow
def test_a_device_reports_no_more_than_the_plan_allows(deployed: Deployment) -> None:
    shuffler = deployed.shuffler("--tick", "60")
    call = ("client", shuffler.url, "--device", "mine", "--digest", deployed.document.digest)
    code, said = deployed.command(*call[:-1], "0" * 64, "1")
    assert (code, f"not {'0' * 64}" in said) == (2, True)
    code, said = deployed.command(*call, "--file", values_file(deployed.folder, 2))
    assert (code, "2 values: the plan allows 1 reports per person" in said) == (2, True)
    assert not (deployed.folder / "mine").exists()
    code, said = deployed.command(*call, "1")
    assert (code, said.strip()) == (0, "1 counted")
    code, said = deployed.command(*call, "1", "--json")
    told = json.loads(said[: said.index("error")])
    assert (code, told) == (2, {"counted": 1, "undelivered": None, "begun": 0})
    assert "1 of the 1 reports that the plan allows per person" in said


@pytest.mark.slow
def test_what_a_device_could_not_deliver_is_in_its_file(deployed: Deployment) -> None:
    shuffler = deployed.shuffler("--tick", "60")
    deployed.reports.send_until_counted(shuffler.url)
    for begun in (1, 0):  # the second time none is made
        code, said = deployed.command("client", shuffler.url, "1", "--device", "mine", "--json")
        told = json.loads(said[: said.index("error")])
        assert (code, told) == (2, {"counted": 0, "undelivered": "mine", "begun": begun})
    assert not list(deployed.folder.glob("undelivered-*"))


def test_a_devices_file_is_named_once(deployed: Deployment) -> None:
    words = ("client", "http://127.0.0.1:1", "--resend", "mine", "--device", "mine")
    code, said = deployed.command(*words)
    assert (code, "give --resend or --device, not both" in said) == (2, True)


@pytest.mark.parametrize("words", [(), ("1", "--file", "x"), ("1", "--resend", "x")])
def test_there_is_one_thing_to_report(deployed: Deployment, words: tuple[str, ...]) -> None:
    code, said = deployed.command("client", "http://127.0.0.1:1", *words, changes=IMPATIENT)
    assert (code, "give a value, --file or --resend" in said) == (2, True)
