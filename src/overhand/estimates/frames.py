"""Estimates as tables of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from overhand import errors
from overhand.estimates import groups
from overhand.estimates.readings import names_of

if TYPE_CHECKING:
    import pandas

    from overhand.estimates.estimate import Estimate


def to_frame(estimate: Estimate, confidence: float) -> pandas.DataFrame:
    try:
        import pandas
    except ModuleNotFoundError:
        raise errors.OverhandError("a table needs pandas: pip install 'overhand[frames]'") from None
    if groups.are_in(estimate.values) and estimate.is_sum:
        return _of_groups(estimate, confidence)
    low, high = estimate.interval(confidence)
    columns = {"value": estimate.value, "low": low, "high": high}
    names = names_of(estimate.values)
    index = None if names is None else pandas.Index(names, name=str(estimate.values).split(":")[0])
    return pandas.DataFrame({name: np.atleast_1d(one) for name, one in columns.items()}, index)


def _of_groups(estimate: Estimate, confidence: float) -> pandas.DataFrame:
    """A group that may be empty has no mean: not a number, within no bounds."""
    import pandas

    found = estimate.groups(confidence)
    lines = [[*group.count, *group.sum, *(group.mean or [np.nan] * 3)] for group in found]
    columns = [name + end for name in ("count", "sum", "mean") for end in ("", "_low", "_high")]
    index = pandas.Index([group.label for group in found], name="group")
    return pandas.DataFrame(lines, index, columns)
