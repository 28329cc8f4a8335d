"""LinUCB over any continual sum of the moments (x y, x x^T): Algorithm 4."""

from overhand.bandits.constants import Constants, ConstantsName, Practical
from overhand.bandits.linucb import LinUCB
from overhand.bandits.planning import plan_for_regret
from overhand.bandits.policy import Policy
from overhand.bandits.recommender import Recommender
from overhand.bandits.roles import BanditServer, BanditUser
from overhand.bandits.theory import Theory, published_regret, regret_exponent

__all__ = [
    "BanditServer",
    "BanditUser",
    "Constants",
    "ConstantsName",
    "LinUCB",
    "Policy",
    "Practical",
    "Recommender",
    "Theory",
    "plan_for_regret",
    "published_regret",
    "regret_exponent",
]
