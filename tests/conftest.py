"""Hypothesis draws the same examples on every run, unless it is asked to explore.

HYPOTHESIS_PROFILE=nightly draws many new ones: what it finds is a bug, never a reason to rerun.
"""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ("deploying",)

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("nightly", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
