"""Inputs to simulate on: fixed, random, hard, or a file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overhand import errors
from overhand.errors import InvalidValue
from overhand.lower_bound import HardInput
from overhand.plan import Plan
from overhand.randomness import BinaryFraction, Random
from overhand.simulation.tables import read_rows
from overhand.values import BITS, Values

Rows = NDArray[Any]
FORMS = "zeros, ones, bernoulli:P, uniform, hard or a .csv file"


@dataclass(frozen=True)
class Stream:
    """The users' values: so many of them, drawn a part at a time.

    >>> from overhand.randomness import seeded_random
    >>> ones = Stream(users=5, parts=lambda random: lambda start, stop: np.ones(stop - start))
    >>> part = ones.parts(seeded_random(1))
    >>> part(0, 3), part(3, 5)
    (array([1., 1., 1.]), array([1., 1.]))
    """

    users: int
    parts: Callable[[Random], Callable[[int, int], Rows]]
    """From a random stream to a function from (start, stop) to the values there, in order."""


def stream_for(
    form: str, horizon: int, *, values: Values = BITS, shufflers: int = 1, epsilon: float = 1.0
) -> Stream:
    """The stream that a word on the command line names.

    For values that are not bits, 0 and 1 stand for two that are as far apart as two can be.

    >>> from overhand.randomness import seeded_random
    >>> stream_for("ones", 5).parts(seeded_random(1))(0, 3)
    array([1, 1, 1], dtype=uint8)
    """
    if form in ("zeros", "ones"):
        bit = int(form == "ones")
        return Stream(horizon, lambda _: lambda a, b: values.opposites(np.full(b - a, bit, "u1")))
    if form.startswith("bernoulli:"):
        return _bernoulli(form.removeprefix("bernoulli:"), horizon, values)
    if form == "uniform":
        return Stream(horizon, lambda random: lambda a, b: values.uniform(random, b - a))
    if form == "hard":
        hard = HardInput.against(horizon, shufflers, epsilon)
        return Stream(horizon, lambda random: _slices(values.opposites(hard.draw(random))))
    if form.endswith(".csv"):
        rows = read_rows(Path(form), values)
        if len(rows) > horizon:
            raise InvalidValue(f"{form} has {len(rows)} values, the plan's horizon is {horizon}")
        return values_stream(rows)
    raise InvalidValue(f"input {form!r} must be {FORMS}")


def values_stream(rows: Rows) -> Stream:
    """A stream of checked values at hand."""
    return Stream(len(rows), lambda _: _slices(rows))


def plan_stream(form: str, plan: Plan) -> Stream:
    """The stream of that name for a plan: a hard input is one against its shufflers and epsilon.

    >>> import overhand as oh
    >>> votes = oh.Plan.published(1000, 2, oh.Privacy(1.0, 1e-6), values=oh.Histogram(3))
    >>> stream = plan_stream("ones", votes)
    >>> stream.users, stream.parts(oh.seeded_random(1))(0, 4)
    (1000, array([1, 1, 1, 1]))
    """
    return stream_for(
        form,
        plan.horizon,
        values=plan.values,
        shufflers=plan.shufflers,
        epsilon=plan.privacy.epsilon,
    )


def _bernoulli(text: str, horizon: int, values: Values) -> Stream:
    try:
        probability = float(text)
    except ValueError:
        raise InvalidValue(f"bernoulli:{text} must name a number") from None
    errors.number("bernoulli", probability, above=0, below=1)
    fraction = BinaryFraction.near(probability)
    return Stream(
        horizon, lambda random: lambda a, b: values.opposites(random.coins(b - a, fraction))
    )


def _slices(rows: Rows) -> Callable[[int, int], Rows]:
    return lambda start, stop: rows[start:stop]
