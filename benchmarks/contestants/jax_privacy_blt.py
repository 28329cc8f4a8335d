"""jax-privacy: correlated Gaussian noise by an optimised buffered linear Toeplitz matrix."""

from __future__ import annotations

import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz

from benchmarks.arrays import Bits, Floats
from benchmarks.task import Ready, Task

# Left to itself the library tries 0, 1, 2, ... buffers until the loss falls by less than 1 %: a
# minute for 5 at a horizon of 10^6, and for 4 at 10^5. Five at once are as good or better.
BUFFERS = 5


def blt(task: Task) -> Ready:
    """Optimise and compile: both are set-up, apart from the run."""
    configuration: Any = jax.config
    configuration.update("jax_enable_x64", True)
    matrix = buffered_toeplitz.optimize(n=task.horizon, min_buffers=BUFFERS, max_buffers=BUFFERS)
    sensitivity = math.sqrt(float(buffered_toeplitz.sensitivity_squared(matrix, task.horizon)))
    sigma = task.unit_sigma * sensitivity

    def released(values: Any, key: Any) -> Any:
        noise = sigma * jax.random.normal(key, (task.horizon,), jnp.float64)
        correlated = matrix.inverse_as_streaming_matrix() @ noise
        return jnp.cumsum(values + correlated)

    compiled = jax.jit(released)
    seeds = itertools.count(task.seed)

    def run(values: Bits) -> Floats:
        return np.asarray(compiled(jnp.asarray(values), jax.random.key(next(seeds))))

    run(np.zeros(task.horizon, np.uint8))
    return Ready(run, expected_rms=lambda: sigma * _unit_rms(matrix, task.horizon))


def _unit_rms(matrix: Any, horizon: int) -> float:
    """The error for noise of variance 1 before it is correlated."""
    coefficients = matrix.inverse().toeplitz_coefs(horizon)
    return math.sqrt(float(toeplitz.per_query_error(noising_coef=coefficients).mean()))
