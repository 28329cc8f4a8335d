"""The report: one HTML file with everything in it, that a phone can show."""

from __future__ import annotations

from html import escape
from typing import Any

from overhand.evidence.reproduction import Reproduction
from overhand.evidence.sections import Check, Evidence, Figure
from overhand.plots import phone_svg

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1e8449; --bad: #b03a2e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
blockquote { margin: 0; padding-left: .8rem; border-left: 3px solid var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: Canvas; }
figure { margin: 1rem 0; } svg { width: 100%; max-width: 34rem; height: auto; }
.met { color: var(--good); } .missed { color: var(--bad); font-weight: 600; }
@media (prefers-color-scheme: dark) {
  :root { --good: #58d68d; --bad: #ec7063; }
  svg { filter: invert(.9) hue-rotate(180deg); }
}
"""


def html(reproduction: Reproduction) -> str:
    """The whole report.

    >>> from overhand.evidence import QUICK
    >>> "All checks are met." in html(Reproduction(QUICK, evidence=(), seconds=1.0))
    True
    """
    verdict = "All checks are met." if reproduction.is_met else "Some checks are not met."
    scale = reproduction.scale
    parts = [_section(found) for found in reproduction.evidence]
    contents = "".join(
        f'<li><a href="#{found.key}">{escape(found.title)}</a> {_verdict(found)}</li>'
        for found in reproduction.evidence
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>overhand: claims reproduced</title><style>{_STYLE}</style></head><body>"
        "<h1>Concurrent shuffle differential privacy, reproduced</h1>"
        f"<p>{escape(scale.name)} scale, {escape(str(scale.privacy))}, seed {scale.seed}; "
        f"{reproduction.seconds:,.0f} seconds. <strong>{verdict}</strong></p>"
        f"<ol>{contents}</ol>{''.join(parts)}</body></html>\n"
    )


def _section(found: Evidence) -> str:
    return (
        f'<section id="{found.key}"><h2>{escape(found.title)}</h2>'
        f"<blockquote>{escape(found.claim)}</blockquote>"
        + "".join(_figure(figure) for figure in found.figures)
        + _table(found.columns, found.rows)
        + "".join(_check(check) for check in found.checks)
        + f"<p>{escape(found.method)}</p></section>"
    )


def _figure(figure: Figure) -> str:
    svg = phone_svg(figure.lines, x=figure.x, y=figure.y, scale=figure.scale)
    label = escape(f"{figure.y} against {figure.x}")
    return f'<figure role="img" aria-label="{label}">{svg}</figure>'


def _check(check: Check) -> str:
    limits = (
        f"at least {check.least:g}"
        if check.most == float("inf")
        else f"{check.least:.4g} to {check.most:.4g}"
    )
    return (
        f"<p>{_mark(check.is_met)} {escape(check.what)}: <strong>{check.value:.4g}</strong> "
        f"(must be {limits})</p>"
    )


def _verdict(found: Evidence) -> str:
    """Nothing is met where nothing is checked."""
    return _mark(found.is_met) if found.checks else "(shown, not checked)"


def _mark(is_met: bool) -> str:
    return '<span class="met">met</span>' if is_met else '<span class="missed">missed</span>'


def _table(columns: tuple[str, ...], rows: tuple[tuple[Any, ...], ...]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><tr>{head}</tr>{body}</table></div>'


def _cell(cell: Any) -> str:
    return f"{cell:,}" if isinstance(cell, (int, float)) else str(cell)
