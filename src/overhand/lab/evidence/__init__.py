"""Every quantitative claim of the paper, measured: what `overhand lab reproduce` reports."""

from overhand.lab.evidence.reproduction import SECTIONS, Progress, Reproduction, html, reproduce
from overhand.lab.evidence.sections import FULL, QUICK, Scale

__all__ = ["FULL", "QUICK", "SECTIONS", "Progress", "Reproduction", "Scale", "html", "reproduce"]
