"""Algorithm 1 as arrays: two engines with one law, and measurements of every error."""

from overhand.lab.simulation.counts import CountsRun, CoverNoise
from overhand.lab.simulation.messages import MessagesRun
from overhand.lab.simulation.run import (
    Counter,
    Engine,
    Simulation,
    estimate_all,
    simulate,
    start_run,
)
from overhand.lab.simulation.streams import plan_stream, read_rows, stream_for, values_stream

__all__ = [
    "Counter",
    "CountsRun",
    "CoverNoise",
    "Engine",
    "MessagesRun",
    "Simulation",
    "estimate_all",
    "plan_stream",
    "read_rows",
    "simulate",
    "start_run",
    "stream_for",
    "values_stream",
]
