"""Split and mix: how far a shuffled view of shares is from what the sum alone decides."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from overhand.errors import Infeasible, InvalidValue
from overhand.mechanisms import splitting
from overhand.mechanisms.splitting import (
    LEAST_USERS,
    MOST_SHARES,
    fewest_shares,
    view_distance,
)

View = tuple[int, ...]  # how often each element of the group shows
Law = dict[View, Fraction]

TINY = [(2, 3, 1), (2, 4, 1), (2, 5, 1), (2, 3, 2), (2, 4, 2), (3, 3, 1), (3, 4, 1), (3, 3, 2)]
"""Users, shares and bits of a modulus, few enough for every input and every share to be tried."""


def mean_collisions(users: int, edges: int, modulus: int) -> Fraction:
    """E of the paper, n! [x^n] F(x)^q / ((ns)! q) with F(x) the sum of (js)! / j! x^j."""
    f = [Fraction(math.factorial(j * edges), math.factorial(j)) for j in range(users + 1)]
    g = [Fraction(1)]
    for i in range(1, users + 1):
        terms = ((modulus * j - (i - j)) * f[j] * g[i - j] for j in range(1, i + 1))
        g.append(sum(terms, Fraction(0)) / i)
    return g[users] * math.factorial(users) / (math.factorial(users * edges) * modulus)


def log_of(number: Fraction) -> float:
    """Its logarithm, were it too large for a float."""
    return math.log(number.numerator) - math.log(number.denominator)


def collisions_bound(users: int, edges: int, bits: int) -> float:
    """What `view_distance` takes E - 1 to be at most."""
    return 4 * view_distance(users, edges + 1, bits) ** 2


def many_users_collisions(most: int, edges: int, modulus: float) -> list[float]:
    """E - 1 for 0, 1, ..., `most` users, by the same power of a series, without its cancellation.

    With g_k = E_k q (ks)! / k! the recursion for the coefficients of F^q is one for E.
    """
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most * edges + 1)))])

    def log_binomial(n: int, k: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.asarray(log_factorials[n] - log_factorials[k] - log_factorials[n - k])

    excess = [0.0, 0.0]
    for i in range(2, most + 1):
        k = np.arange(1, i)
        graphs = np.exp(log_binomial(i, k) - log_binomial(i * edges, k * edges))
        terms = (modulus * (i - k) - k) / i * graphs * (1 + np.array(excess[1:i]))
        excess.append(math.fsum(terms))
    return excess


def user_law(secret: int, shares: int, modulus: int) -> Law:
    """How the shares of one secret may look in a shuffle: all but one uniform."""
    views: Counter[View] = Counter()
    for uniform in itertools.product(range(modulus), repeat=shares - 1):
        last = (secret - sum(uniform)) % modulus
        seen = Counter((*uniform, last))
        views[tuple(seen[element] for element in range(modulus))] += 1
    return {view: Fraction(count, modulus ** (shares - 1)) for view, count in views.items()}


def view_law(secrets: tuple[int, ...], shares: int, modulus: int) -> Law:
    """The same for the shares of all users together."""
    law: Law = {(0,) * modulus: Fraction(1)}
    for secret in secrets:
        added: Law = {}
        for (view, p), (other, q) in itertools.product(
            law.items(), user_law(secret, shares, modulus).items()
        ):
            both = tuple(map(sum, zip(view, other, strict=True)))
            added[both] = added.get(both, Fraction(0)) + p * q
        law = added
    return law


def ideal_law(total: int, messages: int, modulus: int) -> Law:
    """Uniform shares with this sum: what the sum alone decides."""
    return user_law(total, messages, modulus)


def distance(law: Law, other: Law) -> Fraction:
    """Half of the sum of all differences: total variation."""
    views = law.keys() | other.keys()
    zero = Fraction(0)
    return sum((abs(law.get(v, zero) - other.get(v, zero)) for v in views), zero) / 2


def views_by_sum(users: int, shares: int, modulus: int) -> dict[int, list[tuple[Law, int]]]:
    """The laws of all inputs, each with how many orders of it there are, by the inputs' sum."""
    by_sum: dict[int, list[tuple[Law, int]]] = {}
    for secrets in itertools.combinations_with_replacement(range(modulus), users):
        orders = len(set(itertools.permutations(secrets)))
        law = view_law(secrets, shares, modulus)
        by_sum.setdefault(sum(secrets) % modulus, []).append((law, orders))
    return by_sum


