"""Draw the figure of docs/choosing.md and docs/shares.md: error against messages, by kind of value.

python docs/frontier.py docs/frontier.png
"""

from __future__ import annotations

import sys
from dataclasses import replace

from overhand.cli.frontier import panel_of, trades_of
from overhand.cli.options import PlanOptions
from overhand.lab.plots import Panel, frontier_figure

KINDS = ("bit", "histogram:50", "vector:20")
ASKED = PlanOptions(horizon=10**6, shufflers=5, epsilon=1.0, delta=1e-6)


def panel(kind: str) -> Panel:
    asked = replace(ASKED, spec=kind)
    return replace(panel_of(asked, trades_of(asked)), title=f"{kind}, {asked.users:,} users")


if __name__ == "__main__":
    frontier_figure([panel(kind) for kind in KINDS]).savefig(sys.argv[1])
