"""Tokens that are added and revoked while the services run, and the commands that do it."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import overhand as oh
from overhand.deploy.http.listening import TokenFile
from overhand.deploy.protocol.keys import (
    change_hashes,
    create_token,
    hash_lines,
    hash_token,
    load_hashes,
    load_token,
    new_token,
)
from support.cli_runner import as_json, overhand
from support.deployments import BINARY, Deployment
from support.killed_processes import WEB, WITHOUT_WORKERS, Service, Setting, until
from support.loopback_system import System, run

QUICK = Setting("overhand.deploy.http.listening:_LOOK", 0.05)
SOME = [hash_token(f"token {i}") for i in range(4)]


@pytest.fixture
def hashes(tmp_path: Path) -> Path:
    path = tmp_path / "hashes"
    path.write_bytes(hash_lines(SOME[:2]))
    return path


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# --- the file -------------------------------------------------------------------------------------


def test_a_file_is_read_again_when_it_has_changed(
    hashes: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Replaced, written in place, or put back with an old time: each of them is a change."""
    caplog.set_level(logging.INFO, "overhand.deploy")
    tokens = TokenFile(hashes)
    assert set(tokens) == set(SOME[:2])
    change_hashes(hashes, added=SOME[2:], revoked=SOME[:1])
    tokens.look()
    assert (SOME[0] in tokens, SOME[1] in tokens, len(tokens)) == (False, True, 3)
    with hashes.open("ab") as file:
        file.write(hash_lines(SOME[:1]))
    tokens.look()
    assert len(tokens) == 4
    moment = hashes.stat()
    time.sleep(0.02)  # a file's times have steps of some milliseconds
    hashes.write_bytes(hash_lines([*SOME[:3], hash_token("another")]))  # as long as before
    os.utime(hashes, ns=(moment.st_atime_ns, moment.st_mtime_ns))
    tokens.look()
    assert SOME[3] not in tokens
    assert events(caplog) == 3 * ["tokens were read"]
    monkeypatch.setattr(
        "overhand.deploy.http.listening.load_hashes", lambda path: pytest.fail("read")
    )
    tokens.look()  # it is not read for nothing


def _damage(hashes: Path) -> None:
    hashes.write_bytes(hash_lines(SOME[1:])[:-5])


def _empty(hashes: Path) -> None:
    hashes.write_bytes(b"")


@pytest.mark.parametrize("spoil", [_damage, _empty, Path.unlink])
def test_a_bad_file_keeps_the_old_tokens_and_is_said_once(
    hashes: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """Neither open to everybody nor closed to all: whichever a mutant does is seen."""
    caplog.set_level(logging.INFO, "overhand.deploy")
    tokens = TokenFile(hashes)
    spoil(hashes)
    for _ in range(3):
        tokens.look()
        assert set(tokens) == set(SOME[:2])
    assert events(caplog) == ["tokens cannot be read: the old ones stay valid"]
    hashes.write_bytes(hash_lines(SOME[2:]))
    tokens.look()
    assert set(tokens) == set(SOME[2:])
    assert events(caplog)[1:] == ["tokens were read"]
    _damage(hashes)
    tokens.look()
    assert len(events(caplog)) == 3


def test_a_start_needs_a_good_file(hashes: Path) -> None:
    _empty(hashes)
    with pytest.raises(oh.OverhandError, match="empty"):
        TokenFile(hashes)


# --- changes --------------------------------------------------------------------------------------


def test_a_change_keeps_mode_and_link_and_leaves_nothing_else(hashes: Path) -> None:
    hashes.chmod(0o640)
    link = hashes.with_name("link")
    link.symlink_to(hashes)
    assert change_hashes(link, added=SOME[2:3]) == 3
    assert link.is_symlink()
    assert hashes.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in hashes.parent.iterdir()) == ["hashes", "link"]


def test_what_cannot_be_changed_stays_as_it_was(hashes: Path) -> None:
    before = hashes.read_bytes()
    with pytest.raises(oh.InvalidValue, match=f"does not have {SOME[3].hex()}"):
        change_hashes(hashes, revoked=[SOME[0], SOME[3]])
    with pytest.raises(oh.InvalidValue, match="would be empty"):
        change_hashes(hashes, revoked=SOME[:2])
    assert hashes.read_bytes() == before


def test_changes_at_the_same_time_are_all_kept(hashes: Path) -> None:
    """Without the lock one of them writes what it read before the other had written."""
    new = [hash_token(f"new {i}") for i in range(24)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda one: change_hashes(hashes, added=[one]), new))
    assert load_hashes(hashes) == {*SOME[:2], *new}


