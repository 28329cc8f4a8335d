"""Bandits measured: environments, rivals, and the regret of each of them."""

from overhand.simulation.regret.environments import (
    Crowd,
    Diverse,
    Environment,
    Fixed,
    Offers,
    Segments,
)
from overhand.simulation.regret.experiment import Outcome, measure
from overhand.simulation.regret.films import Films, FilmsByCohort
from overhand.simulation.regret.race import race
from overhand.simulation.regret.rivals import RIVALS, USUAL, Field, Rival, rival

__all__ = [
    "RIVALS",
    "USUAL",
    "Crowd",
    "Diverse",
    "Environment",
    "Field",
    "Films",
    "FilmsByCohort",
    "Fixed",
    "Offers",
    "Outcome",
    "Rival",
    "Segments",
    "measure",
    "race",
    "rival",
]
