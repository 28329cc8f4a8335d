"""What `overhand.reference` says, the paper's slow truth, in the words of the fast modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from overhand import reference
from overhand.model import Floats, Node, Shuffled
from overhand.noise import CoinNoise, Coins
from overhand.planning import Plan
from overhand.randomness import BinaryFraction
from overhand.tree import RegularTree
from support.sampling import Outcomes

EXAMPLES = [RegularTree(1, (1,)), RegularTree(8, (2, 2)), RegularTree(29, (3, 2, 2))]


# Mechanisms and their messages.


def fraction_of(probability: BinaryFraction) -> Fraction:
    return Fraction(probability.numerator, 2**probability.bits)


def slow_coins(coins: Coins) -> tuple[Fraction, ...]:
    p = fraction_of(coins.probability)
    opposed = coins.bits // 2 if coins.opposed else 0
    return (p,) * (coins.bits - opposed) + (1 - p,) * opposed


def slow_mechanism(mechanism: Any) -> reference.Mechanism:
    """For a mechanism of coins whose coordinates all have the same bounds, whole ones."""
    values = mechanism.values
    low, high = (0, 1) if values.is_whole else (int(values.lows[0]), int(values.highs[0]))
    coins = slow_coins(mechanism.noise_share)
    return reference.Mechanism(mechanism.size, coins, mechanism.steps, low, high)


def coins_law(coins: Coins, users: int) -> dict[int, Fraction]:
    """How many coins of so many users show 1."""
    law = reference.ones_law(slow_coins(coins) * users)
    return {int(ones): p for ones, p in law.items()}


@cache
def ones_law(noise: CoinNoise) -> dict[int, Fraction]:
    """The number of ones among all coins."""
    chances = [fraction_of(p) for trials, p in noise.binomials for _ in range(trials)]
    return {int(x): p for x, p in reference.ones_law(chances).items()}


def fast_batch(messages: Sequence[reference.Message]) -> Shuffled:
    """Messages of one batch, with coordinate and bit in one number."""
    row = np.array([2 * coordinate + bit for coordinate, bit in messages], np.uint8)
    return Shuffled(row[np.newaxis], np.empty((1, 0), np.uint64))


def slow_batch(batch: Any) -> list[reference.Message]:
    return [divmod(int(message), 2) for message in batch]


# Trees.


@cache
def slow_tree(tree: RegularTree) -> reference.Tree:
    return reference.Tree(tree.horizon, tree.degrees)


def fast_node(v: reference.Node) -> Node:
    return Node(v.level, v.first - 1, v.last)


@cache
def nodes(tree: RegularTree) -> list[Node]:
    """Every batch that becomes full within the horizon, by level and place."""
    return [fast_node(v) for v in slow_tree(tree).nodes]


@cache
def cover(tree: RegularTree, t: int) -> list[Node]:
    """V*_t, from its definition."""
    return [fast_node(v) for v in slow_tree(tree).cover(t)]


@cache
def children(tree: RegularTree, node: Node) -> list[Node]:
    level, start, stop = node
    return [n for n in nodes(tree) if n.level == level - 1 and start <= n.start < stop]


# Estimates: Algorithm 3, and what a plan adds to it.


def slow_server(plan: Plan) -> reference.TreeServer:
    mechanisms = [slow_mechanism(m) for m in plan.mechanisms]
    return reference.TreeServer(slow_tree(plan.tree), mechanisms)


def weigh(plan: Plan, sum_of: Callable[[Node], Any], node: Node) -> tuple[Any, float]:
    """What a plan makes of a batch, and its variance.

    With combination, which is not in the paper, a sum and that of its children are averaged by
    the inverse of their variances: they are independent estimates of one number.
    """
    own = plan.mechanisms[node.level - 1].variance
    if node.level == 1 or not plan.combine:
        return sum_of(node), own
    below = [weigh(plan, sum_of, child) for child in children(plan.tree, node)]
    spread = sum(variance for _, variance in below)
    weight = spread / (own + spread) if own + spread else 1.0
    value = weight * sum_of(node) + (1 - weight) * sum(value for value, _ in below)
    return value, weight**2 * own + (1 - weight) ** 2 * spread


def pending(plan: Plan, t: int) -> int:
    """Users that no full batch holds at t."""
    return t - max((node.stop for node in cover(plan.tree, t)), default=0)


def counts_as(plan: Plan) -> Floats:
    """What such a user counts as: nothing, as in the paper, or the middle of its interval."""
    lows, highs = plan.values.lows, plan.values.highs
    return np.asarray(np.clip(0.0, lows, highs) if plan.hold else (lows + highs) / 2)


def slow_estimate(plan: Plan, sums: Mapping[Node, Any], t: int) -> tuple[Any, float]:
    """The estimate at t from the sums of batches, by coordinate, and its variance."""
    parts = [weigh(plan, sums.__getitem__, node) for node in cover(plan.tree, t)]
    start = pending(plan, t) * counts_as(plan)
    return sum((value for value, _ in parts), start=start), sum(v for _, v in parts)


def error_law(plan: Plan, t: int) -> Outcomes:
    """The law of the noise of an estimate of bits, if nothing is combined."""
    server = slow_server(plan)
    law = reference.estimate_law(server.tree, server.mechanisms, [0] * plan.horizon, t)
    return Outcomes(round(min(law)), np.array([float(law[x]) for x in sorted(law)]))
