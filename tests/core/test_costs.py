"""What a report costs: bytes as they are sent, and times that follow from the constants."""

from __future__ import annotations

import pytest

import overhand as oh
from overhand.deploy.protocol.document import Document
from overhand.deploy.protocol.keys import KeyPair
from overhand.deploy.protocol.wire import Formats
from overhand.mechanisms import byte_width
from overhand.planning import costs
from overhand.planning.costs import Costs
from overhand.randomness import seeded_random
from overhand.values import BITS, Histogram, Reals, Values
from support.small_document import encode_report
from support.small_plans import PRIVACY
from support.tally_mechanism import tally

__all__ = ["tally"]

KINDS: list[tuple[str, Values]] = [
    ("coins", BITS),
    ("coins", Histogram(3)),
    ("shares", Reals(0.0, 5.0)),
    ("pairs", Histogram(3)),
    ("ballots", BITS),
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


def test_numbers_in_the_clear_and_messages_of_the_service_count() -> None:
    told = planned("pairs", Histogram(3)).summary()
    (level,) = told["levels"]
    assert (told["messages_per_user"], told["opened_per_user"]) == (1, 1)
    assert told["bits_per_user"] == 8 * 16 + 3 * level["modulus_bits"]
    told = planned("ballots").summary()
    (level,) = told["levels"]
    assert told["opened_per_user"] == pytest.approx(1 + level["dummies"] / level["batch_size"])


def test_the_influence_of_a_client_is_the_largest_of_any_level() -> None:
    plan = planned("coins", Reals(0.0, 5.0))
    assert plan.influence == max(
        m.layout.messages_per_user * m.quantizer.unit for m in plan.mechanisms
    )
    assert plan.influence > min(m.influence for m in plan.mechanisms)
    assert plan.summary()["influence"] == plan.influence


@pytest.mark.parametrize("mechanism", ["coins", "pairs", "ballots"])
@pytest.mark.parametrize("name", CONSTANTS)
def test_every_constant_is_used_as_often_as_its_name_says(
    name: str, mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(mechanism, Histogram(3))
    seals, numbers = plan.messages_per_user, 3 if mechanism == "pairs" else 0
    sealed = plan.costs.report_bytes - costs.HEADER_BYTES
    sealed -= sum(numbers * byte_width(m.layout.clear_bits) for m in plan.mechanisms)
    noise = 0.0 if mechanism == "coins" else 3 / plan.tree.lowest
    client, shuffler, server = {
        "REQUEST_SECONDS": (1, 0, 0),
        "LEVEL_SECONDS": (plan.tree.levels, 0, 0),
        "SEAL_SECONDS": (seals, plan.costs.opened - seals, 0),
        "NUMBER_SECONDS": (numbers, 0, 0),
        "ADMIT_SECONDS": (0, 1, 0),
        "ADMIT_BYTE_SECONDS": (0, sealed, 0),
        "ADD_SECONDS": (0, numbers, 0),
        "OPEN_SECONDS": (0, 0, plan.costs.opened),
        "MASK_SECONDS": (0, 0, numbers),
        "NOISE_SECONDS": (0, noise, noise),
    }[name]
    monkeypatch.setattr(costs, name, getattr(costs, name) + 1.0)
    changed = Costs.of(plan.mechanisms)
    for role, times in (("client", client), ("shuffler", shuffler), ("server", server)):
        before, after = (getattr(one, f"{role}_seconds") for one in (plan.costs, changed))
        assert after - before == pytest.approx(times)
