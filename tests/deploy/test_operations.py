"""What operators are handed: alerts and a board of real numbers, and files to start from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from overhand.cli import load_command
from overhand.deploy.server.app import ServerMetrics
from overhand.deploy.shuffler.running import MetricsCollector
from support.deployments import small_plan
from support.loopback_system import System, run

DOCS = Path(__file__).parents[2] / "docs"
FILES = DOCS / "operations"
DEPLOY = (DOCS / "deploy.md").read_text(encoding="utf-8")
ALERTS = yaml.safe_load((FILES / "alerts.yml").read_text(encoding="utf-8"))
BOARD = json.loads((FILES / "board.json").read_text(encoding="utf-8"))
RULES: dict[str, Any] = {
    rule["alert"]: rule for group in ALERTS["groups"] for rule in group["rules"]
}
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [rule["expr"] for rule in RULES.values()] + [
    target["expr"] for panel in PANELS for target in panel["targets"]
]
NAME = re.compile(r"\boverhand_\w+")
ENDINGS = {"histogram": ("_bucket", "_sum", "_count")}


def families(text: bytes) -> set[str]:
    """All names that an output has, those of which there is no sample yet included."""
    kinds = re.findall(r"^# TYPE (\S+) (\S+)$", text.decode(), re.MULTILINE)
    return {name + end for name, kind in kinds for end in ENDINGS.get(kind, ("",))}


@pytest.fixture
def told(tmp_path: Path) -> tuple[bytes, bytes]:
    """What the two services say to Prometheus, after a report or two."""
    texts: list[bytes] = []

    async def test(system: System) -> None:
        watch = MetricsCollector(
            system.store, system.document.formats, system.admission, system.metrics
        )
        async with system.client() as client:
            await client.report_many([1] * system.plan.tree.lowest)
        async with system.at_shuffler() as web:
            await web.get("/nowhere")
        await system.publish()
        texts.extend([watch.text(), ServerMetrics(system.server).current()])

    run(tmp_path, test, plan=small_plan())
    return texts[0], texts[1]


def test_alerts_and_board_name_numbers_that_the_services_tell(told: tuple[bytes, bytes]) -> None:
    there = families(told[0]) | families(told[1])
    named = {name for expression in EXPRESSIONS for name in NAME.findall(expression)}
    assert len(named) > 20
    assert not named - there
    assert not {"overhand_nothing", "overhand_reports"} & there  # so a slip would be seen


def test_alerts_and_board_tell_samples_apart_by_labels_that_they_have(
    told: tuple[bytes, bytes],
) -> None:
    text = b"".join(told).decode()
    there = {"job", "instance", *re.findall(r'[{,](\w+)="', text)}
    for expression in EXPRESSIONS:
        grouped = re.findall(r"\bby \(([^)]*)\)", expression)
        matched = re.findall(r'[{,]\s*(\w+)=~?"', expression)
        labels = {label.strip() for some in grouped for label in some.split(",")} | {*matched}
        assert labels <= there, expression


def test_every_expression_is_whole() -> None:
    for expression in EXPRESSIONS:
        for opening, closing in ("()", "[]", "{}"):
            assert expression.count(opening) == expression.count(closing), expression
        assert expression.count('"') % 2 == 0


def test_every_alert_says_how_bad_it_is_and_the_page_says_what_to_do() -> None:
    assert len(RULES) == sum(len(group["rules"]) for group in ALERTS["groups"])
    for name, rule in RULES.items():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"]["summary"].endswith(".")
        assert f"`{name}`" in DEPLOY, name
    assert set(re.findall(r"`(Overhand\w+)`", DEPLOY)) == set(RULES)


def test_every_panel_has_a_place_of_its_own() -> None:
    places: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & places, panel["title"]
        places |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_what_was_not_run_here_says_so() -> None:
    for path in FILES.iterdir():
        if path.name in ("nginx.conf", "haproxy.cfg"):  # tests/deploy/test_proxy.py runs them
            continue
        head = path.read_text(encoding="utf-8")[:1000]
        assert re.search(r"not run here", head, re.IGNORECASE), path.name


def test_the_composition_starts_commands_that_there_are() -> None:
    """With options that they take, and each operator's database out of the other's reach."""
    services = yaml.safe_load((FILES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    started = set()
    for name, service in services.items():
        if "overhand" not in service.get("image", ""):
            continue
        command, *words = service["command"]
        known = {opt for parameter in load_command(command).params for opt in parameter.opts}
        assert {word.partition("=")[0] for word in words} <= known, name
        assert "/readyz" in " ".join(service["healthcheck"]["test"])
        started.add(command)
    assert started == {"server", "shuffler"}
    assert set(services["server-database"]["networks"]) == {"server-side"}
    assert set(services["shuffler-store"]["networks"]) == {"shuffler-side"}
    assert "shuffler-side" not in services["server"]["networks"]
    assert "server-side" not in services["shuffler"]["networks"]
