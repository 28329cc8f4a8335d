"""Estimates as tables of pandas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from overhand import errors
from overhand.values import Grouped

if TYPE_CHECKING:
    import pandas

    from overhand.estimates.estimate import Estimate


def loaded_pandas() -> Any:
    """pandas, which is optional and slow to load, or an error that says how to install it.

    >>> loaded_pandas().__name__
    'pandas'
    """
    try:
        import pandas
    except ModuleNotFoundError:
        raise errors.OverhandError("a table needs pandas: pip install 'overhand[frames]'") from None
    return pandas


def to_frame(estimate: Estimate, confidence: float) -> pandas.DataFrame:
    pandas = loaded_pandas()
    if isinstance(estimate.values, Grouped) and estimate.is_sum:
        return _of_groups(estimate, confidence)
    low, high = estimate.interval(confidence)
    columns = {"value": estimate.value, "low": low, "high": high}
    names, index = estimate.names, None
    if names is not None:
        index = pandas.Index(names, name=str(estimate.values).split(":")[0])
    return pandas.DataFrame({name: np.atleast_1d(one) for name, one in columns.items()}, index)


def _of_groups(estimate: Estimate, confidence: float) -> pandas.DataFrame:
    """A group that may be empty has no mean: not a number, within no bounds."""
    pandas, found = loaded_pandas(), estimate.groups(confidence)
    lines = [[*group.count, *group.sum, *(group.mean or [np.nan] * 3)] for group in found]
    columns = [name + end for name in ("count", "sum", "mean") for end in ("", "_low", "_high")]
    index = pandas.Index([group.label for group in found], name="group")
    return pandas.DataFrame(lines, index, columns)