def mean_law(laws: list[tuple[Law, int]]) -> Law:
    """The law of the view of a random one of these inputs."""
    inputs = sum(orders for _, orders in laws)
    mean: Law = {}
    for law, orders in laws:
        for view, probability in law.items():
            mean[view] = mean.get(view, Fraction(0)) + probability * orders / inputs
    return mean


@pytest.mark.parametrize(("users", "shares", "bits"), TINY)
def test_no_two_inputs_of_one_sum_are_further_apart_than_twice_the_bound(
    users: int, shares: int, bits: int
) -> None:
    bound = view_distance(users, shares, bits)
    compared = 0
    for laws in views_by_sum(users, shares, 1 << bits).values():
        for (law, _), (other, _) in itertools.combinations(laws, 2):
            assert distance(law, other) <= 2 * bound
            compared += 1
    assert compared


@pytest.mark.parametrize(("users", "shares", "bits"), TINY)
def test_every_view_is_within_the_bound_of_the_mean_view_of_its_sum(
    users: int, shares: int, bits: int
) -> None:
    bound = view_distance(users, shares, bits)
    for laws in views_by_sum(users, shares, 1 << bits).values():
        mean = mean_law(laws)
        for law, _ in laws:
            assert distance(law, mean) <= bound


def test_the_mean_view_of_a_sum_is_uniform_over_the_shares_of_that_sum() -> None:
    for total, laws in views_by_sum(users=2, shares=3, modulus=4).items():
        assert mean_law(laws) == ideal_law(total, messages=6, modulus=4)


def chi_square(users: int, edges: int, modulus: int) -> Fraction:
    """The mean over uniform secrets of the sum of P(view)^2 / ideal(view), over all views."""
    total = Fraction(0)
    for each_sum, laws in views_by_sum(users, edges, modulus).items():
        ideal = ideal_law(each_sum, users * edges, modulus)
        for law, orders in laws:
            total += orders * sum((p * p / ideal[view] for view, p in law.items()), Fraction(0))
    return total * Fraction(1, modulus**users)


COLLIDING = [(2, 1, 3), (2, 2, 2), (2, 2, 4), (2, 3, 3), (3, 1, 3), (3, 2, 2), (3, 2, 4), (4, 2, 2)]


@pytest.mark.parametrize(("users", "edges", "modulus"), COLLIDING)
def test_the_collisions_of_views_are_the_coefficient_of_the_power_of_a_series(
    users: int, edges: int, modulus: int
) -> None:
    assert chi_square(users, edges, modulus) == mean_collisions(users, edges, modulus)


@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(lambda n, s, b: view_distance(n, s + 2, b), id="one-share-fewer-is-enough"),
        pytest.param(
            lambda n, s, b: view_distance(n, s + 1, b) / 2 ** (b / 2), id="the-modulus-forgotten"
        ),
    ],
)
def test_a_bound_that_is_too_small_is_seen_by_brute_force(
    mutant: Callable[[int, int, int], float],
) -> None:
    for users, edges, bits in [(2, 2, 1), (2, 2, 2), (3, 2, 1), (3, 2, 2)]:
        truth = math.sqrt(chi_square(users, edges, 1 << bits) - 1) / 2
        assert truth <= view_distance(users, edges + 1, bits)
    assert any(
        math.sqrt(chi_square(users, edges, 1 << bits) - 1) / 2 > mutant(users, edges, bits)
        for users, edges, bits in [(2, 2, 1), (2, 2, 2), (3, 2, 1), (3, 2, 2)]
    )


