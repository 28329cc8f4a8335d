"""Correlated noise: its coefficients, its state of whole numbers, its law and its variances."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import overhand as oh
from overhand.model import Counts, Floats
from overhand.noise import (
    Coins,
    CorrelatedNoise,
    DiscreteGaussian,
    IndependentNoise,
    Polya,
    noise_of,
)
from overhand.noise.services import Rotation, _rule
from overhand.randomness import HALF, Random, seeded_random
from support.random_streams import keyed
from support.sampling import assert_normal

BLOCKS = (3, 10, 1000, 40_000, 10**8)


def coefficients(noise: CorrelatedNoise, count: int) -> list[Fraction]:
    """c_0, c_1, ... exactly: what one unit of noise does to the filter, block after block."""
    registers = [Fraction(r.gain, noise.step) for r in noise.rotations]
    found = [Fraction(1)]
    for _ in range(count):
        signal = Fraction(0)
        for i, r in enumerate(noise.rotations):
            registers[i], signal = turned(r, registers[i], signal)
        found.append(-signal)
    return found


def turned(r: Rotation, register: Fraction, signal: Fraction) -> tuple[Fraction, Fraction]:
    """The three shears of a rotation, without rounding."""
    signal -= r.s * register
    register += r.t * signal
    signal -= r.s * register
    return register, signal


def inverse(noise: CorrelatedNoise, count: int) -> Floats:
    """The coefficients of 1 / C."""
    c = np.array([float(one) for one in coefficients(noise, count)])
    found = np.zeros(count + 1)
    found[0] = 1.0
    for k in range(1, count + 1):
        found[k] = -(c[1 : k + 1] @ found[:k][::-1])
    return found


def prefix_matrix(noise: CorrelatedNoise, rows: int) -> Floats:
    """Row t has the weights of z_1, z_2, ... in the noise of the first t blocks."""
    running = np.cumsum(inverse(noise, rows))
    return np.array(
        [[running[t - 1 - j] if j < t else 0.0 for j in range(rows)] for t in range(rows + 1)]
    )


@pytest.mark.parametrize("blocks", BLOCKS)
def test_coefficients_are_sums_of_powers_of_the_poles(blocks: int) -> None:
    noise = CorrelatedNoise.of(5.0, blocks)
    lacks = np.exp(np.linspace(math.log(1.2 / max(3, blocks)), math.log(0.68), 12))
    poles, zeros = [float(r.pole) for r in noise.rotations], 1 - lacks[1::2]
    weights = [
        math.prod(p - z for z in zeros) / math.prod(p - o for o in poles if o != p) for p in poles
    ]
    found = [float(one) for one in coefficients(noise, 40)]
    due = [1.0, *(sum(w * p**k for w, p in zip(weights, poles, strict=True)) for k in range(40))]
    np.testing.assert_allclose(found, due, rtol=0, atol=2e-7)


@pytest.mark.parametrize("blocks", BLOCKS)
def test_a_rotation_keeps_its_norm_exactly(blocks: int) -> None:
    for r in CorrelatedNoise.of(5.0, blocks).rotations:
        for register, signal in ((1, 0), (0, 1), (3, -7), (-(2**40), 2**41 + 1)):
            turned_to = turned(r, Fraction(register), Fraction(signal))
            before = r.weight * register**2 + signal**2
            assert r.weight * turned_to[0] ** 2 + turned_to[1] ** 2 == before


def test_the_norm_is_that_of_all_coefficients() -> None:
    noise = CorrelatedNoise.of(5.0, 10)
    total = sum(one**2 for one in coefficients(noise, 150))
    assert total < noise.square_norm < total * (1 + Fraction(1, 10**12))


@pytest.mark.parametrize("blocks", BLOCKS)
def test_the_certificate_is_the_norm_in_deviations_rounded_up(blocks: int) -> None:
    noise = CorrelatedNoise.of(7.5, blocks)
    exact = math.sqrt(noise.square_norm) * 3 / noise.deviation
    assert exact < noise.mu(3.0) < exact * (1 + 1e-11)
    assert 7.5 <= noise.deviation < 7.5 * (1 + 1e-9)


def test_what_the_state_lacks_grows_with_the_root_of_all_that_there_may_be() -> None:
    noise = CorrelatedNoise.of(5.0, 40_000)
    one, many = noise.state_distance(1), noise.state_distance(10_000)
    assert math.isclose(many, 100 * one, rel_tol=1e-6)
    assert one <= 1.1 * math.sqrt(noise.cap) / 2**50


# Whole numbers, one to one.


def backwards(
    noise: CorrelatedNoise, state: Counts, drawn: Counts, forgotten: Counts, offsets: Counts
) -> tuple[Counts, Counts]:
    """The state before one block and what went into it, from those after it and what came out."""
    registers = [column.copy() for column in state]
    for register, r in zip(registers, noise.rotations, strict=True):
        register -= r.gain * drawn
    signal = forgotten.copy()
    for i in reversed(range(len(registers))):
        r, (one, two, three) = noise.rotations[i], offsets[3 * i : 3 * i + 3].tolist()
        signal += (r.sine * registers[i] + three) >> r.sine_bits
        registers[i] -= (r.tangent * signal + two) >> r.tangent_bits
        signal += (r.sine * registers[i] + one) >> r.sine_bits
    return np.stack(registers), signal


@pytest.mark.parametrize("coordinates", [1, 40])
def test_every_block_can_be_undone_bit_for_bit(coordinates: int) -> None:
    noise, random = CorrelatedNoise.of(5.0, 1000), keyed(1)
    rng = np.random.default_rng(1)
    state = noise.start(random, coordinates)
    for _ in range(40):
        kept, forgotten = rng.normal(0, 2.0**50, (2, 1, coordinates)).astype(np.int64)
        offsets = rng.integers(0, noise._offset_masks + 1, (1, 18)).astype(np.int64)
        drawn, after = noise._move(state, kept, forgotten, offsets, None, at_once=True)
        signals = signal_of(noise, state, kept[0], offsets[0])
        np.testing.assert_array_equal(
            drawn[0], (signals + forgotten[0] + noise.step // 2) // noise.step
        )
        before, found = backwards(noise, after, drawn[0], signals, offsets[0])
        np.testing.assert_array_equal(before, state)
        np.testing.assert_array_equal(found, kept[0])
        state = after


def signal_of(noise: CorrelatedNoise, state: Counts, kept: Counts, offsets: Counts) -> Counts:
    registers, signal = [column.copy() for column in state], kept.copy()
    for i, r in enumerate(noise.rotations):
        one, two, three = offsets[3 * i : 3 * i + 3].tolist()
        signal -= (r.sine * registers[i] + one) >> r.sine_bits
        registers[i] += (r.tangent * signal + two) >> r.tangent_bits
        signal -= (r.sine * registers[i] + three) >> r.sine_bits
    return signal


@given(st.sampled_from(BLOCKS), st.integers(0, 2**32), st.booleans())
@settings(max_examples=20)
def test_numbers_and_arrays_move_alike(blocks: int, seed: int, clips: bool) -> None:
    noise, rng = CorrelatedNoise.of(5.0, blocks), np.random.default_rng(seed)
    clip = (lambda rows: np.clip(rows, -6, 6)) if clips else None
    state = noise.start(seeded_random(seed), 3)
    kept, forgotten = rng.normal(0, 2.0**50, (2, 5, 3)).astype(np.int64)
    offsets = rng.integers(0, noise._offset_masks + 1, (5, 18)).astype(np.int64)
    (one, after), (other, also) = (
        noise._move(state, kept, forgotten, offsets, clip, at_once=at_once)
        for at_once in (False, True)
    )
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(after, also)
    assert not clips or np.abs(one).max() <= 6


@pytest.mark.parametrize("coordinates", [1, 30])
def test_many_blocks_at_once_follow_the_same_law_as_one_by_one(coordinates: int) -> None:
    """With the same draws: what a block is given does not depend on how many are asked for."""
    noise = CorrelatedNoise.of(5.0, 1000)
    state = noise.start(keyed(2), coordinates)
    rng = np.random.default_rng(2)
    kept, forgotten = rng.normal(0, 2.0**50, (2, 6, coordinates)).astype(np.int64)
    offsets = rng.integers(0, noise._offset_masks + 1, (6, 18)).astype(np.int64)
    whole, after = noise._move(state, kept, forgotten, offsets, None, at_once=True)
    rows = []
    for block in range(6):
        part = slice(block, block + 1)
        row, state = noise._move(
            state, kept[part], forgotten[part], offsets[part], None, at_once=True
        )
        rows.append(row[0])
    np.testing.assert_array_equal(whole, rows)
    np.testing.assert_array_equal(after, state)


@pytest.mark.parametrize("coordinates", [1, 20])
def test_every_shear_of_every_block_has_a_uniform_offset_of_its_own(
    coordinates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise, random = CorrelatedNoise.of(5.0, 10**6), keyed(3)
    seen = list[Counts]()
    move = CorrelatedNoise._move

    def keep(self: CorrelatedNoise, state: Counts, *draws: Any, at_once: bool) -> Any:
        assert at_once == (coordinates > 1)
        seen.append(draws[2])
        return move(self, state, *draws, at_once=at_once)

    monkeypatch.setattr(CorrelatedNoise, "_move", keep)
    state = noise.start(random, coordinates)
    for _ in range(2):
        _, state = noise.advance(state, random, 2000)
    offsets = np.concatenate(seen)
    bits = [bits for r in noise.rotations for bits in (r.sine_bits, r.tangent_bits, r.sine_bits)]
    assert offsets.shape == (4000, 18)
    assert len(np.unique(offsets, axis=0)) == 4000
    for column, width in zip(offsets.T, bits, strict=True):
        assert 0 <= column.min() <= column.max() < 2**width
        assert_normal(
            (column + 0.5) / 2**width * math.sqrt(12) - math.sqrt(3), 1.0, factor=2.0, offset=0.3
        )
    assert len(np.unique(offsets[:, 0] * 2**16 + offsets[:, 2] % 2**16)) > 3990  # not one for both


def test_a_state_is_of_whole_numbers_and_is_not_changed_in_place() -> None:
    noise = CorrelatedNoise.of(5.0, 1000)
    for coordinates in (1, 30):
        state = noise.start(keyed(4), coordinates)
        kept = state.copy()
        _, after = noise.advance(state, keyed(5), 3)
        assert {state.dtype, after.dtype} == {np.dtype(np.int64)}
        np.testing.assert_array_equal(state, kept)
        assert (after != state).all()


# What the theorem about the state says, by its definition.


def test_registers_and_blocks_take_fresh_draws_of_their_own_deviation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All of them whole numbers in units of the state, and none of them made wider afterwards."""
    noise, random = CorrelatedNoise.of(5.0, 1000), keyed(10)
    asked, given = list[tuple[Fraction, int]](), list[Counts]()
    draw = DiscreteGaussian.draw

    def note(law: DiscreteGaussian, random: Random, count: int) -> Counts:
        asked.append((law.variance, count))
        given.append(draw(law, random, count))
        return given[-1]

    monkeypatch.setattr(DiscreteGaussian, "draw", note)
    move, used = CorrelatedNoise._move, list[Counts]()

    def keep(self: CorrelatedNoise, state: Counts, *draws: Any, at_once: bool) -> Any:
        used.append(np.stack(draws[:2]))
        return move(self, state, *draws, at_once=at_once)

    monkeypatch.setattr(CorrelatedNoise, "_move", keep)
    state = noise.start(random, 5)
    assert asked == [(Fraction(1 << 100) / r.weight, 5) for r in noise.rotations]
    np.testing.assert_array_equal(state, given)
    asked.clear()
    rows, _ = noise.advance(state, random, 3)
    again, _ = noise.advance(state, random, 3)
    assert asked == [(Fraction(1 << 100), 2 * 3 * 5)] * 2
    assert (rows != again).any()
    np.testing.assert_array_equal(np.reshape(used, (2, -1)), given[-2:])


