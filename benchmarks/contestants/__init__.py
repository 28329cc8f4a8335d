"""Who takes part. Nothing is imported here: each runs in a process with only its own library."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec


@dataclass(frozen=True)
class Contestant:
    """A way to release running sums."""

    name: str
    module: str
    function: str
    package: str = "overhand"
    slow: bool = False

    @property
    def installed(self) -> bool:
        return find_spec(self.package) is not None

    @property
    def version(self) -> str:
        return version(self.package.replace("_", "-"))


OURS = Contestant("overhand, counts engine", "engines", "counts")

CONTESTANTS = (
    OURS,
    Contestant("overhand, counts engine, in parts", "engines", "counts_in_parts"),
    Contestant("overhand, messages engine", "engines", "messages"),
    Contestant("np.cumsum (no privacy)", "plain_numpy", "cumsum", "numpy"),
    Contestant("NumPy binary tree (trusted)", "plain_numpy", "binary_tree", "numpy"),
    Contestant("dpcrpy Honaker (trusted)", "dpcrpy_trees", "honaker", "dpcrpy"),
    Contestant("dpcrpy AuBCR (trusted)", "dpcrpy_trees", "aubcr", "dpcrpy", slow=True),
    Contestant("OpenDP b-ary tree (trusted, not running)", "opendp_tree", "b_ary_tree", "opendp"),
    Contestant("jax-privacy BLT (trusted)", "jax_privacy_blt", "blt", "jax_privacy"),
)