# --- the command ----------------------------------------------------------------------------------


def test_the_command_adds_and_revokes(tmp_path: Path, hashes: Path) -> None:
    at = ("--hashes", str(hashes))
    more = tmp_path / "more"
    assert as_json("tokens", "--count", "3", "--add", "--secrets", str(more), *at)["count"] == 3
    made = {hash_token(token) for token in more.read_text().split()}
    assert load_hashes(hashes) == {*SOME[:2], *made}
    gone = [one.hex() for one in SOME[:2]]
    said = as_json("tokens", "--revoke", gone[0], "--revoke", gone[1].upper(), *at)
    assert (said["revoked"], said["left"]) == (2, 3)
    assert load_hashes(hashes) == made
    assert "1 revoked, 2 left" in overhand("tokens", "--revoke", min(made).hex(), *at).stdout


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "give --count"),
        (("--revoke", "ab" * 32, "--count", "1"), "leave out --count"),
        (("--revoke", "a-token-that-others-should-not-see"), "64 hexadecimal digits"),
        (("--revoke", "ab" * 32), "does not have"),
        (("--count", "1"), "exists"),
        (("--count", "1", "--add", "--hashes", "nowhere"), "nowhere"),
    ],
)
def test_the_command_refuses_in_one_line(
    tmp_path: Path, hashes: Path, options: tuple[str, ...], words: str
) -> None:
    before, secrets = hashes.read_bytes(), tmp_path / "new"
    done = overhand("tokens", "--hashes", str(hashes), "--secrets", str(secrets), *options)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr
    assert "should-not-see" not in done.stderr
    assert (hashes.read_bytes(), secrets.exists()) == (before, False)


# --- the services ---------------------------------------------------------------------------------


def test_the_services_ask_for_tokens_as_they_are_now(tmp_path: Path, hashes: Path) -> None:
    tokens = TokenFile(hashes)

    async def test(system: System) -> None:
        async def status(number: int) -> int:
            async with system.at_shuffler() as shuffler:
                authorization = {"authorization": f"Bearer token {number}"}
                answer = await shuffler.post(
                    "/v1/reports", content=system.report(), headers=authorization
                )
                return answer.status_code

        assert [await status(number) for number in (0, 2)] == [200, 401]
        change_hashes(hashes, added=SOME[2:], revoked=SOME[:2])
        tokens.look()
        assert [await status(number) for number in (1, 2)] == [401, 200]

    run(tmp_path, test, tokens=tokens)


def _status(service: Service, method: str, path: str, body: bytes, token: str) -> int:
    headers = BINARY | {"authorization": f"Bearer {token}"}
    url = service.url + path
    return WEB.request(method, url, content=body, headers=headers).status_code


def test_a_running_shuffling_service_learns_of_tokens(deployed: Deployment) -> None:
    """Fails if nobody follows the file."""
    old, new = new_token(), new_token()
    path = deployed.folder / "hashes"
    path.write_bytes(hash_lines([hash_token(old)]))
    shuffler = deployed.shuffler("--tokens", "hashes", changes=[QUICK])

    def status(token: str) -> int:
        return _status(shuffler, "POST", "/v1/reports", deployed.report(), token)

    assert status(new) == 401
    change_hashes(path, added=[hash_token(new)], revoked=[hash_token(old)])
    until("it is read", lambda: "tokens were read" in shuffler.said())
    assert (status(old), status(new)) == (401, 200)
    (line,) = (line for line in shuffler.said().splitlines() if "tokens were" in line)
    assert json.loads(line).items() >= {"added": 1, "revoked": 1}.items()
    assert shuffler.stopped() == 0


def test_the_shuffling_services_token_is_rotated(deployed: Deployment) -> None:
    """A release with an old token is refused once it is revoked, and not before."""
    create_token(deployed.folder / "next")
    old, new = (load_token(deployed.folder / name) for name in ("token", "next"))
    server = deployed.server(changes=[QUICK, WITHOUT_WORKERS])

    def status(token: str) -> int:  # 400: it is let in, and brings nothing
        return _status(server, "PUT", "/v1/releases/1/0", b"", token)

    assert (status(old), status(new)) == (400, 401)
    path = deployed.folder / "token.sha256"
    change_hashes(path, added=[hash_token(new)])
    until("both are known", lambda: status(new) == 400)
    assert status(old) == 400
    change_hashes(path, revoked=[hash_token(old)])
    until("the old one is not", lambda: status(old) == 401)
    assert status(new) == 400
    assert server.stopped() == 0