@pytest.mark.parametrize("bits", [1, 2, 8, 12, 32, 63])
@pytest.mark.parametrize("edges", [2, 3, 6, 14, 40])
def test_the_bound_is_above_the_exact_coefficient(edges: int, bits: int) -> None:
    for users in (2, 3, 4, 7, 16, 33):
        exact = mean_collisions(users, edges, 1 << bits) - 1
        assert view_distance(users, edges + 1, bits) >= math.exp(log_of(exact / 4) / 2)


@pytest.mark.parametrize("bits", [2, 8, 12, 32])
@pytest.mark.parametrize("users", [2, 3, 4, 7, 16, 33])
def test_the_bound_is_hardly_above_the_exact_coefficient_where_it_is_small(
    users: int, bits: int
) -> None:
    modulus = 1 << bits
    for edges in (8, 14, 40):
        exact = float(mean_collisions(users, edges, modulus) - 1)
        if exact < 1e-3:
            bound = collisions_bound(users, edges, bits)
            assert bound <= exact * (modulus / (modulus - 1)) * 1.02


@pytest.mark.parametrize(("edges", "bits"), [(2, 1), (3, 1), (3, 12), (5, 16), (9, 32), (20, 63)])
def test_the_bound_for_many_users_is_never_below_the_recursion_continued(
    edges: int, bits: int
) -> None:
    exact = many_users_collisions(400, edges, 2.0**bits)
    for users in range(100, 401):
        assert exact[users] > 0
        assert collisions_bound(users, edges, bits) >= exact[users] * (1 - 1e-9)


def test_the_recursion_continued_starts_with_the_exact_coefficients() -> None:
    recursion = many_users_collisions(20, 3, 2.0**12)
    for users in range(2, 21):
        exact = float(mean_collisions(users, 3, 1 << 12) - 1)
        assert recursion[users] == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("users", [131, 10_000, 10**6, 10**9, 10**12, 10**15, 10**18])
@pytest.mark.parametrize("edges", [3, 9, 40])
def test_the_bound_for_a_great_many_users_is_not_lost_to_rounding(users: int, edges: int) -> None:
    bits = 12
    alone = Fraction((2**bits - 1) * (users - 1), math.comb(users * edges, edges))
    assert collisions_bound(users, edges, bits) >= float(alone)


@pytest.mark.parametrize("shares", [3, 4, 8, 16, 64, MOST_SHARES])
@pytest.mark.parametrize("bits", [1, 12, 32, 63])
def test_the_bound_is_never_undefined(shares: int, bits: int) -> None:
    for users in (2, 3, 17, 64, 65, 66, 129, 130, 131, 132, 1000, 10**6):
        assert view_distance(users, shares, bits) >= 0


@pytest.mark.parametrize("bits", [1, 12, 32])
def test_more_users_and_more_shares_hide_more(bits: int) -> None:
    sizes = [*range(8, 140), 200, 500, 1000, 10_000, 10**6]
    for shares in (16, 20, 40):
        by_users = [view_distance(users, shares, bits) for users in sizes]
        assert by_users[0] < 1
        assert by_users == sorted(by_users, reverse=True)
    for users in (2, 5, 64, 130, 131, 5000):
        by_shares = [view_distance(users, shares, bits) for shares in range(3, 60)]
        assert by_shares == sorted(by_shares, reverse=True)


@pytest.mark.parametrize("bits", [1, 12, 32, 63])
@pytest.mark.parametrize("users", [2, 3, 8, 64, 130, 131, 10_000, 10**6])
def test_the_fewest_shares_are_enough_and_one_fewer_is_not(users: int, bits: int) -> None:
    for wanted in (2.0**-20, 2.0**-40, 2.0**-60):
        shares = fewest_shares(users, bits, wanted)
        assert view_distance(users, shares, bits) <= wanted
        assert shares == 3 or view_distance(users, shares - 1, bits) > wanted


@pytest.mark.parametrize("bits", [12, 16])
@pytest.mark.parametrize("users", [2, 4, 8, 16, 32, 64])
def test_the_fewest_shares_are_those_of_the_exact_coefficient(users: int, bits: int) -> None:
    wanted = Fraction(1, 1 << 40)
    shares = fewest_shares(users, bits, float(wanted))

    def hides(edges: int) -> bool:
        return (mean_collisions(users, edges, 1 << bits) - 1) / 4 <= wanted**2

    assert hides(shares - 1)
    assert not hides(shares - 2)


