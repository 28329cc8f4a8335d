"""Bandits measured: environments, rivals, and the regret of each of them."""

from overhand.simulation.regret.environments import (
    Audience,
    Diverse,
    Environment,
    Fixed,
    Offers,
    Segments,
)
from overhand.simulation.regret.films import Films, FilmsByCohort
from overhand.simulation.regret.racing import Regret, measure, race
from overhand.simulation.regret.rivals import RIVALS, USUAL, Field, Rival, rival
from overhand.simulation.regret.sums import PlanSums

__all__ = [
    "RIVALS",
    "USUAL",
    "Audience",
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
