"""Values in groups: what is accepted, and what another value of a user can do, by another route."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.fft import irfft, next_fast_len, rfft
from scipy.stats import binom

import overhand as oh
from overhand.accounting import Level, leaked_delta, shifted_pair
from overhand.lab.baselines import local_counter
from overhand.mechanisms import MECHANISMS, CoinSum, SharesSum
from overhand.model import Floats
from overhand.noise import LaplaceNoise
from overhand.values import BITS, values_of
from support.divergences import hockey_stick
from support.enumeration import fair, skewed
from support.kind_plans import kind_plan
from support.sampling import FALSE_FAIL
from support.small_plans import PRIVACY, REGULAR

DE_FR = oh.Grouped(["DE", "FR"], of=oh.Reals(10.0, 50.0))
CLICKS = oh.Grouped(["DE", "FR"], of=BITS, other="elsewhere")
PAIRS: list[tuple[str, float]] = [("FR", 50.0), ("DE", 20.0), ("FR", 10.0)]
STEP = 2e-4
REACH = 4.0


# --- what is accepted -----------------------------------------------------------------------------

TABLE = np.array(PAIRS, [("group", "U2"), ("spent", "f8")])


class Frame:
    """What a data frame has, as far as it matters."""

    columns = ("group", "spent")

    def __getitem__(self, name: str) -> Any:
        return TABLE[name]


@pytest.mark.parametrize(
    "given",
    [
        PAIRS,
        [list(pair) for pair in PAIRS],
        (["FR", "DE", "FR"], [50.0, 20.0, 10.0]),
        (np.array(["FR", "DE", "FR"]), np.array([50, 20, 10])),
        TABLE,
        Frame(),
        np.array(PAIRS, object),
    ],
    ids=["pairs", "lists", "columns", "arrays", "structured", "frame", "objects"],
)
def test_values_are_given_as_pairs_or_by_columns(given: Any) -> None:
    rows = DE_FR.rows(given)
    assert DE_FR.coordinates(rows).tolist() == [[0, 1, 0, 0], [0.25, 0, 0.75, 0], [0, 0, 0, 1]]


def test_a_data_frame_is_taken() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(PAIRS, columns=["group", "spent"])
    frame["group"] = frame["group"].astype("category")
    assert np.array_equal(DE_FR.rows(frame), DE_FR.rows(PAIRS))
    frame["spent"] = frame["spent"].astype(object)
    assert np.array_equal(DE_FR.rows(frame), DE_FR.rows(PAIRS))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([("DE", 20.0), ("FX", 20.0)], "'FX' of user 12 is not one of the 2 labels"),
        ([("DE", 20.0), ("FR", 51.0)], "value 51 of user 12 is not between 10 and 50"),
        ([("DE", math.nan)], "user 11 is not finite: nan"),
        ([("DE", "20")], "must be numbers"),
        ([("DE", None)], "must be numbers"),
        ([(20.0, "DE")], "user 11 has float 20.0, not a label"),
        ([("DE", 20.0, 1)], "some values are not pairs: values are pairs of a label"),
        (["DE"], "some values are not pairs"),
        ("DE", "some values are not pairs"),
        ({"DE": 20.0}, "some values are not pairs"),
        (7, "some values are not pairs"),
        (np.zeros(3), r"values of shape \(3,\)"),
        ((["DE"], [20.0], [1]), "a tuple of 3"),
        ((["DE", "FR"], [20.0]), "2 labels but 1 numbers"),
        (np.zeros(1, [("a", "U2"), ("b", "f8"), ("c", "f8")]), "a table of 3 columns"),
    ],
)
def test_anything_else_is_refused_and_named(given: Any, words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words) as refused:
        DE_FR.rows(given, first=10)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("labels", "of", "other", "words"),
    [
        (["DE"], BITS, None, "labels=1"),
        (["DE", "DE"], BITS, None, "'DE' occurs twice"),
        (["DE", "FR"], oh.Vectors(2), None, "must be Reals or Bits"),
        (["DE", "FR"], "real", None, "must be Reals or Bits"),
        (["DE", "FR"], BITS, "real", "choose another label"),
    ],
)
def test_groups_that_are_none_are_refused(labels: Any, of: Any, other: Any, words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        oh.Grouped(labels, of, other)


def test_groups_are_spelled_and_clip() -> None:
    assert CLICKS.spec == "grouped:DE,FR:elsewhere:bit"
    clipping = values_of("grouped:DE,FR:real:10:50", clip=True)
    assert isinstance(clipping, oh.Grouped)
    assert clipping.of == oh.Reals(10.0, 50.0, clip=True)
    assert np.array_equal(clipping.rows([("DE", 99.0)]), DE_FR.rows([("DE", 50.0)]))
    assert CLICKS.labels == ("DE", "FR", "elsewhere")
    assert CLICKS.rows([("IT", 1)]).tolist() == [[2, 1, 0]]


# --- sums -----------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(0, 5), st.integers(1, 4))
def test_counts_and_sums_are_those_of_a_loop_over_users(seed: int, blocks: int, size: int) -> None:
    generator, users = np.random.default_rng(seed), blocks * size
    for values, numbers in (
        (DE_FR, generator.uniform(10, 50, users)),
        (CLICKS, generator.integers(0, 2, users)),
    ):
        groups = generator.integers(0, values.groups, users)
        labels = [values.labels[group] for group in groups]
        rows = values.rows((labels, numbers))
        counts, sums = values.counts_and_sums(values.total(rows))
        for place in range(values.groups):
            assert counts[place] == pytest.approx((groups == place).sum())
            assert sums[place] == pytest.approx(numbers[groups == place].sum())
        running, after = values.running_sums(rows), values.sums_after_blocks(rows, size)
        assert after == pytest.approx(running[size - 1 :: size])
        assert values.total(rows) == pytest.approx(values.coordinates(rows).sum(axis=0))
        if values.is_whole:
            assert after.dtype == running.dtype == np.int64


def test_without_noise_counts_are_exact_and_numbers_unbiased() -> None:
    """Rounding gives the two cells of a user all its steps: a mutant that rounds both errs."""
    plan = kind_plan(oh.RegularTree(4000, (2000,)), DE_FR, noise_bits=0, steps=3)
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    total.update_many([("DE", 27.0)] * 1500 + [("FR", 41.0)] * 500)
    counts, sums = DE_FR.counts_and_sums(total.estimate.value)
    assert counts == pytest.approx([1500, 500])
    errors = (sums - np.array([1500 * 27.0, 500 * 41.0])) / math.sqrt(plan.mechanisms[0].variance)
    assert (np.abs(errors) < 4 * math.hypot(50, 10)).all()
    assert (np.abs(errors) > 0).all()


def test_rounding_counts_with_no_less_than_it_does_to_a_sum() -> None:
    """Cells are then as good as independent, whatever the interval."""
    for low, high in ((0.0, 1.0), (-1.0, 1.0), (10.0, 50.0), (-50.0, -10.0)):
        values = oh.Grouped(["DE", "FR"], of=oh.Reals(low, high))
        mechanism = CoinSum.with_variance(10, 9.0, values=values, steps=5)
        worst = mechanism.size * (mechanism.quantizer.unit * (high - low)) ** 2 / 4
        assert mechanism.rounding_variance * (values.reader[1] ** 2).sum() >= worst * (1 - 1e-12)


# --- what another value can do --------------------------------------------------------------------


@given(st.integers(0, 2**32))
def test_no_other_value_takes_or_gives_more_steps_than_stated(seed: int) -> None:
    for values, steps in ((DE_FR, 7), (CLICKS, 1)):
        mechanism = CoinSum.with_variance(10, 99.0, values=values, steps=steps)
        random = oh.seeded_random(seed)
        rows = values.uniform(random, 40), values.uniform(random, 40)
        first, second = (mechanism.quantizer.to_steps(r, random) for r in rows)
        away = (second - first).astype(np.int64)
        assert (np.maximum(away, 0).sum(axis=1) <= steps).all()
        assert (np.maximum(-away, 0).sum(axis=1) <= steps).all()
        assert ((away != 0).sum(axis=1) <= mechanism.quantizer.sensitivity.counts).all()


@pytest.mark.parametrize(
    "law", [fair(40), skewed(60), LaplaceNoise(Fraction(2), 0.7)], ids=["fair", "skewed", "laplace"]
)
@pytest.mark.parametrize(("a", "b"), [(1, 1), (1, 3), (4, 2)])
def test_two_counts_are_never_easier_to_see_than_one_that_moves_as_far(
    law: Any, a: int, b: int
) -> None:
    alone = shifted_pair(law, a + b)
    together = [np.multiply.outer(x, y).ravel() for x, y in both(law.pmf.probabilities, a, b)]
    for upper, lower in ((0, 1), (1, 0)):
        for epsilon in (-1.0, 0.0, 0.3, 1.0, 2.5):
            apart = hockey_stick(together[upper], together[lower], epsilon)
            assert apart <= hockey_stick(alone[upper], alone[lower], epsilon) + 1e-12


def both(noise: Floats, a: int, b: int) -> list[tuple[Floats, Floats]]:
    """Of two counts that move by a and by b, and of the same that do not."""
    still = [np.concatenate([noise, np.zeros(shift)]) for shift in (a, b)]
    moved = [np.concatenate([np.zeros(shift), noise]) for shift in (a, b)]
    return [(moved[0], moved[1]), (still[0], still[1])]


def test_of_noise_that_is_not_log_concave_they_are() -> None:
    noise = np.array([0.5] + [0.0] * 9 + [0.5])
    moved, still = (np.multiply.outer(x, y).ravel() for x, y in both(noise, 5, 5))
    one = np.concatenate([np.zeros(10), noise]), np.concatenate([noise, np.zeros(10)])
    assert hockey_stick(moved, still, 0.0) > hockey_stick(*one, 0.0)


def test_a_leak_concerns_all_counts_that_move_at_all() -> None:
    plans = [
        oh.Plan.best(300, 2, PRIVACY, values=values, mechanism="shares")
        for values in (DE_FR, CLICKS)
    ]
    for plan, counts in zip(plans, (4, 2), strict=True):
        mechanism = plan.mechanisms[0]
        assert isinstance(mechanism, SharesSum)
        level = Level(
            mechanism.noise(), sensitivity=mechanism.quantizer.sensitivity, view_distance=1e-9
        )
        assert leaked_delta([level], 1.0) == pytest.approx((1 + math.e) * counts * 1e-9)
        assert plan.delta_spent <= PRIVACY.delta


# --- the guarantee, from the printed levels -------------------------------------------------------


def printed_laws(plan: oh.Plan) -> list[tuple[Floats, int]]:
    """The noise of a count of every level, and the steps that a user has there."""
    laws = []
    for level in json.loads(plan.to_json())["mechanisms"]:
        noise, trials = level["noise"], level["size"] * level["noise"]["bits"] // 2
        assert noise["opposed"]
        p = noise["probability"][0] / 2 ** noise["probability"][1]
        ones = binom.pmf(np.arange(trials + 1), trials, p)
        laws.append((np.convolve(ones, ones[::-1]), level["steps"]))
    return laws


def loss_of(law: Floats, shift: int) -> Floats:
    """The law of the privacy loss of a count that moves, to the nearest of a grid's points."""
    moved = np.concatenate([np.zeros(shift), law])
    still = np.concatenate([law, np.zeros(shift)])
    seen = (moved > 1e-30) & (still > 1e-30)
    losses = np.log(moved[seen] / still[seen])
    places = np.round((np.clip(losses, -REACH, REACH) + REACH) / STEP).astype(np.int64)
    laid_out = np.zeros(round(2 * REACH / STEP) + 1)
    np.add.at(laid_out, places, moved[seen])
    return laid_out


