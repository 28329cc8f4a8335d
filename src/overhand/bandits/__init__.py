"""LinUCB over any continual sum of the moments (x y, x x^T): Algorithm 4."""

from overhand.bandits.linucb import (
    ALIKE,
    Constants,
    ConstantsName,
    LinUCB,
    Policy,
    Practical,
    checked_contexts,
    chosen_arms,
)
from overhand.bandits.recommender import Recommender, Rounds
from overhand.bandits.roles import BanditServer, BanditUser, learner_for
from overhand.bandits.theory import Theory, plan_for_regret, published_regret, regret_exponent

__all__ = [
    "ALIKE",
    "BanditServer",
    "BanditUser",
    "Constants",
    "ConstantsName",
    "LinUCB",
    "Policy",
    "Practical",
    "Recommender",
    "Rounds",
    "Theory",
    "checked_contexts",
    "chosen_arms",
    "learner_for",
    "plan_for_regret",
    "published_regret",
    "regret_exponent",
]
