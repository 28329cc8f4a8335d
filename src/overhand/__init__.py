"""Private running statistics without a trusted server."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from overhand.bandits import Recommender
    from overhand.deploy.client import Client
    from overhand.errors import (
        DamagedPlan,
        Infeasible,
        InvalidValue,
        OverhandError,
        ProtocolViolation,
    )
    from overhand.estimates import Estimate
    from overhand.mechanisms import CoinSum
    from overhand.model import Node, Privacy
    from overhand.planning import Plan
    from overhand.randomness import secure_random, seeded_random
    from overhand.sums import ContinualSum, EndlessSum, SumServer
    from overhand.tree import RegularTree
    from overhand.values import (
        Binned,
        Bits,
        Grouped,
        Histogram,
        Reals,
        RegressionStatistics,
        SymmetricMatrices,
        Values,
        Vectors,
    )

__version__ = "0.2.0"

__all__ = [
    "Binned",
    "Bits",
    "Client",
    "CoinSum",
    "ContinualSum",
    "DamagedPlan",
    "EndlessSum",
    "Estimate",
    "Grouped",
    "Histogram",
    "Infeasible",
    "InvalidValue",
    "Node",
    "OverhandError",
    "Plan",
    "Privacy",
    "ProtocolViolation",
    "Reals",
    "Recommender",
    "RegressionStatistics",
    "RegularTree",
    "SumServer",
    "SymmetricMatrices",
    "Values",
    "Vectors",
    "secure_random",
    "seeded_random",
]

# Lowest layer first: finding a name loads nothing that its own module would not load.
_HOMES = (
    *("errors", "model", "randomness", "values", "estimates", "mechanisms"),
    *("noise", "tree", "shuffle", "planning", "sums", "bandits", "deploy.client"),
)


def __getattr__(name: str) -> Any:
    """Import names when they are first used: the command line answers without NumPy."""
    if name in _HOMES:
        return import_module(f"{__name__}.{name}")
    for home in _HOMES if name in __all__ else ():
        module = import_module(f"{__name__}.{home}")
        if hasattr(module, name):
            globals()[name] = getattr(module, name)
            return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
