"""What a report costs: bytes as they are sent, and times that follow from the constants."""

from __future__ import annotations

import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document, encode_report
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import Formats
from overhand.planning import costs
from overhand.planning.costs import Costs
from overhand.randomness import seeded_random
from overhand.values import BITS, Histogram, Reals, Values
from support.small_plans import PRIVACY
from support.tally_mechanism import tally

__all__ = ["tally"]

KINDS: list[tuple[str, Values]] = [
    ("coins", BITS),
    ("coins", Histogram(3)),
    ("shares", Reals(0.0, 5.0)),
    ("pairs", Histogram(3)),
    ("tally", Histogram(3)),
]
CONSTANTS = [name for name in vars(costs) if name.endswith("_SECONDS")]


def planned(mechanism: str, values: Values = BITS) -> oh.Plan:
    return oh.Plan.best(300, 2, PRIVACY, values=values, mechanism=mechanism)


@pytest.mark.usefixtures("tally")
@pytest.mark.parametrize(("mechanism", "values"), KINDS, ids=str)
def test_a_plan_says_how_long_its_reports_are(mechanism: str, values: Values) -> None:
    plan = planned(mechanism, values)
    report = encode_report(Document(plan, KeyPair.generate().public_key), 1, seeded_random(1))
    told = plan.summary()["sealed_bytes_per_user"]
    assert told == len(report) == Formats.of(plan).report_length


@pytest.mark.usefixtures("tally")
def test_numbers_in_the_clear_and_messages_of_the_service_count() -> None:
    plan = planned("tally", Histogram(3))
    told = plan.summary()
    levels = plan.mechanisms
    assert told["messages_per_user"] == 3 * len(levels)
    assert told["bits_per_user"] == sum(
        3 * (m.layout.message_bits + m.layout.clear_bits) for m in levels
    )
    assert told["opened_per_user"] == pytest.approx(sum(3 + 3 / m.size for m in levels))
    assert told["noise_by"] == "users"


def test_the_influence_of_a_client_is_the_largest_of_any_level() -> None:
    plan = planned("coins", Reals(0.0, 5.0))
    assert plan.influence == max(
        m.layout.messages_per_user * m.quantizer.unit for m in plan.mechanisms
    )
    assert plan.influence > min(m.influence for m in plan.mechanisms)
    assert plan.summary()["influence"] == plan.influence


@pytest.mark.usefixtures("tally")
@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_is_used_as_often_as_its_name_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned("tally", Histogram(3))
    levels, seals, numbers = len(plan.mechanisms), plan.messages_per_user, 3 * len(plan.mechanisms)
    clear = sum(3 * (m.layout.clear_bits // 8) for m in plan.mechanisms)
    expected = {
        "REQUEST_SECONDS": ("client_seconds", 1.0),
        "LEVEL_SECONDS": ("client_seconds", levels),
        "SEAL_SECONDS": ("client_seconds", seals),  # and what the service adds: below
        "NUMBER_SECONDS": ("client_seconds", numbers),
        "ADMIT_SECONDS": ("shuffler_seconds", 1.0),
        "ADMIT_BYTE_SECONDS": (
            "shuffler_seconds",
            plan.costs.report_bytes - costs.HEADER_BYTES - clear,
        ),
        "ADD_SECONDS": ("shuffler_seconds", numbers),
        "OPEN_SECONDS": ("server_seconds", plan.costs.opened),
        "MASK_SECONDS": ("server_seconds", numbers),
    }
    role, times = expected[name]
    monkeypatch.setattr(costs, name, getattr(costs, name) + 1.0)
    changed = Costs.of(plan.mechanisms)
    sealed_by_service = plan.costs.opened - seals if name == "SEAL_SECONDS" else 0.0
    for seconds in ("client_seconds", "shuffler_seconds", "server_seconds"):
        added = getattr(changed, seconds) - getattr(plan.costs, seconds)
        other = sealed_by_service if seconds == "shuffler_seconds" else 0.0
        assert added == pytest.approx(times if seconds == role else other)
