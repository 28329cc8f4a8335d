"""Bandits measured: environments, rivals, and the regret of each of them."""

from overhand.lab.regret.environments import (
    Diverse,
    Environment,
    Films,
    FilmsByCohort,
    Fixed,
    Offers,
    Segments,
)
from overhand.lab.regret.racing import Regret, measure, race
from overhand.lab.regret.rivals import RIVALS, USUAL, Field, PlanSums, Rival, rival

__all__ = [
    "RIVALS",
    "USUAL",
    "Diverse",
    "Environment",
    "Field",
    "Films",
    "FilmsByCohort",
    "Fixed",
    "Offers",
    "PlanSums",
    "Regret",
    "Rival",
    "Segments",
    "measure",
    "race",
    "rival",
]