def delta_of(
    laws: Sequence[tuple[Floats, int]], parts: Sequence[Fraction], epsilon: float
) -> float:
    """What all levels show together if these parts of a user's steps move, count by count."""
    shifts = [(law, round(part * steps)) for law, steps in laws for part in parts]
    moved = [loss_of(law, shift) for law, shift in shifts if shift]
    length = sum(len(loss) - 1 for loss in moved) + 1
    size = next_fast_len(length, real=True)
    product = np.prod([rfft(loss, size) for loss in moved], axis=0)
    together = np.maximum(irfft(product, size)[:length], 0.0)
    losses = np.arange(length) * STEP - len(moved) * REACH
    beyond = losses > epsilon
    return float((together[beyond] * -np.expm1(epsilon - losses[beyond])).sum())


WHOLE, HALF, THIRD = Fraction(1), Fraction(1, 2), Fraction(1, 3)


@pytest.mark.parametrize("values", [DE_FR, CLICKS], ids=str)
def test_delta_is_that_of_the_printed_levels_by_another_route(values: oh.Grouped) -> None:
    plan = oh.Plan.best(3000, 2, PRIVACY, values=values)
    laws = printed_laws(plan)
    ends = delta_of(laws, [WHOLE, WHOLE], PRIVACY.epsilon)
    assert 0.97 * PRIVACY.delta <= ends <= PRIVACY.delta * (1 + 1e-3)
    if values.is_whole:
        return
    between = [HALF] * 4, [WHOLE, HALF, HALF], [THIRD, 1 - THIRD, THIRD, 1 - THIRD]
    for parts in between:
        assert delta_of(laws, parts, PRIVACY.epsilon) < ends