def test_draws_that_are_all_larger_than_any_fit_the_words_of_a_state() -> None:
    """Eight deviations, every one of them; whole numbers of Python have no words to fit into."""
    for blocks in BLOCKS:
        noise, rng = CorrelatedNoise.of(5.0, blocks), np.random.default_rng(blocks)
        state = (8 << 50) * rng.choice([-1, 1], (6, 3))
        kept, forgotten = (8 << 50) * rng.choice([-1, 1], (2, 30, 3))
        offsets = rng.integers(0, noise._offset_masks + 1, (30, 18)).astype(np.int64)
        (one, after), (other, also) = (
            noise._move(state, kept, forgotten, offsets, None, at_once=at_once)
            for at_once in (False, True)
        )
        np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(after, also)


def divergence_of_paths(noise: CorrelatedNoise, units: int, offsets: list[list[int]]) -> float:
    """KL between a run and the ideal one of the theorem, by enumeration of all that is drawn.

    A deviation of a draw is so many units; there is one rotation, without feedback. Both laws are
    products of Gaussian functions at points that correspond, so they differ by their exponents.
    """
    (r,), far = noise.rotations, 7 * units
    weight, numbers = float(r.weight), np.arange(-far, far + 1)
    object.__setattr__(noise, "step", 1)  # so that what comes out is the signal

    def law(square: float) -> Floats:
        chances = np.exp(-(numbers**2) / (2 * square))
        return np.asarray(chances / chances.sum())

    registers, signals = law(units**2 / weight), law(units**2)
    exponents = -weight * registers @ numbers**2 - noise.cap * signals @ numbers**2
    f, n = (one.reshape(1, -1) for one in np.meshgrid(numbers, numbers, indexing="ij"))
    for _ in range(noise.cap):
        chances = np.outer(registers, signals).reshape(-1) / len(offsets)
        registers = np.zeros_like(registers)
        for of_block in offsets:
            out, after = noise._move(
                f, n, np.zeros_like(n), np.array([of_block]), None, at_once=True
            )
            exponents += chances @ out[0] ** 2
            places = np.clip(after[0], -far, far) + far
            registers += np.bincount(places, chances, minlength=len(numbers))
    exponents += weight * registers @ numbers**2
    return float(exponents) / (2 * units**2)


