"""How many shares hide everything but the sum (split and mix).

n users each split a secret of a group of q elements into m shares: m - 1 uniform ones, and one
that makes the sum right. All n m shares are shuffled. With s = m - 1, what is seen is within
1/2 sqrt(E - 1) of something that depends on the sum of the secrets alone, where E = E_n(q) and

    E_n(q) - 1 = sum over j of C(n-1, j) / C(ns, js) (q - 1) E_j(q - 1),    E_1 = 1,

a sum of positive terms; E_j(q - 1) <= E_j(q). Each term falls with n, which bounds all large n.
`docs/paper.md` has the proof, and what E counts. (Ishai, Kushilevitz, Ostrovsky and Sahai 2006;
Balle, Bell, Gascon and Nissim 2020 for the first step.)
"""

from __future__ import annotations

import math
from contextlib import suppress
from functools import lru_cache

import numpy as np

from overhand import errors
from overhand.model import Counts, Floats

LEAST_USERS = 2
LEAST_SHARES = 3
MOST_SHARES = 256
_SMALL = 64
_TABLE = 2 * _SMALL + 2  # up to here E is computed user by user
_LARGEST_LOG = 700.0  # e^this is still a float
_OUTWARD = 1.001  # more than the rounding of logarithms can take away
_MANY = 10**9  # more users count as this many: rounding would take more


def view_distance(users: int, shares: int, modulus_bits: int) -> float:
    """A bound on the distance between what is seen and something the sum alone decides."""
    users = errors.whole("users", users, least=LEAST_USERS)
    shares = errors.whole("shares", shares, least=LEAST_SHARES)
    modulus_bits = errors.whole("modulus_bits", modulus_bits, least=1, most=63)
    return 0.5 * math.sqrt(_excess(users, shares - 1, modulus_bits))


@lru_cache(maxsize=4096)
def fewest_shares(users: int, modulus_bits: int, distance: float) -> int:
    """The least number of shares with which the view is within this distance.

    >>> fewest_shares(users=10_000, modulus_bits=32, distance=2.0**-40)
    10
    """
    distance = errors.finite_number("distance", distance, above=0, below=1)
    if users < LEAST_USERS:
        raise errors.Infeasible(
            f"shares of {users} user hide nothing: at least {LEAST_USERS} are needed"
        )
    low, high = 2, 4
    while view_distance(users, high, modulus_bits) > distance:
        low, high = high, 2 * high
        if high > MOST_SHARES:
            raise errors.Infeasible(
                f"even {MOST_SHARES} shares per user do not hide {users} users within {distance:g}"
            )
    while high - low > 1:
        middle = (low + high) // 2
        if view_distance(users, middle, modulus_bits) > distance:
            low = middle
        else:
            high = middle
    return high


def about_shares(users: Counts, modulus_bits: Counts, distance: float) -> Floats:
    """`fewest_shares` of many batches, or slightly fewer; infinite where no number is enough.

    Numbers of users are rounded up to five bits, so that there are few of them.
    """
    coarse = 1 << np.maximum(0, np.frexp(users)[1] - 5).astype(np.int64)
    cases = np.stack([-(-users // coarse) * coarse, modulus_bits], axis=-1).reshape(-1, 2)
    unique, which = np.unique(cases, axis=0, return_inverse=True)
    found = np.full(len(unique), math.inf)
    for place, (count, bits) in enumerate(unique.tolist()):
        with suppress(errors.Infeasible):
            found[place] = fewest_shares(count, bits, distance)
    return found[which].reshape(users.shape)


def _excess(users: int, edges: int, modulus_bits: int) -> float:
    """A bound on E - 1."""
    table = _table(edges, modulus_bits)
    if users <= _TABLE:
        return float(table[users])
    # If E <= 2 for all numbers of users from _SMALL to here, then for one more, too: the bound
    # below needs only that, and falls as users are added.
    if not (table[_SMALL + 1 :] <= 1).all() or _beyond(_TABLE, edges, modulus_bits) > 1:
        return math.inf
    return _beyond(min(users, _MANY), edges, modulus_bits)


@lru_cache(maxsize=256)
def _table(edges: int, modulus_bits: int) -> Floats:
    """Bounds on E - 1 for 0, 1, ..., _TABLE users; infinite where they are too large for a float.

    In logarithms: few edges and a large group take E far beyond what a float can hold.
    """
    log_excess = np.full(_TABLE + 1, -math.inf)
    for users in range(2, _TABLE + 1):
        j = np.arange(1, users)
        logs = _log_terms(users, j, edges, modulus_bits) + np.logaddexp(0.0, log_excess[1:users])
        log_excess[users] = _log_sum(logs) + math.log(_OUTWARD)
    with np.errstate(over="ignore"):
        return np.asarray(np.exp(log_excess))


def _log_sum(logs: Floats) -> float:
    """ln of the sum of e^logs. NaN is refused: it would pass every comparison."""
    largest = float(np.max(logs))
    if math.isnan(largest):
        raise errors.Infeasible("the distance of shares from showing their sum is not a number")
    if largest == math.inf:
        return math.inf
    return largest + math.log(float(np.exp(logs - largest).sum()))


def _beyond(users: int, edges: int, modulus_bits: int) -> float:
    """The same for many users, given that E <= 2 for all numbers above _SMALL and below users."""
    few = np.arange(1, _SMALL + 1)
    total = _weigh(users, few, edges, 1 + _table(edges, modulus_bits)[few], modulus_bits)
    total += 2 * _weigh(users, users - few, edges, np.ones(_SMALL), modulus_bits)
    # In between, C(n-1, j) / C(ns, js) <= C(n, j)^(1-s) <= C(n, _SMALL + 1)^(1-s).
    log_middle = math.log(users) - (edges - 1) * float(_log_binomial(users, _SMALL + 1))
    return total + 2 * _OUTWARD * math.exp(log_middle + modulus_bits * math.log(2))


def _weigh(users: int, j: Counts, edges: int, weights: Floats, modulus_bits: int) -> float:
    """q times the sum of C(n-1, j) / C(ns, js) times the weights, rounded up."""
    log_sum = _log_sum(_log_terms(users, j, edges, modulus_bits) + np.log(weights))
    return math.exp(log_sum) * _OUTWARD if log_sum < _LARGEST_LOG else math.inf


def _log_terms(users: int, j: Counts, edges: int, modulus_bits: int) -> Floats:
    """ln of q C(n-1, j) / C(ns, js)."""
    logs = _log_binomial(users - 1, j) - _log_binomial(users * edges, j * edges)
    return logs + modulus_bits * math.log(2)


def _log_binomial(n: int, k: int | Counts) -> Floats:
    from scipy.special import gammaln

    return np.asarray(gammaln(n + 1) - gammaln(np.add(k, 1)) - gammaln(np.subtract(n, k) + 1))
