"""The dashboard on any screen: phones, colours, names for readers, and a burst of news."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from support.browser_fixtures import Opener, overflow
from support.killed_processes import until
from support.scripted_server import FakeServer, estimate, histogram, history, levels, status

PHONES = pytest.mark.parametrize("width", [320, 360])
pytestmark = pytest.mark.browser


@PHONES
@pytest.mark.parametrize("case", ["count", "histogram", "billions"])
def test_a_phone_needs_no_sideways_scrolling(
    width: int, case: str, open_page: Opener, server: FakeServer
) -> None:
    if case == "histogram":
        server.status, server.history = histogram(40)
        server.status["levels"] = levels(23255, lost=12, own=4321, garbage=99)
    if case == "billions":
        huge = estimate(t=987_654_321, value=-9_876_543_210.987, width=0.123)
        server.status = status("real", estimate=huge, alarms=["x" * 400], healthy=False)
        server.status["plan"]["horizon"] = 10**10
        server.history = lambda coordinate: history(50, last=987_654_321, slope=-10.0)
    visit = open_page(
        viewport={"width": width, "height": 740},
        device_scale_factor=3,
        is_mobile=True,
        has_touch=True,
    )
    visit.wait_for("connection-state", "Live")
    visit.page.locator("#chart").tap(position={"x": width / 2, "y": 60})
    visit.wait_for("chart-reading", re.compile("^After "))
    assert visit.page.evaluate("innerWidth") == width
    assert overflow(visit.page) <= 0
    cut = """() => [...document.querySelectorAll(".plot text")].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < 0 || box.right > innerWidth;
    }).length"""
    assert visit.page.evaluate(cut) == 0


def test_the_charts_follow_the_width(open_page: Opener) -> None:
    visit = open_page(viewport={"width": 1200, "height": 800})

    def painted() -> float:
        return float(visit.page.evaluate("document.querySelector('#chart .area').getBBox().width"))

    wide = painted()
    visit.page.set_viewport_size({"width": 400, "height": 800})
    until("the chart is narrow", lambda: painted() < wide / 2)
    assert overflow(visit.page) <= 0


CONTRASTS = """() => {
    const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => {
        const [r, g, b] = numbers(colour).map((c) =>
            c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const under = (element) => {
        for (let each = element; each; each = each.parentElement) {
            const colour = getComputedStyle(each).backgroundColor;
            if ((numbers(colour)[3] ?? 1) === 1) return colour;
        }
        return "rgb(255, 255, 255)";
    };
    return [...document.querySelectorAll("body *")]
        .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim())
            && e.checkVisibility() && !e.closest("option, noscript"))
        .map((e) => {
            const style = getComputedStyle(e);
            const text = light(e.namespaceURI.endsWith("svg") ? style.fill : style.color);
            const ground = light(under(e));
            const ratio = (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05);
            return [e.id || e.className.baseVal || e.className || e.tagName, ratio];
        });
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_colour_schemes_can_be_read(
    scheme: str, open_page: Opener, server: FakeServer
) -> None:
    server.status, server.history = histogram(5)
    server.status.update(alarms=["late"], levels=levels(lost=1))
    server.status["estimate"]["fallback"] = True
    visit = open_page(color_scheme=scheme)
    visit.wait_for_number_of("#bars .bar", 5)
    visit.wait_for_number_of("#alarm-list li", 1)
    page_colour = visit.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert page_colour == {"light": "rgb(244, 246, 248)", "dark": "rgb(16, 21, 27)"}[scheme]
    ratios = visit.page.evaluate(CONTRASTS)
    assert len(ratios) > 40
    assert [(name, ratio) for name, ratio in ratios if ratio < 4.5] == []


def test_everything_to_operate_has_a_name(open_page: Opener, server: FakeServer) -> None:
    server.status, server.history = histogram(5)
    visit = open_page()
    visit.wait_for_number_of("#bars .bar", 5)
    for role, name in [
        ("heading", "Running histogram"),
        ("combobox", "Bucket"),
        ("radio", "Sum"),
        ("radio", "Per user"),
        ("slider", "The running estimate, read at a number of users"),
        ("img", re.compile("Bar chart of 5 buckets; largest: bucket 2")),
        ("progressbar", "Level 1"),
        ("progressbar", "4,000 of 1,000,000 users"),
    ]:
        expect(visit.page.get_by_role(role, name=name)).to_have_count(1)  # type: ignore[arg-type]
    reached = []
    for _ in range(4):
        visit.page.keyboard.press("Tab")
        reached.append(visit.page.evaluate("document.activeElement.id"))
    assert reached[0] == "coordinate-list"
    assert "chart" in reached


def test_five_hundred_points_and_a_burst_of_news_stay_responsive(
    open_page: Opener, server: FakeServer
) -> None:
    server.history = lambda coordinate: history(500, last=100_000)
    visit = open_page()
    assert visit.points() == 500
    visit.page.evaluate(
        """() => {
            [globalThis.frames_, globalThis.drawn_] = [0, 0];
            const count = () => { globalThis.frames_ += 1; requestAnimationFrame(count); };
            requestAnimationFrame(count);
            const observer = new MutationObserver(() => { globalThis.drawn_ += 1; });
            observer.observe(document.getElementById("chart"), { childList: true, subtree: true });
        }"""
    )
    for i in range(1000):
        server.send("estimate", estimate(t=100_001 + i, value=50_000.0 + i))
        server.send("levels", levels(17 + i))
    visit.wait_for("number", "50,999")
    assert visit.points() == 500
    frames, drawn = visit.page.evaluate("[frames_, drawn_]")
    assert 0 < drawn <= frames + 1, "more than once for a picture on the screen"
    until("it goes on", lambda: visit.page.evaluate("frames_") >= frames + 5)
