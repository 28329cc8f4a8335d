"""The report: one HTML file with everything in it, that a phone can show."""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING, Any

from overhand.evidence.findings import Check, Figure, Finding
from overhand.evidence.reproduction import Reproduction
from overhand.plots import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLE = """
:root { color-scheme: light dark; --line: #8886; --good: #1e8449; --bad: #b03a2e; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; }
blockquote { margin: 0; padding-left: .8rem; border-left: 3px solid var(--line); }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; margin: .8rem 0; }
th, td { padding: .25rem .7rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
figure { margin: 1rem 0; background: #fff; border-radius: 6px; } svg { width: 100%; height: auto; }
.met { color: var(--good); } .missed { color: var(--bad); font-weight: 600; }
"""


def html(reproduction: Reproduction) -> str:
    """The whole report."""
    verdict = "Every check is met." if reproduction.is_met else "Some checks are missed."
    scale = reproduction.scale
    parts = [_section(finding) for finding in reproduction.findings]
    contents = "".join(
        f'<li><a href="#{f.key}">{escape(f.title)}</a> {_mark(f.is_met)}</li>'
        for f in reproduction.findings
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


def _section(finding: Finding) -> str:
    return (
        f'<section id="{finding.key}"><h2>{escape(finding.title)}</h2>'
        f"<blockquote>{escape(finding.claim)}</blockquote><p>{escape(finding.method)}</p>"
        + "".join(f"<figure>{_svg(figure)}</figure>" for figure in finding.figures)
        + _table(finding.columns, finding.rows)
        + "".join(_check(check) for check in finding.checks)
        + "</section>"
    )


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


def _svg(figure: Figure) -> str:
    drawn = new_figure(7.5, 4.2)
    axes = drawn.subplots()
    for one in figure.series:
        getattr(axes, figure.scale)(one.x, one.y, one.style, label=one.label, markersize=4)
    _finish(axes, figure)
    text = io.StringIO()
    drawn.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()
    return svg[svg.index("<svg") :]


def _finish(axes: Axes, figure: Figure) -> None:
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    axes.grid(True, which="both", alpha=0.25)
    axes.legend(fontsize=8)
