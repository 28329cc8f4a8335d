"""OpenDP: a noisy b-ary tree, made consistent, and its leaves summed up.

The branching factor is the library's own choice. Its bound on the tree's sensitivity is tight for
the L1 distance only (for L2 it, too, counts the levels, not their root), so that discrete Laplace
noise, which needs no delta at all, is three times more accurate here than Gaussian noise.
Consistency uses the whole tree: this is one release after the last user, not a running one.
"""

from __future__ import annotations

import numpy as np
import opendp.prelude as dp

from benchmarks.arrays import Bits, Floats
from benchmarks.task import Ready, Task

COUNT = "i32"


def b_ary_tree(task: Task) -> Ready:
    dp.enable_features("contrib")
    branching = dp.t.choose_branching_factor(task.horizon)
    tree = dp.t.make_b_ary_tree(
        dp.vector_domain(dp.atom_domain(T=COUNT), size=task.horizon),
        dp.l1_distance(T=COUNT),
        leaf_count=task.horizon,
        branching_factor=branching,
    )
    noisy_tree = dp.binary_search_chain(
        lambda scale: tree >> dp.m.then_laplace(scale), d_in=1, d_out=task.epsilon
    )
    consistent = dp.t.make_consistent_b_ary_tree(branching, TIA=COUNT, TOA=float)

    def run(values: Bits) -> Floats:
        leaves = consistent(noisy_tree(values.tolist()))
        return np.cumsum(leaves, dtype=np.float64)[: task.horizon]

    return Ready(run)
