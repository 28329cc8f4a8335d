"""Trees of batches: pure integer arithmetic, one shuffler to a level."""

from overhand.trees.path import PathTree, terms_for
from overhand.trees.regular import RegularTree, binary_degrees, published_degrees
from overhand.trees.tree import Closing, Tree, Walk, Weights

__all__ = [
    "Closing",
    "PathTree",
    "RegularTree",
    "Tree",
    "Walk",
    "Weights",
    "binary_degrees",
    "published_degrees",
    "terms_for",
]
