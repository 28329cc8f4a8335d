"""What is published and what can be read from it, each with its possible error."""

from overhand.estimates.estimate import Difference, Estimate
from overhand.estimates.frames import loaded_pandas
from overhand.estimates.ratios import Ratio
from overhand.estimates.readings import Bar, Bounded, Distribution, Group
from overhand.estimates.runs import Run, Stretch
from overhand.estimates.tails import half_width, standard_tail

__all__ = [
    "Bar",
    "Bounded",
    "Difference",
    "Distribution",
    "Estimate",
    "Group",
    "Ratio",
    "Run",
    "Stretch",
    "half_width",
    "loaded_pandas",
    "standard_tail",
]
