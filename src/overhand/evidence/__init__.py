"""Every quantitative claim of the paper, measured: what `overhand reproduce` reports."""

from overhand.evidence.findings import Check, Figure, Finding
from overhand.evidence.report import html
from overhand.evidence.reproduction import SECTIONS, Progress, Reproduction, reproduce
from overhand.evidence.scale import FULL, QUICK, Scale

__all__ = [
    "FULL",
    "QUICK",
    "SECTIONS",
    "Check",
    "Figure",
    "Finding",
    "Progress",
    "Reproduction",
    "Scale",
    "html",
    "reproduce",
]
