"""Small plans that many tests share, and the slow truth about them."""

from __future__ import annotations

from typing import Any

import overhand as oh
from overhand.noise import Coins
from overhand.randomness import HALF

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


def without_runs(state: Any) -> Any:
    """A saved state without the names of its runs, which are drawn: alike if all else is."""
    if isinstance(state, dict):
        return {name: without_runs(part) for name, part in state.items() if name != "run"}
    return [without_runs(part) for part in state] if isinstance(state, list) else state