ALL_OFFSETS = [[a, b, c] for a in range(2) for b in range(2) for c in range(2)]


@pytest.mark.parametrize("units", [4, 8, 16])
def test_a_run_is_as_near_the_ideal_one_as_is_charged(
    units: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With states that are small enough to enumerate; by Pinsker's inequality."""
    noise = CorrelatedNoise(1 << 16, (Rotation(1, 1, 1, 1, 0),), cap=3)
    monkeypatch.setattr("overhand.noise.services._UNITS", units)
    charged = 2 * noise.state_distance(1) ** 2
    found = divergence_of_paths(replace(noise), units, ALL_OFFSETS)
    assert 0.4 * charged < found < charged
    assert divergence_of_paths(replace(noise), units, [[0, 0, 0]]) > 1.25 * found


def leaked_square(noise: CorrelatedNoise, block: int, leak: int) -> tuple[float, float]:
    """mu^2 of a step in a block: of what comes out of so many, and with the state after them.

    Everything drawn is Gaussian here, and nothing is rounded.
    """
    registers = len(noise.rotations)
    shears = [(float(r.s), float(r.t)) for r in noise.rotations]
    gains = np.array([float(r.gain) for r in noise.rotations])

    def turn(state: Floats, signal: Floats) -> Floats:
        for i, (s, t) in enumerate(shears):
            signal = signal - s * state[i]
            state[i] += t * signal
            signal = signal - s * state[i]
        return signal

    units = np.eye(registers + leak)
    state, moved = units[:registers].copy(), np.zeros((registers, 1))
    signals, shifts = list[Floats](), list[Floats]()
    for number in range(leak):
        signals.append(turn(state, units[registers + number]))
        shifts.append(noise.step * (number == block) - turn(moved, np.zeros(1)))
        moved[:, 0] += gains * (number == block)
    of_signal, *of_registers = (float(law.variance) for law in noise._samplers)
    seen = np.vstack([*signals, state])
    covariance = seen @ np.diag(of_registers + [of_signal] * leak) @ seen.T
    covariance[:leak, :leak] += of_signal * np.eye(leak)  # what is forgotten
    shift = np.concatenate([*shifts, -moved[:, 0]])
    out = shift[:leak] @ np.linalg.solve(covariance[:leak, :leak], shift[:leak])
    return float(out), float(shift @ np.linalg.solve(covariance, shift))


@pytest.mark.parametrize("blocks", [10, 1000, 40_000])
@pytest.mark.parametrize(("block", "leak"), [(0, 1), (0, 2), (0, 12), (3, 4), (5, 12)])
def test_a_leak_of_the_state_costs_no_more_than_is_said(blocks: int, block: int, leak: int) -> None:
    """What may still come counts twice, and what came out already once: from the first block on."""
    noise = CorrelatedNoise.of(5.0, blocks)
    squares = [float(one**2) for one in coefficients(noise, leak)]
    before = math.fsum(squares[: leak - block])
    out, with_state = leaked_square(noise, block, leak)
    assert math.isclose(out * noise.deviation**2, before, rel_tol=1e-9)
    due = before + 2 * (float(noise.square_norm) - before)
    assert math.isclose(with_state * noise.deviation**2, due, rel_tol=1e-9)
    assert with_state < 2 * noise.mu(1.0) ** 2


# What the noise is.


def runs(noise: CorrelatedNoise, blocks: int, coordinates: int, seed: int = 7) -> Counts:
    random = seeded_random(seed)
    return noise.advance(noise.start(random, coordinates), random, blocks)[0]


RUNS = 20_000
"""The mean square of their prefixes has a deviation of about half a per cent."""


def mean_square(noise: CorrelatedNoise, drawn: Counts, of: CorrelatedNoise | None = None) -> float:
    """Of all prefixes, in units of what the formula says."""
    due = (of or noise).prefix_variance(np.arange(1, len(drawn) + 1)).mean()
    return float((np.cumsum(drawn, axis=0) ** 2).mean() / due)


def test_prefixes_have_their_variance_over_a_whole_plan_and_beyond_it() -> None:
    noise = CorrelatedNoise.of(3.0, 100)
    drawn = runs(noise, 400, RUNS)
    assert abs(mean_square(noise, drawn[:100]) - 1) < 0.04
    ends = np.cumsum(drawn, axis=0)[[0, 9, 99, 399]]
    due = noise.prefix_variance(np.array([1, 10, 100, 400]))
    np.testing.assert_allclose((ends**2).mean(axis=1) / due, 1, atol=0.12)


def test_the_look_at_variances_sees_five_per_cent_less_noise() -> None:
    noise = CorrelatedNoise.of(3.0, 100)
    drawn = runs(noise.reduce(0.92, 1), 100, RUNS)
    assert abs(mean_square(noise, drawn, of=noise) - 1) > 0.04


def test_rounding_of_sums_instead_of_draws_would_be_seen() -> None:
    """Whole increments of real noise: their errors of rounding add up."""
    noise = CorrelatedNoise.of(1.0, 100)
    z = np.random.default_rng(1).normal(0, noise.deviation, (100, RUNS))
    walk = np.rint(_filtered(noise, z))
    assert mean_square(noise, walk.astype(np.int64)) > 1.3
    assert abs(mean_square(noise, runs(noise, 100, RUNS)) - 1) < 0.04


def _filtered(noise: CorrelatedNoise, z: Floats) -> Floats:
    terms = inverse(noise, len(z) - 1)
    return np.array([terms[: t + 1][::-1] @ z[: t + 1] for t in range(len(z))])


def test_draws_before_the_filter_are_white_from_the_first_block_on() -> None:
    """W_t + sum c_k W_(t-k) is z_t, rounded: no memory of the state is left in it."""
    noise = CorrelatedNoise.of(3.0, 1000)
    drawn = runs(noise, 12, 40_000).astype(np.float64)
    c = np.array([float(one) for one in coefficients(noise, 12)])
    white = np.array([c[: t + 1] @ drawn[t::-1][: t + 1] for t in range(12)])
    covariance = white @ white.T / white.shape[1] / (noise.deviation**2 + 1 / 12)
    # A correlation has a deviation of 1/200 here: the largest of 78 is beyond 0.033 in 10^-9.
    np.testing.assert_allclose(covariance, np.eye(12), atol=0.05)


def test_a_state_that_begins_at_zero_would_be_seen() -> None:
    """It leaves the first draws correlated."""
    noise, random = CorrelatedNoise.of(3.0, 1000), seeded_random(8)
    drawn, _ = noise.advance(np.zeros((6, 40_000), np.int64), random, 12)
    first = (drawn[0].astype(np.float64) ** 2).mean() / (noise.deviation**2 + 1 / 12)
    assert first < 0.7


def test_clipped_noise_is_what_later_blocks_correct() -> None:
    noise = CorrelatedNoise.of(3.0, 100)
    random = seeded_random(9)
    clipped, _ = noise.advance(
        noise.start(random, RUNS), random, 100, lambda rows: np.clip(rows, -3, 3)
    )
    assert np.abs(clipped).max() == 3
    assert mean_square(noise, clipped) < 1.2  # and not that of a walk


# Variances, by the definition.


@pytest.mark.parametrize("blocks", [3, 30, 1000])
def test_covariances_are_those_of_the_definition(blocks: int) -> None:
    noise, rows = CorrelatedNoise.of(4.0, blocks), 60
    weights = prefix_matrix(noise, rows)
    due = (noise.deviation**2 + 1 / 12) * weights @ weights.T
    t = np.arange(rows + 1)
    np.testing.assert_allclose(noise.covariance(t[:, np.newaxis], t), due, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(noise.prefix_variance(t), np.diag(due), rtol=1e-9, atol=1e-9)
    assert math.isclose(noise.mean_prefix_variance(rows), np.diag(due)[:rows].mean(), rel_tol=1e-9)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=50), st.sampled_from([3, 1000]))
