"""The experiment with rules that weigh nodes: it is about the sums that rivals have."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.weighting import Covers, Weighted

import overhand as oh
from overhand.bandits import LinUCB, Practical
from overhand.model import Floats
from overhand.simulation.regret import Field, rival

FIELD = Field(3000, 3, oh.Privacy(1.0, 1e-6), dimension=2, mechanism="pairs")
PRIVATE = ("trusted", "local", "one-shuffler-0.5", "concurrent")


def covers_of(name: str, *, joined: bool) -> list[tuple[int, Floats]]:
    """At every release of silent users, in 400 runs: how many there are, and the parts."""
    sums = Covers(rival(name, FIELD).sums, FIELD.moments.dimension, joined)
    releases = sums.start([oh.seeded_random(run) for run in range(400)])
    found: list[tuple[int, Floats]] = []
    before, t = 0, releases.next_release(0)
    while t <= FIELD.horizon and len(found) < 60:
        rows = np.zeros((400, t - before, FIELD.moments.dimension))
        found.append((t, releases.after(rows)[0]))
        before, t = t, releases.next_release(t)
    return found


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("name", PRIVATE)
def test_the_parts_of_a_cover_add_up_to_the_sum_of_a_rival(name: str, joined: bool) -> None:
    """Users, variance as it is said, and variance as it is drawn."""
    of = rival(name, FIELD).sums
    for t, parts in covers_of(name, joined=joined):
        assert parts[:, 0, -2].sum() == t
        assert parts[:, 0, -1].sum() == pytest.approx(of.std(t) ** 2, rel=1e-9)
        assert parts[..., :-2].sum(axis=0).var() == pytest.approx(of.std(t) ** 2, rel=0.2)


def test_parts_are_joined_to_few() -> None:
    many, few = (covers_of("one-shuffler-0.5", joined=joined)[-1][1] for joined in (False, True))
    assert len(many) > 4 * len(few)


def test_of_one_exact_part_all_directions_have_the_same_weight() -> None:
    """Without noise the weights are 1, and the rule is that of prefix sums."""
    rng, constants = np.random.default_rng(1), Practical(3, 0.5)
    x = np.column_stack([np.full(500, 0.5), rng.uniform(-0.5, 0.5, (500, 2))])
    plain = LinUCB(constants)
    total = plain.rows(x, (x[:, 1] > 0).astype(float)).sum(axis=0)
    part = np.concatenate([total, [500.0, 0.0]])[np.newaxis, np.newaxis]
    found, expected = Weighted(constants).policy(500, part, 0.0), plain.policy(500, total, 0.0)
    np.testing.assert_allclose(found.theta[0], expected.theta, rtol=1e-9)
    np.testing.assert_allclose(found.scores(x[np.newaxis])[0], expected.scores(x), rtol=1e-9)
