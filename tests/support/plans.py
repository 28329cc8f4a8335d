"""Small plans that many tests share, and the slow truth about them."""

from __future__ import annotations

from typing import Any

import numpy as np

import overhand as oh
from overhand.mechanisms import Coins
from overhand.randomness import HALF
from support.sampled import Outcomes

PRIVACY = oh.Privacy(epsilon=1.0, delta=1e-6)

REGULAR = oh.RegularTree(horizon=53, degrees=(3, 2, 4))
WIDE = oh.RegularTree(horizon=50, degrees=(3, 5))


def coin_plan(
    tree: oh.RegularTree, *, noise_bits: int = 4, combine: bool = False, hold: bool = False
) -> oh.Plan:
    """A plan of fair coins, the same number at every level: no guarantee, but an exact law."""
    coins = Coins(noise_bits, HALF, opposed=noise_bits % 2 == 0)
    mechanisms = tuple(oh.CoinSum(size, coins) for size in tree.sizes)
    return oh.Plan(tree, mechanisms, PRIVACY, tree.levels, combine=combine, hold=hold)


def error_law(plan: oh.Plan, t: int) -> Outcomes:
    """The law of the estimate's noise at t by Definition 3.1: the coins of the cover, centred."""
    law, mean = np.ones(1), 0.0
    for node in plan.tree.cover(t):
        noise = plan.mechanism(node).noise()
        law = np.convolve(law, noise.window.probabilities)
        mean += noise.mean - noise.window.first
    return Outcomes(-round(mean), law)


def pending(plan: oh.Plan, t: int) -> int:
    """Users that no full block holds at t."""
    return t - max((node.stop for node in plan.tree.cover(t)), default=0)


def without_runs(state: Any) -> Any:
    """A saved state without the names of its runs, which are drawn: alike if all else is."""
    if isinstance(state, dict):
        return {name: without_runs(part) for name, part in state.items() if name != "run"}
    return [without_runs(part) for part in state] if isinstance(state, list) else state
