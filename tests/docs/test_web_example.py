"""The poll of `examples/web` in a real browser, from a click to the published sum."""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from support.browser_fixtures import PATIENCE

ROOT = Path(__file__).parents[2]
POLL = ROOT / "examples" / "web" / "serve.py"
HORIZON = 1000
ROUNDS = 40
REPORTS = "**/v1/reports"

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def lowest() -> int:
    """How many votes fill a batch."""
    told = "import serve; print(serve.poll_plan(int(serve.sys.argv[1])).tree.lowest)"
    found = subprocess.run(
        [sys.executable, "-c", told, str(HORIZON)],
        env=os.environ | {"PYTHONPATH": f"{POLL.parent}:{ROOT / 'src'}"},
        capture_output=True,
        check=True,
    )
    return int(found.stdout)


@pytest.fixture
def address(lowest: int) -> Iterator[str]:
    """A poll in which two votes are missing for a result."""
    command = [sys.executable, str(POLL), "--port=0", "--rate=1000", f"--horizon={HORIZON}"]
    with subprocess.Popen(
        [*command, f"--voters={lowest - 2}"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[1]
        process.terminate()


@pytest.fixture
def new_page(browser: Browser, address: str) -> Iterator[Callable[[], Page]]:
    """Pages of different people, each in a browser of its own; closed before the poll is."""
    with contextlib.ExitStack() as stack:

        def opened() -> Page:
            context = browser.new_context()
            context.set_default_timeout(PATIENCE)
            stack.callback(context.close)
            return context.new_page()

        yield opened


def visited(page: Page, address: str, complaints: list[str]) -> Page:
    """The poll, ready for a vote."""
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if said.type == "error" else None)
    page.goto(address)
    wait_until(page, "ready")
    return page


def wait_until(page: Page, state: str) -> None:
    expect(page.locator("#state")).to_have_attribute("data-state", state)


def test_clicks_in_two_pages_are_counted_and_a_reload_is_not(
    new_page: Callable[[], Page], address: str, lowest: int
) -> None:
    complaints: list[str] = []
    first = visited(new_page(), address, complaints)
    first.get_by_role("button", name="Love").click()
    wait_until(first, "counted")
    first.reload()
    wait_until(first, "counted")
    assert all(button.is_disabled() for button in first.get_by_role("button").all())
    # With a second vote from here the batch would be full.
    first.wait_for_timeout(3000)
    expect(first.locator("#counted")).to_have_attribute("data-votes", "0")
    second = visited(new_page(), address, complaints)
    second.get_by_role("button", name="Wow").click()
    wait_until(second, "counted")
    for page in (first, second):
        counted = page.locator("#counted")
        expect(counted).to_have_attribute("data-votes", str(lowest))
        expect(page.locator("#results dd")).to_have_count(5)
    assert complaints == []


def test_a_vote_that_was_not_delivered_is_sent_after_a_reload(
    new_page: Callable[[], Page], address: str
) -> None:
    page = visited(new_page(), address, [])
    lost, sent = list[bytes | None](), list[bytes | None]()

    def lose(route: Route) -> None:
        lost.append(route.request.post_data_buffer)
        route.abort()

    def listen(request: Request) -> None:
        if request.method == "POST":
            sent.append(request.post_data_buffer)

    page.route(REPORTS, lose)
    with page.expect_event("requestfailed"):
        page.get_by_role("button", name="Sad").click()
    page.on("request", listen)
    page.unroute(REPORTS)
    page.reload()
    wait_until(page, "counted")
    assert set(sent) == set(lost)
    assert len(set(lost)) == 1


def test_a_page_of_another_origin_is_told_that_nobody_answers(
    new_page: Callable[[], Page], address: str
) -> None:
    page, other = new_page(), "http://localhost:1"

    def copied(route: Route) -> None:
        route.fulfill(response=route.fetch(url=route.request.url.replace(other, address)))

    page.route(f"{other}/**", copied)
    page.clock.install()
    page.goto(other)
    state, patience = page.locator("#state"), time.monotonic() + PATIENCE / 1000
    while state.get_attribute("data-state") == "connecting" and time.monotonic() < patience:
        page.clock.run_for(60_000)
        page.wait_for_timeout(50)
    wait_until(page, "broken")
    expect(state).to_contain_text("GET /v1/document failed: no answer from")


MEASURE = """async ({ text, value }) => {
    const { Document } = await import("/client/document.js");
    const document = await Document.of(new TextEncoder().encode(text));
    const long = [];
    const observer = new PerformanceObserver((list) => long.push(...list.getEntries()));
    observer.observe({ type: "longtask" });
    const times = [];
    for (let i = 0; i < 21; i++) {
        const started = performance.now();
        await document.encode(document.plan.kind.coordinates(value));
        times.push(performance.now() - started);
        await new Promise((resolve) => setTimeout(resolve));
    }
    long.push(...observer.takeRecords());
    return {
        middle: times.sort((a, b) => a - b)[10],
        longest: Math.max(0, ...long.map((task) => task.duration)),
    };
}"""


def test_a_report_takes_no_time_that_anybody_would_notice(
    new_page: Callable[[], Page], address: str
) -> None:
    """A task that freezes the page is one of more than 50 ms: the browser lists these alone.

    It counts the time that other processes take from it, too. What is long by itself is long every
    time, so the best of some rounds must be without.
    """
    plans = POLL.parent.parent.parent / "clients" / "javascript" / "test" / "support" / "plans.js"
    told = subprocess.run(["node", str(plans)], capture_output=True, check=True).stdout
    page = visited(new_page(), address, [])
    for case in json.loads(told):
        given = {"text": case["text"], "value": case["value"]}
        middle = longest = math.inf
        for _ in range(ROUNDS):
            took = page.evaluate(MEASURE, given)
            middle, longest = min(middle, took["middle"]), min(longest, took["longest"])
            if middle <= case["most"] and longest <= 50:
                break
        print(case["name"], round(middle, 1), round(longest))
        assert middle <= case["most"], case["name"]
        assert longest <= 50, case["name"]
