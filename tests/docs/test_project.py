"""The project's own files agree: one version, its changelog, and what a code host is told to do."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import overhand

ROOT = next(folder for folder in Path(__file__).parents if (folder / "pyproject.toml").exists())
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_version_is_that_of_the_package_everywhere() -> None:
    assert "version" in PYPROJECT["project"]["dynamic"]
    assert PYPROJECT["tool"]["hatch"]["version"]["path"] == "src/overhand/__init__.py"
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    package = json.loads((ROOT / "clients/javascript/package.json").read_text(encoding="utf-8"))
    assert citation["version"] == package["version"] == overhand.__version__


def test_the_changelog_begins_with_what_is_to_come_and_tells_of_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert titles[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(overhand.__version__)}\] - \d{{4}}-\d\d-\d\d", titles[1])
    for title in titles:
        (version,) = re.findall(r"^\[(.+)\]", title)
        assert f"\n[{version}]: https://" in text, "the title links to nothing"


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
PARTS = re.findall(r"^parts=\((.+)\)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def parsed(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(workflow: Path) -> Iterator[dict[str, Any]]:
    for job in parsed(workflow)["jobs"].values():
        assert job["timeout-minutes"] <= 90
        yield from job["steps"]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_asks_for_little_and_runs_what_there_is(workflow: Path) -> None:
    """More permissions are given to a job alone; targets of make exist; actions have a version."""
    assert parsed(workflow)["permissions"] == {"contents": "read"}
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    assert set(re.findall(r"^make ([\w-]+)", commands, re.MULTILINE)) <= TARGETS
    used = [step["uses"] for step in steps(workflow) if "uses" in step]
    assert used
    assert not [action for action in used if not re.search(r"@(release/)?v\d+$", action)]


def test_the_workflow_runs_every_part_and_every_version_that_the_package_is_said_to_run_on() -> (
    None
):
    matrix = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["run"]["strategy"]["matrix"]
    rows = [*matrix["parts"], *(row["parts"] for row in matrix["include"])]
    assert {part for row in rows for part in row.split()} == set(PARTS[0].split())
    said = [name.rpartition(" ")[2] for name in PYPROJECT["project"]["classifiers"]]
    assert matrix["python"] == [version for version in said if re.fullmatch(r"3\.\d+", version)]


def test_other_systems_run_what_is_tried_on_this_one() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (found,) = re.findall(
        r"^test-core: .*installed-(.+)\n.*\$\(PYTEST\) (.+)$", makefile, re.MULTILINE
    )
    extras, tests = found
    *_, install, run = parsed(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]["elsewhere"][
        "steps"
    ]
    assert install["run"].endswith(f'".[{extras}]"')
    assert run["run"].endswith(f" {tests}")


def test_examples_are_the_same_each_time_without_our_conftest_too() -> None:
    """And may take as long as they do: Hypothesis has a profile for that, if it is asked for."""
    lines = [
        line
        for file in ("Makefile", ".github/workflows/ci.yml")
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if " --noconftest " in line
    ]
    assert len(lines) == 2
    assert not [line for line in lines if " --hypothesis-profile ci " not in line]
    told = "from hypothesis import settings; ci = settings.get_profile('ci'); "
    told += "print(ci.derandomize, ci.deadline, ci.database)"
    new = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert new.stdout.split() == ["True", "None", "None"]


def test_continuous_integration_refuses_a_part_that_it_has_not() -> None:
    run = ["bash", str(ROOT / ".ci" / "run"), "chekc"]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert PARTS[0] in done.stderr


def test_a_fault_of_a_guarantee_is_not_reported_in_public() -> None:
    forms = {path.stem: parsed(path) for path in FORMS}
    config = forms.pop("config")
    assert not config["blank_issues_enabled"]
    assert [link for link in config["contact_links"] if link["url"].endswith("/security/policy")]
    assert len(forms) >= 2
    for form in forms.values():
        assert {"name", "description", "body"} <= set(form)
        inputs = [part for part in form["body"] if part["type"] != "markdown"]
        assert len({part["id"] for part in inputs}) == len(inputs) > 0


def test_every_kind_of_dependency_is_kept_up_to_date() -> None:
    updates = parsed(ROOT / ".github" / "dependabot.yml")["updates"]
    assert {update["package-ecosystem"] for update in updates} == {"pip", "npm", "github-actions"}
    for update in updates:
        assert update["groups"]
        assert (ROOT / update["directory"].removeprefix("/")).is_dir()


def test_a_licence_that_binds_users_is_refused() -> None:
    is_allowed = runpy.run_path(str(ROOT / ".ci" / "licences.py"))["is_allowed"]
    for licence in ("MIT", "Apache-2.0 AND (MIT OR GPL-2.0-only)", "LGPL-3.0-only", "BSD License"):
        assert is_allowed(licence), licence
    for licence in ("unknown", "", "GPL-3.0-or-later", "MIT AND AGPL-3.0-only", "Proprietary"):
        assert not is_allowed(licence), licence
