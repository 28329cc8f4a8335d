"""What `overhand plan` says of other mechanisms: only what is true, and labelled as such."""

from __future__ import annotations

import math

import pytest

import overhand as oh
from overhand.cli import advice
from overhand.cli.advice import Advice, advise
from overhand.values import BITS, Histogram, Reals, Values, Vectors
from support.cli_runner import as_json, overhand
from support.small_plans import PRIVACY

CASES: list[tuple[Values, str]] = [
    (values, mechanism)
    for values in (BITS, Reals(0.0, 5.0), Vectors(3), Histogram(40))
    for mechanism in ("coins", "shares")
]


def found(plan: oh.Plan, most: float = math.inf) -> dict[str, Advice]:
    return {one.mechanism: one for one in advise(plan, "exact", most)}


@pytest.mark.parametrize(("values", "mechanism"), CASES, ids=str)
def test_a_mechanism_is_named_only_for_what_it_is_better_in(values: Values, mechanism: str) -> None:
    plan = oh.Plan.best(3000, 2, PRIVACY, values=values, mechanism=mechanism)
    for one in found(plan).values():
        assert one.other is not None
        assert one.other.delta_spent <= PRIVACY.delta
        assert one.other.mechanisms[0].kind == one.mechanism != mechanism
        assert one.is_less == (one.other.rms_error <= 0.9 * plan.rms_error)
        assert one.is_fewer == (2 * one.other.messages_per_user <= plan.messages_per_user)
        label, numbers = one.row(plan)
        assert ("less error" in label, "fewer messages" in label) == (one.is_less, one.is_fewer)
        assert one.is_less or one.is_fewer
        assert f"{one.other.messages_per_user:,} messages" in numbers


def test_what_is_better_by_far_is_named() -> None:
    coins = oh.Plan.best(3000, 2, PRIVACY, mechanism="coins")
    shares = oh.Plan.best(3000, 2, PRIVACY, values=Vectors(3), mechanism="coins")
    assert found(coins)["shares"].is_less
    assert not found(coins)["shares"].is_fewer
    assert found(shares)["shares"].is_fewer


def test_shares_are_not_recommended_where_they_take_twice_the_messages() -> None:
    shown = overhand(
        "plan", "--horizon", "1000000", "--shufflers", "4", "--values", "histogram:200"
    )
    assert shown.returncode == 0
    assert "shares" not in shown.stdout


def test_nothing_is_named_beyond_the_limit_of_messages() -> None:
    plan = oh.Plan.best(3000, 2, PRIVACY, mechanism="coins")
    needed = found(plan)["shares"].messages
    assert "shares" in found(plan, most=needed)
    assert "shares" not in found(plan, most=needed - 1)


def test_messages_are_only_counted_where_noise_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = oh.Plan.best(3000, 2, PRIVACY, values=Vectors(3), mechanism="coins")
    exact = found(plan)["shares"]
    monkeypatch.setattr(advice, "_QUICK_DIMENSION", 2)
    monkeypatch.setattr(advice, "calibrate", None)  # would take long
    counted = found(plan)["shares"]
    assert counted.other is None
    assert counted.messages == pytest.approx(exact.messages, rel=0.2)
    assert f"about {counted.messages:,.0f}" in counted.row(plan)[1]


def test_who_asked_for_two_services_gets_no_advice_on_trees() -> None:
    assert not found(oh.Plan.best(3000, 2, PRIVACY, mechanism="services"))


@pytest.mark.parametrize("mechanism", ["coins", "pairs"])
def test_the_other_family_has_a_line_with_its_error_and_when_it_is_better(mechanism: str) -> None:
    line = ("plan", "--horizon", "3000", "--mechanism", mechanism)
    shown = " ".join(overhand(*line).stdout.split())
    other, words = {"coins": ("services", "must not collude"), "pairs": ("best", "few users")}[
        mechanism
    ]
    plan = oh.Plan.best(3000, epsilon=1.0, mechanism=other)
    assert f"with --mechanism {other} rms error {plan.rms_error:.4g}" in shown
    assert words in shown
    printed = as_json(*line)[other]
    assert printed == {
        "rms_error": plan.rms_error,
        "messages_per_user": plan.messages_per_user,
    }
