"""The shufflers of the concurrent shuffle model (Section 3, Algorithm 1)."""

from overhand.shufflers.concurrent import ConcurrentShufflers, Server
from overhand.shufflers.shuffler import Shuffler

__all__ = ["ConcurrentShufflers", "Server", "Shuffler"]
