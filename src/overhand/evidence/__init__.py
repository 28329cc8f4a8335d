"""Every quantitative claim of the paper, measured: what `overhand reproduce` reports."""

from overhand.evidence.findings import Check, Finding, Series
from overhand.evidence.reproduction import Reproduction, reproduce
from overhand.evidence.scale import FULL, QUICK, Scale

__all__ = ["FULL", "QUICK", "Check", "Finding", "Reproduction", "Scale", "Series", "reproduce"]
