"""Options of the services from the command line, the environment and a file."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from overhand.cli import load_command
from overhand.cli.settings import mask, without_settings
from support.cli_runner import Result, overhand

SECRET = "hunter2"
ADDRESS = f"postgresql://me:{SECRET}@db:5432/sums"
NEEDED = {"server": (), "shuffler": ("--server", "https://sums.example")}


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ.keys() - without_settings(os.environ).keys():
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def options_of(command: str) -> list[str]:
    """As they are called on the command line."""
    names = [max(option.opts, key=len)[2:] for option in load_command(command).params]
    return [name for name in names if name not in ("config", "show-settings")]


def config(content: str, mode: int = 0o600) -> str:
    path = Path("config.toml")
    path.write_text(content)
    path.chmod(mode)
    return str(path)


def format_exactly(command: str, *more: str) -> dict[str, tuple[str, str]]:
    """By option, what `--show-settings` says of it, and where that comes from."""
    result = overhand(command, "--show-settings", *more)
    assert (result.returncode, result.stderr) == (0, "")
    table, *lines = result.stdout.splitlines()
    assert table == f"[{command}]"
    values = tomllib.loads(result.stdout)[command]  # it could be a file
    return {key: (str(values[key]), source) for key, source in map(_source, lines) if source}


def _source(line: str) -> tuple[str, str]:
    key, _, rest = line.partition(" = ")
    return key, rest.rpartition("  # ")[2]


def refused(result: Result) -> str:
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    return result.stderr


# --- where options come from ----------------------------------------------------------------------


def test_command_line_before_environment_before_file_before_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = ("--config", config("[server]\nport = 1\n[shuffler]\nport = 99"))
    monkeypatch.setenv("OVERHAND_SERVER_PORT", "2")
    monkeypatch.setenv("OVERHAND_SHUFFLER_PORT", "98")
    assert format_exactly("server", *file, "--port", "3")["port"] == ("3", "command line")
    assert format_exactly("server", *file)["port"] == ("2", "environment: OVERHAND_SERVER_PORT")
    monkeypatch.delenv("OVERHAND_SERVER_PORT")
    assert format_exactly("server", *file)["port"] == ("1", "file: config.toml")
    assert format_exactly("server")["port"] == ("8001", "default")
    monkeypatch.setenv("OVERHAND_SERVER_CONFIG", "config.toml")
    assert format_exactly("server")["port"] == ("1", "file: config.toml")


@pytest.mark.parametrize("command", ["server", "shuffler"])
def test_every_option_may_come_from_everywhere(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Also those that are not called as the parameter is, such as --ca."""
    options = options_of(command)
    assert len(options) >= 12
    flags = {"insecure"} & {*options}
    typed = [word for key in options for word in (f"--{key}", "17")[: 1 if key in flags else 2]]
    found = {"command line": format_exactly(command, *typed)}
    given = {key: "true" if key in flags else '"17"' for key in options}
    written = "".join(f"{key} = {value}\n" for key, value in given.items())
    found["file: config.toml"] = format_exactly(
        command, "--config", config(f"[{command}]\n{written}")
    )
    for key in options:
        variable = f"OVERHAND_{command}_{key}".upper().replace("-", "_")
        monkeypatch.setenv(variable, given[key].strip('"'))
    found["environment"] = format_exactly(command)
    for source, settings in found.items():
        assert list(settings) == options
        assert {settings[key][0] for key in flags} <= {"True"}
        assert {settings[key][0] for key in given.keys() - flags} <= {"17", "17.0", "['17']"}
        assert all(said.startswith(source) for _, said in settings.values())


