"""What is published, and what can be read off it, with how far it may be off."""

from overhand.estimates.estimate import Bar, Estimate
from overhand.estimates.tails import half_width, standard_tail

__all__ = ["Bar", "Estimate", "half_width", "standard_tail"]