# --- where they appear ----------------------------------------------------------------------------


def test_the_local_model_has_an_answer_for_groups() -> None:
    for values in (DE_FR, CLICKS):
        local = local_counter(20_000, PRIVACY, values)
        rows = values.rows([(values.labels[1], values.of.lows[0])] * 10_000)
        if not values.is_whole:
            rows = np.concatenate([rows, values.rows([("DE", 30.0)] * 10_000)])
        sums = local.start(oh.seeded_random(3)).estimates(rows)[-1]
        truth = values.total(rows)
        radius = local.error_bound(FALSE_FAIL)  # Bernstein's inequality, at all times at once
        assert (np.abs(sums - truth) <= radius).all()
        # Seen by far: the cells in another order.
        assert np.abs(truth - np.roll(truth, 1)).max() > 2 * radius


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_every_mechanism_serves_groups_of_bits(mechanism: str) -> None:
    plan = oh.Plan.best(300, 2, PRIVACY, values=CLICKS, mechanism=mechanism)
    assert oh.Plan.from_json(plan.to_json()) == plan
    total = oh.ContinualSum(plan, oh.seeded_random(1))
    total.update_many([("FR", 1)] * 200 + [("IT", 0)] * 100)
    counts, sums = CLICKS.counts_and_sums(total.estimate.value)
    bound = 3 * plan.error_bound(1e-3)
    assert (np.abs(counts - [0, 200, 100]) < bound).all()
    assert (np.abs(sums - [0, 200, 0]) < bound).all()


def test_a_plan_of_groups_knows_its_labels() -> None:
    plan = kind_plan(REGULAR, DE_FR)
    other = kind_plan(REGULAR, oh.Grouped(["DE", "IT"], of=DE_FR.of))
    assert plan.digest != other.digest
    assert oh.Plan.from_json(plan.to_json()).values.labels == ("DE", "FR")
    assert plan.values.coordinate_names == ("DE at 50", "FR at 50", "DE at 10", "FR at 10")