def test_weighted_sums_have_the_variance_of_their_whitened_weights(
    weights: list[int], blocks: int
) -> None:
    noise, rows = CorrelatedNoise.of(4.0, blocks), len(weights)
    by_row = np.diff(prefix_matrix(noise, rows), axis=0).T @ np.array(weights, np.float64)
    due = (noise.deviation**2 + 1 / 12) * by_row @ by_row
    found = noise.whiten(np.array(weights, np.float64))
    assert math.isclose(found @ found, due, rel_tol=1e-9, abs_tol=1e-9)


def test_the_mean_over_many_rows_is_that_of_single_ones() -> None:
    noise = CorrelatedNoise.of(4.0, 10_000)
    for rows in (4096, 4097, 20_000):
        due = noise.prefix_variance(np.arange(rows)).mean()
        assert math.isclose(noise.mean_prefix_variance(rows), due, rel_tol=1e-9)


def test_a_single_block_stays_within_its_law() -> None:
    noise = CorrelatedNoise.of(3.0, 100)
    law, drawn = noise.law(1), runs(noise, 100, RUNS)
    assert (drawn[-1].astype(np.float64) ** 2).mean() < 1.1 * law.variance
    for beyond in (5, 10):
        assert (np.abs(drawn) > beyond).mean() <= 1.05 * law.tail(beyond)