@pytest.mark.parametrize("role", ["server", "shuffler"])
def test_services_start_with_what_is_shown(monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    """Fails if what the file says is shown and not used."""
    given: list[Any] = []
    monkeypatch.setattr(f"overhand.deploy.{role}.running.run_{role}", given.append)
    for name in ("listening.run", "telemetry.start_logging"):
        monkeypatch.setattr(f"overhand.deploy.http.{name}", lambda *_: None)
    database = {"server": "database", "shuffler": "store"}[role]
    file = config(f'[{role}]\nport = 77\n{database} = "{ADDRESS}"\ndocument = "some.json"\n')
    monkeypatch.setenv(f"OVERHAND_{role.upper()}_HOST", "::1")
    assert overhand(role, "--config", file, *NEEDED[role]).returncode == 0
    (settings,) = given
    assert (settings.endpoint.host, settings.endpoint.port) == ("::1", 77)
    assert (getattr(settings, database), settings.document) == (ADDRESS, Path("some.json"))
    assert overhand(role, "--config", file, *NEEDED[role], "--show-settings").returncode == 0
    assert len(given) == 1, "showing settings starts nothing"


@pytest.mark.parametrize(
    ("said", "variable", "is_insecure"),
    [("true", None, True), ("false", None, False), ("true", "0", False), ("false", "1", True)],
)
def test_a_flag_may_be_off_in_a_file_or_the_environment(
    monkeypatch: pytest.MonkeyPatch, said: str, variable: str | None, is_insecure: bool
) -> None:
    """Fails if a shuffling service that was told `false` is insecure."""
    given: list[Any] = []
    monkeypatch.setattr("overhand.deploy.shuffler.running.run_shuffler", given.append)
    for name in ("listening.run", "telemetry.start_logging"):
        monkeypatch.setattr(f"overhand.deploy.http.{name}", lambda *_: None)
    if variable is not None:
        monkeypatch.setenv("OVERHAND_SHUFFLER_INSECURE", variable)
    file = ("--config", config(f"[shuffler]\ninsecure = {said}\n"))
    assert format_exactly("shuffler", *NEEDED["shuffler"], *file)["insecure"][0] == str(is_insecure)
    assert overhand("shuffler", *NEEDED["shuffler"], *file).returncode == 0
    assert [settings.insecure for settings in given] == [is_insecure]


def test_a_flag_is_true_or_false() -> None:
    for said in ("'false'", "0", "[true]"):
        file = ("--config", config(f"[shuffler]\ninsecure = {said}\n"))
        words = refused(overhand("shuffler", *NEEDED["shuffler"], *file))
        assert "insecure must be true or false" in words


def test_a_demonstration_is_not_what_the_environment_says() -> None:
    kept = {"PATH": "/bin", "OVERHAND_TOKEN": "of a client"}
    service = {"OVERHAND_SERVER_PORT": "1", "OVERHAND_SHUFFLER_TOKENS": "hashes"}
    assert without_settings({**kept, **service}) == kept


# --- secrets --------------------------------------------------------------------------------------


def test_no_secret_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("server.key", "token.sha256"):
        Path(name).write_text(SECRET)
    monkeypatch.setenv("OVERHAND_SERVER_DATABASE", ADDRESS)
    result = overhand("server", "--show-settings")
    assert SECRET not in result.stdout
    assert 'database = "postgresql://me:***@db:5432/sums"' in result.stdout
    assert 'key = "server.key"' in result.stdout


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://db:5432/sums", "postgresql://db:5432/sums"),
        ("postgresql://me@db:5432/sums", "postgresql://me@db:5432/sums"),
        ("postgresql://me:a/b@c:d@db/sums", "postgresql://me:***@db/sums"),
        ("postgres://me@x:a@db", "postgres://me@x:***@db"),
        (
            "postgresql://db/sums?user=me&password=a%20b",
            "postgresql://db/sums?user=me&password=***",
        ),
        ("a:b@c.db", "a:b@c.db"),  # a file of that name
    ],
)
def test_passwords_are_masked_wherever_an_address_has_them(address: str, expected: str) -> None:
    assert mask(address) == expected


def test_a_file_with_a_password_is_for_its_owner_alone() -> None:
    public = config(f'[server]\ndatabase = "{ADDRESS}"\n', mode=0o640)
    said = refused(overhand("server", "--config", public, "--show-settings"))
    assert ("chmod 600" in said, SECRET in said) == (True, False)
    assert format_exactly("server", "--config", config('[server]\ndatabase = "a.db"\n', mode=0o644))


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[server]\nprot = 1", r"[server] has no option prot: did you mean port?"),
        ("[server]\nmetrics_port = 1", "did you mean metrics-port?"),
        ("[server]\nauthorities = 'x'", "[server] has no option authorities"),
        (
            "[shuffler]\ndeadlin = 1",
            "[shuffler] has no option deadlin: did you mean deadline?",
        ),  # another's
        ("[server]\nconfig = 'other.toml'", "[server] has no option config"),
        ("[server]\nshow-settings = 1", "[server] has no option show-settings"),
        ("[sever]\nport = 1", "sever is neither the table [server] nor [shuffler]"),
        ("port = 1", "port is neither the table"),
        ("server = 1", "server is neither the table"),
        ("[server]\nport = 80.5", "config.toml: port: "),
        ("[server]\nport = true", "port must be a string or a number"),
        ("[server]\ndatabase = ['a']", "database must be a string or a number"),
        ("[server]\nport = ", "cannot read settings from config.toml"),
        ("[server]\ndatabase = '\udcff'", "cannot read settings from config.toml"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(content: str, words: str) -> None:
    Path("config.toml").write_text(content, errors="surrogateescape")
    assert words in refused(overhand("server", "--config", "config.toml"))


def test_a_file_that_is_not_there_is_refused() -> None:
    assert "nowhere.toml" in refused(overhand("server", "--config", "nowhere.toml"))


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("OVERHAND_SHUFFLER_TOKNS", "hashes", "did you mean OVERHAND_SHUFFLER_TOKENS?"),
        ("OVERHAND_SHUFFLER_TOKENS", "", "variable OVERHAND_SHUFFLER_TOKENS is empty"),
    ],
)
def test_a_variable_that_would_be_left_out_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    """Or the service would start without what the operator asked for: here, open to everybody."""
    monkeypatch.setenv(name, value)
    assert words in refused(overhand("shuffler", *NEEDED["shuffler"], "--show-settings"))
    assert overhand("server", "--show-settings").returncode == 0
