"""What is published and what can be read from it, each with its possible error."""

from overhand.estimates.estimate import Difference, Estimate, Ratio, load_pandas
from overhand.estimates.intervals import half_width, standard_tail
from overhand.estimates.readings import Bar, Bounded, Distribution, Group
from overhand.estimates.shared_noise import RunInfo, Segment, SharedNoise, TreeRun

__all__ = [
    "Bar",
    "Bounded",
    "Difference",
    "Distribution",
    "Estimate",
    "Group",
    "Ratio",
    "RunInfo",
    "Segment",
    "SharedNoise",
    "TreeRun",
    "half_width",
    "load_pandas",
    "standard_tail",
]
