"""Every quantitative claim of the paper, measured: what `overhand reproduce` reports."""

from overhand.evidence.report import html
from overhand.evidence.reproduction import SECTIONS, Progress, Reproduction, reproduce
from overhand.evidence.sections import FULL, QUICK, Check, Evidence, Figure, Scale

__all__ = [
    "FULL",
    "QUICK",
    "SECTIONS",
    "Check",
    "Evidence",
    "Figure",
    "Progress",
    "Reproduction",
    "Scale",
    "html",
    "reproduce",
]
