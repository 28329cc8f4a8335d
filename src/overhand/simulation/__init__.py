"""Algorithm 1 as arrays: two engines with one law, and measurements of every error."""

from overhand.simulation.counts import CountsRun, CoverNoise
from overhand.simulation.messages import MessagesRun
from overhand.simulation.run import (
    ENGINES,
    Counter,
    Engine,
    PlanCounter,
    Simulation,
    estimate_all,
    simulate,
)
from overhand.simulation.streams import (
    Stream,
    plan_stream,
    read_rows,
    stream_for,
    values_stream,
)

__all__ = [
    "ENGINES",
    "Counter",
    "CountsRun",
    "CoverNoise",
    "Engine",
    "MessagesRun",
    "PlanCounter",
    "Simulation",
    "Stream",
    "estimate_all",
    "plan_stream",
    "read_rows",
    "simulate",
    "stream_for",
    "values_stream",
]