@pytest.mark.parametrize(
    ("bits", "written"), [(12, [49, 32, 24, 20, 17, 15]), (16, [51, 33, 25, 21, 18, 16])]
)
def test_the_shares_of_small_batches_are_those_written_down_or_one_fewer(
    bits: int, written: list[int]
) -> None:
    """The table bounds the distance between two inputs: that to an ideal view is half of it."""
    ours = [fewest_shares(users, bits, 2.0**-40) for users in (2, 4, 8, 16, 32, 64)]
    assert all(w - 1 <= m <= w for m, w in zip(ours, written, strict=True))


def published_shares(users: int, modulus_bits: int, distance: float) -> int:
    """The number of Balle, Bell, Gascon and Nissim (2020), for at least 19 users."""
    security = -math.log2(distance)
    return math.ceil(2 + (2 * security + modulus_bits) / math.log2(users / math.e))


@pytest.mark.parametrize("bits", [1, 12, 24, 32])
def test_never_more_shares_than_published(bits: int) -> None:
    """For larger groups and distances there may be: 64 users, too, must be fairly well hidden."""
    for users in (19, 20, 25, 40, 64, 130, 131, 1000, 10_000, 10**6):
        for wanted in (2.0**-40, 2.0**-60, 2.0**-80):
            published = published_shares(users, bits, wanted)
            assert published > MOST_SHARES or fewest_shares(users, bits, wanted) <= published


@pytest.mark.parametrize("users", [0, 1])
def test_too_few_users_are_refused(users: int) -> None:
    assert users < LEAST_USERS
    with pytest.raises(InvalidValue, match="users"):
        view_distance(users, 8, 12)
    with pytest.raises(Infeasible, match="hide nothing"):
        fewest_shares(users, 12, 2.0**-40)


@pytest.mark.parametrize(
    ("shares", "bits", "name"), [(2, 12, "shares"), (8, 0, "modulus_bits"), (8, 64, "modulus_bits")]
)
def test_a_bound_without_a_meaning_is_refused(shares: int, bits: int, name: str) -> None:
    with pytest.raises(InvalidValue, match=name):
        view_distance(8, shares, bits)


@pytest.mark.parametrize("wanted", [0.0, 1.0, -0.5, math.nan])
def test_a_distance_that_is_no_distance_is_refused(wanted: float) -> None:
    with pytest.raises(InvalidValue, match="distance"):
        fewest_shares(8, 12, wanted)


def test_a_distance_out_of_reach_is_refused() -> None:
    with pytest.raises(Infeasible, match="256 shares per user"):
        fewest_shares(2, 12, 2.0**-400)


@pytest.mark.parametrize(("edges", "bits"), [(1, 64), (1, 200), (2, 120), (2, 4000)])
def test_what_is_too_large_for_a_float_is_infinite_and_never_no_number(
    edges: int, bits: int
) -> None:
    table = splitting._table(edges, bits)
    assert not np.isnan(table).any()
    assert table[2] > 1
    assert splitting._excess(10**6, edges, bits) == math.inf


def test_what_is_no_number_is_refused() -> None:
    with pytest.raises(Infeasible, match="not a number"):
        splitting._log_sum(np.array([0.0, math.nan]))


def test_about_so_many_shares_are_never_too_many() -> None:
    """What is ranked by them is drafted exactly: a tree that can be had must not be left out."""
    users = np.array([[2, 3, 63], [64, 1000, 123_456]])
    bits = np.array([[4, 11, 24], [10, 24, 24]])
    about = splitting.about_shares(users, bits, 1e-9)
    exact = np.vectorize(lambda n, q: fewest_shares(int(n), int(q), 1e-9))(users, bits)
    assert (about <= exact).all()
    assert (about >= exact - 1).all()
    assert splitting.about_shares(np.array([2]), np.array([24]), 1e-300)[0] == math.inf
