"""Trees of batches: pure integer arithmetic, one shuffler to a level."""

from overhand.trees.path import PathTree, terms_for
from overhand.trees.regular import RegularTree, binary_degrees, published_degrees
from overhand.trees.tree import Tree, Weights

__all__ = [
    "PathTree",
    "RegularTree",
    "Tree",
    "Weights",
    "binary_degrees",
    "published_degrees",
    "terms_for",
]