# Its parameters.


@pytest.mark.parametrize(
    "noise", [CorrelatedNoise.of(4.0, 100), IndependentNoise(Polya(1, 1, 0.5), 9)]
)
def test_an_entry_is_the_noise(noise: Any) -> None:
    assert noise_of(noise.entry()) == noise


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": 100}, "step=100 must be a whole number from 65536"),
        ({"cap": 0}, "cap=0"),
        ({"rotations": ()}, "number of rotations"),
        ({"rotations": (Rotation(1, 0, 1, 0, 5),)}, "a pole of 0 is not in"),
        ({"rotations": (Rotation(100, 8, 90, 7, 5),) * 2}, "the same pole"),
        ({"rotations": (Rotation(200, 8, 90, 7, 5),)}, "sine=200"),
        ({"rotations": (Rotation(100, 8, 90, 7, 1 << 63),)}, "gain="),
        ({"rotations": (Rotation(1, 8, 90, 7, 5),)}, "the weight of a register"),
        ({"rotations": (Rotation(100, 41, 90, 7, 5),)}, "sine_bits=41"),
        ({"rotations": (Rotation(100, 8, 90, 7, 2.5),)}, "gain=2.5"),  # type: ignore[arg-type]
    ],
)
def test_other_parameters_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(oh.InvalidValue, match=words):
        replace(CorrelatedNoise.of(4.0, 100), **change)


