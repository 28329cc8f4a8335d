"""LinUCB over any continual sum of regression statistics (x y, x x^T): Algorithm 4."""

from overhand.bandits.linucb import (
    Constants,
    ConstantsName,
    LinUCB,
    Policy,
    Practical,
    check_contexts,
    choose_arms,
)
from overhand.bandits.recommender import Recommender, Rounds, learner_for
from overhand.bandits.theory import Theory, plan_for_regret, published_regret, regret_exponent

__all__ = [
    "Constants",
    "ConstantsName",
    "LinUCB",
    "Policy",
    "Practical",
    "Recommender",
    "Rounds",
    "Theory",
    "check_contexts",
    "choose_arms",
    "learner_for",
    "plan_for_regret",
    "published_regret",
    "regret_exponent",
]