@pytest.mark.parametrize("gain", [-1.0, 1e-30, 4.0], ids=["negative", "none", "large"])
def test_no_variance_is_told_of_noise_that_cannot_be_inverted(gain: float) -> None:
    """What is clipped of it, and charged for that, would follow from a number that means nothing.

    A gain of the wrong sign, a pole that a zero cancels, and a zero outside of the unit circle.
    """
    noise = CorrelatedNoise.of(4.0, 100)
    *others, last = noise.rotations
    changed = replace(noise, rotations=(*others, last._replace(gain=math.floor(gain * noise.step))))
    with pytest.raises(oh.InvalidValue, match="do not alternate"):
        changed.law(1)
    assert noise.law(1).variance > noise.deviation**2


def test_laplace_noise_has_no_state() -> None:
    """No rotation leaves it as it was: what there is to remember of it would not hide it."""
    noise, random = IndependentNoise(Polya(1, 1, 0.5), cap=9), keyed(11)
    state = noise.start(random, 4)
    rows, after = noise.advance(state, random, 6)
    assert (rows.shape, state.shape, after.shape) == ((6, 4), (0, 4), (0, 4))
    np.testing.assert_array_equal(rows.reshape(-1), noise.part.draw(keyed(11), 24))
    assert noise.mu(1.0) is None
    with pytest.raises(oh.InvalidValue, match="independent noise of services is Laplace noise"):
        noise_of({"each_service": Coins(2, HALF).entry(), "cap": 9})


def test_noise_that_is_too_wide_for_the_state_is_refused() -> None:
    with pytest.raises(oh.Infeasible, match="is too wide"):
        CorrelatedNoise.of(1e11, 100)


def test_the_rule_is_computed_once() -> None:
    _rule.cache_clear()
    for _ in range(3):
        CorrelatedNoise.of(5.0, 777)
    assert _rule.cache_info().misses == 1
